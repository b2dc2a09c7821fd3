"""Every backend of the contract, as a fixture parameter."""

import os
import sqlite3
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from clew.store.base import Store
from clew.store.memory import MemoryStore
from clew.store.postgres import PostgresStore, drop_log
from clew.store.sqlite import SqliteStore
from tests.postgres_server import PostgresServer
from tests.store.logs import TOPOLOGY, Pen


@dataclass
class Place:
    """Where a log that outlives its process is kept; every `open` is a new store on it."""

    kind: str
    where: str
    schema: str = ""
    opened: list[Store] = field(default_factory=list)

    def open(self) -> Store:
        store: Store
        store = SqliteStore(self.where) if self.kind == "sqlite" else PostgresStore(self.where, schema=self.schema)
        self.opened.append(store)
        return store

    @property
    def expression(self) -> str:
        """How another Python process opens the log."""
        return (
            f"SqliteStore({self.where!r})"
            if self.kind == "sqlite"
            else f"PostgresStore({self.where!r}, {self.schema!r})"
        )

    def declared(self) -> Store:
        """Open the log and declare the small pipeline."""
        store = self.open()
        store.declare(TOPOLOGY)
        return store

    def execute(self, statement: str) -> None:
        """Change the log by hand, as no store would."""
        if self.kind == "sqlite":
            connection = sqlite3.connect(self.where, isolation_level=None)
            connection.execute(statement)
            connection.close()
        else:
            with psycopg.connect(self.where, autocommit=True) as session:
                session.execute(f"SET search_path TO {self.schema}".encode())
                session.execute(statement.encode())

    def close(self) -> None:
        for store in self.opened:
            store.close()


@pytest.fixture(scope="session")
def store_database(postgres_server: PostgresServer) -> str:
    """One database for all tests here: each log has a schema of its own, which is quicker to make."""
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE stores")
    return postgres_server.url.removesuffix("postgres") + "stores"


def _place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if kind == "sqlite":
        found = Place("sqlite", os.fspath(tmp_path / "log.db"))
    else:
        found = Place("postgres", request.getfixturevalue("store_database"), f"s{uuid.uuid4().hex[:12]}")
    yield found
    found.close()
    if kind == "postgres":
        drop_log(found.where, found.schema)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A log on disk that can be opened again."""
    yield from _place(request.param, request, tmp_path)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A new store with the small pipeline declared, of each backend."""
    if request.param == "memory":
        made = MemoryStore()
        made.declare(TOPOLOGY)
        yield made
    else:
        for found in _place(request.param, request, tmp_path):
            yield found.declared()


@pytest.fixture
def pen(store: Store) -> Pen:
    return Pen(store)
