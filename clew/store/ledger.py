"""What the log expects next of an operator: its counters, and what of it is still undone.

Every write of an operator passes its ledger, which refuses what does not follow (S1, C1, C2). Only the
operator's current incarnation writes its rows (F1), so a ledger read once stays true until someone else
takes the operator over; a backend keeps ledgers in memory and reads them again when another process wrote.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from clew.errors import UnexpectedRow
from clew.ids import Port
from clew.protocol.rows import Lineage, Listed
from clew.protocol.step import (
    Acknowledge,
    AddReadAction,
    BeginAfter,
    CompleteReadAction,
    FinishReadEvent,
    FinishSets,
    FinishWrites,
    FixSchema,
    ForgetPort,
    LogEvents,
    LogLineage,
    LogReadEvent,
    LogWrites,
    Rejoin,
    StoreState,
    Write,
    owner_of,
)
from clew.store.intervals import Growth, Intervals
from clew.store.lineage_rows import last_ordered_sets
from clew.store.rowcodec import encode_assignment, sets_covered
from clew.store.statements import Statement, Transaction, lineage_statement, statements_of

_KEEP_DONE = """INSERT INTO done (operator, first, count) VALUES (?, ?, ?)
    ON CONFLICT (operator, first) DO UPDATE SET count = excluded.count"""
_DROP_DONE = "DELETE FROM done WHERE operator = ? AND first = ?"
_KEEP_DONE_WRITE = """INSERT INTO done_write (operator, connection, first, count) VALUES (?, ?, ?, ?)
    ON CONFLICT (operator, connection, first) DO UPDATE SET count = excluded.count"""
_DROP_DONE_WRITE = "DELETE FROM done_write WHERE operator = ? AND connection = ? AND first = ?"

#: Answers for a receiving port: the last event sent to it, or None when no connection leads there.
LastSent = Callable[[Port], int | None]


@dataclass
class Ledger:
    """The counters of one operator, by the names of its ports and connections."""

    operator: str
    last_sent: dict[str, int] = field(default_factory=dict)
    last_acknowledged: dict[str, int] = field(default_factory=dict)
    schemas: dict[str, bytes] = field(default_factory=dict)
    done: Intervals = field(default_factory=Intervals)
    state_id: int | None = None
    last_action: dict[str, int] = field(default_factory=dict)
    incomplete: frozenset[tuple[str, int]] = frozenset()
    undone_reads: frozenset[tuple[str, int]] = frozenset()
    last_write: dict[str, int] = field(default_factory=dict)
    done_writes: dict[str, Intervals] = field(default_factory=dict)
    #: By output port, the last Input Set of its ordered lineage.
    last_set: dict[str, int] = field(default_factory=dict)
    #: By input port, the number up to which its sender was collected when this was read.
    collected: dict[str, int] = field(default_factory=dict)

    def draft(self) -> "Ledger":
        """Return a copy to admit the writes of one commit to; it replaces this one if none is refused."""
        return Ledger(
            self.operator, dict(self.last_sent), dict(self.last_acknowledged), dict(self.schemas), self.done,
            self.state_id, dict(self.last_action), self.incomplete, self.undone_reads, dict(self.last_write),
            dict(self.done_writes), dict(self.last_set), self.collected,
        )  # fmt: skip

    def admit(self, write: Write, last_sent: LastSent) -> list[Statement]:
        """Check that a write follows, and count it.

        Returns the statements that only the ledger can make: what is done is kept as few intervals, and lineage where
        its order allows it to be.
        """
        self._check_owner(write)
        match write:
            case LogEvents(run):
                last = self.last_sent.get(run.port.name, 0)
                _expect(run.first == last + 1, f"the last event of {run.port}", f"#{last}", f"#{run.first - 1}")
                self.last_sent[run.port.name] = run.last
            case LogLineage(lineage):
                return [self._log_lineage(lineage)]
            case FixSchema(port, schema):
                fixed = self.schemas.setdefault(port.name, schema)
                _expect(fixed == schema, f"the schema of {port}", "another one", "the one it is fixed to")
            case Acknowledge():
                self._acknowledge(write, last_sent)
            case Rejoin(receiver, first, count, _, input_set):
                last = self.last_acknowledged.get(receiver.name, 0)
                end = first + count - 1
                _expect(end <= last, f"the last event acknowledged on {receiver}", f"#{last}", f"#{end} or later")
                _expect(input_set not in self.done, f"Input Set {input_set} of {self.operator}", "done", "undone")
            case ForgetPort(receiver):
                # Where its sender was collected, numbers go on from there.
                self.last_acknowledged.pop(receiver.name, None)
                if receiver.name in self.collected:
                    self.last_acknowledged[receiver.name] = self.collected[receiver.name]
            case BeginAfter(receiver, upto, seq):
                return self._begin_after(receiver, upto, seq, last_sent)
            case FinishSets(_, first, count):
                return self._finish_sets(first, count)
            case StoreState(operator, state_id, _, _):
                last_id = self.state_id
                found = f"{last_id}"
                _expect(last_id is None or last_id < state_id, f"state of {operator}", found, f"below {state_id}")
                self.state_id = state_id
            case LogWrites(port, rows):
                for row in rows:
                    last = self.last_write.get(port.name, 0)
                    _expect(row.number == last + 1, f"the last write of {port}", f"#{last}", f"#{row.number - 1}")
                    self.last_write[port.name] = row.number
            case FinishWrites(port, first, count):
                return self._finish_writes(port, first, count)
            case _:
                self._admit_read(write)
        return []

    def _admit_read(self, write: Write) -> None:
        match write:
            case AddReadAction(operator, connection, action, _):
                last = self.last_action.get(connection, 0)
                _expect(action > last, f"the last read action of {operator}.{connection}", str(last), f"below {action}")
                self.last_action[connection] = action
                self.incomplete |= {(connection, action)}
            case CompleteReadAction(operator, connection, action):
                what = f"read action {operator}.{connection}#{action}"
                _expect((connection, action) in self.incomplete, what, "complete or missing", "incomplete")
                self.incomplete -= {(connection, action)}
            case LogReadEvent(_, connection, action, _, input_set):
                key = {(connection, action)}
                self.undone_reads = self.undone_reads | key if input_set is None else self.undone_reads - key
            case FinishReadEvent(operator, connection, action):
                what = f"read event {operator}.{connection}#{action}"
                _expect((connection, action) in self.undone_reads, what, "done or missing", "undone")
                self.undone_reads -= {(connection, action)}

    def _acknowledge(self, write: Acknowledge, last_sent: LastSent) -> None:
        last = self.last_acknowledged.get(write.receiver.name, 0)
        what = f"the last event acknowledged on {write.receiver}"
        _expect(write.first == last + 1, what, f"#{last}", f"#{write.first - 1}")
        end = write.first + write.count - 1
        sent = last_sent(write.receiver)
        found = "nothing: no connection leads there" if sent is None else f"#{sent}"
        _expect(sent is not None and end <= sent, f"the last event sent to {write.receiver}", found, f"#{end} or later")
        for columns in encode_assignment(write.assignment):
            first, count = sets_covered(columns, write.count)
            # An entry is done when its Input Set is: one that came later would be lost without a trace.
            what = f"an Input Set from {first} to {first + count - 1} of {self.operator}"
            _expect(not write.count or not self.done.overlaps(first, count), what, "done", "undone")
        self.last_acknowledged[write.receiver.name] = end

    def _log_lineage(self, lineage: Lineage) -> Statement:
        """Keep lineage in order where its Input Sets go on from those before.

        O1: in `ordered_lineage` every row has events, and none of a port begins at an Input Set before the last one of
        the row before. So its Input Sets ascend with its events, and are found without an index.
        """
        name = lineage.port.name
        events, sets = lineage.extent()
        ordered = events > 0 and lineage.input_set >= self.last_set.get(name, 0)
        if ordered:
            self.last_set[name] = lineage.input_set + sets - 1
        return lineage_statement(lineage, events, ordered)

    def _begin_after(self, receiver: Port, upto: int, seq: int, last_sent: LastSent) -> list[Statement]:
        first = self.last_acknowledged.get(receiver.name, 0) + 1
        skipped = Acknowledge(receiver, first, max(upto - first + 1, 0), seq, Listed(()))
        self._acknowledge(skipped, last_sent)
        return statements_of(skipped)

    def _finish_sets(self, first: int, count: int) -> list[Statement]:
        if not count:
            return []
        what = f"an Input Set from {first} to {first + count - 1} of {self.operator}"
        _expect(not self.done.overlaps(first, count), what, "done", "undone")
        growth = self.done.add(first, count)
        self.done = growth.intervals
        return _interval_statements(_KEEP_DONE, _DROP_DONE, (self.operator,), growth)

    def _finish_writes(self, port: Port, first: int, count: int) -> list[Statement]:
        if not count:
            return []
        done = self.done_writes.get(port.name, Intervals())
        last = self.last_write.get(port.name, 0)
        what = f"a write from {port}#{first} to #{first + count - 1}"
        _expect(first > 0 and first + count - 1 <= last, what, "missing", "undone")
        _expect(not done.overlaps(first, count), what, "done", "undone")
        growth = done.add(first, count)
        self.done_writes[port.name] = growth.intervals
        return _interval_statements(_KEEP_DONE_WRITE, _DROP_DONE_WRITE, tuple(port), growth)

    def _check_owner(self, write: Write) -> None:
        owner = owner_of(write)
        if owner != self.operator:
            raise UnexpectedRow(f"a row of {owner}", f"written by {self.operator}", f"written by {owner}")


def _interval_statements(keep: str, drop: str, key: tuple[str, ...], growth: Growth) -> list[Statement]:
    dropped = [Statement(drop, (*key, first)) for first in growth.swallowed]
    return [*dropped, Statement(keep, (*key, growth.first, growth.count))]


def _expect(holds: bool, what: str, found: str, expected: str) -> None:
    if not holds:
        raise UnexpectedRow(what, found, expected)


def read_ledger(log: Transaction, operator: str) -> Ledger:
    """Read an operator's ledger from the log.

    C2: no counter is below the mark up to which its port was collected, so none starts again when its rows go.
    """
    collected = _pairs(log, "SELECT port, upto FROM collected WHERE operator = ?", operator)
    done_writes = read_done_writes(log, operator)
    state = log.fetch("SELECT state_id FROM latest_state WHERE operator = ?", operator)
    return Ledger(
        operator,
        last_sent=_highest(collected, _pairs(log, _LAST_SENT, operator)),
        last_acknowledged=_highest(_pairs(log, _COLLECTED_SENDER, operator), _pairs(log, _LAST_ACKNOWLEDGED, operator)),
        schemas={
            port: bytes(schema)
            for port, schema in log.fetch("SELECT port, schema FROM port_schema WHERE operator = ?", operator)
        },
        done=read_done(log, operator),
        state_id=state[0][0] if state else None,
        last_action=dict(_pairs(log, _LAST_ACTION, operator)),
        incomplete=frozenset(_pairs(log, _INCOMPLETE, operator)),
        undone_reads=frozenset(_pairs(log, _UNDONE_READS, operator)),
        last_write=_highest([(c, done.last) for c, done in done_writes.items()], _pairs(log, _LAST_WRITE, operator)),
        done_writes=done_writes,
        last_set=last_ordered_sets(log, operator),
        collected=dict(_pairs(log, _COLLECTED_SENDER, operator)),
    )


def read_done(log: Transaction, operator: str) -> Intervals:
    """Read which Input Sets of an operator are done."""
    rows = log.fetch("SELECT first, count FROM done WHERE operator = ?", operator)
    return Intervals.of((first, count) for first, count in rows)


def read_done_writes(log: Transaction, operator: str) -> dict[str, Intervals]:
    """Read which write actions are done, by connection."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for connection, first, count in log.fetch(
        "SELECT connection, first, count FROM done_write WHERE operator = ?", operator
    ):
        ranges.setdefault(connection, []).append((first, count))
    return {connection: Intervals.of(pairs) for connection, pairs in ranges.items()}


_LAST_SENT = """SELECT s.port, s.first + s.count - 1 FROM sent s
    JOIN (SELECT port, max(first) AS first FROM sent WHERE operator = ? GROUP BY port) l
    ON l.port = s.port AND l.first = s.first WHERE s.operator = ?"""
_LAST_ACKNOWLEDGED = """SELECT a.port, a.first + a.count - 1 FROM ack a
    JOIN (SELECT port, max(first) AS first FROM ack WHERE operator = ? GROUP BY port) l
    ON l.port = a.port AND l.first = a.first WHERE a.operator = ? AND a.part = 0"""
_COLLECTED_SENDER = """SELECT l.rec_port, c.upto FROM link l
    JOIN collected c ON c.operator = l.operator AND c.port = l.port WHERE l.rec_operator = ?"""
_LAST_ACTION = "SELECT connection, max(action) FROM action WHERE operator = ? GROUP BY connection"
_INCOMPLETE = "SELECT connection, action FROM action WHERE operator = ? AND complete = 0"
_UNDONE_READS = "SELECT connection, action FROM read_event WHERE operator = ? AND done = 0"
_LAST_WRITE = "SELECT connection, max(number) FROM write_action WHERE operator = ? GROUP BY connection"


def _pairs(log: Transaction, sql: str, operator: str) -> list[tuple[str, int]]:
    return [(row[0], row[1]) for row in log.fetch(sql, *[operator] * sql.count("?"))]


def _highest(*sources: list[tuple[str, int]]) -> dict[str, int]:
    highest: dict[str, int] = {}
    for pairs in sources:
        for name, number in pairs:
            highest[name] = max(highest.get(name, 0), number)
    return highest
