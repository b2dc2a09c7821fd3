"""What the sinks hold, against what the certificate says was written there: as multisets, read from the sinks."""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from clew.errors import ClewError
from clew.ids import Port
from clew.model import read
from clew.model.certificate import Body, Certificate, Logged, Verdict, undecided, wrong
from clew.model.compare import shown, unmatched
from clew.model.interpret import records
from clew.model.work import Compute, FileWritten, Holding, Written
from clew.pipeline.contracts import FilesHeld, Held, RowsHeld
from clew.pipeline.graph import Graph
from clew.pipeline.schema import fixed

#: How many write actions one piece of work compares.
CHUNK_WRITES = 50

#: A write action with what it writes: its number, and (schema or None, bodies) of each part.
Content = tuple[int, tuple[tuple[pa.Schema | None, tuple[Body, ...]], ...]]


@dataclass(frozen=True)
class _Writer:
    """A connection that writes to some place."""

    port: Port
    held: Held


def check_sinks(graph: Graph, certificate: Certificate, compute: Compute, verdict: Verdict) -> None:
    """Hold every place that was written to against the write actions that went there."""
    places: dict[Any, list[_Writer]] = {}
    for spec in graph.operators.values():
        for name, sink in spec.sinks.items():
            held = sink.holds()
            if held is None:
                fact = f"what {sink.describe()} holds cannot be read by anybody else"
                verdict.findings.append(undecided(spec.name, fact))
            else:
                places.setdefault(_place(held, Port(spec.name, name)), []).append(_Writer(Port(spec.name, name), held))
    for writers in places.values():
        _Place(writers, certificate, compute, verdict).check()


def _place(held: Held, port: Port) -> Any:
    """Return what two connections have in common when they write to one place; files are known by their writer."""
    return port if isinstance(held, FilesHeld) else held


class _Place:
    """One table, or one directory, and all connections that write to it."""

    def __init__(
        self, writers: Sequence[_Writer], certificate: Certificate, compute: Compute, verdict: Verdict
    ) -> None:
        self._writers = writers
        self._held = writers[0].held
        self._operator = writers[0].port.operator
        self._log = certificate
        self._compute = compute
        self._verdict = verdict

    def check(self) -> None:
        schema = next((found for writer in self._writers if (found := self._schema(writer.port))), None)
        if schema is None:
            # Nothing was ever written, so nothing is known of what would be there.
            return
        try:
            if isinstance(self._held, FilesHeld):
                self._check_files(self._held, schema)
            else:
                self._check_records(self._held, schema)
        except ClewError as error:
            self._verdict.findings.append(undecided(self._operator, f"what was written cannot be read: {error}"))

    def _contents(self, port: Port) -> Iterator[Content]:
        return ((write.number, self._parts(write)) for write in self._log.writes(port))

    def _parts(self, write: Logged) -> tuple[tuple[pa.Schema | None, tuple[Body, ...]], ...]:
        if not write.events:
            return ((None, write.bodies),)
        return tuple(
            (self._log.schema(sender), tuple(self._log.bodies(sender, first, count)))
            for sender, first, count in write.events
        )

    def _schema(self, port: Port) -> pa.Schema | None:
        """Return the schema of what a connection writes: the first that any of its write actions has."""
        for _, parts in self._contents(port):
            for schema, bodies in parts:
                if schema is not None:
                    return schema
                if bodies:
                    return fixed(records(bodies[0], self._log.root, None).schema)
        return None

    # Files: one per write action, so each is held against its own.

    def _check_files(self, held: FilesHeld, schema: pa.Schema) -> None:
        port = self._writers[0].port
        prefix = f"{self._log.run}-{port.operator}-{port.name}-"
        expected: set[str] = set()

        def works() -> Iterator[FileWritten]:
            for batch in _batched(self._contents(port), CHUNK_WRITES):
                files = []
                for number, parts in batch:
                    name = f"{prefix}{number:09d}"
                    path = read.file_written(held, name)
                    expected.add(path)
                    files.append((path, name, parts))
                yield FileWritten(held, tuple(files), port.operator, schema, self._log.root)

        for compared, finding in self._compute.map(works()):
            self._verdict.count("sink records", compared)
            if finding is not None:
                self._verdict.findings.append(finding)
                return
        extra = [path for path in read.files_written(held, prefix) if path not in expected]
        if extra and not self._collected():
            fact = f"{len(extra)} files in {held.places[0]} are of no write action"
            self._verdict.findings.append(wrong(port.operator, fact, found=extra[0]))

    # Records of a table: all writers together, as one multiset.

    def _check_records(self, held: Held, schema: pa.Schema) -> None:
        key = held.key if not isinstance(held, FilesHeld) else ()
        if key and len(self._writers) > 1:
            fact = "several operators replace rows of one table; in which order is not known from their logs"
            self._verdict.findings.append(undecided(self._operator, fact))
            return
        expected = self._expected(schema, key)
        (found,) = self._compute.map([Holding(held, schema)])
        if isinstance(found, ClewError):
            raise found
        self._verdict.count("sink records", len(found))
        if sorted(expected) != sorted(found):
            self._explain(held, schema, Counter(expected), Counter(found))

    def _expected(self, schema: pa.Schema, key: tuple[str, ...]) -> "array[int]":
        numbers: array[int] = array("Q")
        last: dict[int, int] = {}
        for part in self._compute.map(self._written(schema, key)):
            if key:
                last.update(part)
            else:
                numbers.extend(part)
        return array("Q", last.values()) if key else numbers

    def _written(
        self, schema: pa.Schema, key: tuple[str, ...] = (), wanted: frozenset[int] | None = None
    ) -> Iterator[Written]:
        for writer in self._writers:
            for batch in _batched(self._contents(writer.port), CHUNK_WRITES):
                parts = tuple(
                    (f"{writer.port}#{number}", own, bodies) for number, content in batch for own, bodies in content
                )
                yield Written(parts, schema, self._log.root, key, wanted)

    def _explain(self, held: Held, schema: pa.Schema, expected: Counter[int], found: Counter[int]) -> None:
        """Fetch the records whose numbers differ; some differ only in how floats were rounded."""
        differ = frozenset((expected - found) | (found - expected))
        written = [one for part in self._compute.map(self._written(schema, wanted=differ)) for one in part]
        (there,) = self._compute.map([Holding(held, schema, differ)])
        missing, extra = unmatched((row for _, row in written), (row for _, row in there))
        origin = {repr(row): name for name, row in reversed(written)}
        names = schema.names
        if missing:
            fact = f"{_many(len(missing), 'record')} of {origin.get(repr(missing[0]), 'a write action')} "
            fact += "and others are" if len(missing) > 1 else "is"
            finding = wrong(
                self._operator, f"{fact} not in {self._where(held)}",
                expected=shown(missing, names), found=shown(extra, names),
            )  # fmt: skip
            self._verdict.findings.append(finding)
        elif extra:
            self._extra(held, extra, origin, names)

    def _extra(self, held: Held, extra: list[Any], origin: dict[str, str], names: Sequence[str]) -> None:
        again = [row for row in extra if repr(row) in origin]
        others = read.other_runs(held, self._log.run) if isinstance(held, RowsHeld) else 0
        if others or self._collected():
            why = "other runs have written there too" if others else "write actions were collected"
            fact = f"{self._where(held)} holds {_many(len(extra), 'record')} more than this run wrote; {why}"
            self._verdict.findings.append(undecided(self._operator, fact, found=shown(extra, names)))
        elif again:
            fact = f"{_many(len(again), 'record')} of {origin[repr(again[0])]} stand too often in {self._where(held)}"
            self._verdict.findings.append(wrong(self._operator, fact, found=shown(again, names)))
        else:
            fact = f"{self._where(held)} holds {_many(len(extra), 'record')} that nobody wrote"
            self._verdict.findings.append(wrong(self._operator, fact, found=shown(extra, names)))

    def _collected(self) -> bool:
        """Say whether write actions are gone from the log: it then begins with a later one than the first."""
        first = [next(self._log.writes(writer.port), None) for writer in self._writers]
        return any(write is None or write.number > 1 for write in first)

    def _where(self, held: Held) -> str:
        return f"table {held.table}" if isinstance(held, RowsHeld) else f"what {self._writers[0].port} wrote to"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _batched(items: Iterator[Content], size: int) -> Iterator[list[Content]]:
    while batch := list(islice(items, size)):
        yield batch
