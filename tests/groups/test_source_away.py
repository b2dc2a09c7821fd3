"""A database that is read from is away for a while: where groups are processes it is waited for, as a sink is."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from clew import Pipeline, files, postgres
from clew.admission import topology
from clew.errors import SourceFailed
from clew.pipeline.graph import Graph
from clew.runtime.absence import Absence
from clew.runtime.channels import Channels
from clew.runtime.engine import InlineEngine
from clew.runtime.progress import Progress
from clew.runtime.runner import Surroundings
from clew.store.memory import MemoryStore
from clew.supervisor.threads import Policy, Supervisor
from tests.groups.runs import wait_for
from tests.postgres_server import PostgresServer

ROWS = 40


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, with a table of numbers and one of their names."""
    made = PostgresServer()
    with closing(psycopg.connect(made.url, autocommit=True)) as connection:
        connection.execute("CREATE TABLE numbers (n integer PRIMARY KEY)")
        connection.execute(f"INSERT INTO numbers SELECT generate_series(1, {ROWS})")
    yield made
    made.remove()


def declared(server: PostgresServer, out: Path, pause: float) -> Graph:
    pipeline = Pipeline("read")
    query = "SELECT n FROM numbers"
    numbers = pipeline.source(
        "numbers", postgres(server.url, query=query, unique="n", rows_per_event=1), max_turn_events=2
    )

    @pipeline.operator(numbers, capacity=4, max_turn_events=1)
    def slowly(table: pa.Table) -> pa.Table:
        time.sleep(pause)
        return table

    pipeline.sink(slowly, files(out, format="jsonl"))
    return pipeline.graph()


def supervised(graph: Graph, patience: float) -> Supervisor:
    store = MemoryStore()
    store.declare(topology(graph))
    channels = Channels(graph, store)
    around = Surroundings(graph, store, InlineEngine(graph), channels, Progress(), None, patience=patience)
    return Supervisor(around, Policy(first_delay=0.01))


def held(directory: Path) -> list[str]:
    return [line for path in (directory / "out").glob("*.jsonl") for line in path.read_text().splitlines()]


def test_what_is_read_from_is_waited_for(server: PostgresServer, tmp_path: Path) -> None:
    work = threading.Thread(target=supervised(declared(server, tmp_path / "out", 0.05), 60).run)
    work.start()
    wait_for(lambda: list((tmp_path / "out").glob("*.jsonl")), "nothing is written")
    server.stop()
    time.sleep(2)
    assert len(held(tmp_path)) < ROWS, "all was read before"
    assert work.is_alive()
    server.start()
    work.join(60)
    assert not work.is_alive()
    assert sorted(held(tmp_path)) == sorted(f'{{"n": {n}}}' for n in range(1, ROWS + 1))


def test_nor_is_it_waited_for_in_vain_for_ever(server: PostgresServer, tmp_path: Path) -> None:
    server.stop()
    with pytest.raises(SourceFailed, match=r"connection to server at .* failed"):
        supervised(declared(server, tmp_path / "out", 0), 1.0).run()


def test_a_run_can_be_stopped_while_it_waits(server: PostgresServer, tmp_path: Path) -> None:
    server.stop()
    supervisor = supervised(declared(server, tmp_path / "out", 0), 3600)
    work = threading.Thread(target=supervisor.run)
    work.start()
    time.sleep(1)
    assert work.is_alive()
    supervisor.stop()
    work.join(60)
    assert not work.is_alive()


def test_what_is_there_and_refuses_is_not_waited_for() -> None:
    absence = Absence(60.0, threading.Event())
    assert not absence.awaited(SourceFailed("numbers", "no such table", "make it"))
    assert not absence.awaited(None)
