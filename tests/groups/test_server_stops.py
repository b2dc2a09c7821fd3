"""PostgreSQL is stopped in the middle of a run, log and sink with it: the processes wait, and go on when it is back."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.groups.runs import Apart, groups, wait_for
from tests.postgres_server import PostgresServer
from tests.soak import SOAK

#: How often, and for how many seconds.
TIMES, SECONDS = 10 if SOAK else 2, 5


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own: the others need theirs."""
    made = PostgresServer()
    yield made
    made.remove()


@pytest.fixture
def apart(tmp_path: Path, server: PostgresServer) -> Iterator[Apart]:
    run = Apart(tmp_path, server.url, events=20 * (TIMES + 1))
    yield run
    run.close()


def test_a_run_waits_for_a_server_that_is_away(apart: Apart, server: PostgresServer) -> None:
    apart.start()
    for number in range(1, TIMES + 1):
        apart.let(20 * number - 10)
        wait_for(lambda: apart.sent("left") > 20 * (number - 1), "the run does not go on")  # noqa: B023  asked at once
        # Input is there while it is away, so that everybody finds out.
        apart.let(20 * number)
        server.stop()
        time.sleep(SECONDS)
        server.start()
    apart.end()
    assert apart.held() == apart.expected
    # The processes are those that were there from the start.
    assert {role: row.starts for role, row in apart.processes().items() if role in groups(apart)} == dict.fromkeys(
        groups(apart), 1
    )
    apart.explained()
