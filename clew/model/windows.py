"""Which events belong together, and when, by what a window declares: written anew, to be held against the log.

A `Course` goes through the events that an operator took, in the order in which it took them, and says for each to
which Input Sets it belongs and which ones are complete after it.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from clew.pipeline.graph import OperatorSpec
from clew.pipeline.operators import Operator
from clew.pipeline.windows import Batch, Count, Each, Tumbling, Window

#: Which generative function an Input Set is for, and its key.
Label = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """An event as a course sees it."""

    port: str
    number: int
    rows: int
    size: int
    facts: Any = None


class Course(ABC):
    """One function's windows over all events of its operator."""

    #: Whether `facts` of an event's records are needed.
    needs_facts = False

    def facts(self, table: pa.Table) -> Any:
        return None

    @abstractmethod
    def take(self, event: Event, logged: Sequence[int]) -> Sequence[Any]:
        """Return the keys that the event belongs to; `logged` are the Input Sets that the log says, all functions'."""

    @abstractmethod
    def complete(self) -> Sequence[Any]:
        """Return the keys that are complete now, in order."""

    def end(self, port: str) -> None:
        """Learn that a port has ended."""

    def rest(self) -> Sequence[Any]:
        """Return the keys that are complete because all ports have ended, in order."""
        return ()

    def state(self) -> Any:
        """Return the global state as a generative function would see it now, or None where it sees none."""
        return None


class _Each(Course):
    def __init__(self) -> None:
        self._taken = 0

    def take(self, event: Event, logged: Sequence[int]) -> Sequence[Any]:
        self._taken += 1
        return (self._taken,)

    def complete(self) -> Sequence[Any]:
        return (self._taken,)


class _Count(Course):
    def __init__(self, size: int) -> None:
        self._size = size
        self._taken = 0

    def take(self, event: Event, logged: Sequence[int]) -> Sequence[Any]:
        self._taken += 1
        return ((self._taken - 1) // self._size,)

    def complete(self) -> Sequence[Any]:
        full, left = divmod(self._taken, self._size)
        return (full - 1,) if full and not left else ()

    def rest(self) -> Sequence[Any]:
        full, left = divmod(self._taken, self._size)
        return (full,) if left else ()


class _Batch(Course):
    """A turn's events: any cut into stretches is right, so the log's own cut is followed."""

    def __init__(self) -> None:
        self._current: Hashable = None
        self._closed: list[Any] = []

    def take(self, event: Event, logged: Sequence[int]) -> Sequence[Any]:
        key = logged[0] if logged else 0
        if self._current is not None and key != self._current:
            self._closed.append(self._current)
        self._current = key
        return (key,)

    def complete(self) -> Sequence[Any]:
        closed, self._closed = self._closed, []
        return closed

    def rest(self) -> Sequence[Any]:
        current, self._current = self._current, None
        return (*self.complete(), *(() if current is None else (current,)))


class _Tumbling(Course):
    needs_facts = True

    def __init__(self, window: Tumbling, ports: Sequence[str]) -> None:
        self._window = window
        self._latest: dict[str, int | None] = dict.fromkeys(ports)
        self._open: list[int] = []

    def facts(self, table: pa.Table) -> Any:
        return sorted(set(starts(self._window, table)))

    def take(self, event: Event, logged: Sequence[int]) -> Sequence[Any]:
        windows: list[int] = event.facts
        if windows:
            latest = self._latest[event.port]
            self._latest[event.port] = max(windows[-1], windows[-1] if latest is None else latest)
        self._open += [start for start in windows if start not in self._open]
        return windows

    def complete(self) -> Sequence[Any]:
        latest = list(self._latest.values())
        if not latest or any(start is None for start in latest):
            return ()
        bound = min(start for start in latest if start is not None)
        done = sorted(start for start in self._open if start < bound)
        self._open = [start for start in self._open if start >= bound]
        return done

    def end(self, port: str) -> None:
        del self._latest[port]

    def rest(self) -> Sequence[Any]:
        left, self._open = self._open, []
        return left


class _General(Course):
    """A user's own operator: its `assign` and `ready` are part of the declaration."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.needs_facts = type(operator).facts is not Operator.facts
        self._state = operator.initial()
        self._sees_state = operator.uses_state or type(operator).initial is not Operator.initial
        self._open: list[Any] = []

    def facts(self, table: pa.Table) -> Any:
        return self._operator.facts(table)

    def take(self, event: Event, logged: Sequence[int]) -> Sequence[Any]:
        keys = list(dict.fromkeys(self._operator.assign(event, self._state)))
        self._open += [key for key in keys if key not in self._open]
        return keys

    def complete(self) -> Sequence[Any]:
        return self._close(self._operator.ready(self._state, list(self._open)))

    def rest(self) -> Sequence[Any]:
        return self._close(self._operator.flush(self._state, list(self._open)))

    def state(self) -> Any:
        return deepcopy(self._state) if self._sees_state else None

    def _close(self, keys: Sequence[Any]) -> Sequence[Any]:
        done = list(dict.fromkeys(keys))
        self._open = [key for key in self._open if key not in done]
        return done


def courses(spec: OperatorSpec) -> dict[str, Course]:
    """Return the courses of an operator by function; a general operator has one for all its functions, named ""."""
    if spec.general is not None:
        return {"": _General(spec.general)}
    if not spec.functions:
        return {"write": _Batch()}
    return {function.name: _course(function.window, tuple(spec.inputs)) for function in spec.functions}


def label_of(spec: OperatorSpec, course: str, key: Any) -> Label:
    """Return the label of a key of a course."""
    if course or spec.general is None:
        return course, key
    names = spec.general.functions
    return (key[0], key[1]) if len(names) > 1 else (names[0], key)


def _course(window: Window, ports: Sequence[str]) -> Course:
    match window:
        case Each():
            return _Each()
        case Batch():
            return _Batch()
        case Count(size):
            return _Count(size)
        case Tumbling():
            return _Tumbling(window, ports)
    raise TypeError(f"{window!r} has no meaning in the model; write its course in clew/model/windows.py")


def starts(window: Tumbling, table: pa.Table) -> list[int]:
    """Return for each record the start of the interval that its time falls into."""
    times = table.column(window.on)
    if not pa.types.is_integer(times.type):
        times = times.cast(pa.timestamp("us", getattr(times.type, "tz", None))).cast(pa.int64())
    return [time // window.step * window.step for time in times.to_pylist()]


def of_window(window: Window, table: pa.Table, key: Any) -> pa.Table:
    """Return the records that a function sees of an Input Set: those of its window, with the window's bounds."""
    if not isinstance(window, Tumbling):
        return table
    kind = table.schema.field(window.on).type
    bound = pa.int64() if pa.types.is_integer(kind) else pa.timestamp("us", getattr(kind, "tz", None))
    within = [index for index, start in enumerate(starts(window, table)) if start == key]
    table = table.take(pa.array(within, pa.int64()))
    for name, at in (("window_start", key), ("window_end", key + window.step)):
        table = table.append_column(name, pa.array([at] * table.num_rows, pa.int64()).cast(bound))
    return table
