"""Making, finding and dropping a log in PostgreSQL."""

import uuid

import psycopg
from psycopg import sql

from clew.errors import NewerLog, WrongLog
from clew.store.base import SCHEMA_VERSION
from clew.store.identity import has_events
from clew.store.postgres_schema import FENCE, TABLES, UPGRADES, VIEWS
from clew.store.postgres_session import Connection, PostgresLog, explain, masked, set_up


def prepare(url: str, schema: str) -> str:
    """Make the log's tables if there are none; returns the run's identity."""
    try:
        with _connect(url) as connection, connection.transaction():
            # Two processes that start at once must not both make the log.
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"clew log {schema}",))
            return _identity(connection, f"{masked(url)} (schema {schema})", schema)
    except psycopg.Error as error:
        raise explain(url, error) from error


def drop_log(url: str, schema: str = "clew") -> None:
    """Remove a log and all it holds, if it is there."""
    try:
        with _connect(url) as connection:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))
    except psycopg.Error as error:
        raise explain(url, error) from error


def current_claim(url: str, schema: str) -> str | None:
    """Return the token of the process that claimed the run last."""
    with _connect(url) as connection:
        statement = sql.SQL("SELECT value FROM {} WHERE key = 'claim'").format(sql.Identifier(schema, "meta"))
        row = connection.execute(statement).fetchone()
        return str(row[0]) if row else None


def _connect(url: str) -> Connection:
    connection = psycopg.connect(url, autocommit=True, connect_timeout=10)
    connection.execute("SET client_min_messages TO warning")
    return connection


def _identity(connection: Connection, log: str, schema: str) -> str:
    """Return the run id; made with the tables, in one transaction, and never again."""
    rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
    tables = {name for (name,) in rows}
    if tables and "meta" not in tables:
        raise WrongLog(f"{log} has tables, but is not a log of Clew; use another schema or --log")
    if not tables:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    set_up(connection, schema)
    if not tables:
        connection.execute(f"{TABLES}{FENCE}{VIEWS}".encode())
        connection.execute("INSERT INTO meta VALUES ('schema_version', %s)", (str(SCHEMA_VERSION),))
    meta: dict[str, str] = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    version = int(meta.get("schema_version", SCHEMA_VERSION))
    if version > SCHEMA_VERSION:
        raise NewerLog(version, SCHEMA_VERSION, log)
    if version < SCHEMA_VERSION:
        connection.execute(f"{UPGRADES[version]}{VIEWS}".encode())
        connection.execute("UPDATE meta SET value = %s WHERE key = 'schema_version'", (str(SCHEMA_VERSION),))
    if "run_id" in meta:
        return str(meta["run_id"])
    if has_events(PostgresLog(connection)):
        raise WrongLog(f"the log {log} has events but no identity; restore its table meta, or start with --fresh")
    run_id = uuid.uuid4().hex
    connection.execute("INSERT INTO meta VALUES ('run_id', %s)", (run_id,))
    return run_id
