"""Scenarios about writes to the outside: seen once, by whoever is entitled to make them, and never skipped."""

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet
import pytest

from clew import Pipeline, faultpoint, files, generator, postgres, sqlite
from clew.connectors import sql as connector
from clew.errors import SinkAhead, StaleWriter, UserFunctionFailed
from clew.faultpoint import arm
from clew.pipeline.contracts import Sink, WriteAction
from clew.pipeline.graph import Graph
from clew.run import Log, Policy, run, topology
from clew.runtime.engine import InlineEngine, Job, Ran
from tests.simulation.process import Process

EVENTS = 12
TURNS: dict[str, Any] = {"max_turn_events": 2}
QUICK = Policy(first_delay=0.01, poll=0.1)


class Place:
    """A log and a table in one kind of database."""

    def __init__(self, directory: Path, server: str | None) -> None:
        self.directory = directory
        self.log = server or f"sqlite:///{directory / 'log.db'}"
        self.database = server or str(directory / "sink.db")

    def sink(self) -> Any:
        connect = postgres if self.database.startswith("postgres") else sqlite
        return connect(self.database, table="numbers")

    def numbers(self) -> Counter[int]:
        """Read the table itself."""
        if self.database.startswith("postgres"):
            with psycopg.connect(self.database) as connection:
                return Counter(n for (n,) in connection.execute("SELECT n FROM numbers"))
        with closing(sqlite3.connect(self.database)) as connection:
            return Counter(n for (n,) in connection.execute("SELECT n FROM numbers"))

    def pipeline(self, sink: Sink | None = None) -> Pipeline:
        pipeline = Pipeline("numbers")
        source = pipeline.source("source", generator(lambda index: pa.table({"n": [index]}), EVENTS), **TURNS)
        pipeline.sink(source, sink or self.sink(), name="sink", **TURNS)
        return pipeline

    def run(self, **rest: Any) -> None:
        bodies = str(self.directory / "bodies")
        run(rest.pop("pipeline", self.pipeline()), log=self.log, bodies=bodies, engine="inline", policy=QUICK, **rest)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, None if request.param == "sqlite" else request.getfixturevalue("postgres_url"))


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm()


ONCE = Counter(range(EVENTS))


@pytest.mark.parametrize("point", ["sink-after-commit", "after-write"])
def test_scenario_1_a_write_that_was_applied_and_not_marked_is_seen_once(place: Place, point: str) -> None:
    (fault,) = arm(f"{point}@sink#2:raise")
    place.run()
    assert fault.fired
    assert place.numbers() == ONCE


class Directory(Place):
    """A log in a file, and a directory of files that it writes."""

    def sink(self) -> Any:
        return files(self.directory / "files", format="parquet")

    def numbers(self) -> Counter[int]:
        return Counter(pa.parquet.read_table(self.directory / "files")["n"].to_pylist())


@pytest.fixture(params=["sqlite", "postgres", "files"])
def apart(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A log in a file of its own, beside each kind of sink."""
    if request.param == "files":
        return Directory(tmp_path, None)
    place = Place(tmp_path, None)
    if request.param == "postgres":
        place.database = request.getfixturevalue("postgres_url")
    return place


def test_scenario_3_a_log_that_is_older_than_the_sink_is_refused_and_no_new_event_is_skipped(
    apart: Place, tmp_path: Path
) -> None:
    """The log is put back to an older copy: what it would write next has numbers that the sink has seen already."""
    place = apart
    with pytest.raises(UserFunctionFailed):
        place.run(pipeline=place.pipeline(_StopsAfter(place.sink(), 2)))
    with closing(sqlite3.connect(tmp_path / "log.db")) as now, closing(sqlite3.connect(tmp_path / "older.db")) as copy:
        now.backup(copy)
    with pytest.raises(UserFunctionFailed):
        place.run(pipeline=place.pipeline(_StopsAfter(place.sink(), 2)))
    held = place.numbers()
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"log.db{suffix}").unlink(missing_ok=True)
    (tmp_path / "older.db").rename(tmp_path / "log.db")
    with pytest.raises(SinkAhead, match="older than what it has written"):
        place.run()
    assert place.numbers() == held


class _StopsAfter(Sink):
    """A table that ends the run, in order, after so many writes."""

    transactional = True
    checkable = True

    def __init__(self, table: Any, writes: int) -> None:
        self._table, self._left = table, writes

    def describe(self) -> str:
        return str(self._table.describe())

    def whereabouts(self) -> str:
        return str(self._table.whereabouts())

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        if not self._left:
            raise ConnectionError("out of order")
        self._left -= 1
        self._table.write(action, tables, schema)

    def applied(self, action: WriteAction) -> bool:
        return bool(self._table.applied(action))


class _Doubling(InlineEngine):
    """An engine in which every task is run by two attempts at once, and both finish: the later one counts."""

    doubled = 0

    def map(self, job: Job, tasks: Any) -> Ran:
        rans: list[Ran] = []
        attempts = [threading.Thread(target=lambda: rans.append(super(_Doubling, self).map(job, tasks))) for _ in "12"]
        for attempt in attempts:
            attempt.start()
        for attempt in attempts:
            attempt.join()
        self.doubled += 1
        assert len(rans) == 2, "both attempts were to finish"
        return rans[-1]


def test_scenario_5_of_two_attempts_of_a_task_that_both_finish_one_counts(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.runtime.bodies.INLINE_LIMIT", 0)
    pipeline = Pipeline("twice")
    source = pipeline.source("source", generator(lambda index: pa.table({"n": [index]}), EVENTS), **TURNS)

    @pipeline.operator(source, **TURNS)
    def tagged(table: pa.Table) -> list[pa.Table]:
        # Another value in each attempt, in two events of one Output Set.
        token = threading.get_ident()
        return [pa.table({"n": table["n"], "token": [token], "part": [part]}) for part in (1, 2)]

    pipeline.sink(source, place.sink(), name="sink", **TURNS)
    pipeline.sink(tagged, files(place.directory / "files", format="parquet"), name="files", **TURNS)
    graph = pipeline.graph()
    engine = _Doubling(graph)
    run(graph, log=place.log, bodies=str(place.directory / "bodies"), engine=engine, policy=QUICK)
    assert engine.doubled > EVENTS // 2
    assert place.numbers() == ONCE
    rows = pa.parquet.read_table(place.directory / "files").to_pylist()
    assert Counter((row["n"], row["part"]) for row in rows) == Counter(
        (n, part) for n in range(EVENTS) for part in (1, 2)
    )
    tokens = {n: {row["token"] for row in rows if row["n"] == n} for n in range(EVENTS)}
    assert all(len(found) == 1 for found in tokens.values()), f"a mix of two computations: {tokens}"


def _opened(place: Place, graph: Graph) -> Any:
    store = Log.at(place.log, graph.name, str(place.directory / "bodies")).open(graph.name)
    store.declare(topology(graph))
    return store


def test_scenario_7_of_two_who_listed_the_same_pending_writes_the_second_executes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = place.pipeline().graph()
    with closing(_opened(place, graph)) as store:
        arm("before-write@sink#2:raise")
        with pytest.raises(faultpoint.CrashInjected):
            Process(graph, store).run()
        # Both recover from that; the first has listed what is pending when the second comes, and does it all.
        (listed,) = arm("before-write@sink#1:sleep=1")
        held: list[Counter[int]] = []

        def other(seconds: float) -> None:
            arm()
            Process(graph, store).run()
            held.append(place.numbers())

        monkeypatch.setattr(faultpoint, "time", SimpleNamespace(sleep=other))
        with pytest.raises(StaleWriter):
            Process(graph, store).run()
    assert listed.fired
    assert held == [ONCE]
    assert place.numbers() == ONCE


@pytest.mark.parametrize("late", ["commits", "comes"])
def test_scenario_8_a_late_transaction_leaves_the_one_that_is_open_untouched(place: Place, late: str) -> None:
    """The same write by two incarnations: the older one is inside its transaction, or begins it while the newer is."""
    table = place.sink()
    schema = pa.schema([("n", pa.int64())])
    old, new = WriteAction("run", "sink", "out", 1, 1), WriteAction("run", "sink", "out", 1, 2)
    first, second = (old, new) if late == "commits" else (new, old)
    opened, outcomes = threading.Event(), dict[int, str]()

    def write(action: WriteAction, before_commit: Callable[[], None]) -> None:
        def tables() -> Iterator[pa.Table]:
            before_commit()
            yield pa.table({"n": [7]}, schema=schema)

        try:
            table.write(action, tables(), schema)
            outcomes[action.incarnation] = "committed"
        except StaleWriter:
            outcomes[action.incarnation] = "refused"

    other = threading.Thread(target=write, args=(second, lambda: None))

    def while_open() -> None:
        other.start()
        # It has to wait for the transaction that is open, and cannot get past it.
        other.join(0.3)
        opened.set()
        assert other.is_alive()

    write(first, while_open)
    other.join(30)
    assert opened.is_set()
    assert outcomes == ({1: "committed", 2: "committed"} if late == "commits" else {1: "refused", 2: "committed"})
    assert place.numbers() == Counter([7])
    table.write(WriteAction("run", "sink", "out", 2, 2), iter([pa.table({"n": [8]}, schema=schema)]), schema)
    assert place.numbers() == Counter([7, 8])


def test_scenario_9_a_transaction_that_expired_before_its_commit_is_written_again_from_the_log(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, postgres_url)
    ended: list[int] = []
    point = connector.fault_point

    def expire(name: str, operator: str = "") -> None:
        if name == "sink-before-commit" and len(ended) < 2:
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                rows = connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction' "
                    "AND datname = current_database() AND query LIKE 'UPDATE clew_writes%'"
                ).fetchall()
            ended.append(len(rows))
        point(name, operator)

    monkeypatch.setattr(connector, "fault_point", expire)
    place.run()
    assert ended == [1, 1], "the sink's own transaction was to be ended, twice"
    assert place.numbers() == ONCE


def test_scenario_9_a_transaction_that_ended_while_nobody_was_there_is_written_again_from_the_log(place: Place) -> None:
    """All that the write was to bring is in the transaction when its process goes, and none of it afterwards."""
    asked: list[int] = []

    def number(index: int) -> pa.Table:
        asked.append(index)
        return pa.table({"n": [index]})

    pipeline = Pipeline("numbers")
    source = pipeline.source("source", generator(number, EVENTS), **TURNS)
    pipeline.sink(source, place.sink(), name="sink", **TURNS)
    graph = pipeline.graph()
    with closing(_opened(place, graph)) as store:
        arm("sink-before-commit@sink#2:raise")
        with pytest.raises(faultpoint.CrashInjected):
            Process(graph, store).run()
        arm()
        held = place.numbers()
        assert held < Counter(asked), "part of what was read was to be in the transaction"
        Process(graph, store).run()
    assert place.numbers() == ONCE
    assert Counter(asked) == ONCE, "what had been read was to come from the log"
