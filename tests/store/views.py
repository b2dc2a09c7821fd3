"""The paper's tables as anyone sees them with a SQL shell: the views, queried behind the store's back."""

import sqlite3
from typing import Any

import psycopg

from clew.store.base import TABLES, Table

Row = tuple[Any, ...]


def sqlite_views(path: str) -> dict[Table, list[Row]]:
    """All five views of a log in SQLite."""
    connection = sqlite3.connect(path)
    try:
        return {name: _sorted(connection.execute(_select(name)).fetchall()) for name in TABLES}
    finally:
        connection.close()


def postgres_views(url: str, schema: str) -> dict[Table, list[Row]]:
    """All five views of a log in PostgreSQL."""
    with psycopg.connect(url, options=f"-c search_path={schema}") as connection:
        return {name: _sorted(_told(row) for row in connection.execute(_select(name).encode())) for name in TABLES}


def _select(name: Table) -> str:
    return f"SELECT {', '.join(TABLES[name])} FROM {name}"


def _told(row: Row) -> Row:
    """In PostgreSQL a column has one type, so the place of a body in a file is told as bytes."""
    return tuple(value.decode() if isinstance(value, bytes) and value.startswith(b"file:") else value for value in row)


def _sorted(rows: Any) -> list[Row]:
    return sorted(rows, key=lambda row: tuple((value is not None, str(type(value)), value) for value in row))
