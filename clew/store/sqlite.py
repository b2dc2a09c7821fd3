"""The log in a SQLite file: the embedded default, for the groups of one process.

Commits go through one writer thread (`sqlite_writer`), reads through connections of their own, which the
write-ahead log lets see the last commit without waiting. Reading the file with the sqlite3 shell is safe at any time.
"""

import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from clew.disk import make_directory, sync_directory
from clew.errors import NewerLog, StaleWriter, StoreFailed, WrongLog
from clew.faultpoint import fault_point
from clew.ids import Port
from clew.protocol.rows import LookupRow
from clew.protocol.step import Write
from clew.store import leases
from clew.store.base import NO_PORTS, SCHEMA_VERSION, Collected, Holder, ProcessRow, Topology
from clew.store.changes import change
from clew.store.collecting import collect
from clew.store.identity import claim, decide_asides, declare, has_events, keep_lookup, take_over
from clew.store.ledger import Ledger, read_ledger
from clew.store.sqlite_schema import VIEWS
from clew.store.sqlite_writer import CHECKPOINT_PAGES, GroupWriter, SqliteLog, explain
from clew.store.sqlread import SqlReads
from clew.store.statements import Statement, statements_of
from clew.store.tables_sql import DROP_VIEWS, TABLES, UPGRADES

#: How long to wait for another process that holds the file, in seconds.
_PATIENCE = 10.0

#: How many renewals of leases come to one that is synced.
_UNSYNCED_RENEWALS = 64


class SqliteStore(SqlReads):
    """The log in a SQLite file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.abspath(os.fspath(path))
        connection, self._run_id = _open(self._path)
        self._ledgers: dict[str, Ledger] = {}
        self._senders: dict[Port, Port] = {}
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = threading.Lock()
        self._writer = GroupWriter(self._path, connection, self._forget)
        self._claim: str | None = None
        self._renewals = 0

    @property
    def run_id(self) -> str:
        return self._run_id

    def declare(self, topology: Topology) -> None:
        def work(log: SqliteLog) -> None:
            declare(log, topology)
            self._forget()

        self._writer.run(work)

    def change(self, topology: Topology, writes: Sequence[Write]) -> None:
        def work(log: SqliteLog) -> None:
            change(log, topology, writes)
            self._forget()

        self._writer.run(work)

    def claim(self) -> None:
        self._claim = self._writer.run(claim)

    def take_over(self, operator: str) -> int:
        incarnation: int = self._writer.run(lambda log: take_over(log, operator, self._claim))
        return incarnation

    def commit(self, operator: str, incarnation: int, writes: Sequence[Write], durable: bool = True) -> None:
        self._writer.check()
        # Encoded here, in the caller's thread: the writer's time is everyone's.
        statements = [statements_of(write) for write in writes]
        self._writer.run(lambda log: self._apply(log, operator, incarnation, writes, statements), durable)

    def decide_asides(self, operator: str, numbers: Sequence[int], status: Literal["retry", "drop"]) -> int:
        decided: int = self._writer.run(lambda log: decide_asides(log, operator, numbers, status))
        return decided

    def keep_lookup(self, operator: str, row: LookupRow) -> None:
        self._writer.run(lambda log: keep_lookup(log, operator, row))

    # Of leases nothing is synced: they are of processes on this machine, none of which outlives it.
    def take_lease(
        self, role: str, holder: Holder, seconds: float, dead: str | None = None, stood_by: bool = False
    ) -> ProcessRow | None:
        taken: ProcessRow | None = self._writer.run(
            lambda log: leases.take_lease(log, _now(), role, holder, seconds, dead, stood_by), durable=False
        )
        return taken

    def renew_lease(self, role: str, holder: Holder, seconds: float, report: Mapping[str, Any]) -> str | None:
        # Only a commit that is synced lets the write-ahead log be copied and begun anew: so one of many is.
        self._renewals += 1
        durable = self._renewals % _UNSYNCED_RENEWALS == 0
        asked: str | None = self._writer.run(
            lambda log: leases.renew_lease(log, _now(), role, holder, seconds, report), durable=durable
        )
        return asked

    def release_lease(self, role: str, holder: Holder) -> None:
        self._writer.run(lambda log: leases.release_lease(log, _now(), role, holder), durable=False)

    def ask_processes(self, what: str) -> int:
        asked: int = self._writer.run(lambda log: leases.ask_processes(log, _now(), what), durable=False)
        return asked

    def processes(self) -> list[ProcessRow]:
        with self._reading() as log:
            return leases.processes(log, _now())

    def collect(self, grace: int = 0, keep: Mapping[Port, int] = NO_PORTS) -> Collected:
        collected: Collected = self._writer.run(lambda log: collect(log, grace, keep))
        return collected

    def close(self) -> None:
        self._writer.close()
        with self._readers_lock:
            while self._readers:
                self._readers.pop().close()

    def _apply(
        self,
        log: SqliteLog,
        operator: str,
        incarnation: int,
        writes: Sequence[Write],
        statements: list[list[Statement]],
    ) -> None:
        rows = log.fetch("SELECT incarnation FROM operator WHERE name = ?", operator)
        current = rows[0][0] if rows else 0
        if current != incarnation:
            raise StaleWriter(operator, incarnation, current)
        draft = self._ledger(log, operator).draft()
        for write, own in zip(writes, statements):
            admitted = draft.admit(write, lambda receiver: self._last_sent(log, draft, receiver))
            for statement in (*own, *admitted):
                log.run(statement.sql, *statement.values)
        fault_point("inside-commit", operator)
        self._ledgers[operator] = draft

    def _ledger(self, log: SqliteLog, operator: str) -> Ledger:
        if operator not in self._ledgers:
            self._ledgers[operator] = read_ledger(log, operator)
        return self._ledgers[operator]

    def _last_sent(self, log: SqliteLog, draft: Ledger, receiver: Port) -> int | None:
        if not self._senders:
            for operator, port, *rest in log.fetch("SELECT operator, port, rec_operator, rec_port FROM link"):
                self._senders[Port(*rest)] = Port(operator, port)
        sender = self._senders.get(receiver)
        if sender is None:
            return None
        ledger = draft if sender.operator == draft.operator else self._ledger(log, sender.operator)
        return ledger.last_sent.get(sender.name, 0)

    def _forget(self) -> None:
        """Read ledgers and connections again when they are needed: someone else wrote to the log."""
        self._ledgers.clear()
        self._senders.clear()

    @contextmanager
    def _snapshot(self) -> Iterator[SqliteLog]:
        self._writer.check()
        connection = None
        try:
            connection = self._reader()
            connection.execute("BEGIN")
            yield SqliteLog(connection)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._writer.poison(explain(self._path, error))
            raise explain(self._path, error) from error
        finally:
            if connection is not None:
                self._give_back(connection)

    _reading = _snapshot

    def _reader(self) -> sqlite3.Connection:
        with self._readers_lock:
            if self._readers:
                return self._readers.pop()
        connection = _connect(self._path)
        connection.execute("PRAGMA query_only = ON")
        return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.rollback()
        with self._readers_lock:
            self._readers.append(connection)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _connect(path: str) -> sqlite3.Connection:
    # Autocommit, so that BEGIN and COMMIT are ours; any thread may use it, one at a time.
    return sqlite3.connect(
        path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False, cached_statements=256
    )


def _open(path: str) -> tuple[sqlite3.Connection, str]:
    """Open or create the log; returns the writer's connection and the run's identity."""
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        raise StoreFailed(f"the directory {directory} of the log does not exist", "create it, or use another --log")
    connection = None
    try:
        connection = _connect(path)
        _refuse_foreign(connection, path)
        _set_up(connection)
        connection.execute("BEGIN IMMEDIATE")
        run_id = _identity(connection, path)
        connection.execute("COMMIT")
        # The names of the log's files, which their own sync does not cover, and of the directories above.
        make_directory(directory)
        sync_directory(directory)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise explain(path, error) from error
        if isinstance(error, OSError):
            raise StoreFailed(f"the directory {directory} of the log cannot be synced: {error.strerror}") from error
        raise
    return connection, run_id


def _refuse_foreign(connection: sqlite3.Connection, path: str) -> None:
    """Look before touching: a newer log, or a database of something else, stays as it is."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and "meta" not in tables:
        raise WrongLog(f"{path} is a SQLite database, but not a log of Clew; use another --log")
    if tables:
        row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
        if row is not None and int(row[0]) > SCHEMA_VERSION:
            raise NewerLog(int(row[0]), SCHEMA_VERSION, path)


def _set_up(connection: sqlite3.Connection) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreFailed("the file system of the log has no shared memory for SQLite", "keep the log on a local disk")
    # fullfsync is macOS's real sync; elsewhere it changes nothing.
    pages = f"wal_autocheckpoint = {CHECKPOINT_PAGES}"
    for setting in ("synchronous = FULL", "fullfsync = ON", pages, "cache_size = -16000"):
        connection.execute(f"PRAGMA {setting}")
    # What an earlier process wrote may have failed to sync: such pages look clean, and no later sync writes them. So
    # all of it is copied into the database and synced there, before anything builds on it.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def _identity(connection: sqlite3.Connection, path: str) -> str:
    """Return the run id; made with the tables, in one transaction, and never again."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        for statement in f"{TABLES}{VIEWS}".split(";\n"):
            connection.execute(statement)
        connection.execute("INSERT INTO meta VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if row is not None and int(row[0]) < SCHEMA_VERSION:
        for statement in f"{UPGRADES[int(row[0])]}{DROP_VIEWS}{VIEWS}".split(";\n"):
            connection.execute(statement)
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(SCHEMA_VERSION),))
    row = connection.execute("SELECT value FROM meta WHERE key = 'run_id'").fetchone()
    if row is not None:
        return str(row[0])
    if has_events(SqliteLog(connection)):
        raise WrongLog(f"the log {path} has events but no identity; restore its table meta, or start with --fresh")
    run_id = uuid.uuid4().hex
    connection.execute("INSERT INTO meta VALUES ('run_id', ?)", (run_id,))
    return run_id


__all__ = ["SqliteStore"]
