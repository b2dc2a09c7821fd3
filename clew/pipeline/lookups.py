"""What a function is given besides its records: static tables to look things up in, and what its setup hook makes."""

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import ClewError

#: The parameter by which a function takes what its setup hook made.
RESOURCES = "resources"


@dataclass(frozen=True, eq=False)
class Lookup:
    """A static table: it is read once, when a run begins, and kept with the run."""

    #: What it is read from, for people.
    described: str
    read: Callable[[], pa.Table]
    #: The column by which functions of single records find a row.
    key: str | None = None


class Content:
    """The content of a lookup, in each form that a function may take it; each is made once."""

    def __init__(self, table: pa.Table, key: str | None = None) -> None:
        self.table = table
        self._key = key
        if key is not None:
            _check_key(table, key)

    @cached_property
    def pandas(self) -> Any:
        from clew.pipeline.onpandas import to_pandas

        return to_pandas(self.table)

    @cached_property
    def records(self) -> Any:
        """The rows as dicts: by their key, where one was named, else as a list."""
        rows = self.table.to_pylist()
        return rows if self._key is None else {row[self._key]: row for row in rows}


def _check_key(table: pa.Table, key: str) -> None:
    if not table.num_columns:
        raise ClewError(f"it is empty, so that it has no column {key}, which was named as its key; give it its columns")
    if key not in table.column_names:
        raise ClewError(f"it has no column {key}, which was named as its key; it has {', '.join(table.column_names)}")
    if pa.types.is_nested(table.schema.field(key).type):
        raise ClewError(f"its key {key} is a {table.schema.field(key).type}; name a column of plain values")
    twice = table.group_by(key, use_threads=False).aggregate([([], "count_all")]).filter(pc.field("count_all") > 1)
    if twice.num_rows:
        raise ClewError(f"its key {key} has {twice[key][0].as_py()!r} more than once; each row needs a key of its own")


class Setup:
    """A hook that is called once in each process that runs its function, before the first record.

    The declaration is loaded once per worker and version of the code, and this is a part of it. It travels without what
    it made.
    """

    def __init__(self, hook: Callable[[], Any]) -> None:
        self.hook = hook
        # Jobs of DataFrames run in several threads of the driver.
        self._lock = threading.Lock()
        self._made = False
        self._value: Any = None

    def value(self) -> Any:
        """Return what the hook made; one that raised is called again."""
        with self._lock:
            if not self._made:
                self._value, self._made = self.hook(), True
            return self._value

    def __reduce__(self) -> tuple[Any, ...]:
        return Setup, (self.hook,)


@dataclass(frozen=True)
class Besides:
    """What one function is given besides its records."""

    lookups: Mapping[str, Lookup] = field(default_factory=dict)
    setup: Setup | None = None
    #: Those that it takes by parameters of their names.
    passed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lookups) or self.setup is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of parameters that are no inputs."""
        return (*self.lookups, *((RESOURCES,) if self.setup is not None else ()))

    def arguments(self, lookups: Mapping[str, Any], resources: Any) -> dict[str, Any]:
        """Return what goes to the function by name."""
        return {name: resources if name == RESOURCES else lookups[name] for name in self.passed}


def taken(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of some arguments that a function has parameters for."""
    return {name: value for name, value in given.items() if name in parameters_of(function)}


def parameters_of(function: Any) -> tuple[str, ...]:
    """Return the names of a function's parameters."""
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        # Some built-in functions do not tell.
        return ("record",)
