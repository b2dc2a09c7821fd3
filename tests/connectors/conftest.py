"""Both databases behind one handle, so that one claim is tried on each."""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from clew import faultpoint
from clew.connectors import postgres, sqlite


@dataclass(frozen=True)
class Database:
    """A real database, the connector for it, and a way to speak to it beside Clew."""

    name: str
    connector: Callable[..., Any]
    execute: Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    place = str(request.getfixturevalue("tmp_path") / "a.db") if request.param == "sqlite" else ""
    if place:
        open(place, "wb").close()

        def on_sqlite(sql: str) -> list[tuple[Any, ...]]:
            with sqlite3.connect(place) as connection:
                return connection.execute(sql).fetchall()

        return Database("sqlite", lambda **settings: sqlite(place, **settings), on_sqlite)

    url = request.getfixturevalue("postgres_url")

    def on_postgres(sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(url) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    return Database("postgres", lambda **settings: postgres(url, **settings), on_postgres)


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faultpoint.arm()
