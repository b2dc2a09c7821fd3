"""What a PostgreSQL server is worth as the place of a log."""

import time
from dataclasses import dataclass

import psycopg

from clew.store.postgres_session import explain


@dataclass(frozen=True)
class PostgresHealth:
    """What a server says of itself."""

    version: int
    synchronous_commit: str
    fsync: str
    #: Milliseconds that a question and its answer take.
    round_trip: float

    @property
    def release(self) -> str:
        return f"{self.version // 10000}.{self.version % 10000}"


def ask(url: str) -> PostgresHealth:
    """Ask a server for what matters to a log; changes nothing. Raises StoreFailed when it does not answer."""
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            settings: dict[str, str] = dict(
                connection.execute(
                    "SELECT name, setting FROM pg_settings WHERE name IN ('synchronous_commit', 'fsync')"
                ).fetchall()
            )
            began = time.monotonic()
            for _ in range(10):
                connection.execute("SELECT 1").fetchone()
            took = (time.monotonic() - began) * 100
            return PostgresHealth(
                connection.info.server_version, settings["synchronous_commit"], settings["fsync"], took
            )
    except psycopg.Error as error:
        raise explain(url, error) from error
