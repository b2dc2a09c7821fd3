"""Takes a log away from its run for a while, from outside: what `clew chaos` calls store-down.

A SQLite file is locked as any other program could lock it. Of PostgreSQL only the sessions of the run itself are ended,
which its URL gives a name of their own.
"""

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from urllib.parse import urlsplit

from clew.store.sqlite_writer import explain

#: Takes the log away for as long as the block lasts; gives whether it did.
Outage = Callable[[], AbstractContextManager[bool]]

#: Seconds to wait for the run to let go of its file.
_PATIENCE = 30.0


def outage_of(url: str) -> tuple[str, Outage]:
    """Return the URL that the run is to use for this log, and what takes the log away from it."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        return url, lambda: _held(path)
    name = f"clew-chaos-{uuid.uuid4().hex}"
    return named(url, name), lambda: _sessions_ended(url, name)


def named(url: str, name: str) -> str:
    """Return the URL of a PostgreSQL database with a name for the sessions that use it."""
    parts = urlsplit(url)
    # Taken as they are written: PostgreSQL reads them otherwise than a web form is read.
    settings = [
        setting for setting in parts.query.split("&") if setting and not setting.startswith("application_name=")
    ]
    return parts._replace(query="&".join([*settings, f"application_name={name}"])).geturl()


@contextmanager
def _held(path: str) -> Iterator[bool]:
    try:
        with closing(sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield True
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise explain(path, error) from error


@contextmanager
def _sessions_ended(url: str, name: str) -> Iterator[bool]:
    import psycopg

    from clew.store.postgres_session import explain as explain_postgres

    statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            ended = connection.execute(statement, (name,)).fetchall()
    except psycopg.Error as error:
        raise explain_postgres(url, error) from error
    yield any(went for (went,) in ended)
