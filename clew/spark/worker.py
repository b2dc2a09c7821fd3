"""What runs inside a Python worker of an executor: load the program once, then execute tasks."""

import contextlib
import os
import pickle
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkFiles

from clew.errors import ClewError
from clew.pipeline.graph import Graph
from clew.runtime.task import Task, execute
from clew.spark.program import ProgramRef

#: Where the worker was started: on a cluster, files that Spark ships are found from here.
_HOME = os.getcwd()
#: By content and directory: a file that is loaded elsewhere means other files by the same relative paths.
_loaded: dict[tuple[str, str], Graph] = {}
_bundles: list[str] = []


@dataclass(frozen=True, slots=True)
class Raised:
    """An error of Clew's own, to be raised in control: Spark would try the task again in vain."""

    error: ClewError


def load_program(ref: ProgramRef) -> Graph:
    """Return the pipeline that a job belongs to; loaded once per worker and content."""
    if os.getcwd() != ref.directory and os.path.isdir(ref.directory):
        os.chdir(ref.directory)
    key = (ref.digest, ref.directory)
    if key not in _loaded:
        path = Path(_HOME, SparkFiles.getRootDirectory(), ref.archive)
        _loaded[key] = pickle.loads(path.read_bytes()) if ref.kind == "pickle" else _load_bundle(ref, path)
    return _loaded[key]


def _load_bundle(ref: ProgramRef, archive: Path) -> Graph:
    from clew.pipeline.load import load

    folder = _unpacked(archive)
    _forget_older_bundles()
    _bundles.append(str(folder))
    return load(str(folder / ref.file), ref.name).graph()


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
    for folder in _bundles:
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(folder):
                del sys.modules[name]
        if folder in sys.path:
            sys.path.remove(folder)


def run_tasks(ref: ProgramRef, tasks: Iterable[bytes]) -> Iterator[Any]:
    """Execute the tasks of one partition; yield how long each took, and its result."""
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
