"""No log at all: what `--recovery none` runs on, the baseline of every overhead that is measured.

It keeps what operators still need and nothing else: events until their receivers are done with them. Nothing is
durable and nothing survives the process, so an operator that fails cannot be restarted on it.
"""

import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from clew.errors import StoreFailed
from clew.ids import InputSetId, Port
from clew.protocol.rows import (
    AsideRow,
    Assignment,
    EventRun,
    Every,
    Label,
    Listed,
    LookupRow,
    Member,
    OperatorRow,
    Own,
    ReadActionRow,
    ReadEventRow,
    StateRow,
    WriteRow,
)
from clew.protocol.step import (
    Acknowledge,
    FinishSets,
    FinishWrites,
    FixSchema,
    LogEvents,
    LogWrites,
    Rejoin,
    SetOperator,
    Write,
)
from clew.store.base import NO_PORTS, Backlog, Collected, Table, Topology
from clew.store.intervals import Intervals


class EphemeralStore:
    """Events in memory until they are done with."""

    def __init__(self, remove: Callable[[str], None] | None = None) -> None:
        self.run_id = uuid.uuid4().hex
        self._remove = remove
        self._lock = threading.Lock()
        self._runs: dict[Port, deque[EventRun]] = {}
        self._schemas: dict[Port, bytes] = {}
        self._lookups: dict[str, list[LookupRow]] = {}
        self._receivers: dict[Port, list[Port]] = {}
        self._senders: dict[Port, Port] = {}
        # Per receiving port: (last event, Input Sets of the run) not yet done, and the last event that is.
        self._assigned: dict[Port, deque[tuple[int, tuple[tuple[int, int], ...]]]] = {}
        self._done: dict[Port, int] = {}
        self._finished: dict[str, Intervals] = {}
        self._writes: dict[Port, deque[WriteRow]] = {}
        self._files: dict[str, int] = {}
        self._operators: dict[str, OperatorRow] = {}

    def declare(self, topology: Topology) -> None:
        for sender, receiver in topology.links:
            self._receivers.setdefault(sender, []).append(receiver)
            self._senders[receiver] = sender
        self._operators = {name: OperatorRow(name, "dead", 0) for name in topology.operators}

    def change(self, topology: Topology, writes: Sequence[Write]) -> None:
        self.declare(topology)

    def versions(self) -> dict[str, Any]:
        return {}

    def owner(self) -> str | None:
        return None

    def links(self) -> list[tuple[Port, Port]]:
        return sorted((sender, receiver) for receiver, sender in self._senders.items())

    def claim(self) -> None:
        """Nothing to claim: no other process sees this."""

    def take_over(self, operator: str) -> int:
        if self._operators[operator].incarnation:
            raise StoreFailed(
                f"operator {operator} failed, and without a log it cannot be restarted",
                "run with --recovery log to survive failures",
            )
        self._operators[operator] = OperatorRow(operator, "restarted", 1)
        return 1

    def commit(self, operator: str, incarnation: int, writes: Sequence[Write], durable: bool = True) -> None:
        with self._lock:
            for write in writes:
                match write:
                    case LogEvents(run):
                        self._log(run)
                    case FixSchema(port, schema):
                        self._schemas[port] = schema
                    case Acknowledge(receiver, first, count, _, assignment):
                        last = first + count - 1
                        self._assigned.setdefault(receiver, deque()).append((last, _sets(assignment, count)))
                    case Rejoin(receiver, first, count, _, input_set):
                        self._rejoin(receiver, first, first + count - 1, input_set)
                    case FinishSets(_, first_set, count):
                        finished = self._finished.get(operator, Intervals())
                        self._finished[operator] = finished.add(first_set, count).intervals
                    case LogWrites(port, rows):
                        self._writes.setdefault(port, deque()).extend(rows)
                    case FinishWrites(port, _, count):
                        for _ in range(count):
                            self._writes[port].popleft()
                    case SetOperator(name, status):
                        self._operators[name] = OperatorRow(name, status, 1)
                    case _:
                        # Lineage, state and read actions serve recovery and questions asked later.
                        pass
            self._forget(operator)

    def _log(self, run: EventRun) -> None:
        if self._receivers.get(run.port):
            self._runs.setdefault(run.port, deque()).append(run)
            for bodies in run.bodies:
                if bodies.file is not None:
                    self._files[bodies.file] = self._files.get(bodies.file, 0) + 1

    def _forget(self, operator: str) -> None:
        """Drop events that the operator is done with and that nobody else needs."""
        finished = self._finished.get(operator, Intervals())
        for receiver, assigned in self._assigned.items():
            if receiver.operator != operator:
                continue
            while assigned and not any(list(finished.gaps(*sets)) for sets in assigned[0][1]):
                self._done[receiver], _ = assigned.popleft()
            self._trim(self._senders[receiver])

    def _rejoin(self, receiver: Port, first: int, last: int, input_set: int) -> None:
        """Keep events for as long as the further Input Set that they joined is undone."""
        assigned = self._assigned[receiver]
        before = self._done.get(receiver, 0)
        for index, (upto, sets) in enumerate(assigned):
            if before < last and first <= upto:
                assigned[index] = (upto, (*sets, (input_set, 1)))
            before = upto

    def _trim(self, port: Port) -> None:
        runs = self._runs.get(port)
        upto = min(self._low(receiver) for receiver in self._receivers[port])
        while runs and runs[0].last <= upto:
            for bodies in runs.popleft().bodies:
                if bodies.file is not None:
                    self._release(bodies.file)

    def _low(self, receiver: Port) -> int:
        done = self._done.get(receiver, 0)
        for port, writes in self._writes.items():
            if port.operator == receiver.operator and writes:
                named = [first for sender, first, _ in writes[0].events if sender == self._senders[receiver]]
                done = min([done, *(first - 1 for first in named)])
        return done

    def _release(self, file: str) -> None:
        self._files[file] -= 1
        if not self._files[file]:
            del self._files[file]
            if self._remove is not None:
                self._remove(file)

    def events(self, port: Port, first: int, count: int) -> list[EventRun]:
        with self._lock:
            found = []
            for run in self._runs.get(port, ()):
                low, high = max(first, run.first), min(first + count, run.last + 1)
                if low < high:
                    found.append(run.cut(low - run.first, high - run.first))
            return found

    def unacknowledged(self, receiver: Port, after: int, max_events: int, max_bytes: int) -> list[EventRun]:
        with self._lock:
            runs = self._runs.get(self._senders[receiver], ())
            return [run.cut(max(0, after + 1 - run.first), len(run.headers)) for run in runs if run.last > after]

    def schema(self, port: Port) -> bytes | None:
        return self._schemas.get(port)

    def lookups(self, operator: str) -> list[LookupRow]:
        return self._lookups.get(operator, [])

    def keep_lookup(self, operator: str, row: LookupRow) -> None:
        self._lookups.setdefault(operator, []).append(row)

    def operators(self) -> list[OperatorRow]:
        return list(self._operators.values())

    # What only recovery asks for: there is nothing to recover from.

    def state(self, operator: str) -> StateRow | None:
        return None

    def members(self, operator: str) -> list[Member]:
        return []

    def asides(self, operator: str) -> list[AsideRow]:
        return []

    def decide_asides(self, operator: str, numbers: Sequence[int], status: Literal["retry", "drop"]) -> int:
        return 0

    def keyed(self, operator: str) -> list[tuple[str, str, Any]]:
        return []

    def open_sets(self, operator: str) -> dict[InputSetId, Label]:
        return {}

    def last_read_action(self, operator: str) -> ReadActionRow | None:
        return None

    def read_event(self, operator: str, connection: str, action: int) -> ReadEventRow | None:
        return None

    def undone_writes(self, port: Port, limit: int) -> list[WriteRow]:
        return []

    def backlog(self, receiver: Port) -> Backlog:
        runs = self.unacknowledged(receiver, self._done.get(receiver, 0), 0, 0)
        return Backlog(sum(len(run.headers) for run in runs), sum(run.size for run in runs))

    def collect(self, grace: int = 0, keep: Mapping[Port, int] = NO_PORTS) -> Collected:
        return Collected(0, ())

    def referenced_files(self) -> set[str]:
        return set(self._files)

    def table(self, name: Table) -> list[tuple[Any, ...]]:
        return []

    def close(self) -> None:
        self._runs.clear()


def _sets(assignment: Assignment, count: int) -> tuple[tuple[int, int], ...]:
    """Return the Input Sets that a run of events was assigned to, as (first, count) of consecutive ones."""
    match assignment:
        case Own(first):
            return ((first, count),)
        case Every(first, size, skip):
            return ((first, (skip + count - 1) // size + 1),)
        case Listed(sets):
            return tuple((number, 1) for number in sets)
