"""The paper's tables as anyone sees them with a SQL shell: the views, queried behind the store's back."""

import sqlite3
from typing import Any

from clew.store.base import TABLES, Store


def view_tables(kind: str, store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """All five views of a log, sorted as `Store.table` sorts."""
    return {
        name: sorted(_query(kind, store, f"SELECT {', '.join(columns)} FROM {name}"), key=_order)
        for name, columns in TABLES.items()
    }


def _query(kind: str, store: Store, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(store._path)  # type: ignore[attr-defined]
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def _order(row: tuple[Any, ...]) -> tuple[tuple[bool, str, Any], ...]:
    return tuple((value is not None, str(type(value)), value) for value in row)
