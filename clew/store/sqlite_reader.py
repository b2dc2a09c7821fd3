"""A log in a SQLite file, for reading alone: no writer, no sync, nothing that a run would have to wait for.

The write-ahead log lets any number of processes read the last commit beside the one that writes. SQLite itself keeps
these connections from writing to the log; beside it they use the `-wal` and `-shm` files that readers share.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from clew.store.sqlite_writer import SqliteLog, explain
from clew.store.sqltables import SqlTables, check_known

#: How long to wait for another process that holds the file, in seconds.
_PATIENCE = 10.0


class SqliteReader(SqlTables):
    """The log in a SQLite file, which must be there, for reading alone."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.abspath(os.fspath(path))
        try:
            # Autocommit, so that BEGIN and COMMIT are ours.
            self._connection = sqlite3.connect(
                f"file:{quote(self._path)}?mode=ro", uri=True, timeout=_PATIENCE, isolation_level=None
            )
        except sqlite3.Error as error:
            raise explain(self._path, error) from error
        try:
            check_known(self._version(), self._path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def _version(self) -> int | None:
        with self._reading() as log:
            if not log.fetch("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'meta'"):
                return None
            return next(
                (int(text) for (text,) in log.fetch("SELECT value FROM meta WHERE key = 'schema_version'")), None
            )

    @contextmanager
    def _snapshot(self) -> Iterator[SqliteLog]:
        try:
            self._connection.execute("BEGIN")
            yield SqliteLog(self._connection)
        except sqlite3.Error as error:
            raise explain(self._path, error) from error
        finally:
            if self._connection.in_transaction:
                self._connection.rollback()

    _reading = _snapshot
