"""Loads the pipeline that a Python file declares, by the file's path."""

import hashlib
import importlib.util
import linecache
import os
import sys
import traceback
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from clew.errors import ClewError, GraphError, GraphErrors
from clew.pipeline.declare import Pipeline

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


@dataclass(eq=False)
class LoadFailed(ClewError):
    """A file does not give a pipeline."""

    file: str
    what: str
    cure: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}; {self.cure}"


@dataclass(eq=False)
class ImportRaised(ClewError):
    """The user's file raised while it was imported."""

    file: str
    error: str
    frames: str
    #: What was wrong with the lines before, which had declared something already.
    before: tuple[GraphError, ...] = ()

    def __str__(self) -> str:
        found = [f"{self.file} cannot be imported: {self.error}", self.frames]
        if self.before:
            found += ["and this is wrong in what it had declared by then:", *(f"  {error}" for error in self.before)]
        return "\n".join(part for part in (*found, "mend the file") if part)


def load(path: str, name: str | None = None, original: str | None = None) -> Pipeline:
    """Import the file and return its pipeline: the one called `name`, or the only one there is.

    The file's directory is put on `sys.path`, as Python does for a script, so that modules beside it import. Where the
    file is a copy, `original` is what its own `__file__` shall say.
    """
    return _choose(path, _import(_python_file(path), original), name)


def _python_file(path: str) -> Path:
    file = Path(path)
    if not file.exists():
        raise LoadFailed(path, "there is no such file", "give the path of the Python file that declares the pipeline")
    if not file.is_file() or file.suffix != ".py":
        raise LoadFailed(path, "this is not a Python file", "give the path of the .py file that declares the pipeline")
    return file.resolve()


def _import(file: Path, original: str | None) -> ModuleType:
    directory = str(file.parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    name = _module_name(file)
    loader = CopyLoader(name, str(file), original) if original else None
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    # A name that ends in .py always has a loader.
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Registered while it runs: dataclasses, pickle and modules beside it look it up by its name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        raise _explained(file, error, module) from error
    return module


class CopyLoader(SourceFileLoader):
    """Loads a module from a copy of its file, and lets it take itself for the original: `__file__`, and all frames.

    A module that makes paths from its `__file__` means places beside the original, and so does who reads a traceback.
    """

    def __init__(self, name: str, file: str, original: str) -> None:
        super().__init__(name, file)
        self._original = original

    def get_code(self, fullname: str) -> CodeType:
        # Never from a file of bytecode: loading one puts the path of the copy into it.
        data = self.get_data(self.path)
        # Lines are shown as they were when the copy was made; the original may be elsewhere, or changed since.
        lines = importlib.util.decode_source(data).splitlines(keepends=True)
        linecache.cache[self._original] = (len(data), None, lines, self._original)
        return self.source_to_code(data, self._original)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self._original
        super().exec_module(module)


def _module_name(file: Path) -> str:
    """Return the file's own name, or one of its own where another module has that already."""
    taken = sys.modules.get(file.stem)
    if taken is None and file.stem not in sys.stdlib_module_names:
        return file.stem
    if taken is not None and getattr(taken, "__file__", None) == str(file):
        return file.stem
    return f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"


def _explained(file: Path, error: BaseException, module: ModuleType) -> BaseException:
    """Return what to raise in place of what the user's file raised, with what was wrong before it did."""
    before = {id(pipeline): pipeline for pipeline in _pipelines(module).values()}
    wrong = tuple(found for pipeline in before.values() for found in pipeline.wrong_so_far)
    if isinstance(error, GraphError):
        located = error if error.location else GraphError(error.message, _own_location(error))
        name = next((pipeline.name for pipeline in before.values()), "")
        return GraphErrors(name, (*wrong, located)) if wrong else located
    if isinstance(error, GraphErrors | KeyboardInterrupt):
        return error
    if isinstance(error, SystemExit):
        what = f"it ends the process (SystemExit: {error.code})"
        said = f"{what}; a file of a pipeline only declares, so put the rest under if __name__ == '__main__'"
        return ImportRaised(str(file), said, _own_frames(error), wrong)
    # A SyntaxError's last lines hold the place and the caret.
    said = "".join(traceback.format_exception_only(error)).strip()
    return ImportRaised(str(file), said, _own_frames(error), wrong)


def _own_frames(error: BaseException) -> str:
    return "".join(traceback.format_list(_frames(error))).rstrip()


def _own_location(error: BaseException) -> str:
    """Return `file:line` of the user's own line that raised."""
    frames = _frames(error)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]


def _is_machinery(filename: str) -> bool:
    # In angle brackets: importlib, and what dataclasses write for themselves.
    return filename.startswith((_PACKAGE, "<"))


def _choose(path: str, module: ModuleType, name: str | None) -> Pipeline:
    found = _pipelines(module)
    if name is not None:
        if name not in found:
            raise LoadFailed(path, f"it has no pipeline called {name}", _instead(path, found))
        return found[name]
    distinct = {id(pipeline): pipeline for pipeline in found.values()}
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    if not found:
        raise LoadFailed(path, "it declares no pipeline", _instead(path, found))
    raise LoadFailed(path, f"it declares {len(distinct)} pipelines: {', '.join(found)}", _instead(path, found))


def _pipelines(module: ModuleType) -> dict[str, Pipeline]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Pipeline)}


def _instead(path: str, found: dict[str, Pipeline]) -> str:
    if found:
        return "say which one: " + " or ".join(f"{path}:{name}" for name in found)
    return 'declare one at the top level of the file: pipeline = Pipeline("name")'
