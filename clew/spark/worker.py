"""What runs inside a Python worker of an executor: load the program once, then execute tasks."""

import contextlib
import os
import pickle
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import SparkFiles, TaskContext

from clew.errors import ClewError
from clew.pipeline.graph import Graph
from clew.pipeline.load import CopyLoader, load
from clew.runtime.execute import execute
from clew.runtime.task import Task
from clew.spark import output
from clew.spark.program import ProgramRef

#: The property of a job that names its program.
PROGRAM = "clew.program"
#: Where the worker was started: on a cluster, files that Spark ships are found from here.
_HOME = os.getcwd()
#: By content and directories: a file that is loaded elsewhere means other files by the same relative paths.
_loaded: dict[tuple[str, str, str], Graph] = {}
_bundles: list[str] = []


@dataclass(frozen=True, slots=True)
class Raised:
    """An error of Clew's own, to be raised in control: Spark would try the task again in vain."""

    error: ClewError


def load_program(ref: ProgramRef) -> Graph:
    """Return the pipeline that a job belongs to; loaded once per worker and content."""
    _stay_importable()
    if os.getcwd() != ref.directory and os.path.isdir(ref.directory):
        os.chdir(ref.directory)
    key = (ref.digest, ref.directory, ref.folder)
    if key not in _loaded:
        path = Path(_HOME, SparkFiles.getRootDirectory(), ref.archive)
        with _OfJob.at_rest():
            _loaded[key] = pickle.loads(path.read_bytes()) if ref.kind == "pickle" else _load_bundle(ref, path)
    return _loaded[key]


def _stay_importable() -> None:
    """Let Python files that Spark ships be found from any directory: on a cluster their paths are relative."""
    relative = {path for path in sys.path if path and not os.path.isabs(path)}
    if relative:
        places = (os.path.normpath(os.path.join(_HOME, path)) if path in relative else path for path in sys.path)
        sys.path[:] = dict.fromkeys(places)


def _load_bundle(ref: ProgramRef, archive: Path) -> Graph:
    folder = _unpacked(archive)
    _forget_older_bundles()
    _bundles.append(str(folder))
    sys.meta_path.insert(0, _Originals(str(folder), ref.folder))
    return load(str(folder / ref.file), ref.name, os.path.join(ref.folder, ref.file)).graph()


class _OfJob(MetaPathFinder):
    """Finds the modules of the program that a job belongs to, for functions that Spark itself unpickles.

    A user-defined function of a DataFrame names its module only. It comes last, when nobody else knows the module.
    """

    _resting = False

    @classmethod
    @contextlib.contextmanager
    def at_rest(cls) -> Iterator[None]:
        """Find nothing while a program is loaded: a module that it looks for in vain would load it once more."""
        cls._resting = True
        try:
            yield
        finally:
            cls._resting = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        context = TaskContext.get()
        text = context.getLocalProperty(PROGRAM) if context is not None else None
        if not text or path is not None or self._resting:
            return None
        ref = ProgramRef.parse(text)
        if ref.kind != "zip":
            return None
        load_program(ref)
        if name in sys.modules:
            found = sys.modules[name]
            return ModuleSpec(name, _Loaded(found), origin=getattr(found.__spec__, "origin", None))
        finders = [finder for finder in sys.meta_path if isinstance(finder, _Originals)]
        return finders[0].find_spec(name, path, target) if finders else None


class _Loaded(Loader):
    """Gives a module that has been loaded meanwhile."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        pass


def prepare() -> None:
    """Make this process ready for user code: it finds its modules, and what it prints is heard."""
    output.install()
    if not any(isinstance(finder, _OfJob) for finder in sys.meta_path):
        sys.meta_path.append(_OfJob())


class _Originals(MetaPathFinder):
    """Finds the modules of a bundle, and lets each take itself for the file that it is a copy of.

    Places beside the copy are gone with the session: a sink there would lose what was written to it.
    """

    def __init__(self, bundle: str, folder: str) -> None:
        self._bundle, self._folder = bundle, folder

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader) or not _is_in(self._bundle, spec.origin):
            return None
        file = spec.loader.path
        spec.loader = CopyLoader(name, file, os.path.join(self._folder, os.path.relpath(file, self._bundle)))
        return spec


def _is_in(folder: str, file: str | None) -> bool:
    return file is not None and file.startswith(folder + os.sep)


def _unpacked(archive: Path) -> Path:
    """Unpack a bundle beside its archive, where Spark removes it with the session; all workers there share it."""
    folder = archive.resolve().with_suffix("")
    if not folder.exists():
        own = tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent)
        with zipfile.ZipFile(archive) as bundle:
            bundle.extractall(own)
        # Another worker may have been faster; what it unpacked is the same.
        with contextlib.suppress(OSError):
            os.rename(own, folder)
        shutil.rmtree(own, ignore_errors=True)
    return folder


def _forget_older_bundles() -> None:
    """Make sure that a module of another version of the pipeline is not taken for one of this version."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Originals)]
    for folder in _bundles:
        for name, module in list(sys.modules.items()):
            if _is_in(folder, getattr(getattr(module, "__spec__", None), "origin", None)):
                del sys.modules[name]
        if folder in sys.path:
            sys.path.remove(folder)


def run_tasks(ref: ProgramRef, tasks: Iterable[bytes]) -> Iterator[Any]:
    """Execute the tasks of one partition; yield how long each took, and its result."""
    # A session that was given to Clew has a daemon of its own.
    prepare()
    graph = load_program(ref)
    for task in tasks:
        start = time.monotonic()
        result = run_task(graph, pickle.loads(task))
        yield time.monotonic() - start, result


def run_task(graph: Graph, task: Task) -> Any:
    try:
        return execute(graph, task)
    except ClewError as error:
        return Raised(error)
