"""Stand-ins for pyspark, for processes that need a pipeline's graph and never touch a record.

A pipeline file says `from pyspark.sql import DataFrame` at its top, and modules beside it do. After `install` such an
import costs nothing and starts nothing: every name of pyspark is a class made on demand, and what is called, compared
or subscripted gives another stand-in. A graph loaded so is the same as one loaded with pyspark, versions included:
`pipeline/code.py` reads no more of Spark than what stand-ins tell.
"""

import ast
import functools
import importlib
import importlib.util
import re
import sys
from abc import ABCMeta
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from clew.errors import ClewError

#: The packages whose place is taken: Spark's own, and what it speaks to its JVM with.
SPARK = ("pyspark", "py4j")

#: What starts a session when it is called, or needs one that was started.
_STARTS = {"getOrCreate", "create", "active", "SparkSession", "SparkContext", "SQLContext", "HiveContext"}
#: Values that code may look at; they are no stand-ins with pyspark either.
_VALUES = {
    "Window.unboundedPreceding": -(1 << 63), "Window.unboundedFollowing": (1 << 63) - 1, "Window.currentRow": 0,
}  # fmt: skip
#: Second names in pyspark.sql.functions: a function knows its first one only.
_SECOND_NAMES = {"column": "col", "negate": "negative", "power": "pow"}
#: What of pyspark is in `pipeline/sparktypes.py`: with it a declaration makes an Arrow schema of one of Spark's.
_IN_EARNEST = {
    *(f"pyspark.sql.types.{name}" for name in ("ArrayType", "DecimalType", "MapType", "StructField", "StructType")),
    *(f"pyspark.sql.pandas.types.{name}" for name in ("to_arrow_schema", "to_arrow_type")),
}
#: Of what Python does with objects, what gives another of Spark's, and what asks for a value.
_OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "neg", "invert", "getitem",
    "radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "rand", "ror", "eq", "ne", "lt", "le", "gt", "ge",
)  # fmt: skip
_QUESTIONS = ("bool", "len", "iter", "contains", "int", "float", "index")
#: What a user-defined function has, besides what it was made of.
_OF_FUNCTIONS = {"returnType", "evalType", "deterministic"}


@dataclass(eq=False)
class SparkAbsent(ClewError):
    """A pipeline file asks Spark for something while it is imported, in a process without Spark."""

    asked: str

    def __str__(self) -> str:
        return (
            f"{self.asked} is asked of Spark while the file is imported, expected a file that only declares, for it is "
            'loaded without Spark too; put this under if __name__ == "__main__", or into a function'
        )


def install() -> None:
    """Let pyspark be stand-ins in this process from now on; it must not have been imported."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    real = [name for name in SPARK if name in sys.modules]
    assert not real, f"{real[0]} is imported already, expected a process without it; install stand-ins first"
    sys.meta_path.insert(0, _Finder())


class _Finder(Loader):
    """Finds the modules that pyspark has, and makes each a stand-in."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path) if name.partition(".")[0] in SPARK else None
        if found is None:
            return None
        spec = ModuleSpec(name, self, origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = functools.partial(_attribute, module)


def _attribute(module: ModuleType, name: str) -> Any:
    """Return what a module has by a name; it is asked once."""
    value = _found(module, name)
    setattr(module, name, value)
    return value


def _found(module: ModuleType, name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version(module.__name__.partition(".")[0])
    if name == "__all__" and (exported := _exported(module)) is not None:
        return exported
    if _is_dunder(name):
        raise AttributeError(f"module {module.__name__} has no {name} here")
    full = f"{module.__name__}.{name}"
    if full in _IN_EARNEST:
        return getattr(importlib.import_module("clew.pipeline.sparktypes"), name)
    if hasattr(module, "__path__") and importlib.util.find_spec(full) is not None:
        return importlib.import_module(full)
    return _made(_SECOND_NAMES.get(name, name), module.__name__)


def _exported(module: ModuleType) -> list[str] | None:
    """Return what `from module import *` takes, as its source says; None where it does not say."""
    assert module.__spec__ is not None
    source = Path(module.__spec__.origin or "").read_text(encoding="utf-8")
    said = re.search(r"^__all__ = (\[[^\]]*\])", re.sub(r"#.*", "", source), re.MULTILINE)
    return None if said is None else [str(name) for name in ast.literal_eval(said[1])]


class Kind(ABCMeta):
    """Makes names of pyspark: each is a class, so that it can be an annotation, a base, or called."""

    # Of ABCMeta, as some classes of pyspark are, so that a user's class may have such a base and an abstract one.

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{cls.__name__} has no {name} here")
        path = f"{cls.__qualname__}.{name}"
        value = _VALUES[path] if path in _VALUES else _made(path, cls.__module__)
        if _is_made(cls):
            # Asked once; a user's own class is left as it was written.
            setattr(cls, name, value)
        return value

    def __call__(cls, *given: Any, **named: Any) -> Any:
        # Not of a user's own class, nor of one that is here in earnest.
        decorated = _decorated(_told(cls), given, named) if _is_made(cls) else None
        return super().__call__(*given, **named) if decorated is None else decorated


def _made(path: str, module: str) -> Kind:
    name = path.rpartition(".")[2]
    # What is caught or raised must be an exception.
    base = _Failure if name.endswith(("Exception", "Error")) else Absent
    return Kind(name, (base,), {"__module__": module, "__qualname__": path, "_made": True})


def _is_made(kind: Kind) -> bool:
    return "_made" in vars(kind)


def _told(kind: Kind) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


class Absent(metaclass=Kind):
    """Stands for whatever pyspark would give."""

    __module__ = "pyspark"

    def __init__(self, *given: Any, **named: Any) -> None:
        pass

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{self!r} has no {name} here")
        return _at(f"{self!r}.{name}")

    def __call__(self, *given: Any, **named: Any) -> Any:
        decorated = _decorated(repr(self), given, named)
        return _at(f"{self!r}()") if decorated is None else decorated

    def __repr__(self) -> str:
        return str(vars(self).get("_path") or f"{_told(type(self))}()")

    def _ask(self, *_: Any) -> NoReturn:
        raise SparkAbsent(f"what {self!r} is")


def _at(path: str) -> Absent:
    made = Absent()
    vars(made)["_path"] = path
    return made


for _name in _OPERATORS:
    setattr(Absent, f"__{_name}__", lambda self, *_: _at(repr(self)))
for _name in _QUESTIONS:
    setattr(Absent, f"__{_name}__", Absent._ask)


class _Failure(Absent, Exception):
    """Stands for an exception of Spark's."""

    __module__ = "pyspark"

    def __bool__(self) -> bool:
        return True


class Decorated(Absent):
    """Stands for a user-defined function of Spark, which keeps the function that it was made of."""

    __module__ = "pyspark"

    def __init__(self, function: Any) -> None:
        self.__name__ = type(function).__name__
        self.func = function
        functools.update_wrapper(self, function)

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_FUNCTIONS:
            raise AttributeError(f"{self!r} has no {name} here")
        return super().__getattr__(name)

    def __bool__(self) -> bool:
        return True

    def asNondeterministic(self) -> "Decorated":
        return self


def _decorated(path: str, given: tuple[Any, ...], named: dict[str, Any]) -> Decorated | None:
    """Return what a call makes of a function that it is given, as `udf` does; raise where it starts a session."""
    if path.rpartition(".")[2] in _STARTS:
        raise SparkAbsent(f"{path}()")
    function = given[0] if given else named.get("f")
    return Decorated(function) if callable(function) and not _is_stand_in(function) else None


def _is_stand_in(thing: Any) -> bool:
    """Say whether it stands for something of Spark's, and not for what a user made with it."""
    if isinstance(thing, Kind):
        return _is_made(thing)
    return isinstance(thing, Absent) and not isinstance(thing, Decorated)
