"""How the user's code reaches executors: by content, once per content, never by pickling what a module holds.

A pipeline file travels as a bundle: the file and the Python modules beside it, zipped, named by its hash. A pipeline
that has no file (a notebook, a test) is cloudpickled by value and travels as a file of bytes, named by its hash too.
Jobs carry only the name; a worker loads it once.
"""

import hashlib
import io
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from clew.errors import SetupFailed
from clew.pipeline.code import is_own
from clew.pipeline.contracts import Framed, FrameSink, Source, Streamed
from clew.pipeline.graph import Generative, Graph, OperatorSpec

_SKIPPED = {"__pycache__", "node_modules", "build", "dist"}
#: A bundle is code; a folder with more than this beside the pipeline file is not a project of its own.
_MOST_BYTES = 20 << 20


@dataclass(frozen=True, slots=True)
class ProgramRef:
    """What a job carries: which program, and how to open it."""

    digest: str
    kind: str
    #: For a bundle: the pipeline file inside it, and the name of the pipeline there.
    file: str = ""
    name: str | None = None
    #: For a bundle: the folder that its files are copies of.
    folder: str = ""
    #: Where relative paths of the user's start: the directory that the run was started in.
    directory: str = field(default_factory=os.getcwd)

    @property
    def archive(self) -> str:
        return f"clew-{self.digest}.{self.kind}"

    @property
    def text(self) -> str:
        """The reference as a property of a job."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "ProgramRef":
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Program:
    """A pipeline's code, ready to be sent."""

    ref: ProgramRef
    content: bytes

    @classmethod
    def of_file(cls, path: str | Path, name: str | None = None) -> "Program":
        """Bundle a pipeline file with the local modules beside it."""
        file = Path(path).resolve()
        content = _zip(file)
        return cls(ProgramRef(_digest(content), "zip", file.name, name, str(file.parent)), content)

    @classmethod
    def of_graph(cls, graph: Graph) -> "Program":
        """Pickle a pipeline that was declared in this process."""
        graph = _travelling(graph)
        modules = list(_own_modules(graph))
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            content = cloudpickle.dumps(graph)
        except Exception as error:
            raise SetupFailed(
                f"pipeline {graph.name} cannot be sent to Spark executors: {error}",
                "declare it in a file of its own and use `clew run FILE`, or open what cannot be pickled (a lock, a "
                "connection) inside the function",
            ) from error
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)
        return cls(ProgramRef(_digest(content), "pickle"), content)

    def write(self) -> str:
        """Write the program to a file named by its content, for Spark to ship; return its path."""
        directory = Path(tempfile.gettempdir()) / f"clew-programs-{os.getuid()}"
        directory.mkdir(mode=0o700, exist_ok=True)
        path = directory / self.ref.archive
        if not path.exists():
            partial = path.with_suffix(f".{os.getpid()}.partial")
            partial.write_bytes(self.content)
            partial.rename(path)
        return str(path)


def fingerprint(graph: Graph, program: Program) -> str:
    """Say which code two processes must have in common: a pipeline's name, and what its files hold."""
    return f"{graph.name}@{program.ref.digest}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]


def _zip(file: Path) -> bytes:
    out = io.BytesIO()
    size = 0
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(_sources(file)):
            size += path.stat().st_size
            if size > _MOST_BYTES:
                raise SetupFailed(
                    f"the Python files beside {file.name} are more than {_MOST_BYTES >> 20} MB",
                    "put the pipeline into a folder of its own, with only the modules it imports",
                )
            # A fixed date: the name of a bundle must depend on its content alone.
            entry = zipfile.ZipInfo(str(path.relative_to(file.parent)), (2020, 1, 1, 0, 0, 0))
            archive.writestr(entry, path.read_bytes())
    return out.getvalue()


def _sources(file: Path) -> Iterator[Path]:
    """Yield the pipeline file, the modules beside it, and all modules of the packages beside it."""
    yield file
    for path in file.parent.iterdir():
        if path.suffix == ".py" and path != file:
            yield path
        elif path.is_dir() and path.name not in _SKIPPED and (path / "__init__.py").exists():
            yield from (module for module in path.rglob("*.py") if not _SKIPPED.intersection(module.parts))


def _travelling(graph: Graph) -> Graph:
    """Leave DataFrame functions at home, those of sources and sinks too: they run in the driver.

    They may hold sessions, DataFrames and used UDFs.
    """
    return replace(graph, operators={name: _without_frames(spec) for name, spec in graph.operators.items()})


def _without_frames(spec: OperatorSpec) -> OperatorSpec:
    functions = (_without_content(replace(f, run=_at_home) if f.style == "dataframe" else f) for f in spec.functions)
    at_home = isinstance(spec.source, Framed | Streamed)
    sinks = {name: _SinkAtHome() if isinstance(sink, FrameSink) else sink for name, sink in spec.sinks.items()}
    source = _SourceAtHome() if at_home else spec.source
    return replace(spec, functions=tuple(functions), source=source, sinks=sinks)


def _without_content(function: Generative) -> Generative:
    """Leave lookups at home: executors get what the run has kept of them."""
    lookups = {name: replace(one, read=_at_home) for name, one in function.besides.lookups.items()}
    return replace(function, besides=replace(function.besides, lookups=lookups))


class _SourceAtHome(Source):
    """Stands on executors for a source that is read in the driver."""

    def describe(self) -> str:
        return "a source that is read in the driver"


class _SinkAtHome(FrameSink):
    """Stands on executors for a sink that is written in the driver."""

    def describe(self) -> str:
        return "a sink that is written in the driver"

    def write_frame(self, frame: Any, name: str) -> None:
        _at_home()


def _at_home(*_: Any) -> Any:
    raise AssertionError("a DataFrame function was called on an executor")


def _own_modules(graph: Graph) -> Iterator[ModuleType]:
    """Yield the user's own modules that the graph's objects come from: executors cannot import those."""
    seen: set[str] = set()
    for spec in graph.operators.values():
        objects: list[Any] = [part for function in spec.functions for part in (function.run, function.besides.setup)]
        objects += [spec.general, spec.source, *spec.sinks.values(), *spec.reads.values()]
        for thing in objects:
            for part in (thing, *getattr(thing, "__dict__", {}).values()):
                name = getattr(part, "__module__", None) or type(part).__module__
                if name not in seen and name != "__main__" and is_own(name):
                    seen.add(name)
                    yield sys.modules[name]
