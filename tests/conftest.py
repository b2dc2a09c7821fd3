"""Fixtures that every tree of tests can use."""

import os
import tempfile
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from tests import tally
from tests.postgres_server import PostgresServer


def pytest_configure(config: pytest.Config) -> None:
    """Give the processes of this session one place to count in; those that it starts inherit it."""
    if tally.PLACE not in os.environ:
        descriptor, os.environ[tally.PLACE] = tempfile.mkstemp(prefix="clew-tally-")
        os.close(descriptor)
        config.add_cleanup(lambda: os.unlink(os.environ.pop(tally.PLACE)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests have counted."""
    figures = tally.total(os.environ[tally.PLACE])
    if figures:
        terminalreporter.section("figures")
        for figure, count in sorted(figures.items()):
            terminalreporter.write_line(f"{count:>9,}  {figure}")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server, started when the first test asks for it and stopped with the session."""
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a database of the test's own."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield postgres_server.url.removesuffix("postgres") + name
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
