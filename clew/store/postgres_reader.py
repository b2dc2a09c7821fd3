"""A log in PostgreSQL, for reading alone: one session, which the server itself keeps from writing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from clew.store.postgres_session import Connection, PostgresLog, explain, masked, set_up
from clew.store.sqltables import SqlTables, check_known


class PostgresReader(SqlTables):
    """The log in a schema of a PostgreSQL database, which must be there; a role that may read its tables is enough."""

    def __init__(self, url: str, schema: str = "clew") -> None:
        self._url = url
        #: Called when it is closed.
        self.on_close: Callable[[], object] | None = None
        try:
            self._connection: Connection = psycopg.connect(url, autocommit=True, connect_timeout=10)
        except psycopg.Error as error:
            raise explain(url, error) from error
        try:
            check_known(self._version(schema), f"{masked(url)} (schema {schema})")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()
        if self.on_close is not None:
            self.on_close()

    def _version(self, schema: str) -> int | None:
        with self._reading() as log:
            set_up(self._connection, schema)
            self._connection.execute("SET default_transaction_read_only TO on")
            if not log.fetch("SELECT 1 FROM pg_tables WHERE schemaname = ? AND tablename = 'meta'", schema):
                return None
            return next(
                (int(text) for (text,) in log.fetch("SELECT value FROM meta WHERE key = 'schema_version'")), None
            )

    @contextmanager
    def _reading(self) -> Iterator[PostgresLog]:
        try:
            yield PostgresLog(self._connection)
        except psycopg.Error as error:
            raise explain(self._url, error) from error

    @contextmanager
    def _snapshot(self) -> Iterator[PostgresLog]:
        with self._reading() as log, self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield log
