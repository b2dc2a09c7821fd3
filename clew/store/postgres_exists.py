"""Finds a log in PostgreSQL without making one."""

import psycopg

from clew.store.postgres_session import explain


def log_exists(url: str, schema: str) -> bool:
    """Say whether there is a log, or anything else, in the schema; changes nothing."""
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            found = connection.execute("SELECT 1 FROM pg_tables WHERE schemaname = %s LIMIT 1", (schema,)).fetchone()
    except psycopg.Error as error:
        raise explain(url, error) from error
    return found is not None
