"""The parts of a judgement that touch records: plain values that can be worked off here, or on Spark executors.

Each gives back little: findings, facts, or a number per record. Where the numbers differ the records themselves are
asked for, and only those.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Protocol

import pyarrow as pa

from clew.errors import ClewError
from clew.ids import EventId, Port
from clew.model import read
from clew.model.certificate import Body, Finding, wrong
from clew.model.compare import Row, hashes, rows_of, same_rows, shown
from clew.model.interpret import Frames, Given, Made, as_sent, interpret, records
from clew.model.replay import Claim
from clew.model.windows import courses
from clew.pipeline.contracts import FilesHeld, Held, Replayable, RowsHeld
from clew.pipeline.graph import Graph, OperatorSpec
from clew.pipeline.schema import normalise

#: How many records are fetched at most where two sides differ.
MOST = 10_000


class Work(Protocol):
    """Something to do with records."""

    def run(self, graph: Graph, frames: Frames | None) -> Any: ...


class Compute(Protocol):
    """Where work is done."""

    @property
    def frames(self) -> Frames | None:
        """Calls functions of DataFrames; None where there is no Spark."""

    def map(self, works: Iterable[Work]) -> Iterator[Any]:
        """Do all work, and give back the results in the same order, as they come."""


@dataclass(frozen=True)
class Here:
    """Does the work in this process."""

    graph: Graph
    frames: Frames | None = None

    def map(self, works: Iterable[Work]) -> Iterator[Any]:
        return (work.run(self.graph, self.frames) for work in works)


@dataclass(frozen=True, slots=True)
class Facts:
    """Compute what an operator's windows need to know of some events."""

    operator: str
    bodies: tuple[Body, ...]
    schema: pa.Schema
    root: str | None

    def run(self, graph: Graph, frames: Frames | None) -> list[Any]:
        spec = graph.operators[self.operator]
        own = courses(spec)
        tables = (records(body, self.root, self.schema) for body in self.bodies)
        if spec.general is not None:
            return [own[""].facts(table) for table in tables]
        return [{name: course.facts(table) for name, course in own.items() if course.needs_facts} for table in tables]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A claim with the bodies that it speaks of."""

    claim: Claim
    inputs: Mapping[tuple[str, int], Body]
    outputs: Mapping[str, tuple[Body, ...]]
    answers: Mapping[str, tuple[Body, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What came of computing some claims again: the first mistake, and the write actions that were made, in order."""

    finding: Finding | None
    #: By connection: (Input Set, number of the write's records).
    writes: Mapping[str, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class Recompute:
    """Give functions their Input Sets again, and hold what they make against what was logged."""

    operator: str
    evidence: tuple[Evidence, ...]
    inputs: Mapping[str, pa.Schema]
    outputs: Mapping[str, pa.Schema]
    root: str | None

    def run(self, graph: Graph, frames: Frames | None) -> Recomputed:
        spec = graph.operators[self.operator]
        writes: dict[str, list[tuple[int, int]]] = {}
        for one in self.evidence:
            try:
                given = self._given(spec, one)
                made = interpret(given, frames)
                finding = self._compare(spec, one, made, partial(interpret, given, frames))
            except Exception as error:
                fact = f"its Output Set cannot be computed again: {type(error).__name__}: {error}"
                finding = wrong(spec.name, fact, input_set=one.claim.input_set, event=_first_event(spec, one.claim))
            if finding is not None:
                return Recomputed(finding, {})
            for connection, tables in made.writes.items():
                numbers = [(one.claim.input_set, digest(table)) for table in tables]
                writes.setdefault(connection, []).extend(numbers)
        return Recomputed(None, {name: tuple(found) for name, found in writes.items()})

    def _given(self, spec: OperatorSpec, one: Evidence) -> Given:
        claim = one.claim
        events = [
            (port, number, records(one.inputs[port, number], self.root, self.inputs[port]))
            for port, first, count in claim.spans
            for number in range(first, first + count)
        ]
        answers = {name: [records(body, self.root, None) for body in bodies] for name, bodies in one.answers.items()}
        return Given(
            spec, claim.function, claim.key, claim.input_set, events, self.inputs, claim.state, answers
        )  # fmt: skip

    def _compare(self, spec: OperatorSpec, one: Evidence, made: Made, again: Callable[[], Made]) -> Finding | None:
        for port in spec.outputs:
            found = [rows_of(records(body, self.root, self.outputs[port])) for body in one.outputs.get(port, ())]
            expected = self._sent(made, port)
            if len(found) == len(expected) and all(same_rows(a, b) for a, b in zip(expected, found)):
                continue
            names = self.outputs[port].names if port in self.outputs else []
            fact = f"the Output Set on port {port} is not what the function gives"
            if expected != self._sent(again(), port):
                fact = f"is declared deterministic and is not: it gives something else each time, on port {port}"
            first, count = one.claim.outputs.get(port, (0, 0))
            event = str(EventId(Port(spec.name, port), first)) if count else ""
            return wrong(
                spec.name, fact, event=event or _first_event(spec, one.claim), input_set=one.claim.input_set,
                expected=_events_shown(expected, names), found=_events_shown(found, names),
            )  # fmt: skip
        return None

    def _sent(self, made: Made, port: str) -> list[list[Row]]:
        tables = made.outputs.get(port, [])
        schema = self.outputs.get(port)
        return [rows_of(as_sent(table, schema, port) if schema else table) for table in tables]


@dataclass(frozen=True, slots=True)
class Written:
    """Number the records of some write actions; `wanted` asks for the records themselves, with where they come from."""

    #: (name of the write action, schema or None, bodies).
    parts: tuple[tuple[str, pa.Schema | None, tuple[Body, ...]], ...]
    schema: pa.Schema
    root: str | None
    key: tuple[str, ...] = ()
    wanted: frozenset[int] | None = None

    def run(self, graph: Graph, frames: Frames | None) -> Any:
        rows = ((name, row) for name, table in self._tables() for row in rows_of(table))
        if self.wanted is not None:
            return list(islice(_wanted(rows, self.wanted), MOST))
        return _numbers([row for _, row in rows], self.schema, self.key)

    def _tables(self) -> Iterator[tuple[str, pa.Table]]:
        for name, schema, bodies in self.parts:
            for body in bodies:
                yield name, as_sent(records(body, self.root, schema), self.schema, name)


@dataclass(frozen=True, slots=True)
class Holding:
    """Number the records that an outside system holds, or return those that are wanted."""

    held: Held
    schema: pa.Schema
    wanted: frozenset[int] | None = None

    def run(self, graph: Graph, frames: Frames | None) -> Any:
        try:
            rows = (("", row) for table in held_tables(self.held, self.schema) for row in rows_of(table))
            if self.wanted is not None:
                return list(islice(_wanted(rows, self.wanted), MOST))
            return hashes(row for _, row in rows)
        except ClewError as error:
            return error


@dataclass(frozen=True, slots=True)
class Events:
    """Number the records of some events, in order."""

    bodies: tuple[Body, ...]
    schema: pa.Schema
    root: str | None

    def run(self, graph: Graph, frames: Frames | None) -> "array[int]":
        return hashes(row for body in self.bodies for row in rows_of(records(body, self.root, self.schema)))


@dataclass(frozen=True, slots=True)
class Origin:
    """Number the records that a source gives, in order: all of them, or those of some slices."""

    source: str
    schema: pa.Schema
    pieces: tuple[Any, ...] | None = None
    #: Asks for the one record at this index, or for how many there are when there is none.
    at: int | None = None

    def run(self, graph: Graph, frames: Frames | None) -> Any:
        source = graph.operators[self.source].source
        assert isinstance(source, Replayable)
        try:
            if self.pieces is not None:
                tables: Iterable[pa.Table] = (piece.table for part in self.pieces for piece in source.read(None, part))
            else:
                held = source.holds()
                assert held is not None
                tables = held_tables(held, self.schema)
            rows = (row for table in tables for row in rows_of(as_sent(normalise(table), self.schema, "out")))
            if self.at is None:
                return hashes(rows)
            found = list(rows)
            return found[self.at : self.at + 1] or len(found)
        except ClewError as error:
            return error


@dataclass(frozen=True, slots=True)
class FileWritten:
    """Hold files that write actions made against what was to be in them."""

    held: FilesHeld
    #: (path, name of the write action, parts as in `Written`).
    files: tuple[tuple[str, str, tuple[tuple[pa.Schema | None, tuple[Body, ...]], ...]], ...]
    operator: str
    schema: pa.Schema
    root: str | None

    def run(self, graph: Graph, frames: Frames | None) -> tuple[int, Finding | None]:
        compared = 0
        for path, name, parts in self.files:
            expected = [
                row
                for schema, bodies in parts
                for body in bodies
                for row in rows_of(as_sent(records(body, self.root, schema), self.schema, name))
            ]
            try:
                found = rows_of(read.file_records(path, self.schema, self.held.format or "parquet"))
            except ClewError as error:
                return compared, wrong(self.operator, f"the file of {name} is not what was written: {error}")
            if not same_rows(expected, found):
                at = next((i for i, (a, b) in enumerate(zip(expected, found)) if not same_rows([a], [b])), -1)
                one, other = (expected[at : at + 1], found[at : at + 1]) if at >= 0 else (expected, found)
                return compared, wrong(
                    self.operator, f"the file of {name} holds other records than were written",
                    expected=shown(one, self.schema.names), found=shown(other, self.schema.names),
                )  # fmt: skip
            compared += len(found)
        return compared, None


def held_tables(held: Held, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read everything that a place holds, as records of a schema."""
    if isinstance(held, FilesHeld):
        return (read.file_records(path, schema, held.format) for path in read.files_of(held))
    if isinstance(held, RowsHeld):
        return read.rows_held(held, schema)
    return held.tables(schema)


def digest(table: pa.Table) -> int:
    """Number the records of a table as one."""
    (number,) = hashes([tuple(hashes(rows_of(table)))])
    return number


def _numbers(rows: Sequence[Row], schema: pa.Schema, key: Sequence[str]) -> Any:
    """Return a number per record; with a key, a number of the key beside it."""
    if not key:
        return hashes(rows)
    places = [schema.names.index(name) for name in key]
    return list(zip(hashes(tuple(row[place] for place in places) for row in rows), hashes(rows)))


def _wanted(rows: Iterable[tuple[str, Row]], wanted: frozenset[int]) -> Iterator[tuple[str, Row]]:
    return ((name, row) for name, row in rows if hashes([row])[0] in wanted)


def _first_event(spec: OperatorSpec, claim: Claim) -> str:
    if not claim.spans:
        return ""
    port, first, _ = claim.spans[0]
    return str(EventId(spec.inputs[port], first))


def _events_shown(events: Sequence[Sequence[Row]], names: Sequence[str]) -> str:
    if len(events) == 1:
        return shown(events[0], names)
    return f"{len(events)} events: {'; '.join(shown(rows, names, 2) for rows in events[:3])}" if events else "no event"
