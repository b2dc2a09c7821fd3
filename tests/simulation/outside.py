"""The world outside a simulated pipeline: it survives every crash, and it can lose an answer."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from clew import Connection, Continuing, News, Observed, Piece, Plan, Replayable, Sink, WriteAction
from clew.errors import StaleWriter
from clew.faultpoint import fault_point
from clew.pipeline.contracts import RecordsHeld

Row = tuple[Any, ...]


@dataclass
class World:
    """What outside systems hold, by the name of the system."""

    #: Writes, counted over all systems from 1, whose answer is lost after they were applied.
    lost: frozenset[int] = frozenset()
    #: Writes that fail before they are applied.
    refused: frozenset[int] = frozenset()
    rows: dict[str, list[Row]] = field(default_factory=dict)
    #: Transactional systems: (incarnation, last write) per writer.
    markers: dict[tuple[str, str, str], tuple[int, int]] = field(default_factory=dict)
    #: Idempotent systems: what is stored under each name.
    objects: dict[str, dict[str, list[Row]]] = field(default_factory=dict)
    #: Checkable systems: the names of the writes that were applied, in order.
    applied: dict[str, list[str]] = field(default_factory=dict)
    writes: int = 0
    #: The writes that have failed, or whose answer was lost, as they were to.
    struck: set[int] = field(default_factory=set)
    draws: int = 0
    released: list[str] = field(default_factory=list)
    #: Feeds: how often each was looked at, and how much of each has been consumed.
    looks: dict[str, int] = field(default_factory=dict)
    consumed: dict[str, int] = field(default_factory=dict)

    @property
    def failures_to_come(self) -> bool:
        return self.writes < max(self.lost | self.refused, default=0)

    @property
    def missed(self) -> bool:
        """Whether a write that was to fail has not failed: it was not reached, or its writer died first."""
        return self.struck != self.lost | self.refused

    def draw(self) -> int:
        """Return a number that never comes again: what a random value, a clock or a queue would give."""
        self.draws += 1
        return self.draws

    def holdings(self) -> dict[str, list[Row]]:
        """Return what each system holds, in the order in which it was applied."""
        stored = {
            name: [row for key in sorted(objects) for row in objects[key]] for name, objects in self.objects.items()
        }
        return {**self.rows, **stored}

    def request(self) -> int:
        """Count a write; it fails here if the schedule says so."""
        self.writes += 1
        if self.writes in self.refused:
            self.struck.add(self.writes)
            raise ConnectionError(f"write {self.writes} was refused")
        return self.writes

    def answer(self, request: int) -> None:
        """Answer a write that was applied, unless the answer is lost."""
        if request in self.lost:
            self.struck.add(request)
            raise ConnectionError(f"the answer to write {request} was lost")


def rows_of(tables: Iterator[pa.Table]) -> list[Row]:
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


@dataclass(frozen=True)
class WorldHeld(RecordsHeld):
    """What a simulated system holds, as somebody else would read it."""

    world: World
    name: str

    def __hash__(self) -> int:
        return hash(self.name)

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        rows = self.world.holdings().get(self.name, [])
        columns = list(zip(*rows)) or [()] * len(schema)
        yield pa.table([pa.array(list(column), field.type) for column, field in zip(columns, schema)], schema=schema)


@dataclass(frozen=True)
class _Simulated(Sink):
    world: World
    name: str

    def describe(self) -> str:
        return f"simulated {self.name}"

    def holds(self) -> RecordsHeld:
        return WorldHeld(self.world, self.name)


class Transactional(_Simulated):
    """Keeps our marker with the data: a repeat is skipped, an older incarnation refused."""

    transactional = True

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        request = self.world.request()
        writer = (action.run, action.operator, action.connection)
        incarnation, last = self.world.markers.get(writer, (0, 0))
        if action.incarnation < incarnation:
            raise StaleWriter(action.operator, action.incarnation, incarnation)
        staged = rows_of(tables) if action.number > last else []
        fault_point("sink-before-commit", action.operator)
        self.world.rows.setdefault(self.name, []).extend(staged)
        self.world.markers[writer] = (action.incarnation, max(last, action.number))
        fault_point("sink-after-commit", action.operator)
        self.world.answer(request)


class Idempotent(_Simulated):
    """Stores each write under its name; a repeat must bring the same content (W1)."""

    idempotent = True

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        request = self.world.request()
        content = rows_of(tables)
        fault_point("sink-before-rename", action.operator)
        stored = self.world.objects.setdefault(self.name, {})
        # The run id is not in the key: it differs from one simulation to the next.
        key = action.name.removeprefix(f"{action.run}-")
        assert stored.setdefault(key, content) == content, f"W1: write {action.name} came again with other content"
        fault_point("sink-after-commit", action.operator)
        self.world.answer(request)


class Checkable(_Simulated):
    """Appends whatever it is given, also twice, but can say what it was given."""

    checkable = True

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        request = self.world.request()
        content = rows_of(tables)
        fault_point("sink-before-commit", action.operator)
        self.world.rows.setdefault(self.name, []).extend(content)
        self.world.applied.setdefault(self.name, []).append(action.name)
        fault_point("sink-after-commit", action.operator)
        self.world.answer(request)

    def applied(self, action: WriteAction) -> bool:
        return action.name in self.world.applied.get(self.name, [])


@dataclass(frozen=True)
class Queue(Observed):
    """A queue whose messages are other ones each time they are read, and gone once released."""

    world: World
    messages: int
    name: str = "queue"

    def describe(self) -> str:
        return f"simulated {self.name}"

    def observe(self) -> Iterator[pa.Table]:
        assert self.name not in self.world.released, f"{self.name} was read after its messages were released"
        reading = self.world.draw()
        for index in range(self.messages):
            yield pa.table({"reading": [reading], "n": [index], "t": [3 * index]})

    def release(self, snapshot: Any) -> None:
        self.world.released.append(self.name)


@dataclass(frozen=True)
class Growing(Replayable):
    """A directory that has more in it each time it is listed: what counts is the listing that was stored."""

    world: World

    def describe(self) -> str:
        return "simulated directory"

    def snapshot(self) -> Any:
        return {"listing": self.world.draw(), "files": 5 + self.world.draws}

    def plan(self, snapshot: Any, offset: Any, events: int) -> Plan:
        start = offset or 0
        return Plan(([start, start + events],), last=None)

    def read(self, snapshot: Any, piece: Any) -> Iterator[Piece]:
        start, stop = piece
        for index in range(start, min(stop, snapshot["files"])):
            yield Piece(pa.table({"listing": [snapshot["listing"]], "n": [index]}), index + 1)


@dataclass(frozen=True)
class FeedHeld(RecordsHeld):
    """All that ever came by a feed, as somebody else would read it."""

    messages: int

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        yield pa.table({"n": list(range(self.messages)), "t": [3 * n for n in range(self.messages)]}, schema=schema)


@dataclass(frozen=True)
class Feed(Continuing):
    """Messages that come while it is looked at, one or two for a look, or none; gone once they are released."""

    world: World
    messages: int
    name: str = "feed"
    poll = 0.0

    def describe(self) -> str:
        return f"simulated {self.name}"

    def holds(self) -> RecordsHeld:
        return FeedHeld(self.messages)

    def more(self, seen: Any, quiet: float) -> News | Literal["nothing", "over"]:
        looks = self.world.looks[self.name] = self.world.looks.get(self.name, 0) + 1
        came, first = min(self.messages, looks * 2 - looks // 3), seen or 0
        if first == self.messages:
            return "over" if looks % 2 else "nothing"
        return News({"from": first, "to": came}, came) if came > first else "nothing"

    def plan(self, snapshot: Any, offset: Any, events: int) -> Plan:
        start = snapshot["from"] if offset is None else offset
        stop = min(start + events, snapshot["to"])
        return Plan(([start, stop],), last=stop == snapshot["to"])

    def read(self, snapshot: Any, piece: Any) -> Iterator[Piece]:
        start, stop = piece
        assert start >= self.world.consumed.get(self.name, 0), f"{self.name} was read after it was released"
        for n in range(start, stop):
            yield Piece(pa.table({"n": [n], "t": [3 * n]}), n + 1)

    def release(self, snapshot: Any) -> None:
        before = self.world.consumed.get(self.name, 0)
        assert snapshot["from"] <= before, f"{self.name} skipped messages {before} to {snapshot['from']}"
        self.world.consumed[self.name] = max(before, snapshot["to"])


@dataclass(frozen=True)
class Ticker(Connection):
    """A service that answers differently each time it is asked."""

    world: World

    def describe(self) -> str:
        return "simulated ticker"

    def read(self, action: str) -> pa.Table:
        return pa.table({"asked": [action], "answer": [self.world.draw()]})


@dataclass(frozen=True)
class Lookup(Connection):
    """Reads what another operator wrote to a simulated system."""

    world: World
    name: str

    def describe(self) -> str:
        return f"simulated {self.name}"

    def read(self, action: str) -> pa.Table:
        held = self.world.rows.get(self.name, [])
        return pa.table({"found": [sum(str(row[0]) == action for row in held)]})
