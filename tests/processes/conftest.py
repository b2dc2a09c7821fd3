"""Where the processes under test run, and what they run on."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.postgres_server import PostgresServer
from tests.processes.nursery import Nursery
from tests.processes.sweep import Sweep


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> str | None:
    """Where the log and the tables are: on SQLite, or on a PostgreSQL server."""
    if request.param == "sqlite":
        return None
    running: PostgresServer = request.getfixturevalue("postgres_server")
    return running.url


@pytest.fixture(scope="package")
def nurseries() -> Iterator[list[Nursery]]:
    both = [Nursery(), Nursery()]
    yield both
    for nursery in both:
        nursery.close()


@pytest.fixture
def nursery(nurseries: list[Nursery]) -> Nursery:
    return nurseries[0]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is one: processes die here, never the machine, so no disk is waited for."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(prefix="clew-", dir="/dev/shm") as made:
        yield Path(made)


@pytest.fixture
def sweep(nurseries: list[Nursery], directory: Path, server: str | None) -> Sweep:
    return Sweep(nurseries, directory, server)
