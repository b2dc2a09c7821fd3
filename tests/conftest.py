"""Fixtures that every tree of tests can use."""

import os
import re
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings
from psycopg import sql

from clew.faultpoint import arm
from tests import figures
from tests.messages import PLACE
from tests.postgres_server import PostgresServer
from tests.soak import SOAK, Kept

#: What a session that is gone on with has shown before.
KEPT: pytest.StashKey[Kept | None] = pytest.StashKey()

# Machines are shared: how long an example takes says nothing about what it shows.
settings.register_profile("clew", deadline=None)
settings.load_profile("clew")


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "end with the table of figures, of `make test` or of `make soak`, and fail when one is not reached"
    parser.addoption("--figures", choices=("test", "soak"), help=help)
    help = "keep what has passed and was counted in DIR, and go on from there while code and tests are the same"
    parser.addoption("--resume", metavar="DIR", help=help)


def pytest_configure(config: pytest.Config) -> None:
    """Give the processes of this session one place to count in; those that it starts inherit it."""
    # A shell lets what it starts in the background ignore Ctrl-C, and all that it starts in turn.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # And nohup lets all of it ignore that its terminal has gone, which tests of that must not. What is caught
        # is not inherited: this process goes on all the same.
        signal.signal(signal.SIGHUP, lambda *_: None)
    resume = config.getoption("--resume")
    kept = Kept(resume) if resume else None
    config.stash[KEPT] = kept
    if kept is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        kept.forget_others()
        config.pluginmanager.register(_Keeper(kept))
    if kept is not None:
        os.environ[PLACE] = str(kept.figures)
    elif PLACE not in os.environ:
        os.environ[PLACE] = tempfile.mkdtemp(prefix="clew-figures-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(PLACE)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what takes long, and shows once more what other tests show, to `make soak`."""
    if not SOAK:
        _deselect(config, items, lambda item: item.get_closest_marker("soak") is not None)
    kept = config.stash[KEPT]
    if kept is not None:
        passed = kept.passed()
        _deselect(config, items, lambda item: item.nodeid in passed)


def _deselect(config: pytest.Config, items: list[pytest.Item], out: Callable[[pytest.Item], bool]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if out(item)])
    items[:] = [item for item in items if not out(item)]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the numbered scenarios that were shown; only the session that prints the table hears of all tests."""
    scenario = re.search(r"test_scenario_(\d+)", report.nodeid)
    if scenario and report.when == "call" and report.passed and "PYTEST_XDIST_WORKER" not in os.environ:
        figures.tally(figures.SCENARIO, str(int(scenario[1])))


class _Keeper:
    """Keeps the tests that have passed; only the session that all processes report to hears of all of them."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._kept.keep(report.nodeid)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail when a figure that was asked for is not reached; the table marks it."""
    asked = session.config.getoption("--figures")
    if asked and exitstatus == pytest.ExitCode.OK and "PYTEST_XDIST_WORKER" not in os.environ:
        lines = figures.table(figures.total(os.environ[PLACE]), asked == "soak", session.testsfailed)
        if not all(line.reached for line in lines):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the figures that tests have counted."""
    asked = config.getoption("--figures")
    if asked:
        terminalreporter.section(f"figures of make {asked}")
        failed = sum(len(terminalreporter.getreports(outcome)) for outcome in ("failed", "error"))
        told = figures.total(os.environ[PLACE])
        figures.write(told, asked == "soak", failed, terminalreporter.write_line)


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


@pytest.fixture(params=["sqlite", "postgres"])
def log_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a log of the test's own, on each backend that outlives a process."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'log.db'}"
    database: str = request.getfixturevalue("postgres_url")
    return database


@pytest.fixture
def unarmed() -> Iterator[None]:
    """Leave no fault armed, however the test ends."""
    yield
    arm()
