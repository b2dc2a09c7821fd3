"""Connections to a log in PostgreSQL: how they are set up, and how their errors read."""

import re
from functools import cache
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper
from psycopg_pool import PoolTimeout

from clew.errors import StoreFailed, StoreUnreachable
from clew.store.embedded_postgres import shown

Connection = psycopg.Connection[tuple[Any, ...]]

_SECRETS = ("password", "sslpassword")
#: What a server says of itself when it is not there for anybody: it ends, starts, recovers, or is full.
_AWAY = re.compile("08...|57P0[123]|53300")
#: What a server says, in English at least, when it answers and does not let us in.
_REFUSED = re.compile(
    r'(?:role|database) "[^"]*" does not exist|authentication failed|no pg_hba\.conf entry|permission denied|'
    "not permitted to log in|not currently accepting connections|no password supplied"
)


class PostgresLog:
    """A connection as the Transaction that shared code asks for."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor(binary=True) as cursor:
            return cursor.execute(as_psycopg(statement), values, prepare=True).fetchall()

    def run(self, statement: str, *values: Any) -> None:
        self._connection.execute(as_psycopg(statement), values, prepare=True)


@cache
def as_psycopg(statement: str) -> bytes:
    """Write a statement of the shared code with psycopg's placeholders."""
    return statement.replace("?", "%s").encode()


def set_up(connection: Connection, schema: str) -> None:
    """Point a connection at the log's schema, whatever its role or database is set to."""
    # One type for all integers: the size of a number would otherwise choose another prepared statement.
    connection.adapters.register_dumper(int, Int8Dumper)
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    settings = sql.SQL(
        "SET search_path TO {}; SET idle_in_transaction_session_timeout TO '5s'; SET client_min_messages TO warning; "
        "SET synchronous_commit TO on; SET timezone TO 'UTC'"
    )
    connection.execute(settings.format(sql.Identifier(schema)))


def masked(url: str) -> str:
    """Return the URL as it may be shown: without its secrets, and that of an embedded server as people name it."""
    if embedded := shown(url):
        return embedded
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        return re.sub(r"//[^/@]*@", "//***@", re.sub(r"(password=)[^&\s]*", r"\1***", url))
    told = {name: "***" if name in _SECRETS else value for name, value in parts.items()}
    user = f"{told.pop('user')}@" if "user" in told else ""
    told.pop("password", None)
    place = f"{told.pop('host', '')}:{told.pop('port', '5432')}/{told.pop('dbname', '')}"
    rest = "&".join(f"{name}={value}" for name, value in told.items())
    return f"postgresql://{user}{place}{'?' + rest if rest else ''}"


def explain(url: str, error: Exception) -> StoreFailed:
    """Say in a sentence what PostgreSQL's error means for the log, and what to do."""
    log = masked(url)
    text = _without_secrets(url, " ".join(str(error).split())) or type(error).__name__
    if isinstance(error, psycopg.errors.DiskFull):
        return StoreFailed(
            f"the disk of the log {log} is full", "make room and run again: what was acknowledged is safe"
        )
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return StoreFailed(
            f"the log {log} is refused: {text}",
            "grant this user CREATE on the database, and all on a log that another user made",
        )
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None and _REFUSED.search(str(error)):
        return StoreFailed(
            f"the log {log} is refused: {text}",
            "create the database and the role there, let the role in, or mend the URL",
        )
    if is_unreachable(error):
        start = (
            "run again, which starts its server" if shown(url) else "start PostgreSQL or mend the URL, then run again"
        )
        return StoreUnreachable(f"the log {log} cannot be reached: {text}", f"{start}: what was acknowledged is safe")
    return StoreFailed(f"the log {log} failed: {text}")


def is_unreachable(error: Exception) -> bool:
    """Say whether an error is of the connection, which another one may not meet."""
    if isinstance(error, PoolTimeout):
        return True
    state = getattr(error, "sqlstate", None)
    return isinstance(error, psycopg.OperationalError) and (state is None or _AWAY.fullmatch(state) is not None)


def _without_secrets(url: str, text: str) -> str:
    try:
        secrets = [str(value) for name, value in conninfo_to_dict(url).items() if name in _SECRETS and value]
    except psycopg.Error:
        # A URL that cannot be read is repeated in the message, and nobody knows what in it is secret.
        return "its URL cannot be read"
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
