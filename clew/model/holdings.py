"""The parts of a judgement that hold the log against the outside: see `work` for how they are worked off.

Records come from events, from write actions, from an outside system, or from a source that is read again. Most work
gives a number per record and no more; where the numbers differ the records themselves are asked for, and only those.
"""

import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from clew.errors import ClewError
from clew.ids import EventId, Port
from clew.model.certificate import RAISED, Body, Finding, wrong
from clew.model.compare import Row, bucket_of, numbers_of, rows_of, same, shown, unmatched
from clew.model.interpret import Frames, as_sent
from clew.model.outside import counts_held, file_tables, is_file, partition_tables, tables_held
from clew.model.read import Unreadable, records
from clew.model.values import Misfit
from clew.model.work import Stretch
from clew.pipeline.contracts import FilesHeld, Held, Piece, Replayable
from clew.pipeline.graph import Graph

#: How many records are numbered together.
_TOGETHER = 2_000

#: How many records one piece of work fetches at most where two sides differ.
MOST = 100_000


class Origin(NamedTuple):
    """Where a record comes from: an event, a write action."""

    event: str = ""
    write: int = 0


class Records(Protocol):
    """A place of records."""

    def tables(self, graph: Graph) -> Iterator[tuple[Origin, pa.Table]]:
        """Yield the records, some at a time, each with where they come from."""


@dataclass(frozen=True, slots=True)
class EventsLogged:
    """The records of some events."""

    stretch: Stretch

    def tables(self, graph: Graph) -> Iterator[tuple[Origin, pa.Table]]:
        return ((Origin(event), table) for event, table in self.stretch.events())


@dataclass(frozen=True, slots=True)
class Part:
    """What a write action writes: consecutive events of a port, or a body of its own, with a schema of its own."""

    write: int
    schema: pa.Schema | None
    bodies: tuple[Body, ...]
    port: Port | None = None
    first: int = 0

    @property
    def named(self) -> str:
        """The first event, where the write action passes on events."""
        return str(EventId(self.port, self.first)) if self.port else ""

    def tables(self, root: str | None) -> Iterator[tuple[Origin, pa.Table]]:
        for number, body in enumerate(self.bodies, self.first):
            event = str(EventId(self.port, number)) if self.port else ""
            yield Origin(event, self.write), records(body, root, self.schema, event or f"write action #{self.write}")


@dataclass(frozen=True, slots=True)
class Written:
    """The records of some write actions."""

    parts: tuple[Part, ...]
    schema: pa.Schema
    root: str | None

    def tables(self, graph: Graph) -> Iterator[tuple[Origin, pa.Table]]:
        for part in self.parts:
            for origin, table in part.tables(self.root):
                yield origin, as_sent(table, self.schema, origin.event)


@dataclass(frozen=True, slots=True)
class Holding:
    """The records that an outside system holds."""

    held: Held
    schema: pa.Schema

    def tables(self, graph: Graph) -> Iterator[tuple[Origin, pa.Table]]:
        return ((Origin(), table) for table in tables_held(self.held, self.schema))


@dataclass(frozen=True, slots=True)
class Slice:
    """The records of a slice of a source."""

    source: str
    #: The schema of its port, where anything was sent.
    schema: pa.Schema | None
    slice: Any

    def tables(self, graph: Graph) -> Iterator[tuple[Origin, pa.Table]]:
        return ((Origin(), self.sent(piece)) for piece in self.pieces(graph))

    def sent(self, piece: Piece) -> pa.Table:
        return as_sent(piece.table, self.schema, "out")

    def pieces(self, graph: Graph) -> Iterator[Piece]:
        source = graph.operators[self.source].source
        assert isinstance(source, Replayable)
        try:
            yield from source.read(None, self.slice)
        except ClewError:
            raise
        except RAISED as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Numbers:
    """Number records, in order."""

    records: Records

    def run(self, graph: Graph, frames: Frames | None) -> "array[int]":
        return _numbers(table for _, table in self.records.tables(graph))


@dataclass(frozen=True, slots=True)
class CountHeld:
    """Count the records that an outside system holds; of a user's own it asks for records of the schema."""

    held: Held
    schema: pa.Schema

    def run(self, graph: Graph, frames: Frames | None) -> int:
        return sum(counts_held(self.held, self.schema))


@dataclass(frozen=True, slots=True)
class KeyedNumbers:
    """Number records, and their keys, in order."""

    records: Records
    key: tuple[str, ...]

    def run(self, graph: Graph, frames: Frames | None) -> tuple["array[int]", "array[int]"]:
        keys: array[int] = array("Q")
        numbers: array[int] = array("Q")
        for table in _together(table for _, table in self.records.tables(graph)):
            keys.extend(numbers_of(table.select(list(self.key))))
            numbers.extend(numbers_of(table))
        return keys, numbers


@dataclass(frozen=True, slots=True)
class ReadSlice:
    """Number the records of a slice; say also how many each of its pieces has, and the offset after the last."""

    slice: Slice

    def run(self, graph: Graph, frames: Frames | None) -> tuple["array[int]", "array[int]", Any]:
        pieces: array[int] = array("Q")
        offset = None

        def tables() -> Iterator[pa.Table]:
            nonlocal offset
            for piece in self.slice.pieces(graph):
                offset = piece.offset
                pieces.append(piece.table.num_rows)
                yield self.slice.sent(piece)

        return _numbers(tables()), pieces, offset


def _numbers(tables: Iterable[pa.Table]) -> "array[int]":
    numbers: array[int] = array("Q")
    for table in _together(tables):
        numbers.extend(numbers_of(table))
    return numbers


def _together(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Put small tables of one schema together, for to number one costs more than its records."""
    held: list[pa.Table] = []
    rows = 0
    for table in tables:
        held.append(table)
        rows += table.num_rows
        if rows >= _TOGETHER:
            yield pa.concat_tables(held)
            held, rows = [], 0
    if held:
        yield pa.concat_tables(held)


@dataclass(frozen=True, slots=True)
class Fetch:
    """Return the records that have these numbers."""

    records: Records
    wanted: frozenset[int]
    #: Which bucket of how many they are to be in, and the key that buckets are by.
    bucket: int = 0
    buckets: int = 1
    key: tuple[str, ...] = ()

    def run(self, graph: Graph, frames: Frames | None) -> list[tuple[Origin, Row]]:
        return list(islice(self._found(graph), MOST))

    def _found(self, graph: Graph) -> Iterator[tuple[Origin, Row]]:
        for origin, table in self.records.tables(graph):
            numbers = numbers_of(table)
            if not self.wanted.isdisjoint(numbers):
                wanted = (row for row, number in zip(rows_of(table), numbers) if number in self.wanted)
                names = table.schema.names
                yield from (
                    (origin, row) for row in wanted if bucket_of(row, names, self.key, self.buckets) == self.bucket
                )


@dataclass(frozen=True, slots=True)
class FetchOne:
    """Return the record at an index, and where it comes from; None where there are fewer."""

    records: Records
    index: int

    def run(self, graph: Graph, frames: Frames | None) -> tuple[Origin, Row] | None:
        left = self.index
        for origin, table in self.records.tables(graph):
            if left < table.num_rows:
                return origin, rows_of(table.slice(left, 1))[0]
            left -= table.num_rows
        return None


@dataclass(frozen=True, slots=True)
class File:
    """A file that a write action made, and what was to be in it."""

    path: str
    format: str
    written: Written


@dataclass(frozen=True, slots=True)
class FilesWritten:
    """Hold files against what was to be in them, up to the first that is wrong."""

    operator: str
    files: tuple[File, ...]

    def run(self, graph: Graph, frames: Frames | None) -> tuple[int, Finding | None]:
        """Return how many records are the same, and what is wrong after them."""
        compared = 0
        for file in self.files:
            try:
                for one, other in zip_longest(_expected(file, graph), _found(file)):
                    if one is None or other is None or not same(one[1], other):
                        return compared, self._differs(file, one, other)
                    compared += 1
            except Misfit as error:
                return compared, self._wrong(file, "is not what was written", found=str(error))
        return compared, None

    def _differs(self, file: File, one: tuple[Origin, Row] | None, other: Row | None) -> Finding:
        names = file.written.schema.names
        origin, expected = (one[0], [one[1]]) if one else (None, [])
        return self._wrong(
            file, "holds other records than were written", origin,
            expected=shown(expected, names), found=shown([other] if other is not None else [], names),
        )  # fmt: skip

    def _wrong(self, file: File, fact: str, origin: Origin | None = None, **rest: Any) -> Finding:
        part = file.written.parts[0]
        event, write = origin or (part.named, part.write)
        fact = f"the file {os.path.basename(file.path)} of write action #{write} {fact}"
        return wrong(self.operator, fact, event=event, input_set=write if event else None, **rest)


@dataclass(frozen=True, slots=True)
class Scattered:
    """The files that a write action made, one per partition, and what was to be in them."""

    paths: tuple[str, ...]
    held: FilesHeld
    written: Written


@dataclass(frozen=True, slots=True)
class PartitionsWritten:
    """Hold write actions against the files that they made in the directories of their partitions."""

    operator: str
    writes: tuple[Scattered, ...]

    def run(self, graph: Graph, frames: Frames | None) -> tuple[int, Finding | None]:
        """Return how many records are the same, and what is wrong after them."""
        compared = 0
        for write in self.writes:
            expected = list(_expected(write, graph))
            try:
                found = list(_scattered(write))
            except Misfit as error:
                return compared, self._wrong(write, "made a file that is not what was written", found=str(error))
            missing, extra = unmatched((row for _, row in expected), found)
            if missing or extra:
                return compared, self._differs(write, expected, missing, extra)
            compared += len(found)
        return compared, None

    def _differs(
        self, write: Scattered, expected: list[tuple[Origin, Row]], missing: list[Row], extra: list[Row]
    ) -> Finding:
        names = write.written.schema.names
        origin = next((origin for origin, row in expected if missing and same(row, missing[0])), None)
        return self._wrong(
            write, "made files that hold other records than were written", origin,
            expected=shown(missing, names), found=shown(extra, names),
        )  # fmt: skip

    def _wrong(self, write: Scattered, fact: str, origin: Origin | None = None, **rest: Any) -> Finding:
        part = write.written.parts[0]
        event, number = origin or (part.named, part.write)
        fact = f"write action #{number} {fact}"
        return wrong(self.operator, fact, event=event, input_set=number if event else None, **rest)


def _scattered(write: Scattered) -> Iterator[Row]:
    for path in write.paths:
        for table in partition_tables(path, write.held, write.written.schema):
            yield from rows_of(table)


def _expected(file: File | Scattered, graph: Graph) -> Iterator[tuple[Origin, Row]]:
    return ((origin, row) for origin, table in file.written.tables(graph) for row in rows_of(table))


def _found(file: File) -> Iterator[Row]:
    if not is_file(file.path):
        raise Misfit("no file")
    return (row for table in file_tables(file.path, file.written.schema, file.format) for row in rows_of(table))
