"""The one thread that writes a SQLite log: it takes what all operators queued and makes it durable together.

Group commit: every job is a savepoint of its own in one transaction, so one that is refused rolls back
alone while the sync at the end is shared by all. An error of that transaction itself fails all its jobs and
poisons the log (S1): after a failed sync nobody knows what the disk holds, until the log is opened again.
"""

import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from clew.errors import StoreFailed, UnexpectedRow

#: How many jobs one transaction takes: enough for every operator of a large pipeline to share a sync.
_BATCH = 256

#: How many pages the write-ahead log has before they are copied into the database.
CHECKPOINT_PAGES = 4000

_CURES = {
    "SQLITE_FULL": ("the disk of the log {path} is full", "make room and run again: what was acknowledged is safe"),
    "SQLITE_BUSY": ("the log {path} is held by another process", "end that process, or use another --log"),
    "SQLITE_READONLY": ("the log {path} cannot be written", "give write permission on it and its directory"),
    "SQLITE_PERM": ("the log {path} cannot be written", "give write permission on it and its directory"),
    "SQLITE_CANTOPEN": ("the log {path} cannot be opened or created", "give write permission on it and its directory"),
    "SQLITE_CORRUPT": ("the log {path} is damaged", "restore it from a backup"),
    "SQLITE_NOTADB": ("the file {path} is not a log", "use another --log"),
}  # fmt: skip


def explain(path: str, error: sqlite3.Error) -> StoreFailed:
    """Say in a sentence what SQLite's error means for the log, and what to do."""
    name = getattr(error, "sqlite_errorname", "") or ""
    for prefix, (what, cure) in _CURES.items():
        if name.startswith(prefix):
            return StoreFailed(what.format(path=path), cure)
    return StoreFailed(f"the log {path} failed with {name or type(error).__name__}: {error}")


class SqliteLog:
    """A connection as the Transaction that shared code asks for."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def fetch(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    def run(self, sql: str, *values: Any) -> None:
        self._connection.execute(sql, values)


@dataclass(eq=False)
class _Job:
    work: Callable[[SqliteLog], Any]
    durable: bool
    result: "Future[Any]" = field(default_factory=Future)
    outcome: Any = None


class GroupWriter:
    """Runs jobs on the log, many to a transaction."""

    def __init__(self, path: str, connection: sqlite3.Connection, changed_outside: Callable[[], None]) -> None:
        self._path = path
        self._connection = connection
        self._log = SqliteLog(connection)
        #: Called inside a transaction when another process has written to the log since the last one.
        self._changed_outside = changed_outside
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._submitting = threading.Lock()
        self._closed = False
        self._failure: StoreFailed | None = None
        self._full_sync = True
        self._version = -1
        self._thread = threading.Thread(target=self._loop, name=f"clew-log {os.path.basename(path)}", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[SqliteLog], Any], durable: bool = True) -> Any:
        """Run a job in some transaction; returns when that is committed."""
        job = _Job(work, durable)
        with self._submitting:
            self.check()
            self._jobs.put(job)
        return job.result.result()

    def check(self) -> None:
        """Raise StoreFailed when the log is poisoned or closed."""
        if self._failure is not None:
            raise StoreFailed(self._failure.what, self._failure.cure)
        if self._closed:
            raise StoreFailed(f"the log {self._path} is closed", "open it again")

    def poison(self, failure: StoreFailed) -> None:
        """Refuse everything from now on; the first failure is the one that is told."""
        self._failure = self._failure or failure

    def close(self) -> None:
        """Finish what is queued and stop."""
        with self._submitting:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
        self._thread.join()
        self._connection.close()

    def _loop(self) -> None:
        while True:
            jobs, last = self._gather()
            if jobs:
                self._transact(jobs)
            if last:
                return

    def _gather(self) -> tuple[list[_Job], bool]:
        """Wait for a job and take all that came with it; also returns whether they are the last."""
        jobs: list[_Job] = []
        job = self._jobs.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == _BATCH:
                return jobs, False
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return jobs, False
        return jobs, True

    def _transact(self, jobs: list[_Job]) -> None:
        refused: list[tuple[_Job, BaseException]] = []
        try:
            if self._failure is not None:
                raise self._failure
            self._begin(any(job.durable for job in jobs))
            for job in jobs:
                refusal = self._attempt(job)
                if refusal is not None:
                    refused.append((job, refusal))
            self._connection.execute("COMMIT")
        except BaseException as error:
            self._fail(jobs, error)
            return
        for job, refusal in refused:
            job.result.set_exception(refusal)
        for job in jobs:
            if not job.result.done():
                job.result.set_result(job.outcome)

    def _begin(self, durable: bool) -> None:
        if durable != self._full_sync:
            # A sync of the write-ahead log covers all of it, also what was committed before without one (D1).
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            # A checkpoint follows a commit and syncs too, but SQLite tells nobody when that sync fails. So it comes
            # only after a commit whose own sync has left nothing that could be lost unseen.
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES if durable else 0}")
            self._full_sync = durable
        self._connection.execute("BEGIN IMMEDIATE")
        version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self._version = version
            self._changed_outside()

    def _attempt(self, job: _Job) -> BaseException | None:
        """Run one job in its savepoint; returns why it was refused, if it was."""
        self._connection.execute("SAVEPOINT job")
        try:
            job.outcome = job.work(self._log)
        except BaseException as error:
            if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.IntegrityError):
                raise
            self._connection.execute("ROLLBACK TO job")
            self._connection.execute("RELEASE job")
            if isinstance(error, sqlite3.IntegrityError):
                return UnexpectedRow(f"a row of the log {self._path}", f"in conflict ({error})", "new")
            return error
        self._connection.execute("RELEASE job")
        return None

    def _fail(self, jobs: list[_Job], error: BaseException) -> None:
        failure = explain(self._path, error) if isinstance(error, sqlite3.Error) else error
        if not isinstance(failure, StoreFailed):
            failure = StoreFailed(f"the log {self._path} failed: {type(error).__name__}: {error}")
        self.poison(failure)
        if self._connection.in_transaction:
            # The transaction is lost either way; opening the log again recovers it.
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
        for job in jobs:
            job.result.set_exception(StoreFailed(failure.what, failure.cure))
