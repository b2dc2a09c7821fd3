"""The rows that each Write inserts: SQL that SQLite and PostgreSQL both speak, `?` for each value.

Nothing here looks at the log: what a write expects of it is the ledger's to check.
"""

import time
from typing import Any, NamedTuple, Protocol

from clew.protocol.rows import AsideRow, EventRun, Lineage, WriteRow
from clew.protocol.step import (
    Acknowledge,
    AddReadAction,
    CompleteReadAction,
    DropReadEvent,
    FinishReadEvent,
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
)
from clew.store.rowcodec import (
    encode_assignment,
    encode_bodies,
    encode_counts,
    encode_facts,
    encode_headers,
    encode_json,
    encode_named,
)


class Statement(NamedTuple):
    """A statement and its values."""

    sql: str
    values: tuple[Any, ...]


class Transaction(Protocol):
    """An open transaction of a backend, as far as the shared code needs it."""

    def fetch(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""

    def run(self, sql: str, *values: Any) -> None:
        """Execute a statement."""


#: What the keys of versions in the table meta begin with.
VERSION_KEY = "version:"

_SENT = "INSERT INTO sent (operator, port, first, count, bytes, headers, facts, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_BODY = """INSERT INTO body (operator, port, first, count, size, lengths, checksums, file, start, data)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_SCHEMA = "INSERT INTO port_schema (operator, port, schema) VALUES (?, ?, ?) ON CONFLICT (operator, port) DO NOTHING"
_ACK = """INSERT INTO ack (operator, port, first, part, count, seq, input_set, size, skip)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_REJOIN = "INSERT INTO rejoined (operator, port, first, count, seq, input_set) VALUES (?, ?, ?, ?, ?, ?)"
_DECISION = "INSERT INTO decision (operator, seq, decision) VALUES (?, ?, ?)"
_KEYED = """INSERT INTO keyed_state (operator, function, key, state) VALUES (?, ?, ?, ?)
    ON CONFLICT (operator, function, key) DO UPDATE SET state = excluded.state"""
_KEY_GONE = "DELETE FROM keyed_state WHERE operator = ? AND function = ? AND key = ?"
_ASIDE = """INSERT INTO aside (operator, number, input_set, label, state, events, records, error, status)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'held')"""
_RESOLVE = "UPDATE aside SET status = ?, retried_as = ? WHERE operator = ? AND number = ?"
_LABEL = """INSERT INTO input_set (operator, input_set, label) VALUES (?, ?, ?)
    ON CONFLICT (operator, input_set) DO UPDATE SET label = excluded.label"""
_STATE_EVENT = """INSERT INTO state_event (operator, state_id, input_set, state) VALUES (?, ?, ?, ?)
    ON CONFLICT (operator, state_id) DO UPDATE SET input_set = excluded.input_set, state = excluded.state"""
_STATE = """INSERT INTO latest_state (operator, state_id, context, state) VALUES (?, ?, ?, ?)
    ON CONFLICT (operator) DO UPDATE
    SET state_id = excluded.state_id, context = excluded.context, state = excluded.state"""
_LINEAGE = {
    ordered: f"INSERT INTO {table} (operator, port, first, count, input_set, counts) VALUES (?, ?, ?, ?, ?, ?)"
    for ordered, table in ((True, "ordered_lineage"), (False, "lineage"))
}
_ACTION = "INSERT INTO action (operator, connection, action, complete, description) VALUES (?, ?, ?, 0, ?)"
_COMPLETE = "UPDATE action SET complete = 1 WHERE operator = ? AND connection = ? AND action = ?"
_READ_EVENT = """INSERT INTO read_event (operator, connection, action, done, input_set, description,
        count, size, lengths, checksums, file, start, data)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (operator, connection, action) DO UPDATE
    SET done = excluded.done, input_set = excluded.input_set, description = excluded.description,
        count = excluded.count, size = excluded.size, lengths = excluded.lengths, checksums = excluded.checksums,
        file = excluded.file, start = excluded.start, data = excluded.data"""
_FINISH_READ = "UPDATE read_event SET done = 1 WHERE operator = ? AND connection = ? AND action = ?"
_DROP_READ = """UPDATE read_event SET count = NULL, size = NULL, lengths = NULL, checksums = NULL, file = NULL,
        start = NULL, data = NULL
    WHERE operator = ? AND connection = ? AND action = ?"""
_WRITE = "INSERT INTO write_action (operator, connection, number, events, at) VALUES (?, ?, ?, ?, ?)"
_WRITE_BODY = """INSERT INTO write_body (operator, connection, number, part,
        count, size, lengths, checksums, file, start, data)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
#: Of one input, all Input Sets up to the last that has lost an event have lost one.
WEAR = """INSERT INTO worn (operator, side, port, input_set) VALUES (?, ?, ?, ?)
    ON CONFLICT (operator, side, port) DO UPDATE SET input_set = excluded.input_set
    WHERE excluded.input_set > worn.input_set"""
_FORGET = tuple(f"DELETE FROM {table} WHERE operator = ? AND port = ?" for table in ("ack", "rejoined"))
_NO_KEYS = "DELETE FROM keyed_state WHERE operator = ?"
_VERSION = "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_NO_VERSION = "DELETE FROM meta WHERE key = ?"
_STATUS = "UPDATE operator SET status = ? WHERE name = ?"


def statements_of(write: Write) -> list[Statement]:
    """Return the statements of a write, but for FinishSets, FinishWrites and LogLineage, whose the ledger makes."""
    match write:
        case LogEvents(run):
            return _log_events(run)
        case LogLineage():
            return []
        case FixSchema(port, schema):
            return [Statement(_SCHEMA, (*port, schema))]
        case Acknowledge():
            return _acknowledge(write)
        case Rejoin(receiver, first, count, seq, input_set):
            return [Statement(_REJOIN, (*receiver, first, count, seq, input_set))]
        case LogDecision(operator, seq, decision):
            return [Statement(_DECISION, (operator, seq, encode_json(decision)))]
        case StoreKeyed(operator, keys):
            return [_keyed(operator, *row) for row in keys]
        case SetAside(operator, rows):
            return [_aside(operator, row) for row in rows]
        case ResolveAside(operator, number, retried_as):
            status = "dropped" if retried_as is None else "retried"
            return [Statement(_RESOLVE, (status, retried_as, operator, number))]
        case OpenSets(operator, sets):
            return [Statement(_LABEL, (operator, number, encode_json(label))) for number, label in sets]
        case LogStateEvent(operator, state_id, input_set, state):
            return [Statement(_STATE_EVENT, (operator, state_id, input_set, encode_json(state)))]
        case StoreState(operator, state_id, context, state):
            return [Statement(_STATE, (operator, state_id, encode_json(context), encode_json(state)))]
        case LogWrites(port, writes):
            return [statement for row in writes for statement in _log_write(port, row)]
        case ForgetPort(receiver, upto):
            worn = Statement(WEAR, (receiver.operator, "taken", receiver.name, upto))
            return [*(Statement(forget, tuple(receiver)) for forget in _FORGET), worn]
        case ForgetKeys(operator):
            return [Statement(_NO_KEYS, (operator,))]
        case StoreVersion(operator, None):
            return [Statement(_NO_VERSION, (f"{VERSION_KEY}{operator}",))]
        case StoreVersion(operator, version):
            return [Statement(_VERSION, (f"{VERSION_KEY}{operator}", encode_json(version)))]
        case SetOperator(operator, status):
            return [Statement(_STATUS, (status, operator))]
        case _:
            return _read_statements(write)


def _aside(operator: str, row: AsideRow) -> Statement:
    records = None if row.records is None else encode_json(row.records)
    told = (encode_json(row.label), encode_json(row.state), encode_json(row.events), records, encode_json(row.error))
    return Statement(_ASIDE, (operator, row.number, row.input_set, *told))


def _keyed(operator: str, function: str, key: str, state: Any) -> Statement:
    if state is None:
        return Statement(_KEY_GONE, (operator, function, key))
    return Statement(_KEYED, (operator, function, key, encode_json(state)))


def _read_statements(write: Write) -> list[Statement]:
    match write:
        case AddReadAction(operator, connection, action, description):
            return [Statement(_ACTION, (operator, connection, action, description))]
        case CompleteReadAction(operator, connection, action):
            return [Statement(_COMPLETE, (operator, connection, action))]
        case LogReadEvent(operator, connection, action, effect, input_set, description):
            done = 0 if input_set is None else 1
            values = (operator, connection, action, done, input_set, description, *encode_bodies(effect))
            return [Statement(_READ_EVENT, values)]
        case FinishReadEvent(operator, connection, action):
            return [Statement(_FINISH_READ, (operator, connection, action))]
        case DropReadEvent(operator, connection, action):
            return [Statement(_DROP_READ, (operator, connection, action))]
        case _:
            return []


def lineage_statement(lineage: Lineage, events: int, ordered: bool) -> Statement:
    """Return the statement of the lineage of so many events, whose Input Sets follow those before or do not (O1)."""
    counts = encode_counts(lineage.counts)
    return Statement(_LINEAGE[ordered], (*lineage.port, lineage.first, events, lineage.input_set, counts))


def _log_events(run: EventRun) -> list[Statement]:
    if not run.headers:
        return []
    headers, facts = encode_headers(run.headers), encode_facts(run.headers)
    found = [Statement(_SENT, (*run.port, run.first, len(run.headers), run.size, headers, facts, _now()))]
    at = run.first
    for bodies in run.bodies:
        if bodies.lengths:
            found.append(Statement(_BODY, (*run.port, at, *encode_bodies(bodies))))
        at += len(bodies)
    return found


def _now() -> int:
    return time.time_ns() // 1_000_000


def _acknowledge(write: Acknowledge) -> list[Statement]:
    if not write.count:
        return []
    rows = enumerate(encode_assignment(write.assignment))
    return [
        Statement(_ACK, (*write.receiver, write.first, part, write.count, write.seq, *columns))
        for part, columns in rows
    ]


def _log_write(port: tuple[str, str], row: WriteRow) -> list[Statement]:
    found = [Statement(_WRITE, (*port, row.number, encode_named(row), _now()))]
    for part, bodies in enumerate(row.bodies):
        found.append(Statement(_WRITE_BODY, (*port, row.number, part, *encode_bodies(bodies))))
    return found
