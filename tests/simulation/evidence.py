"""A simulated run as the checker sees one: the memory log as a certificate, and what the simulated systems hold."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from clew.ids import Port, writes_port
from clew.model.certificate import Answer, Body, Changed, Kept, Logged, Sent, SetAside, Taken
from clew.model.read import UNPLACED, asked_of, changed_of, has_failed, late_of
from clew.pipeline.schema import from_bytes
from clew.protocol.rows import Bodies
from tests.simulation.journal import Journal


class Evidence:
    """The log of a simulated run (a `Certificate`), with what was collected, or without it."""

    def __init__(self, journal: Journal, root: str | None, whole: bool = False) -> None:
        self._rows = journal.whole() if whole else journal._rows
        #: What was in body files that are gone.
        self._files = journal.files if whole else {}
        self._senders = dict(journal._senders)
        self._lookups = journal._lookups
        assert journal._topology is not None
        self._uncaptured = journal._topology.uncaptured
        self.run = journal.run_id
        self.root = root

    def statuses(self) -> dict[str, str]:
        return {name: row.status for name, row in self._rows.operators.items()}

    def links(self) -> dict[Port, Port]:
        return self._senders

    def changed(self, operator: str) -> Changed:
        text = self._rows.versions.get(operator)
        return Changed() if text is None else changed_of(json.loads(text))

    def schema(self, port: Port) -> pa.Schema | None:
        data = self._rows.schemas.get(port)
        return None if data is None else from_bytes(data)

    def collected(self, port: Port) -> int:
        # What was collected is the beginning of the port.
        return min(self._rows.sent.get(port, ()), default=self._rows.last_sent.get(port, 0) + 1) - 1

    def collected_writes(self, connection: Port) -> int:
        return self._rows.collected_writes.get(connection, 0)

    def sent(self, port: Port) -> Iterator[Sent]:
        for number, (header, _) in sorted(self._rows.sent.get(port, {}).items()):
            yield Sent(number, header.rows, header.size, header.end)

    def taken(self, receiver: Port) -> Iterator[Taken]:
        for number, entries in sorted(self._rows.entries.get(receiver, {}).items()):
            seqs = {entry.seq for entry in entries if entry.seq}
            if seqs:
                (seq,) = seqs
                yield Taken(seq, number, tuple(e.input_set for e in entries if e.input_set and not e.rejoined))

    def rejoined(self, receiver: Port) -> Iterator[tuple[int, int]]:
        for number, entries in self._rows.entries.get(receiver, {}).items():
            yield from ((number, entry.input_set) for entry in entries if entry.rejoined and entry.input_set)

    def decisions(self, operator: str) -> Iterator[tuple[int, Any]]:
        rows = self._rows.decisions.get(operator, {})
        return ((seq, json.loads(decision)) for seq, decision in sorted(rows.items()))

    def asides(self, operator: str) -> Iterator[SetAside]:
        for number, row in sorted(self._rows.asides.get(operator, {}).items()):
            placed, dropped, failed = row.label[0] != UNPLACED, row.status == "dropped", has_failed(row.error)
            yield SetAside(number, row.input_set, row.records, row.retried_as, placed, dropped, failed)

    def late(self, operator: str) -> dict[str, int]:
        row = self._rows.states.get(operator)
        return late_of(row.state) if row is not None else {}

    def uncaptured(self, operator: str) -> bool:
        return operator in self._uncaptured

    def captured_writes(self, connection: Port) -> bool:
        return str(Port(connection.operator, writes_port(connection.name))) not in self._uncaptured

    def untold(self, port: Port) -> int:
        return 0

    def lineage(self, port: Port) -> Iterator[tuple[int, int]]:
        return iter(self._rows.lineage.get(port, []))

    def done_sets(self, operator: str) -> Iterator[tuple[int, int]]:
        return ((number, 1) for number in sorted(self._rows.finished.get(operator, set())))

    def states(self, operator: str) -> Iterator[tuple[int, Any]]:
        rows = self._rows.state_events.get(operator, {})
        return ((number, json.loads(state)) for _, (number, state) in sorted(rows.items()))

    def bodies(self, port: Port, first: int, count: int) -> Sequence[Body]:
        sent = self._rows.sent.get(port, {})
        numbers = (number for number in range(first, first + count) if number in sent)
        return [body for number in numbers for body in self._bodies(sent[number][1])]

    def writes(self, connection: Port) -> Iterator[Logged]:
        for number, (row, status) in sorted(self._rows.writes.get(connection, {}).items()):
            yield Logged(number, status == "done", row.events, tuple(self._bodies(row.bodies)))

    def answers(self, operator: str) -> Iterator[Answer]:
        for (name, connection, action), (row, input_set) in sorted(self._rows.read_events.items(), key=lambda i: i[0]):
            if name == operator and input_set is not None and row.effect is not None:
                for body in self._bodies([row.effect]):
                    yield Answer(connection, action, input_set, body)

    def asked(self, operator: str) -> dict[str, int]:
        row = self._rows.states.get(operator)
        return asked_of(row.context) if row is not None else {}

    def lookups(self, operator: str) -> dict[str, Kept]:
        return {name: Kept(row.digest, row.data) for (owner, name), row in self._lookups.items() if owner == operator}

    def actions(self, source: str) -> Iterator[tuple[int, bool]]:
        rows = self._rows.read_actions.get(source, {}).values()
        return iter(sorted((row.action, row.complete) for row in rows))

    def pending(self, source: str) -> bool:
        return any(
            name == source and input_set is None and row.effect is not None
            for (name, _, _), (row, input_set) in self._rows.read_events.items()
        )

    def _bodies(self, runs: Sequence[Bodies]) -> Iterator[Body]:
        for run in runs:
            at = 0
            held = run.data if run.file is None else self._files.get(run.file)
            for length, checksum in zip(run.lengths, run.checksums):
                begin = run.offset + at
                yield Body(length, checksum, None if held is None else held[begin : begin + length], run.file, begin)
                at += length
