"""Windows: which events form an Input Set, and when it is complete.

A window decides on headers alone. Its state is a plain dict that becomes part of the operator's
global state in STATE, so it holds JSON only. `assign` may change the state; `ready` only reads it.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import GraphError, LateRecord, TypeRefused

Key = Any
State = dict[str, Any]


class Header(Protocol):
    """What control sees of an event."""

    @property
    def port(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def facts(self) -> Any: ...


class Window(ABC):
    """One way to form Input Sets."""

    #: Whether headers must carry this window's facts.
    needs_facts = False

    def initial(self, ports: Sequence[str]) -> State:
        """Return the state before the first event."""
        return {}

    def facts(self, table: pa.Table) -> Any:
        """Compute what `assign` needs to know of the records; runs on an executor."""
        return None

    def fingerprint(self) -> str:
        """Name the declaration that facts were computed for."""
        return repr(self)

    @abstractmethod
    def assign(self, event: Header, state: State) -> Sequence[Key]:
        """Return the keys of the Input Sets that the event joins."""

    @abstractmethod
    def ready(self, state: State, opened: Collection[Key]) -> Sequence[Key]:
        """Return the keys that are complete now."""

    def end(self, port: str, state: State) -> None:
        """Learn that a port has ended."""

    def end_turn(self, state: State, opened: Collection[Key]) -> Sequence[Key]:
        """Return the keys that are complete because the turn ends."""
        return ()

    def select(self, table: pa.Table, key: Key) -> pa.Table:
        """Keep the records of `table` that belong to the Input Set `key`; runs on an executor."""
        return table

    def extend(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema that `select` gives."""
        return schema


@dataclass(frozen=True)
class Each(Window):
    """Every event is an Input Set of its own."""

    def initial(self, ports: Sequence[str]) -> State:
        return {"k": 0}

    def assign(self, event: Header, state: State) -> Sequence[Key]:
        state["k"] += 1
        return (state["k"],)

    def ready(self, state: State, opened: Collection[Key]) -> Sequence[Key]:
        return (state["k"],) if state["k"] in opened else ()


@dataclass(frozen=True)
class Batch(Window):
    """All events of one turn are one Input Set."""

    def initial(self, ports: Sequence[str]) -> State:
        return {"k": 0}

    def assign(self, event: Header, state: State) -> Sequence[Key]:
        return (state["k"],)

    def ready(self, state: State, opened: Collection[Key]) -> Sequence[Key]:
        return ()

    def end_turn(self, state: State, opened: Collection[Key]) -> Sequence[Key]:
        done = tuple(opened)
        state["k"] += len(done)
        return done


@dataclass(frozen=True)
class Count(Window):
    """Every `size` events, in the order in which they were taken, are one Input Set."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise GraphError(f"Count({self.size}) holds no event; give it 1 or more")

    def initial(self, ports: Sequence[str]) -> State:
        return {"k": 0, "n": 0}

    def assign(self, event: Header, state: State) -> Sequence[Key]:
        if state["n"] == self.size:
            state["k"], state["n"] = state["k"] + 1, 0
        state["n"] += 1
        return (state["k"],)

    def ready(self, state: State, opened: Collection[Key]) -> Sequence[Key]:
        return (state["k"],) if state["n"] == self.size and state["k"] in opened else ()


_UNITS = {"microsecond": 1, "millisecond": 1_000, "second": 1_000_000, "minute": 60_000_000,
          "hour": 3_600_000_000, "day": 86_400_000_000, "week": 604_800_000_000}  # fmt: skip


def _microseconds(size: "str | int | timedelta") -> int:
    if isinstance(size, timedelta):
        return size // timedelta(microseconds=1)
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]+?)s?\s*", size)
    if not match or match[2] not in _UNITS:
        raise GraphError(f"{size!r} is not a duration; write it as '10 minutes' or '1 hour'")
    return int(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class Tumbling(Window):
    """Records of one interval of event time, which come in time order, are one Input Set.

    `size` is a duration ('1 hour', a timedelta) for a column of timestamps or dates, or a whole
    number for a column of whole numbers. Intervals are aligned to the epoch (to zero). The key of
    an Input Set is the start of its interval. The function also finds `window_start` and
    `window_end`.
    """

    size: "str | int | timedelta"
    on: str
    step: int = field(init=False, repr=False, default=0)
    needs_facts = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", _microseconds(self.size))
        if self.step < 1:
            raise GraphError(f"Tumbling({self.size!r}) is empty; give it a size above zero")

    def initial(self, ports: Sequence[str]) -> State:
        # Per port the start of the latest window seen; None until it has one.
        return {"seen": dict.fromkeys(ports), "ended": []}

    def facts(self, table: pa.Table) -> Any:
        if table.num_rows == 0:
            return []
        return sorted(pc.unique(self._starts(table)).to_pylist())

    def assign(self, event: Header, state: State) -> Sequence[Key]:
        windows: list[int] = event.facts
        if windows:
            frontier = self._frontier(state)
            if frontier is not None and windows[0] < frontier:
                raise LateRecord(event.port, f"{self.on}={windows[0]}", f"{self.on}={frontier - self.step}")
            seen = state["seen"][event.port]
            state["seen"][event.port] = windows[-1] if seen is None else max(seen, windows[-1])
        return windows

    def ready(self, state: State, opened: Collection[Key]) -> Sequence[Key]:
        frontier = self._frontier(state)
        if frontier is None or not opened:
            return ()
        return sorted(key for key in opened if key < frontier)

    def end(self, port: str, state: State) -> None:
        state["ended"].append(port)

    def select(self, table: pa.Table, key: Key) -> pa.Table:
        kind = self._bound_type(table.schema)
        kept = table.filter(pc.equal(self._starts(table), key)) if table.num_rows else table
        for name, value in (("window_start", key), ("window_end", key + self.step)):
            kept = kept.append_column(name, pa.repeat(pa.scalar(value, pa.int64()).cast(kind), kept.num_rows))
        return kept

    def extend(self, schema: pa.Schema) -> pa.Schema:
        kind = self._bound_type(schema)
        return schema.append(pa.field("window_start", kind)).append(pa.field("window_end", kind))

    def _frontier(self, state: State) -> int | None:
        """Return the start of the earliest window that may still grow; None when that is not known."""
        live: list[int | None] = [seen for port, seen in state["seen"].items() if port not in state["ended"]]
        known = [seen for seen in live if seen is not None]
        return min(known) if known and len(known) == len(live) else None

    def _starts(self, table: pa.Table) -> pa.ChunkedArray:
        kind = self._kind(table.schema)
        column = table.column(self.on)
        if column.null_count:
            raise TypeRefused(
                self.on, str(kind), "it has records without a time, but Tumbling must place every record",
                "filter them out before this operator",
            )  # fmt: skip
        if not pa.types.is_integer(kind):
            column = column.cast(pa.timestamp("us", kind.tz if pa.types.is_timestamp(kind) else None))
        numbers = column.cast(pa.int64())
        # Divide rounds towards zero; times before the epoch need floor.
        remainder = pc.subtract(numbers, pc.multiply(pc.divide(numbers, self.step), self.step))
        remainder = pc.if_else(pc.less(remainder, 0), pc.add(remainder, self.step), remainder)
        return pc.subtract(numbers, remainder)

    def _kind(self, schema: pa.Schema) -> pa.DataType:
        """Return the type of the time column, where it is one that this window can place."""
        if self.on not in schema.names:
            names = ", ".join(schema.names)
            raise GraphError(f"Tumbling(on={self.on!r}) finds no such column; the records have {names}")
        kind = schema.field(self.on).type
        whole = pa.types.is_integer(kind)
        if not (whole or pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
            why, cure = "Tumbling needs a timestamp, a date or a whole number", "cast it before this operator"
            raise TypeRefused(self.on, str(kind), why, cure)
        if whole != isinstance(self.size, int):
            # Taken as they are, '1 hour' of whole numbers or 10 of a time would mean microseconds.
            size = "a whole number" if whole else "a duration such as '1 hour'"
            raise TypeRefused(
                self.on, str(kind), f"Tumbling({self.size!r}) is of another kind", f"give it {size} as its size"
            )
        return kind

    def _bound_type(self, schema: pa.Schema) -> pa.DataType:
        kind = self._kind(schema)
        for name in ("window_start", "window_end"):
            if name in schema.names:
                raise TypeRefused(
                    name,
                    str(schema.field(name).type),
                    "Tumbling adds a column of this name",
                    "rename it before this operator",
                )
        if pa.types.is_integer(kind):
            return pa.int64()
        return pa.timestamp("us", kind.tz if pa.types.is_timestamp(kind) else None)
