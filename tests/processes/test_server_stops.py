"""A PostgreSQL server that holds the log and the sink is stopped in the middle of a run, and started again."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from clew.trace import load
from tests.app.pipelines import call, finish, start, write
from tests.postgres_server import PostgresServer

EVENTS = 200

ORDERS = """
import os
import time

import pyarrow as pa

from clew import Count, Pipeline, generator, postgres

URL = os.environ["URL"]
pipeline = Pipeline("orders")
make = generator(lambda index: pa.table({"n": [index, index + 1]}), 200)
source = pipeline.source("source", make, max_turn_events=10)


@pipeline.operator(source, max_turn_events=5, deterministic=True)
def doubled(table: pa.Table) -> pa.Table:
    time.sleep(float(os.environ.get("PAUSE", "0")))
    return pa.table({"n": [2 * number for number in table["n"].to_pylist()]})


@pipeline.operator(doubled, window=Count(7), deterministic=True)
def sums(table: pa.Table) -> pa.Table:
    return pa.table({"first": table["n"][:1], "sum": [sum(table["n"].to_pylist())]})


pipeline.sink(doubled, postgres(URL, table="doubled"), name="kept")
pipeline.sink(sums, postgres(URL, table="sums", key="first"), name="summed")
"""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own: it is stopped, and others may be at work on the one that tests share."""
    running = PostgresServer()
    yield running
    running.remove()


def test_a_run_is_resumed_when_the_server_is_back(tmp_path: Path, server: PostgresServer) -> None:
    file = write(tmp_path, "orders.py", ORDERS)
    trace = tmp_path / "trace.jsonl"
    place = ("--log", server.url, "--bodies", str(tmp_path / "bodies"))
    words = ("run", file, "--engine", "inline", *place, "--trace", str(trace))
    run = start(*words, URL=server.url, PAUSE="0.02")
    until = time.monotonic() + 60
    while not trace.exists() or [step.kind for step in load(str(trace))].count("written") < 5:
        assert time.monotonic() < until
        assert run.poll() is None, run.communicate()
        time.sleep(0.05)
    server.stop()
    code, _, said = finish(run, timeout=120)
    assert code == 1, said
    assert "error: " in said
    assert "did not expect" not in said
    assert "Traceback" not in said
    server.start()
    with psycopg.connect(server.url) as connection:
        assert 0 < len(connection.execute("SELECT n FROM doubled").fetchall()) < 2 * EVENTS
    resumed = call(*words, URL=server.url)
    assert resumed.exit_code == 0, resumed.output
    numbers = [2 * n for index in range(EVENTS) for n in (index, index + 1)]
    sevens = [numbers[at : at + 14] for at in range(0, 2 * EVENTS, 14)]
    with psycopg.connect(server.url) as connection:
        assert Counter(n for (n,) in connection.execute("SELECT n FROM doubled")) == Counter(numbers)
        found = connection.execute('SELECT "first", "sum" FROM sums').fetchall()
    assert sorted(found) == [(seven[0], sum(seven)) for seven in sevens]
    verdict = call("verify", file, *place, "--trace", str(trace), URL=server.url)
    assert verdict.exit_code == 0, verdict.output
    assert verdict.stdout.startswith("explained: ")
