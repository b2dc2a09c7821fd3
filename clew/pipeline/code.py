"""Names code by what it does: a digest that is the same in every process, and another one when the code is.

What counts of a function is what its body says, with the constants, defaults and closures it uses, and the functions,
classes and constants of the user's own modules that it refers to, and what these refer to. Names of files, numbers of
lines, docstrings and addresses do not count; of Clew, of Python and of installed packages only the names do. Of Spark
these are the names alone, not where they are defined: that differs between its releases, and a process that has
stand-ins for it (`pipeline/absent.py`) does not know.
"""

import dis
import enum
import functools
import hashlib
import inspect
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clew.pipeline.absent import SPARK

#: Of a class, what Python itself keeps there.
_MACHINERY = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__", "__static_attributes__",
    "__abstractmethods__", "_abc_impl", "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__slots__",
    "__slotnames__", "__annotations__", "__annotate_func__", "__annotations_cache__", "__parameters__",
    "__orig_bases__",
}  # fmt: skip
_SIMPLE = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)
_ARROW = (pa.Schema, pa.DataType, pa.Field, pa.Scalar, pc.Expression)
_MISSING = object()


def digest_of(*things: Any) -> str:
    """Name what some functions, classes or values do."""
    return hashlib.sha256(_Reading().text(list(things)).encode()).hexdigest()[:16]


def is_own(name: str) -> bool:
    """Say whether a module is the user's own: not Clew's, nor Python's, nor of an installed package."""
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None)
    if name == "__main__":
        return True
    if module is None or path is None or name.split(".")[0] == "clew":
        return False
    return "site-packages" not in path and not path.startswith(sys.base_prefix + os.sep)


def parts_used(operator: Any, roots: Iterable[str]) -> dict[str, Any]:
    """Return what methods called `roots` use of their object, directly or through each other: methods and values."""
    found: dict[str, Any] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        # Looked up without calling anything: a property may open a connection.
        value = inspect.getattr_static(operator, name, _MISSING)
        if value is _MISSING or name in found:
            continue
        found[name] = _unwrapped(value)
        code = getattr(found[name], "__code__", None)
        waiting += sorted(_names(code)) if code is not None else []
    return dict(sorted(found.items()))


def _names(code: CodeType) -> set[str]:
    inner = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*inner)


class _Reading:
    """Reads code and values as text; a function or object that was read before is told by its place."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        #: Held, so that no id is given to another object meanwhile.
        self._held: list[Any] = []
        #: Lists and the like that are being read: equal ones may be one object or several, so they are read each time.
        self._inside: set[int] = set()

    def text(self, thing: Any) -> str:
        # Before all else: whether two of Spark's are one object, or a tuple of some kind, a stand-in does not tell.
        if _is_sparks(thing):
            return self._sparks(thing)
        if isinstance(thing, enum.Enum):
            return f"{_name(type(thing))}.{thing.name}"
        if isinstance(thing, _SIMPLE):
            return repr(thing)
        if isinstance(thing, _ARROW):
            return f"{type(thing).__name__} {thing}"
        if isinstance(thing, (list, tuple, set, frozenset, dict)):
            return self._container(thing)
        if id(thing) in self._seen:
            return f"the thing {self._seen[id(thing)]}"
        self._seen[id(thing)] = len(self._seen)
        self._held.append(thing)
        return self._of(thing)

    def _container(self, thing: Any) -> str:
        if id(thing) in self._inside:
            return "itself"
        self._inside.add(id(thing))
        try:
            if isinstance(thing, dict):
                return f"dict {[(self.text(key), self.text(value)) for key, value in thing.items()]}"
            if isinstance(thing, (set, frozenset)):
                # Their order is another one in every process.
                return f"set {sorted(_Reading().text(one) for one in thing)}"
            return f"{type(thing).__name__} {[self.text(one) for one in thing]}"
        finally:
            self._inside.remove(id(thing))

    def _of(self, thing: Any) -> str:
        match thing:
            case FunctionType():
                return self._function(thing)
            case MethodType():
                return f"method {self.text(thing.__func__)} of {self.text(thing.__self__)}"
            case functools.partial():
                return f"partial {self.text(thing.func)} {self.text(thing.args)} {self.text(thing.keywords)}"
            case type():
                return _name(thing) if _is_foreign(thing) else self._class(thing)
            case ModuleType() | BuiltinFunctionType():
                return _name(thing)
            case _:
                return self._object(thing)

    def _sparks(self, thing: Any) -> str:
        inside = None if isinstance(thing, type) else _inside(thing)
        if inside is not None and not _is_sparks(inside):
            return f"pyspark of {self.text(inside)}"
        name = thing.__qualname__ if isinstance(thing, type | FunctionType) else ""
        # Whether an attribute of a class or an object is a method or a value, a stand-in does not tell.
        return f"pyspark {name}" if "." not in name else "pyspark "

    def _function(self, function: FunctionType) -> str:
        closure = [self.text(cell) for cell in _closure(function)]
        if _is_foreign(function):
            # What somebody else's function was made around may be the user's.
            return f"{_name(function)} {closure}"
        given = (function.__defaults__, function.__kwdefaults__)
        parts = [self._code(function.__code__, function.__globals__), *map(self.text, given), *closure]
        return f"def [{'; '.join(parts)}]"

    def _code(self, code: CodeType, names: Mapping[str, Any]) -> str:
        arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        parts = [repr(arguments), repr(code.co_varnames), code.co_exceptiontable.hex()]
        for step in dis.get_instructions(code):
            if step.opcode in dis.hasconst:
                inner = step.argval
                told = self._code(inner, names) if isinstance(inner, CodeType) else self.text(inner)
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                told = f"{step.argval} {self._referred(step.argval, names, code)}"
            else:
                told = repr(step.argval)
            parts.append(f"{step.opname} {told}")
        return " ".join(parts)

    def _referred(self, name: str, names: Mapping[str, Any], code: CodeType) -> str:
        """Read what a global name stands for; of a module of the user's own, what the code may use of it."""
        if name not in names:
            return "builtin"
        value = names[name]
        if isinstance(value, ModuleType) and is_own(value.__name__):
            used = [one for one in code.co_names if one in vars(value)]
            return f"{value.__name__} {[self.text(vars(value)[one]) for one in used]}"
        return self.text(value)

    def _class(self, kind: type) -> str:
        bases = [self.text(base) for base in kind.__bases__]
        own = {name: value for name, value in vars(kind).items() if name not in _MACHINERY and not _made(name, kind)}
        names = [one.name for one in fields(kind)] if is_dataclass(kind) else []
        return f"class {bases} {names} {[(name, self.text(_unwrapped(value))) for name, value in sorted(own.items())]}"

    def _object(self, thing: Any) -> str:
        kind = self.text(type(thing))
        if is_dataclass(thing):
            return f"{kind} {[(one.name, self.text(getattr(thing, one.name))) for one in fields(thing)]}"
        inside = _inside(thing)
        if inside is not None:
            return f"{kind} of {self.text(inside)}"
        if not _is_foreign(type(thing)):
            return f"{kind} {[(name, self.text(value)) for name, value in sorted(vars_of(thing).items())]}"
        if isinstance(thing, (pa.Array, pa.ChunkedArray)):
            thing = pa.table({"": thing})
        return f"{kind} {_content(thing)}" if isinstance(thing, (pa.Table, pa.RecordBatch)) else kind


def _inside(thing: Any) -> Any:
    """Return the function that a thing was made around, where it tells."""
    # Looked up without calling anything: a DataFrame would ask Spark.
    inside = inspect.getattr_static(thing, "__wrapped__", None) or inspect.getattr_static(thing, "func", None)
    return inside if callable(inside) else None


def _is_sparks(thing: Any) -> bool:
    """Say whether a thing is Spark's, or made by it: a user-defined function names its user's module as its own."""
    match thing:
        case ModuleType():
            return False
        case MethodType():
            return _is_sparks(thing.__func__)
        case FunctionType():
            homes = [thing.__module__, thing.__globals__.get("__name__")]
        case type():
            homes = [thing.__module__]
        case _:
            homes = [type(thing).__module__]
    return any(str(home).partition(".")[0] in SPARK for home in homes)


def _content(table: pa.Table | pa.RecordBatch) -> str:
    """Name the records of a table that code refers to; it may be a large one."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write(table)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def vars_of(thing: Any) -> dict[str, Any]:
    """Return what an object holds, by name."""
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()) if name[:2] != "__"]
    return {**{name: getattr(thing, name) for name in slots if hasattr(thing, name)}, **getattr(thing, "__dict__", {})}


def _is_foreign(thing: Any) -> bool:
    """Say whether a function or class is somebody else's; one whose module is not here was sent to this process."""
    module = thing.__module__
    return module in sys.modules and not is_own(module)


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', getattr(thing, '__name__', ''))}"


def _made(name: str, kind: type) -> bool:
    """Say whether a method was written by `dataclass`: it follows from the fields."""
    code = getattr(vars(kind)[name], "__code__", None)
    return is_dataclass(kind) and code is not None and code.co_filename == "<string>"


def _unwrapped(value: Any) -> Any:
    """Return the function inside what a class keeps of a method."""
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    return getattr(value, "__func__", value)


def _closure(function: FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append("not set yet")
    return found
