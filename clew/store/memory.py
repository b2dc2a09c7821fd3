"""The log in memory: plain rows, one per event, as in the paper. The measure of the other backends.

It forgets everything with the process, so it serves simulation and tests. Every commit is applied to the
rows at once under one lock; a refused commit is undone from a copy of what it may touch (S1).
"""

import json
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from clew.errors import StaleWriter, StoreFailed, UnexpectedRow, WrongLog
from clew.faultpoint import fault_point
from clew.ids import NONE_SET, InputSetId, Port, writes_port
from clew.protocol.rows import (
    AsideRow,
    Bodies,
    EventRun,
    Label,
    Listed,
    LookupRow,
    Member,
    OperatorRow,
    ReadActionRow,
    ReadEventRow,
    StateRow,
    Status,
    WriteRow,
    cut_bodies,
    label_of,
    sets_of,
)
from clew.protocol.step import (
    Acknowledge,
    AddReadAction,
    BeginAfter,
    CompleteReadAction,
    DropReadEvent,
    FinishReadEvent,
    FinishSets,
    FinishWrites,
    FixSchema,
    ForgetKeys,
    ForgetPort,
    LogDecision,
    LogEvents,
    LogLineage,
    LogReadEvent,
    LogStateEvent,
    LogWrites,
    OpenSets,
    Rejoin,
    ResolveAside,
    SetAside,
    SetOperator,
    StoreKeyed,
    StoreState,
    StoreVersion,
    Write,
    owner_of,
)
from clew.store.base import NO_PORTS, Backlog, Collected, Table, Topology
from clew.store.memory_collecting import Collection, referenced_files
from clew.store.memory_leases import MemoryLeases
from clew.store.memory_lineage import MemoryLineage
from clew.store.memory_rows import UNRESOLVED, Entry, Rows, as_json, copied
from clew.store.memory_tables import event_data, event_lineage, event_log, read_actions, states


class MemoryStore(MemoryLineage, MemoryLeases):
    """The log in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._run_id = uuid.uuid4().hex
        self._rows = Rows()
        self._topology: Topology | None = None
        self._senders: dict[Port, Port] = {}
        self._receivers: dict[Port, list[Port]] = {}
        self._closed = False
        self._lookups: dict[tuple[str, str], LookupRow] = {}

    @property
    def run_id(self) -> str:
        return self._run_id

    def declare(self, topology: Topology) -> None:
        if self._topology is not None and self._topology.pipeline != topology.pipeline:
            raise WrongLog(
                f"this log is of pipeline {self._topology.pipeline}, not {topology.pipeline}; use another --log"
            )
        self._topology = topology
        self._senders = {receiver: sender for sender, receiver in topology.links}
        self._receivers = {}
        for sender, receiver in topology.links:
            self._receivers.setdefault(sender, []).append(receiver)
            for number in self._rows.sent.get(sender, {}):
                entries = self._rows.entries.setdefault(receiver, {})
                entries.setdefault(number, (Entry(number, "undone", receiver),))
        for operator in topology.operators:
            self._rows.operators.setdefault(operator, OperatorRow(operator, "dead", 0))

    def change(self, topology: Topology, writes: Sequence[Write]) -> None:
        with self._lock:
            self._check_open()
            before, was = copied(self._rows), self._topology
            self.declare(topology)
            try:
                for write in writes:
                    self._apply(write)
                for operator in sorted({owner_of(write) for write in writes if not isinstance(write, StoreVersion)}):
                    self.take_over(operator)
                    fault_point("inside-commit", operator)
            except BaseException:
                if was is not None:
                    self.declare(was)
                self._rows = before
                raise

    def versions(self) -> dict[str, Any]:
        with self._lock:
            return {operator: json.loads(text) for operator, text in self._rows.versions.items()}

    def owner(self) -> str | None:
        return self._topology.pipeline if self._topology is not None else None

    def links(self) -> list[tuple[Port, Port]]:
        return sorted((sender, receiver) for receiver, sender in self._senders.items())

    def claim(self) -> None:
        """Nothing to claim: no other process sees this log."""

    def take_over(self, operator: str) -> int:
        with self._lock:
            self._check_open()
            row = self._rows.operators.get(operator, OperatorRow(operator, "dead", 0))
            self._rows.operators[operator] = OperatorRow(operator, "restarted", row.incarnation + 1)
            return row.incarnation + 1

    def commit(self, operator: str, incarnation: int, writes: Sequence[Write], durable: bool = True) -> None:
        with self._lock:
            self._check_open()
            current = self._rows.operators[operator].incarnation
            if current != incarnation:
                raise StaleWriter(operator, incarnation, current)
            before = copied(self._rows, operator)
            try:
                for write in writes:
                    owner = owner_of(write)
                    _expect(owner == operator, f"a row of {owner}", f"written by {operator}", f"written by {owner}")
                    self._apply(write)
                fault_point("inside-commit", operator)
            except BaseException:
                self._rows = before
                raise

    def operators(self) -> list[OperatorRow]:
        with self._lock:
            return sorted(self._rows.operators.values(), key=lambda row: row.operator)

    def state(self, operator: str) -> StateRow | None:
        with self._lock:
            self._check_open()
            return self._rows.states.get(operator)

    def asides(self, operator: str) -> list[AsideRow]:
        with self._lock:
            return [row for _, row in sorted(self._rows.asides.get(operator, {}).items())]

    def decide_asides(self, operator: str, numbers: Sequence[int], status: Literal["retry", "drop"]) -> int:
        with self._lock:
            rows = self._rows.asides.get(operator, {})
            asked = [number for number in rows if number in set(numbers) and rows[number].status in UNRESOLVED]
            self._rows.asides[operator] = rows | {number: replace(rows[number], status=status) for number in asked}
            return len(asked)

    def keyed(self, operator: str) -> list[tuple[str, str, Any]]:
        with self._lock:
            rows = self._rows.keyed.get(operator, {})
            return sorted((function, key, json.loads(text)) for (function, key), text in rows.items())

    def lookups(self, operator: str) -> list[LookupRow]:
        with self._lock:
            return [row for (owner, _), row in sorted(self._lookups.items()) if owner == operator]

    def keep_lookup(self, operator: str, row: LookupRow) -> None:
        with self._lock:
            self._lookups.setdefault((operator, row.name), row)

    def schema(self, port: Port) -> bytes | None:
        with self._lock:
            return self._rows.schemas.get(port)

    def unacknowledged(self, receiver: Port, after: int, max_events: int, max_bytes: int) -> list[EventRun]:
        with self._lock:
            self._check_open()
            sender = self._senders[receiver]
            sent = self._rows.sent.get(sender, {})
            runs: list[EventRun] = []
            size = 0
            # Who asks may not know yet what was collected since it died.
            first = max(after, self._rows.collected.get(sender, 0)) + 1
            for number in range(first, self._rows.last_sent.get(sender, 0) + 1):
                header, bodies = sent[number]
                size += header.size
                if len(runs) >= max_events or (runs and size > max_bytes):
                    break
                runs.append(EventRun(sender, number, (header,), bodies))
            return runs

    def backlog(self, receiver: Port) -> Backlog:
        with self._lock:
            sender, after = self._senders[receiver], self._acknowledged(receiver)
            numbers = range(after + 1, self._rows.last_sent.get(sender, 0) + 1)
            return Backlog(len(numbers), sum(self._rows.sent[sender][n][0].size for n in numbers))

    def members(self, operator: str) -> list[Member]:
        with self._lock:
            self._check_open()
            found = [
                Member(entry.seq, receiver, entry.number, 1, entry.input_set)
                for receiver, entries in self._rows.entries.items()
                if receiver.operator == operator
                for row in entries.values()
                for entry in row
                if entry.status == "undone" and entry.input_set is not None
            ]
            return sorted(found, key=lambda member: (member.seq, member.input_set))

    def open_sets(self, operator: str) -> dict[InputSetId, Label]:
        with self._lock:
            finished = self._rows.finished.get(operator, set())
            labels = self._rows.labels.get(operator, {})
            return {number: label for number, label in sorted(labels.items()) if number not in finished}

    def events(self, port: Port, first: int, count: int) -> list[EventRun]:
        with self._lock:
            self._check_open()
            sent = self._rows.sent.get(port, {})
            return [EventRun(port, n, (sent[n][0],), sent[n][1]) for n in range(first, first + count) if n in sent]

    def last_read_action(self, operator: str) -> ReadActionRow | None:
        with self._lock:
            rows = self._rows.read_actions.get(operator, {})
            return max(rows.values(), key=lambda row: row.action) if rows else None

    def read_event(self, operator: str, connection: str, action: int) -> ReadEventRow | None:
        with self._lock:
            found = self._rows.read_events.get((operator, connection, action))
            return found[0] if found else None

    def undone_writes(self, port: Port, limit: int) -> list[WriteRow]:
        with self._lock:
            self._check_open()
            writes = self._rows.writes.get(port, {})
            return [row for _, (row, status) in sorted(writes.items()) if status == "undone"][:limit]

    def collect(self, grace: int = 0, keep: Mapping[Port, int] = NO_PORTS) -> Collected:
        with self._lock:
            self._check_open()
            return Collection(self._rows, self._senders, self._receivers).collect(grace, keep)

    def referenced_files(self) -> set[str]:
        with self._lock:
            return referenced_files(self._rows)

    def table(self, name: Table) -> list[tuple[Any, ...]]:
        with self._lock:
            rows = self._table(name)
            return sorted(rows, key=lambda row: tuple((value is not None, str(type(value)), value) for value in row))

    def _table(self, name: Table) -> list[tuple[Any, ...]]:
        match name:
            case "EVENT_LOG":
                return event_log(self._rows, self._receivers)
            case "EVENT_DATA":
                return event_data(self._rows)
            case "READ_ACTION":
                return read_actions(self._rows)
            case "STATE":
                return states(self._rows)
            case "EVENT_LINEAGE":
                return event_lineage(self._rows)

    def close(self) -> None:
        self._closed = True

    # Applying writes.

    def _apply(self, write: Write) -> None:
        match write:
            case LogEvents(run):
                self._log_events(run)
            case FixSchema(port, schema):
                fixed = self._rows.schemas.setdefault(port, schema)
                _expect(fixed == schema, f"the schema of {port}", "another one", "the one it is fixed to")
            case Acknowledge():
                self._acknowledge(write)
            case Rejoin():
                self._rejoin(write)
            case LogDecision(operator, seq, decision):
                self._rows.decisions.setdefault(operator, {})[seq] = as_json(decision)
            case StoreKeyed(operator, keys):
                self._store_keyed(operator, keys)
            case SetAside(operator, set_aside):
                told = {row.number: json.loads(as_json(row.error)) for row in set_aside}
                made = {
                    row.number: replace(row, label=label_of(as_json(row.label)), error=told[row.number])
                    for row in set_aside
                }
                self._rows.asides[operator] = self._rows.asides.get(operator, {}) | made
            case ResolveAside(operator, number, retried_as):
                rows_aside = self._rows.asides[operator]
                done = replace(
                    rows_aside[number], status="dropped" if retried_as is None else "retried", retried_as=retried_as
                )
                self._rows.asides[operator] = rows_aside | {number: done}
            case OpenSets(operator, sets):
                # As a log on a disk gives them back: what is a list or a tuple there is one here.
                self._rows.labels.setdefault(operator, {}).update((n, label_of(as_json(label))) for n, label in sets)
            case FinishSets(operator, first, count):
                self._finish_sets(operator, first, count)
            case LogStateEvent(operator, state_id, input_set, state):
                self._rows.state_events.setdefault(operator, {})[state_id] = (input_set, as_json(state))
            case StoreState(operator, state_id, context, state):
                old = self._rows.states.get(operator)
                _expect(
                    old is None or old.state_id < state_id,
                    f"state of {operator}",
                    f"{old and old.state_id}",
                    f"below {state_id}",
                )
                self._rows.states[operator] = StateRow(
                    state_id, json.loads(as_json(context)), json.loads(as_json(state))
                )
            case LogLineage(lineage):
                self._rows.lineage.setdefault(lineage.port, []).extend(lineage.pairs())
            case LogWrites(port, rows):
                self._log_writes(port, rows)
            case FinishWrites(port, first, count):
                self._finish_writes(port, first, count)
            case ForgetPort(receiver, upto):
                self._rows.worn_taken[receiver] = max(self._rows.worn_taken.get(receiver, 0), upto)
                sent = self._rows.sent.get(self._senders[receiver], {}) if receiver in self._senders else {}
                self._rows.entries[receiver] = {n: (Entry(n, "undone", receiver),) for n in sent}
                self._rows.last_acknowledged.pop(receiver, None)
            case ForgetKeys(operator):
                self._rows.keyed.pop(operator, None)
            case BeginAfter(receiver, upto, seq):
                last = self._acknowledged(receiver)
                self._acknowledge(Acknowledge(receiver, last + 1, max(upto - last, 0), seq, Listed(())))
            case StoreVersion(operator, None):
                self._rows.versions.pop(operator, None)
            case StoreVersion(operator, version):
                self._rows.versions[operator] = as_json(version)
            case SetOperator(operator, status):
                self._rows.operators[operator] = replace(self._rows.operators[operator], status=status)
            case _:
                self._apply_read(write)

    def _apply_read(self, write: Write) -> None:
        match write:
            case AddReadAction(operator, connection, action, description):
                last = self._rows.last_action.get((operator, connection), 0)
                _expect(action > last, f"the last read action of {operator}.{connection}", str(last), f"below {action}")
                self._rows.last_action[operator, connection] = action
                row = ReadActionRow(action, connection, description, False)
                self._rows.read_actions.setdefault(operator, {})[connection, action] = row
            case CompleteReadAction(operator, connection, action):
                actions = self._rows.read_actions.get(operator, {})
                found = actions.get((connection, action))
                what = f"read action {operator}.{connection}#{action}"
                if found is None or found.complete:
                    raise UnexpectedRow(what, "complete" if found else "missing", "incomplete")
                actions[connection, action] = replace(found, complete=True)
            case LogReadEvent(operator, connection, action, effect, input_set, description):
                status: Status = "undone" if input_set is None else "done"
                event = ReadEventRow(action, connection, status, effect, description)
                self._rows.read_events[operator, connection, action] = (event, input_set)
            case FinishReadEvent(operator, connection, action):
                stored = self._rows.read_events.get((operator, connection, action))
                what = f"read event {operator}.{connection}#{action}"
                if stored is None or stored[0].status == "done":
                    raise UnexpectedRow(what, "done" if stored else "missing", "undone")
                self._rows.read_events[operator, connection, action] = (replace(stored[0], status="done"), stored[1])
            case DropReadEvent(operator, connection, action):
                key = (operator, connection, action)
                if key in self._rows.read_events:
                    event, input_set = self._rows.read_events[key]
                    self._rows.read_events[key] = (replace(event, effect=None), input_set)

    def _log_events(self, run: EventRun) -> None:
        last = self._rows.last_sent.get(run.port, 0)
        _expect(run.first == last + 1, f"the last event of {run.port}", f"#{last}", f"#{run.first - 1}")
        sent = self._rows.sent.setdefault(run.port, {})
        at = 0
        for index, header in enumerate(run.headers):
            bodies: tuple[Bodies, ...] = ()
            if not header.end:
                bodies = cut_bodies(run.bodies, at, at + 1)
                at += 1
            sent[run.first + index] = (header, bodies)
            self._rows.times.setdefault(run.port, {})[run.first + index] = time.time()
            for receiver in self._receivers.get(run.port, ()):
                entry = Entry(run.first + index, "undone", receiver)
                self._rows.entries.setdefault(receiver, {})[run.first + index] = (entry,)
        self._rows.last_sent[run.port] = run.last

    def _acknowledged(self, receiver: Port) -> int:
        """Return the last event acknowledged; one that began to receive later begins after what was collected."""
        collected = self._rows.collected.get(self._senders[receiver], 0)
        return max(self._rows.last_acknowledged.get(receiver, 0), collected)

    def _acknowledge(self, write: Acknowledge) -> None:
        last = self._acknowledged(write.receiver)
        _expect(
            write.first == last + 1,
            f"the last event acknowledged on {write.receiver}",
            f"#{last}",
            f"#{write.first - 1}",
        )
        sender = self._senders[write.receiver]
        end = write.first + write.count - 1
        sent = self._rows.last_sent.get(sender, 0)
        _expect(end <= sent, f"the last event of {sender}", f"#{sent}", f"#{end} or later")
        entries = self._rows.entries.setdefault(write.receiver, {})
        for index in range(write.count):
            number, sets = write.first + index, sets_of(write.assignment, index)
            seq = write.seq + index
            # An entry is done when its Input Set is: one that came later would be lost without a trace.
            finished = self._rows.finished.get(write.receiver.operator, set()).intersection(sets)
            _expect(not finished, f"Input Set {finished} of {write.receiver.operator}", "done", "undone")
            if sets:
                entries[number] = tuple(Entry(number, "undone", write.receiver, s, seq) for s in sets)
            else:
                entries[number] = (Entry(number, "done", write.receiver, NONE_SET, seq),)
        self._rows.last_acknowledged[write.receiver] = end

    def _rejoin(self, write: Rejoin) -> None:
        operator, end = write.receiver.operator, write.first + write.count - 1
        last = self._rows.last_acknowledged.get(write.receiver, 0)
        _expect(end <= last, f"the last event acknowledged on {write.receiver}", f"#{last}", f"#{end} or later")
        finished = self._rows.finished.get(operator, set())
        _expect(write.input_set not in finished, f"Input Set {write.input_set} of {operator}", "done", "undone")
        entries = self._rows.entries[write.receiver]
        for index in range(write.count):
            number = write.first + index
            joined = Entry(number, "undone", write.receiver, write.input_set, write.seq + index, True)
            entries[number] = (*entries[number], joined)

    def _store_keyed(self, operator: str, keys: Sequence[tuple[str, str, Any]]) -> None:
        rows = self._rows.keyed.setdefault(operator, {})
        for function, key, state in keys:
            if state is None:
                rows.pop((function, key), None)
            else:
                rows[function, key] = as_json(state)

    def _finish_sets(self, operator: str, first: InputSetId, count: int) -> None:
        finished = self._rows.finished.setdefault(operator, set())
        numbers = {InputSetId(first + i) for i in range(count)}
        _expect(not numbers & finished, f"Input Set {first} of {operator}", "done", "undone")
        finished |= numbers
        for receiver, entries in self._rows.entries.items():
            if receiver.operator == operator:
                for number, row in entries.items():
                    if any(entry.input_set in numbers for entry in row):
                        entries[number] = tuple(_done(entry) if entry.input_set in numbers else entry for entry in row)

    def _log_writes(self, port: Port, rows: tuple[WriteRow, ...]) -> None:
        for row in rows:
            last = self._rows.last_write.get(port, 0)
            _expect(row.number == last + 1, f"the last write of {port}", f"#{last}", f"#{row.number - 1}")
            self._rows.writes.setdefault(port, {})[row.number] = (row, "undone")
            made = Port(port.operator, writes_port(port.name))
            self._rows.times.setdefault(made, {})[row.number] = time.time()
            self._rows.last_write[port] = row.number

    def _finish_writes(self, port: Port, first: int, count: int) -> None:
        for number in range(first, first + count):
            row, status = self._rows.writes.get(port, {}).get(number, (None, "missing"))
            if row is None or status == "done":
                raise UnexpectedRow(f"write {port}#{number}", status, "undone")
            self._rows.writes[port][number] = (row, "done")
            self._rows.last_done_write[port] = number

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFailed("the log in memory is closed", "run again: what it held is gone")


def _done(entry: Entry) -> Entry:
    return entry._replace(status="done")


def _expect(holds: bool, what: str, found: str, expected: str) -> None:
    if not holds:
        raise UnexpectedRow(what, found, expected)


__all__ = ["MemoryStore"]
