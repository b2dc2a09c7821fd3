"""What the sinks hold, against what the certificate says was written there: as multisets, read from the sinks."""

import os
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from clew.errors import ClewError
from clew.ids import Port
from clew.model.certificate import RAISED, Certificate, EventWrong, Logged, Verdict, undecided, wrong
from clew.model.compare import Row, fold, shown, unmatched
from clew.model.evidence import bodies_of
from clew.model.holdings import (
    MOST,
    CountHeld,
    Fetch,
    File,
    FilesWritten,
    Holding,
    KeyedNumbers,
    Numbers,
    Origin,
    Part,
    PartitionsWritten,
    Scattered,
    Written,
)
from clew.model.outside import file_written, files_written, is_missing, other_runs, place_of
from clew.model.read import LogUnreadable, Unreadable, records
from clew.model.values import Misfit
from clew.model.work import Compute
from clew.pipeline.contracts import FilesHeld, Held, RowsHeld
from clew.pipeline.graph import Graph
from clew.pipeline.schema import fixed

#: How often the records of a place are gone through to explain what differs.
MOST_BUCKETS = 32

#: How many write actions one piece of work compares, and after how many bytes it has enough.
CHUNK_WRITES = 50
CHUNK_BYTES = 4 << 20


#: What a sink calls a file: run, operator, connection, number of the write action, and perhaps a part.
_WRITTEN = re.compile(r"([0-9a-f]{32})-.+-\d{9,}(?!\d)")


@dataclass(frozen=True)
class _Writer:
    """A connection that writes to some place."""

    port: Port
    held: Held
    #: Whether write actions of it are gone from the log.
    gone: bool


def check_sinks(graph: Graph, certificate: Certificate, compute: Compute, verdict: Verdict) -> None:
    """Hold every place that was written to against the write actions that went there."""
    places: dict[Any, list[_Writer]] = {}
    for spec in graph.operators.values():
        for name, sink in spec.sinks.items():
            port = Port(spec.name, name)
            try:
                held = sink.holds()
            except RAISED as error:
                fact = f"holds() of {sink.describe()} fails: {type(error).__name__}: {error}"
                verdict.findings.append(undecided(spec.name, fact))
                continue
            if held is None:
                fact = f"what {sink.describe()} holds cannot be read by anybody else"
                verdict.findings.append(undecided(spec.name, fact))
            else:
                writer = _Writer(port, held, certificate.collected_writes(port) > 0)
                places.setdefault(_place(held, port), []).append(writer)
    for writers in places.values():
        moved = [writer.port for writer in writers if "place" in certificate.changed(writer.port.operator).parts]
        if moved:
            fact = "was written to elsewhere before, so that what is there cannot be held against all that was written"
            verdict.findings.append(undecided(moved[0].operator, f"{moved[0]} {fact}"))
            continue
        kind = _Files if isinstance(writers[0].held, FilesHeld) else _Table
        kind(writers, certificate, compute, verdict, _were_others(graph, certificate)).check()


def _were_others(graph: Graph, certificate: Certificate) -> bool:
    """Say whether sinks that are gone, or wrote elsewhere before, may have written in the same places."""
    moved = any("place" in certificate.changed(name).parts for name in graph.operators)
    return moved or not graph.operators.keys() >= certificate.statuses().keys()


def _place(held: Held, port: Port) -> Any:
    """Return what two connections have in common when they write to one place; files are known by their writer."""
    if isinstance(held, RowsHeld):
        return place_of(held)
    return port if isinstance(held, FilesHeld) or not _has_hash(held) else held


def _has_hash(held: Held) -> bool:
    """Say whether it can be asked what equals this; a frozen dataclass that holds a list has no hash after all."""
    try:
        hash(held)
    except TypeError:
        return False
    return True


class _Place:
    """One place, and all connections that write to it."""

    def __init__(
        self,
        writers: Sequence[_Writer],
        certificate: Certificate,
        compute: Compute,
        verdict: Verdict,
        were_others: bool = False,
    ) -> None:
        self._writers = writers
        self._operator = writers[0].port.operator
        self._log = certificate
        self._compute = compute
        self._verdict = verdict
        #: Whether sinks that the pipeline had before may have written here too.
        self._were_others = were_others

    def check(self) -> None:
        """Add what is wrong to the verdict: the first that is found."""
        try:
            self._check()
        except EventWrong as error:
            self._add(error.finding(self._operator))
        except Misfit as error:
            self._add(wrong(self._operator, f"{self._where} holds what nobody can have written: {error}"))
        except LogUnreadable:
            raise
        except ClewError as error:
            self._add(undecided(self._operator, f"what was written cannot be read: {error}"))

    def _check(self) -> None:
        """Compare what is held with what was written; each kind of system has its own way."""
        raise NotImplementedError

    @property
    def _where(self) -> str:
        held = self._writers[0].held
        return f"table {held.table}" if isinstance(held, RowsHeld) else f"what {self._writers[0].port} writes to"

    @property
    def _gone(self) -> bool:
        return any(writer.gone for writer in self._writers)

    def _add(self, *findings: Any) -> None:
        self._verdict.findings += findings

    def _parts(self, write: Logged) -> tuple[Part, ...]:
        if not write.events:
            return (Part(write.number, None, write.bodies),)
        return tuple(
            Part(
                write.number, self._log.schema(sender), tuple(bodies_of(self._log, sender, first, count)), sender, first
            )
            for sender, first, count in write.events
        )

    def _chunks(self, port: Port) -> Iterator[list[tuple[Part, ...]]]:
        """Yield what all write actions of a connection write, as many at a time as make up a piece of work."""
        batch: list[tuple[Part, ...]] = []
        size = 0
        for write in self._log.writes(port):
            batch.append(self._parts(write))
            size += sum(body.length for part in batch[-1] for body in part.bodies)
            if len(batch) == CHUNK_WRITES or size >= CHUNK_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _schema_of(self, parts: Sequence[Part]) -> pa.Schema | None:
        """Return the schema of what a write action writes."""
        for part in parts:
            if part.schema is not None:
                return part.schema
            if part.bodies:
                return fixed(records(part.bodies[0], self._log.root, None, f"write action #{part.write}").schema)
        return None


class _Files(_Place):
    """A directory: each write action is a file of its own, or one per partition."""

    def _check(self) -> None:
        (writer,) = self._writers
        held = writer.held
        assert isinstance(held, FilesHeld)
        prefix = f"{self._log.run}-{writer.port.operator}-{writer.port.name}-"
        if any(True for _ in self._log.writes(writer.port)) and is_missing(held):
            raise Unreadable(f"there is no directory {held.places[0]}")
        # Names of other connections may begin so too, and go on with more words before their number.
        own = re.compile(re.escape(prefix) + r"\d{9,}(?!\d|-(.*-)?\d{9})")
        there = files_written(held)
        found = [path for path in there if own.match(os.path.basename(path))]
        self._check_others(held, there)
        expected: set[str] = set()
        works = self._scattered if held.partition_by else self._works
        for compared, finding in self._compute.map(works(writer.port, held, prefix, found, expected)):
            self._verdict.count("sink records", compared)
            if finding is not None:
                self._add(finding)
                return
        extra = [path for path in found if path not in expected]
        if extra and not writer.gone:
            fact = f"{_many(len(extra), 'file')} in {held.places[0]} {_are(len(extra))} of no write action"
            self._add(wrong(self._operator, fact, found=os.path.basename(extra[0])))

    def _check_others(self, held: FilesHeld, there: Sequence[str]) -> None:
        """Say what other runs have written here: what they wrote once more, their files hold beside this run's."""
        others = [path for path in there if _run_of(path) not in (None, self._log.run)]
        if others:
            fact = f"{held.places[0]} holds {_many(len(others), 'file')} more than this run wrote"
            told = {"found": os.path.basename(others[0])}
            self._add(undecided(self._operator, f"{fact}; other runs have written there too", **told))

    def _works(
        self, port: Port, held: FilesHeld, prefix: str, found: Sequence[str], expected: set[str]
    ) -> Iterator[FilesWritten]:
        for batch in self._chunks(port):
            files = [File(_path(parts, held, prefix), held.format or "parquet", self._all(parts)) for parts in batch]
            expected.update(file.path for file in files)
            yield FilesWritten(port.operator, tuple(files))

    def _scattered(
        self, port: Port, held: FilesHeld, prefix: str, found: Sequence[str], expected: set[str]
    ) -> Iterator[PartitionsWritten]:
        by_name: dict[str, list[str]] = {}
        for path in found:
            by_name.setdefault(os.path.basename(path), []).append(path)
        for batch in self._chunks(port):
            writes = []
            for parts in batch:
                paths = by_name.get(os.path.basename(_path(parts, held, prefix)), [])
                expected.update(paths)
                writes.append(Scattered(tuple(paths), held, self._all(parts)))
            yield PartitionsWritten(port.operator, tuple(writes))

    def _all(self, parts: tuple[Part, ...]) -> Written:
        return Written(parts, self._schema_of(parts) or pa.schema([]), self._log.root)


def _run_of(path: str) -> str | None:
    """Return the run that has written a file, by its name."""
    found = _WRITTEN.match(os.path.basename(path))
    return found[1] if found is not None else None


def _path(parts: tuple[Part, ...], held: FilesHeld, prefix: str) -> str:
    return file_written(held, f"{prefix}{parts[0].write:09d}")


class _Table(_Place):
    """A table, or what a user's own system holds: all writers' records together, as one multiset."""

    def _check(self) -> None:
        schema = next((found for writer in self._writers if (found := self._schema(writer.port)) is not None), None)
        if schema is None:
            self._check_nothing()
            return
        key = self._key()
        if key and len(self._writers) > 1:
            fact = "several operators replace rows of one table; in which order is not known from their logs"
            self._add(undecided(self._operator, fact))
            return
        expected = _sorted(self._expected(schema, key))
        holding = Holding(self._writers[0].held, schema)
        if expected and isinstance(holding.held, RowsHeld) and is_missing(holding.held):
            fact = f"{self._where} is not there, and {_many(len(expected), 'record')} {_are(len(expected))} to be in it"
            self._add(wrong(self._operator, fact))
            return
        (held,) = self._compute.map([Numbers(holding)])
        found = _sorted(held)
        self._verdict.count("sink records", len(found))
        if expected != found:
            self._explain(holding, key, frozenset(_differing(expected, found)))

    def _check_nothing(self) -> None:
        """Where nothing was written nobody knows what it would be, but how many records there are can be asked."""
        held = self._writers[0].held
        if isinstance(held, RowsHeld) and is_missing(held):
            return
        try:
            (count,) = self._compute.map([CountHeld(held, pa.schema([]))])
        except ClewError:
            if isinstance(held, RowsHeld):
                raise
            # A system of a user's own need not be there before anything is written.
            return
        if count:
            self._verdict.count("sink records", count)
            others = other_runs(held, self._log.run) if isinstance(held, RowsHeld) else 0
            self._more(count, self._why_more(others))

    def _key(self) -> tuple[str, ...]:
        keys = [writer.held.key for writer in self._writers if not isinstance(writer.held, FilesHeld)]
        return next((key for key in keys if key), ())

    def _schema(self, port: Port) -> pa.Schema | None:
        """Return the schema of what a connection writes: the first that any of its write actions has."""
        schemas = (self._schema_of(self._parts(write)) for write in self._log.writes(port))
        return next((schema for schema in schemas if schema is not None), None)

    def _written(self, schema: pa.Schema) -> Iterator[Written]:
        for writer in self._writers:
            for batch in self._chunks(writer.port):
                yield Written(tuple(part for parts in batch for part in parts), schema, self._log.root)

    def _expected(self, schema: pa.Schema, key: tuple[str, ...]) -> "array[int]":
        numbers: array[int] = array("Q")
        if not key:
            for part in self._compute.map(Numbers(written) for written in self._written(schema)):
                numbers.extend(part)
            return numbers
        last: dict[int, int] = {}
        for keys, part in self._compute.map(KeyedNumbers(written, key) for written in self._written(schema)):
            last.update(zip(keys, part))
        return array("Q", last.values())

    def _explain(self, holding: Holding, key: tuple[str, ...], differ: frozenset[int]) -> None:
        """Fetch the records whose numbers differ; some differ only in how floats were rounded.

        As many at a time as can be held, in buckets, up to the first in which something is wrong.
        """
        buckets = -(-len(differ) // (MOST // 2))
        before = len(self._verdict.findings)
        for bucket in range(min(buckets, MOST_BUCKETS)):
            self._explain_bucket(holding, key, (differ, bucket, buckets))
            if len(self._verdict.findings) > before:
                return
        if buckets > MOST_BUCKETS:
            fact = f"{_many(len(differ), 'record')} of {self._where} differ, if only in how floats were rounded"
            self._add(undecided(self._operator, f"{fact}: too many to be held against each other"))

    def _explain_bucket(self, holding: Holding, key: tuple[str, ...], of: tuple[frozenset[int], int, int]) -> None:
        names = holding.schema.names
        works = (Fetch(written, *of, key) for written in self._written(holding.schema))
        parts = list(self._compute.map(works))
        written = [one for part in parts for one in part]
        (there,) = self._compute.map([Fetch(holding, *of, key)])
        rows = [row for _, row in written]
        missing, extra = unmatched(fold(rows, names, key) if key else rows, (row for _, row in there))
        # Those that were not fetched may be the counterparts of what has none.
        all_there, all_written = len(there) < MOST, all(len(part) < MOST for part in parts)
        if not ((missing and all_there) or (extra and all_written) or (all_there and all_written)):
            fact = f"more than {MOST} records of {self._where} differ in their floats alone: too many to be compared"
            self._add(undecided(self._operator, fact))
            return
        origins = {repr(row): origin for origin, row in reversed(written)}
        others = other_runs(holding.held, self._log.run) if isinstance(holding.held, RowsHeld) else 0
        if missing:
            self._missing(missing, extra, origins, names, self._by_others(others) if key else "")
        elif extra:
            self._extra(extra, origins, names, self._why_more(others))

    def _by_others(self, others: int) -> str:
        """Say who else may have written here, if anybody."""
        if others:
            return "other runs have written there too"
        return "sinks that are gone, or wrote elsewhere before, may have written there too" if self._were_others else ""

    def _why_more(self, others: int) -> str:
        """Say why there may be more than this run's log says was written, if for any reason."""
        return self._by_others(others) or ("write actions were collected" if self._gone else "")

    def _missing(
        self, missing: list[Row], extra: list[Row], origins: dict[str, Origin], names: Sequence[str], others: str
    ) -> None:
        origin = origins[repr(missing[0])]
        more = f", and {_many(len(missing) - 1, 'more record')}" if len(missing) > 1 else ""
        fact = f"a record of write action #{origin.write} is not in {self._where}{more}"
        told = {"expected": shown(missing, names), "found": shown(extra, names), **_named(origin)}
        if others:
            fact = f"{fact}; {others}, and may have replaced it"
            self._add(undecided(self._operator, fact, **told))
        else:
            self._add(wrong(self._operator, fact, **told))

    def _extra(self, extra: list[Row], origins: dict[str, Origin], names: Sequence[str], why: str) -> None:
        again = [row for row in extra if repr(row) in origins]
        if why or not again:
            self._more(len(extra), why, found=shown(extra, names))
            return
        origin = origins[repr(again[0])]
        fact = f"{_many(len(again), 'record')} of write action #{origin.write} {_are(len(again))} in {self._where} "
        self._add(wrong(self._operator, f"{fact}more often than written", found=shown(again, names), **_named(origin)))

    def _more(self, count: int, why: str, **told: str) -> None:
        """Add that there are more records than were written; `why` says who may have written them, if anybody."""
        held = f"{self._where} holds {_many(count, 'record')}"
        if why:
            self._add(undecided(self._operator, f"{held} more than this run wrote; {why}", **told))
        else:
            self._add(wrong(self._operator, f"{held} that nobody wrote", **told))


def _named(origin: Origin) -> dict[str, Any]:
    """Name the event and the Input Set of a record; a sink makes one write action of each Input Set, in order."""
    return {"event": origin.event, "input_set": origin.write} if origin.event else {}


def _sorted(numbers: "array[int]") -> "array[int]":
    """Sort numbers without making an object of each."""
    values = pa.Array.from_buffers(pa.uint64(), len(numbers), [None, pa.py_buffer(numbers)]).sort()
    ordered: array[int] = array("Q")
    ordered.frombytes(memoryview(values.buffers()[1])[: len(numbers) * numbers.itemsize])
    return ordered


def _differing(one: "array[int]", other: "array[int]") -> Iterator[int]:
    """Yield the numbers that stand more often in one of two sorted sequences."""
    i = j = 0
    while i < len(one) or j < len(other):
        if j == len(other) or (i < len(one) and one[i] < other[j]):
            yield one[i]
            i += 1
        elif i == len(one) or other[j] < one[i]:
            yield other[j]
            j += 1
        else:
            i, j = i + 1, j + 1


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
