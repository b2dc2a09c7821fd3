"""The log in PostgreSQL: the shared store, for groups in several processes or on several machines.

Each log has a PostgreSQL schema of its own. A commit is one round trip: BEGIN, the fence, all inserts and COMMIT go
out together, and the server skips what follows a refusal. What a commit expects is checked before, against the
operator's ledger; the fence makes sure that the ledger is the log's.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from clew.errors import StaleWriter, StoreFailed, UnexpectedRow
from clew.faultpoint import fault_point
from clew.ids import Port
from clew.protocol.rows import EventRun, LookupRow
from clew.protocol.step import Acknowledge, Write
from clew.store import leases
from clew.store.base import NO_PORTS, Collected, Holder, ProcessRow, Topology
from clew.store.changes import change
from clew.store.collecting import collect
from clew.store.identity import claim, decide_asides, declare, keep_lookup, take_over
from clew.store.ledger import Ledger, read_ledger
from clew.store.postgres_open import current_claim, drop_log, prepare
from clew.store.postgres_session import Connection, PostgresLog, as_psycopg, explain, masked, set_up
from clew.store.sqlread import SqlReads
from clew.store.statements import Statement, statements_of

_FENCE = b"SELECT fence(%s, %s, %s, %s)"
_STALE_WRITER, _STALE_LEDGER = "CLW01", "CLW02"
_LAST_SENT = """SELECT coalesce(
        (SELECT s.first + s.count - 1 FROM sent s WHERE s.operator = ? AND s.port = ? ORDER BY s.first DESC LIMIT 1),
        (SELECT c.upto FROM collected c WHERE c.operator = ? AND c.port = ?), 0)"""
#: Whoever holds the operator's row has written its transaction id there.
_END_HOLDER = """SELECT pg_terminate_backend(l.pid) FROM operator o
    JOIN pg_locks l ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = o.xmax
    WHERE o.name = ? AND l.pid <> pg_backend_pid()"""
#: How long a takeover waits for a commit under way before it ends it: a frozen process must not hold it up.
_TAKE_OVER_PATIENCE = "2s"
#: How often a commit or collection that met another one is tried again.
_ATTEMPTS = 10


@dataclass
class _Seen:
    """An operator's ledger as of a version of its row."""

    ledger: Ledger
    incarnation: int
    version: int


class PostgresStore(SqlReads):
    """The log in a schema of a PostgreSQL database."""

    def __init__(self, url: str, schema: str = "clew", max_connections: int = 16) -> None:
        self._url = url
        self._schema = schema
        self._run_id = prepare(url, schema)
        self._failure: StoreFailed | None = None
        self._closed = False
        self._claim: str | None = None
        self._lock = threading.Lock()
        self._operator_locks: dict[str, threading.Lock] = {}
        self._seen: dict[str, _Seen] = {}
        self._senders: dict[Port, Port] = {}
        self._last_sent: dict[Port, int] = {}
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            url,
            kwargs={"autocommit": True, "connect_timeout": 10},
            min_size=1,
            max_size=max_connections,
            timeout=10,
            configure=lambda connection: set_up(connection, schema),
            open=True,
        )

    @property
    def run_id(self) -> str:
        return self._run_id

    def declare(self, topology: Topology) -> None:
        with self._transaction() as log:
            log.run("LOCK TABLE link IN EXCLUSIVE MODE")
            declare(log, topology)
        with self._lock:
            self._senders.clear()
            self._last_sent.clear()

    def change(self, topology: Topology, writes: Sequence[Write]) -> None:
        with self._transaction() as log:
            log.run("LOCK TABLE link IN EXCLUSIVE MODE")
            change(log, topology, writes)
        with self._lock:
            self._seen.clear()
            self._senders.clear()
            self._last_sent.clear()

    def decide_asides(self, operator: str, numbers: Sequence[int], status: Literal["retry", "drop"]) -> int:
        with self._transaction() as log:
            return decide_asides(log, operator, numbers, status)

    def keep_lookup(self, operator: str, row: LookupRow) -> None:
        with self._transaction() as log:
            keep_lookup(log, operator, row)

    def claim(self) -> None:
        with self._transaction() as log:
            self._claim = claim(log)

    def take_over(self, operator: str) -> int:
        for _ in range(_ATTEMPTS):
            try:
                with self._transaction() as log:
                    log.run(f"SET LOCAL lock_timeout TO '{_TAKE_OVER_PATIENCE}'")
                    return take_over(log, operator, self._claim)
            except psycopg.errors.LockNotAvailable:
                with self._reading() as log:
                    log.fetch(_END_HOLDER, operator)
        raise self._fail(
            StoreFailed(
                f"operator {operator} of the log {masked(self._url)} is locked by another session",
                "end that session, which pg_stat_activity lists, and run again: what was acknowledged is safe",
            )
        )

    def commit(self, operator: str, incarnation: int, writes: Sequence[Write], durable: bool = True) -> None:
        statements = [statements_of(write) for write in writes]
        with self._operator_lock(operator), self._session() as connection:
            for _ in range(_ATTEMPTS):
                seen = self._seen.get(operator)
                fresh = seen is None
                if seen is None:
                    seen = self._seen[operator] = _read(connection, operator)
                if fresh and seen.incarnation != incarnation:
                    raise StaleWriter(operator, incarnation, seen.incarnation)
                try:
                    draft, planned = self._plan(connection, seen.ledger, writes, statements)
                except UnexpectedRow:
                    del self._seen[operator]
                    if fresh:
                        raise
                    continue  # Perhaps another process wrote: look at the log itself before refusing.
                if self._send(connection, operator, incarnation, seen, planned, durable):
                    self._seen[operator] = _Seen(draft, incarnation, seen.version + 1)
                    return
            raise UnexpectedRow(f"operator {operator}", "written to by another process all the time", "ours alone")

    def take_lease(
        self, role: str, holder: Holder, seconds: float, dead: str | None = None, stood_by: bool = False
    ) -> ProcessRow | None:
        with self._transaction() as log:
            return leases.take_lease(log, _now(log), role, holder, seconds, dead, stood_by)

    def renew_lease(self, role: str, holder: Holder, seconds: float, report: Mapping[str, Any]) -> str | None:
        with self._transaction() as log:
            return leases.renew_lease(log, _now(log), role, holder, seconds, report)

    def release_lease(self, role: str, holder: Holder) -> None:
        with self._transaction() as log:
            leases.release_lease(log, _now(log), role, holder)

    def ask_processes(self, what: str) -> int:
        with self._transaction() as log:
            return leases.ask_processes(log, _now(log), what)

    def processes(self) -> list[ProcessRow]:
        with self._reading() as log:
            return leases.processes(log, _now(log))

    def unacknowledged(self, receiver: Port, after: int, max_events: int, max_bytes: int) -> list[EventRun]:
        runs = super().unacknowledged(receiver, after, max_events, max_bytes)
        if runs:
            # Remembered, so that acknowledging these needs no look at the sender's rows.
            with self._lock:
                self._last_sent[receiver] = max(runs[-1].last, self._last_sent.get(receiver, 0))
        return runs

    def collect(self, grace: int = 0, keep: Mapping[Port, int] = NO_PORTS) -> Collected:
        for _ in range(_ATTEMPTS):
            try:
                with self._transaction("REPEATABLE READ") as log:
                    # Taken before the first query, which fixes the snapshot: one collection at a time.
                    log.run("LOCK TABLE collected IN EXCLUSIVE MODE")
                    return collect(log, grace, keep)
            except psycopg.errors.SerializationFailure:
                continue
        return Collected(0, ())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._pool.close()

    def _plan(
        self, connection: Connection, ledger: Ledger, writes: Sequence[Write], statements: list[list[Statement]]
    ) -> tuple[Ledger, list[Statement]]:
        """Check the writes against the ledger; returns the ledger after them, and all statements."""
        draft = ledger.draft()
        planned: list[Statement] = []
        for write, own in zip(writes, statements):
            planned += own
            # Called before the loop goes on, so it sees this write.
            planned += draft.admit(write, lambda receiver: self._sent_to(connection, draft, receiver, write))  # noqa: B023
        return draft, planned

    def _send(
        self,
        connection: Connection,
        operator: str,
        incarnation: int,
        seen: _Seen,
        planned: list[Statement],
        durable: bool,
    ) -> bool:
        """Commit the statements in one round trip; returns whether the ledger was the log's."""
        try:
            with connection.pipeline():
                connection.execute("BEGIN")
                connection.execute(_FENCE, (operator, incarnation, seen.version, durable), prepare=True)
                for statement in planned:
                    connection.execute(as_psycopg(statement.sql), statement.values, prepare=True)
                fault_point("inside-commit", operator)
                connection.execute("COMMIT")
        except BaseException as error:
            del self._seen[operator]
            if not connection.broken:
                connection.rollback()
            return _refusal(error, operator, incarnation)
        return True

    def _sent_to(self, connection: Connection, draft: Ledger, receiver: Port, write: Write) -> int | None:
        with self._lock:
            if not self._senders:
                rows = PostgresLog(connection).fetch("SELECT operator, port, rec_operator, rec_port FROM link")
                self._senders = {Port(row[2], row[3]): Port(row[0], row[1]) for row in rows}
            sender = self._senders.get(receiver)
            if sender is None:
                return None
            if sender.operator == draft.operator:
                return draft.last_sent.get(sender.name, 0)
            last = self._last_sent.get(receiver, 0)
            if isinstance(write, Acknowledge) and write.first + write.count - 1 > last:
                last = PostgresLog(connection).fetch(_LAST_SENT, *sender, *sender)[0][0]
                self._last_sent[receiver] = last
            return last

    def _operator_lock(self, operator: str) -> threading.Lock:
        with self._lock:
            return self._operator_locks.setdefault(operator, threading.Lock())

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        """Lend a connection; an error of the database poisons the store, a refusal does not."""
        self._check()
        try:
            with self._pool.connection() as connection:
                yield connection
        except (psycopg.errors.LockNotAvailable, psycopg.errors.SerializationFailure):
            raise
        except (psycopg.Error, PoolTimeout) as error:
            raise self._fail(self._followed() or explain(self._url, error)) from error

    @contextmanager
    def _reading(self) -> Iterator[PostgresLog]:
        with self._session() as connection:
            yield PostgresLog(connection)

    @contextmanager
    def _snapshot(self) -> Iterator[PostgresLog]:
        with self._transaction("REPEATABLE READ") as log:
            yield log

    @contextmanager
    def _transaction(self, isolation: str = "READ COMMITTED") -> Iterator[PostgresLog]:
        with self._session() as connection:
            connection.execute(f"BEGIN ISOLATION LEVEL {isolation}".encode())
            try:
                yield PostgresLog(connection)
                connection.execute("COMMIT")
            except BaseException:
                if not connection.broken:
                    connection.rollback()
                raise

    def _followed(self) -> StoreFailed | None:
        """Say so when another process has claimed the run: it ends sessions of this one that hold it up."""
        try:
            if self._claim is None or current_claim(self._url, self._schema) == self._claim:
                return None
        except psycopg.Error:
            return None
        return StoreFailed(
            f"another process took over the run of the log {masked(self._url)}, and the session of this one was ended",
            "let that one run: this one must stop",
        )

    def _check(self) -> None:
        if self._failure is not None:
            raise replace(self._failure)
        if self._closed:
            raise StoreFailed(f"the log {masked(self._url)} is closed", "open it again")

    def _fail(self, failure: StoreFailed) -> StoreFailed:
        self._failure = self._failure or failure
        return failure


def _now(log: PostgresLog) -> int:
    """Return the server's time, in milliseconds: one clock for all machines."""
    return int(log.fetch("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::BIGINT")[0][0])


def _read(connection: Connection, operator: str) -> _Seen:
    """Read an operator's ledger and the version it belongs to, in one snapshot."""
    log = PostgresLog(connection)
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    rows = log.fetch("SELECT incarnation, version FROM operator WHERE name = ?", operator)
    incarnation, version = rows[0] if rows else (0, 0)
    ledger = read_ledger(log, operator)
    connection.execute("COMMIT")
    return _Seen(ledger, incarnation, version)


def _refusal(error: BaseException, operator: str, incarnation: int) -> bool:
    """Return False when the commit may be tried again on a fresh ledger, else raise what it was refused for."""
    if isinstance(error, psycopg.Error):
        if error.sqlstate == _STALE_LEDGER:
            return False
        if error.sqlstate == _STALE_WRITER:
            raise StaleWriter(operator, incarnation, int(error.diag.message_primary or 0)) from None
        if isinstance(error, psycopg.IntegrityError):
            raise UnexpectedRow(f"a row of {operator}", f"in conflict ({error})", "new") from error
    raise error


__all__ = ["PostgresStore", "drop_log"]
