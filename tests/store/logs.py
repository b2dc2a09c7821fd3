"""A small pipeline's log, and short ways to make what is written to it.

reader --out--> mapper.in --out--> sink.in --writes--> sink.table
          \\--> counter.in
"""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

from clew.ids import InputSetId, Port
from clew.protocol.rows import END, Assignment, Bodies, EventRun, Header, Label, Lineage, Listed, WriteRow
from clew.protocol.step import (
    Acknowledge,
    FinishSets,
    FinishWrites,
    LogEvents,
    LogLineage,
    LogWrites,
    OpenSets,
    Write,
)
from clew.store.base import TABLES, Store, Topology

READER_OUT = Port("reader", "out")
MAPPER_IN, MAPPER_OUT = Port("mapper", "in"), Port("mapper", "out")
COUNTER_IN, COUNTER_OUT = Port("counter", "in"), Port("counter", "out")
SINK_IN, SINK_TABLE = Port("sink", "in"), Port("sink", "table")
OPERATORS = ("counter", "mapper", "reader", "sink")
SENDERS = {MAPPER_IN: READER_OUT, COUNTER_IN: READER_OUT, SINK_IN: MAPPER_OUT}

TOPOLOGY = Topology("shop", "f1", OPERATORS, tuple((sender, receiver) for receiver, sender in SENDERS.items()))


def header(number: int, size: int, receivers: Sequence[Port] = ()) -> Header:
    """A header with facts for some receivers."""
    return Header(number % 7, size, {str(r): ("fp", {"windows": [number // 3], "by": None}) for r in receivers})


def inline(first: int, count: int) -> Bodies:
    """Bodies kept in the log, each different."""
    parts = [b"body of %d" % (first + index) for index in range(count)]
    return Bodies(tuple(map(len, parts)), tuple(map(crc32, parts)), b"".join(parts))


def in_file(first: int, count: int, file: str, offset: int = 0) -> Bodies:
    """Bodies kept in a file."""
    return Bodies(tuple(10 + index for index in range(count)), tuple(range(first, first + count)), None, file, offset)


def run(port: Port, first: int, count: int, bodies: tuple[Bodies, ...] | None = None, end: bool = False) -> EventRun:
    """Events of a port; inline bodies unless others are given; with `end`, the last is the end of the stream."""
    bodied = count - 1 if end else count
    if bodies is None:
        bodies = (inline(first, bodied),) if bodied else ()
    lengths = [length for part in bodies for length in part.lengths] or [0] * bodied
    receivers = [receiver for receiver, sender in SENDERS.items() if sender == port]
    headers = tuple(header(first + index, lengths[index], receivers) for index in range(bodied))
    return EventRun(port, first, (*headers, END) if end else headers, bodies)


def events(port: Port, first: int, count: int, bodies: tuple[Bodies, ...] | None = None, end: bool = False) -> Write:
    return LogEvents(run(port, first, count, bodies, end))


def ack(receiver: Port, first: int, count: int, assignment: Assignment, seq: int | None = None) -> Write:
    return Acknowledge(receiver, first, count, first if seq is None else seq, assignment)


def listed(*sets: int) -> Listed:
    return Listed(tuple(map(InputSetId, sets)))


def finish(operator: str, first: int, count: int = 1) -> Write:
    return FinishSets(operator, InputSetId(first), count)


def opened(operator: str, *sets: tuple[int, Label]) -> Write:
    return OpenSets(operator, tuple((InputSetId(number), label) for number, label in sets))


def lineage(port: Port, first: int, input_set: int, *counts: tuple[int, int]) -> Write:
    return LogLineage(Lineage(port, first, InputSetId(input_set), counts))


def writes(first: int, *named: tuple[tuple[Port, int, int], ...], bodies: tuple[Bodies, ...] = ()) -> Write:
    return LogWrites(SINK_TABLE, tuple(WriteRow(first + index, ports, bodies) for index, ports in enumerate(named)))


def written(first: int, count: int = 1) -> Write:
    return FinishWrites(SINK_TABLE, first, count)


class Pen:
    """Writes to a store as the current incarnation of each operator."""

    def __init__(self, store: Store, operators: Sequence[str] = OPERATORS) -> None:
        self.store = store
        self.incarnations = {operator: store.take_over(operator) for operator in operators}

    def __call__(self, operator: str, *parts: Write, durable: bool = True) -> None:
        self.store.commit(operator, self.incarnations[operator], parts, durable)


def tables(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """All five tables of the paper."""
    return {name: store.table(name) for name in TABLES}


def each_event(runs: Sequence[EventRun]) -> list[tuple[Port, int, Header, tuple[Bodies, ...]]]:
    """Runs told event by event, so that backends that cut them differently can be compared."""
    return [
        (part.port, part.first, part.headers[0], () if part.headers[0].end else part.bodies)
        for one in runs
        for part in (one.cut(index, index + 1) for index in range(len(one.headers)))
    ]


def each_member(store: Store, operator: str) -> list[tuple[int, Port, int, int]]:
    """Members told event by event."""
    return sorted(
        (member.seq + index, member.port, member.first + index, member.input_set)
        for member in store.members(operator)
        for index in range(member.count)
    )
