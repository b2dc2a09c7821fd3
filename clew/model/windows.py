"""Which events belong together, and when, by what a window declares: written anew, to be held against the log.

A `Course` goes through the events that an operator took, in the order in which it took them, and says for each to
which Input Sets it belongs and which ones are complete after it. Windows of event time are in `times.py`.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from clew.pipeline.operators import Operator

#: Which generative function an Input Set is for, and its key.
Label = tuple[str, Any]
#: For each event of an Input Set, which of its records belong to it: (input port, number) -> their places.
Records = Mapping[tuple[str, int], Sequence[int]]


class NotDeclared(Exception):
    """The log says that something was decided which the declaration does not allow."""


@dataclass(frozen=True, slots=True)
class NoPlace:
    """Stands for the facts of an event that cannot be placed."""

    why: str


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
    #: The records of the event taken last that came too late, by their places.
    missed: Sequence[int] = ()
    #: How many records came too late.
    late = 0

    def facts(self, table: pa.Table) -> Any:
        return None

    @abstractmethod
    def take(self, event: Event, logged: Sequence[int]) -> Sequence[Any]:
        """Return the keys that the event belongs to; `logged` are the Input Sets that the log says, all functions'."""

    def absorbed(self) -> Sequence[tuple[Any, Any]]:
        """Return the Input Sets that have become part of others with the last event: (gone, into)."""
        return ()

    @abstractmethod
    def complete(self) -> Sequence[Any]:
        """Return the keys that are complete now, in order."""

    def over(self, logged: Sequence[int]) -> Sequence[Any]:
        """Return the keys that were complete before the next event was taken, or the next decision made.

        `logged` are the Input Sets that the log says of the event; those of a decision are none.
        """
        return ()

    def decide(self, decision: Any) -> None:
        """Follow what the clock made the operator decide; raises NotDeclared where it could not have."""
        raise NotDeclared

    def end(self, port: str) -> None:
        """Learn that a port has ended."""

    def rest(self) -> Sequence[Any]:
        """Return the keys that are complete because all ports have ended, in order."""
        return ()

    def state(self, key: Any) -> Any:
        """Return the global state as the Input Set that is complete sees it, or None where it sees none."""
        return None

    def records(self, key: Any) -> Records | None:
        """Return which records the Input Set that is complete has, or None where its key tells."""
        return None


class EachCourse(Course):
    def __init__(self) -> None:
        self._taken = 0

    def take(self, event: Event, logged: Sequence[int]) -> Sequence[Any]:
        self._taken += 1
        return (self._taken,)

    def complete(self) -> Sequence[Any]:
        return (self._taken,)


class CountCourse(Course):
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


class BatchCourse(Course):
    """A turn's events: any cut into stretches is right, so the log's own cut is followed."""

    def __init__(self) -> None:
        #: The Input Set that is open, which is its own key.
        self._current: int | None = None

    def take(self, event: Event, logged: Sequence[int]) -> Sequence[Any]:
        self._current = logged[0] if logged else 0
        return (self._current,)

    def over(self, logged: Sequence[int]) -> Sequence[Any]:
        # Decisions are made when a turn begins: none leaves a stretch open.
        return () if self._current in logged else self.rest()

    def complete(self) -> Sequence[Any]:
        return ()

    def rest(self) -> Sequence[Any]:
        current, self._current = self._current, None
        return () if current is None else (current,)


class EveryCourse(Course):
    """A stretch of the clock's time: which it was is the log's to say, but it never goes back."""

    def __init__(self) -> None:
        self._now: int | None = None
        self._open = False
        self._closed: list[Any] = []

    def take(self, event: Event, logged: Sequence[int]) -> Sequence[Any]:
        if self._now is None:
            raise NotDeclared
        self._open = True
        return (self._now,)

    def decide(self, decision: Any) -> None:
        if not isinstance(decision, int) or (self._now is not None and decision <= self._now):
            raise NotDeclared
        if self._open:
            self._closed.append(self._now)
        self._now, self._open = decision, False

    def complete(self) -> Sequence[Any]:
        closed, self._closed = self._closed, []
        return closed

    def rest(self) -> Sequence[Any]:
        return (self._now,) if self._open else ()


class CountByCourse(Course):
    """So many records of each key, record by record."""

    needs_facts = True

    def __init__(self, size: int, columns: Sequence[str]) -> None:
        self._size = size
        self._columns = columns
        self._made = 0
        #: By key: the Input Set that is being filled, and how many records it has.
        self._filling: dict[str, tuple[int, int]] = {}
        self._records: dict[int, dict[tuple[str, int], list[int]]] = {}
        self._full: list[int] = []

    def facts(self, table: pa.Table) -> Any:
        return keys_of(table, self._columns)

    def take(self, event: Event, logged: Sequence[int]) -> Sequence[Any]:
        joined: list[int] = []
        # The keys of an event come in the order of their first records.
        by_key: dict[str, list[int]] = {}
        for place, key in enumerate(event.facts):
            by_key.setdefault(key, []).append(place)
        for key, places in by_key.items():
            joined += [self._add(key, (event.port, event.number), place) for place in places]
        return list(dict.fromkeys(joined))

    def _add(self, key: str, event: tuple[str, int], place: int) -> int:
        if key not in self._filling:
            self._made += 1
            self._filling[key] = (self._made, 0)
        number, count = self._filling[key]
        self._records.setdefault(number, {}).setdefault(event, []).append(place)
        self._filling[key] = (number, count + 1)
        if count + 1 == self._size:
            self._full.append(number)
            del self._filling[key]
        return number

    def complete(self) -> Sequence[Any]:
        full, self._full = self._full, []
        return full

    def rest(self) -> Sequence[Any]:
        return sorted(number for number, _ in self._filling.values())

    def records(self, key: Any) -> Records | None:
        return self._records.pop(key)


class GeneralCourse(Course):
    """A user's own operator: its `assign` and `ready` are part of the declaration."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.needs_facts = type(operator).facts is not Operator.facts
        self._state = operator.initial()
        self._sees_state = operator.uses_state or type(operator).initial is not Operator.initial
        #: The keys that are open, in the order in which they were opened.
        self._open: dict[Any, None] = {}

    def facts(self, table: pa.Table) -> Any:
        return self._operator.facts(table)

    def take(self, event: Event, logged: Sequence[int]) -> Sequence[Any]:
        keys = list(dict.fromkeys(self._operator.assign(event, self._state)))
        for key in keys:
            self._open.setdefault(key)
        return keys

    def complete(self) -> Sequence[Any]:
        return self._close(self._operator.ready(self._state, self._open.keys()))

    def rest(self) -> Sequence[Any]:
        return self._close(self._operator.flush(self._state, self._open.keys()))

    def decide(self, decision: Any) -> None:
        if type(self._operator).tick is Operator.tick:
            raise NotDeclared
        self._operator.tick(decision, self._state)

    def state(self, key: Any) -> Any:
        return deepcopy(self._state) if self._sees_state else None

    def _close(self, keys: Sequence[Any]) -> Sequence[Any]:
        done = list(dict.fromkeys(keys))
        for key in done:
            self._open.pop(key, None)
        return done


def keys_of(table: pa.Table, columns: Sequence[str]) -> list[str]:
    """Return the text of each record's key: the JSON of its values."""
    rows = zip(*(table.column(name).to_pylist() for name in columns))
    return [json.dumps(row, default=_plain, ensure_ascii=False, separators=(",", ":")) for row in rows]


def _plain(value: Any) -> str:
    """Write what JSON has no form for: times as ISO 8601, bytes as hexadecimal digits, decimals by their digits."""
    if isinstance(value, bytes):
        return value.hex()
    return str(value.isoformat() if hasattr(value, "isoformat") else value)
