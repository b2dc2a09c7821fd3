"""What a log in SQL answers: the read half of the contract, the same for every SQL backend."""

import json
from abc import abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from clew.ids import InputSetId, Port
from clew.protocol.rows import (
    AsideRow,
    Bodies,
    EventRun,
    Label,
    LookupRow,
    Member,
    OperatorRow,
    ReadActionRow,
    ReadEventRow,
    StateRow,
    WriteRow,
    label_of,
)
from clew.store.base import Backlog, Table
from clew.store.identity import kept_lookups, versions
from clew.store.intervals import Intervals
from clew.store.ledger import read_done
from clew.store.paper_tables import paper_table
from clew.store.rowcodec import (
    ASIDE_COLUMNS,
    decode_aside,
    decode_bodies,
    decode_headers,
    decode_named,
    decode_sizes,
    events_covered,
    sets_covered,
)
from clew.store.sqllineage import SqlLineage, collected
from clew.store.statements import Transaction

#: The row that holds a number has the largest `first` not above it: one step down an index.
_UNACKNOWLEDGED = """SELECT s.operator, s.port, s.first, s.headers, s.facts FROM link l
    JOIN sent s ON s.operator = l.operator AND s.port = l.port
    WHERE l.rec_operator = ? AND l.rec_port = ? AND s.first <= ? AND s.first >= coalesce((
        SELECT max(b.first) FROM sent b WHERE b.operator = l.operator AND b.port = l.port AND b.first <= ?), 0)
    ORDER BY s.first"""
_SENT = """SELECT s.operator, s.port, s.first, s.headers, s.facts FROM sent s
    WHERE s.operator = ? AND s.port = ? AND s.first <= ? AND s.first >= coalesce((
        SELECT max(b.first) FROM sent b WHERE b.operator = ? AND b.port = ? AND b.first <= ?), 0)
    ORDER BY s.first"""
_BODIES = """SELECT first, count, size, lengths, checksums, file, start, data FROM body
    WHERE operator = ? AND port = ? AND first <= ? AND first >= coalesce((
        SELECT max(b.first) FROM body b WHERE b.operator = ? AND b.port = ? AND b.first <= ?), 0)
    ORDER BY first"""
#: Collection keeps every row of acknowledgements past its mark, so the mark counts only when there is none.
_BACKLOG = """WITH waiting AS (
        SELECT l.operator, l.port, coalesce(
            (SELECT a.first + a.count - 1 FROM ack a WHERE a.operator = l.rec_operator AND a.port = l.rec_port
                ORDER BY a.first DESC LIMIT 1),
            (SELECT c.upto FROM collected c WHERE c.operator = l.operator AND c.port = l.port), 0) AS acknowledged
        FROM link l WHERE l.rec_operator = ? AND l.rec_port = ?)
    SELECT w.acknowledged, s.first, s.count, s.bytes, CASE WHEN s.first <= w.acknowledged THEN s.headers END
    FROM waiting w JOIN sent s ON s.operator = w.operator AND s.port = w.port AND s.first >= coalesce((
        SELECT max(b.first) FROM sent b
        WHERE b.operator = w.operator AND b.port = w.port AND b.first <= w.acknowledged + 1), 0)"""
_WRITES = """SELECT number, events FROM write_action
    WHERE operator = ? AND connection = ? AND number > ? ORDER BY number LIMIT ?"""
_WRITE_BODIES = """SELECT number, count, size, lengths, checksums, file, start, data FROM write_body
    WHERE operator = ? AND connection = ? AND number >= ? AND number <= ? ORDER BY number, part"""
_EFFECT = """SELECT action, done, count, size, lengths, checksums, file, start, data FROM read_event
    WHERE operator = ? AND connection = ? AND action = ?"""


class SqlReads(SqlLineage):
    """The read methods of a store whose rows are in SQL."""

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Transaction]:
        """Open the log for queries, each of which may see later commits than the one before."""

    @abstractmethod
    def _snapshot(self) -> AbstractContextManager[Transaction]:
        """Open the log for queries that all see the same commits."""

    def operators(self) -> list[OperatorRow]:
        with self._reading() as log:
            rows = log.fetch("SELECT name, status, incarnation FROM operator")
        return sorted((OperatorRow(*row) for row in rows), key=lambda row: row.operator)

    def owner(self) -> str | None:
        with self._reading() as log:
            return next((name for (name,) in log.fetch("SELECT value FROM meta WHERE key = 'pipeline'")), None)

    def versions(self) -> dict[str, Any]:
        with self._reading() as log:
            return versions(log)

    def links(self) -> list[tuple[Port, Port]]:
        with self._reading() as log:
            rows = log.fetch("SELECT operator, port, rec_operator, rec_port FROM link")
        return sorted((Port(*row[:2]), Port(*row[2:])) for row in rows)

    def state(self, operator: str) -> StateRow | None:
        with self._reading() as log:
            rows = log.fetch("SELECT state_id, context, state FROM latest_state WHERE operator = ?", operator)
        return next((StateRow(number, json.loads(context), json.loads(text)) for number, context, text in rows), None)

    def asides(self, operator: str) -> list[AsideRow]:
        with self._reading() as log:
            rows = log.fetch(f"SELECT {ASIDE_COLUMNS} FROM aside WHERE operator = ? ORDER BY number", operator)
        return [decode_aside(*row) for row in rows]

    def keyed(self, operator: str) -> list[tuple[str, str, Any]]:
        with self._reading() as log:
            rows = log.fetch("SELECT function, key, state FROM keyed_state WHERE operator = ?", operator)
        return sorted((function, key, json.loads(state)) for function, key, state in rows)

    def lookups(self, operator: str) -> list[LookupRow]:
        with self._reading() as log:
            return kept_lookups(log, operator)

    def schema(self, port: Port) -> bytes | None:
        with self._reading() as log:
            rows = log.fetch("SELECT schema FROM port_schema WHERE operator = ? AND port = ?", *port)
        return bytes(rows[0][0]) if rows else None

    def unacknowledged(self, receiver: Port, after: int, max_events: int, max_bytes: int) -> list[EventRun]:
        with self._reading() as log:
            rows = log.fetch(_UNACKNOWLEDGED, *receiver, after + max_events, after + 1)
            runs = _within(_event_runs(rows, after + 1, after + max_events), max_bytes)
            return _with_bodies(log, runs)

    def backlog(self, receiver: Port) -> Backlog:
        with self._reading() as log:
            rows = log.fetch(_BACKLOG, *receiver)
        events = size = 0
        for acknowledged, first, count, total, headers in rows:
            skip = max(acknowledged - first + 1, 0)
            if skip < count:
                events += count - skip
                size += sum(decode_sizes(headers)[skip:]) if skip else total
        return Backlog(events, size)

    def members(self, operator: str) -> list[Member]:
        with self._snapshot() as log:
            done = read_done(log, operator)
            rows = log.fetch(
                "SELECT port, first, count, seq, input_set, size, skip FROM ack WHERE operator = ? UNION ALL "
                "SELECT port, first, count, seq, input_set, 0, 0 FROM rejoined WHERE operator = ?",
                operator, operator,
            )  # fmt: skip
        found = [
            Member(seq + start, Port(operator, port), first + start, length, InputSetId(number))
            for port, first, count, seq, *columns in rows
            for number in _undone_sets(done, (columns[0], columns[1], columns[2]), count)
            for start, length in [events_covered((columns[0], columns[1], columns[2]), count, number)]
        ]
        return sorted(found, key=lambda member: (member.seq, member.input_set))

    def open_sets(self, operator: str) -> dict[InputSetId, Label]:
        with self._snapshot() as log:
            done = read_done(log, operator)
            # Labels of Input Sets that are done may be kept for lineage; nearly all of them come before the open ones.
            low = done.ends[0] if done.starts[:1] == (1,) else 0
            rows = log.fetch(
                "SELECT input_set, label FROM input_set WHERE operator = ? AND input_set >= ? ORDER BY 1", operator, low
            )
        return {InputSetId(number): label_of(text) for number, text in rows if number not in done}

    def events(self, port: Port, first: int, count: int) -> list[EventRun]:
        with self._snapshot() as log:
            return _with_bodies(log, sent_between(log, port, first, first + count - 1))

    def last_read_action(self, operator: str) -> ReadActionRow | None:
        with self._reading() as log:
            rows = log.fetch(
                "SELECT action, connection, description, complete FROM action WHERE operator = ? "
                "ORDER BY action DESC LIMIT 1",
                operator,
            )
        return next((ReadActionRow(number, c, text, bool(complete)) for number, c, text, complete in rows), None)

    def read_event(self, operator: str, connection: str, action: int) -> ReadEventRow | None:
        with self._reading() as log:
            rows = log.fetch(_EFFECT, operator, connection, action)
        for number, done, *columns in rows:
            effect = None if columns[2] is None else decode_bodies(columns)
            return ReadEventRow(number, connection, "done" if done else "undone", effect)
        return None

    def undone_writes(self, port: Port, limit: int) -> list[WriteRow]:
        with self._snapshot() as log:
            done = Intervals.of(
                (first, count)
                for first, count in log.fetch(
                    "SELECT first, count FROM done_write WHERE operator = ? AND connection = ?", *port
                )
            )
            # Writes are done in order but for rare ones, so nearly all that is done lies in the first interval.
            low = done.ends[0] - 1 if done.starts[:1] == (1,) else 0
            ahead = sum(count for first, count in done if first > low)
            rows = [row for row in log.fetch(_WRITES, *port, low, limit + ahead) if row[0] not in done][:limit]
            if not rows:
                return []
            bodies: dict[int, list[Bodies]] = {}
            for number, *columns in log.fetch(_WRITE_BODIES, *port, rows[0][0], rows[-1][0]):
                bodies.setdefault(number, []).append(decode_bodies(columns))
            return [WriteRow(n, decode_named(named), tuple(bodies.get(n, ()))) for n, named in rows]

    def referenced_files(self) -> set[str]:
        with self._snapshot() as log:
            return files_in(log)

    def table(self, name: Table) -> list[tuple[Any, ...]]:
        with self._snapshot() as log:
            return paper_table(log, name)


def files_in(log: Transaction) -> set[str]:
    """Return all body files that some row refers to."""
    rows = log.fetch(
        "SELECT file FROM body WHERE file IS NOT NULL UNION SELECT file FROM write_body WHERE file IS NOT NULL "
        "UNION SELECT file FROM read_event WHERE file IS NOT NULL"
    )
    return {row[0] for row in rows}


def sent_between(log: Transaction, port: Port, low: int, high: int) -> list[EventRun]:
    """Return the events of a port from `low` to `high` that are not collected, without their bodies."""
    low = max(low, collected(log, port) + 1)
    return _event_runs(log.fetch(_SENT, *port, high, *port, low), low, high)


def _event_runs(rows: Iterable[tuple[Any, ...]], low: int, high: int) -> list[EventRun]:
    """Return the stored runs, cut to the events from `low` to `high`."""
    runs = [EventRun(Port(o, p), first, decode_headers(headers, facts)) for o, p, first, headers, facts in rows]
    cut = [run.cut(max(low - run.first, 0), max(high + 1 - run.first, 0)) for run in runs]
    return [run for run in cut if run.headers]


def _within(runs: list[EventRun], max_bytes: int) -> list[EventRun]:
    """Return as many of the events as fit, but at least one."""
    kept: list[EventRun] = []
    total = 0
    for run in runs:
        fitting = 0
        for header in run.headers:
            total += header.size
            if total > max_bytes and (kept or fitting):
                break
            fitting += 1
        if fitting:
            kept.append(run.cut(0, fitting))
        if fitting < len(run.headers):
            break
    return kept


def _with_bodies(log: Transaction, runs: list[EventRun]) -> list[EventRun]:
    if not runs:
        return []
    port, low, high = runs[0].port, runs[0].first, runs[-1].last
    stored = [(row[0], decode_bodies(row[1:])) for row in log.fetch(_BODIES, *port, high, *port, low)]
    return [EventRun(port, run.first, run.headers, _bodies_of(run, stored)) for run in runs]


def _bodies_of(run: EventRun, stored: list[tuple[int, Bodies]]) -> tuple[Bodies, ...]:
    cut = [b.cut(max(run.first - first, 0), max(run.last + 1 - first, 0)) for first, b in stored]
    return tuple(bodies for bodies in cut if bodies.lengths)


def _undone_sets(done: Intervals, columns: tuple[int, int, int], count: int) -> Iterable[int]:
    if columns[:2] == (0, 0):
        return  # The Input Set none is done from the start.
    for first, length in done.gaps(*sets_covered(columns, count)):
        yield from range(first, first + length)
