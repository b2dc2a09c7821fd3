"""A source made of a function: for examples, tests, and inputs that are computed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from clew.connectors.slices import cut
from clew.errors import GraphError, SourceFailed
from clew.pipeline.contracts import Json, Observed, Piece, Plan, Replayable
from clew.pipeline.location import caller

Make = Callable[[int], pa.Table]


@dataclass(frozen=True)
class Generator(Replayable):
    """A function of the event's index that gives the same table each time; the offset is the next index."""

    function: Make
    events: int
    declared: pa.Schema | None = None

    def describe(self) -> str:
        return _describe(self.function, self.events)

    def whereabouts(self) -> str:
        # The function is code, which may change.
        return f"generator, {self.events} events"

    def schema(self) -> pa.Schema | None:
        return self.declared

    def plan(self, snapshot: Json, offset: Json, events: int) -> Plan:
        start = offset or 0
        stop = min(start + events, self.events)
        return Plan(tuple([first, end] for first, end in cut(start, stop)), last=stop == self.events)

    def read(self, snapshot: Json, piece: Json) -> Iterator[Piece]:
        first, end = piece
        for index in range(first, end):
            yield Piece(_made(self.function, index), index + 1)


@dataclass(frozen=True)
class ObservedGenerator(Observed):
    """A function that may give another table each time, so that what it gave is stored first."""

    function: Make
    events: int
    declared: pa.Schema | None = None

    def describe(self) -> str:
        return _describe(self.function, self.events)

    def whereabouts(self) -> str:
        # The function is code, which may change.
        return f"generator, {self.events} events"

    def schema(self) -> pa.Schema | None:
        return self.declared

    def observe(self) -> Iterator[pa.Table]:
        for index in range(self.events):
            yield _made(self.function, index)


def generator(
    function: Make, events: int, *, replayable: bool = True, schema: pa.Schema | None = None
) -> Generator | ObservedGenerator:
    """Make a source of `function(0)` to `function(events - 1)`, one event each.

    `replayable=False` says that calling the function again may give something else.
    """
    if events < 0:
        raise GraphError(f"generator is declared with {events} events; give it 0 or more", caller())
    return (Generator if replayable else ObservedGenerator)(function, events, schema)


def _describe(function: Make, events: int) -> str:
    return f"generator {getattr(function, '__qualname__', repr(function))}, {events} events"


def _made(function: Make, index: int) -> pa.Table:
    table = function(index)
    if not isinstance(table, pa.Table):
        name = getattr(function, "__qualname__", repr(function))
        raise SourceFailed(
            f"generator {name}",
            f"{name}({index}) returned {type(table).__name__}, expected pyarrow.Table",
            "return a table, for example with pyarrow.table({...})",
        )
    return table
