"""Every backend of the contract, as a fixture parameter."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clew.store.base import Store
from clew.store.memory import MemoryStore
from clew.store.sqlite import SqliteStore
from tests.store.logs import TOPOLOGY, Pen


@dataclass
class Place:
    """Where a log that outlives its process is kept; every `open` is a new store on it."""

    kind: str
    where: str
    opened: list[Store] = field(default_factory=list)

    def open(self) -> Store:
        store: Store = SqliteStore(self.where) if self.kind == "sqlite" else SqliteStore(self.where)
        self.opened.append(store)
        return store

    def close(self) -> None:
        for store in self.opened:
            store.close()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A log on disk that can be opened again."""
    if request.param == "sqlite":
        found = Place("sqlite", os.fspath(tmp_path / "log.db"))
    else:
        pytest.skip("later")
    yield found
    found.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A new store with the small pipeline declared, of each backend."""
    with ExitStack() as stack:
        made: Store
        if request.param == "memory":
            made = MemoryStore()
        elif request.param == "sqlite":
            made = SqliteStore(tmp_path / "log.db")
        else:
            pytest.skip("later")
        stack.callback(made.close)
        made.declare(TOPOLOGY)
        yield made


@pytest.fixture
def pen(store: Store) -> Pen:
    return Pen(store)
