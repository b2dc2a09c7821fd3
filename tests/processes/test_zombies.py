"""Scenario 6 on real logs and in real tables: who was taken over is refused by both."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from clew import Pipeline, faultpoint
from clew.connectors import generator, postgres, sqlite
from clew.errors import StaleWriter
from clew.faultpoint import arm
from clew.pipeline.graph import Graph
from clew.run import Log, topology
from clew.store.base import Store
from tests.processes.place import Place
from tests.simulation.process import Process

TURNS = {"max_turn_events": 2}


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return Place("zombie", tmp_path, f"sqlite:///{tmp_path / 'log.db'}", str(tmp_path / "sink.db"))
    url: str = request.getfixturevalue("postgres_url")
    return Place("zombie", tmp_path, url, url)


def _graph(where: Place) -> Graph:
    pipeline = Pipeline("zombie")
    source = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), 9), **TURNS)

    @pipeline.operator(source, **TURNS)
    def same(table: pa.Table) -> pa.Table:
        return table

    connect = postgres if where.sink.startswith("postgres") else sqlite
    pipeline.sink(same, connect(where.sink, table="numbers"), **TURNS)
    return pipeline.graph()


@contextmanager
def _opened(where: Place, graph: Graph) -> Iterator[Store]:
    store = Log.at(where.log, graph.name, str(where.directory / "bodies")).open(graph.name)
    store.declare(topology(graph))
    try:
        yield store
    finally:
        store.close()


@pytest.mark.parametrize(
    ("fault", "operator"),
    [
        ("after-source-read@numbers#2", "numbers"),
        ("after-generate@same#2", "same"),
        # Its own turn was committed in time; the next of the process to commit is refused.
        ("after-commit@same#2", "same_sink"),
        ("before-write@same_sink#2", "same_sink"),
        ("after-write@same_sink#2", "same_sink"),
        ("after-wake@same_sink#2", "same_sink"),
    ],
)
def test_scenario_6_a_process_that_wakes_up_after_a_take_over_is_refused(
    where: Place, fault: str, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = _graph(where)
    held = []
    with _opened(where, graph) as store:

        def take_over(seconds: float) -> None:
            """Called where the first process is frozen; it goes on when this returns."""
            arm()
            Process(graph, store).run()
            held.append(where.table("numbers"))

        monkeypatch.setattr(faultpoint, "time", SimpleNamespace(sleep=take_over))
        (armed,) = arm(f"{fault}:sleep=1")
        with pytest.raises(StaleWriter) as refused:
            Process(graph, store).run()
    assert armed.fired
    assert refused.value.operator == operator
    assert (refused.value.incarnation, refused.value.current) == (1, 2)
    assert held[0] == where.table("numbers")
    assert sorted(int(row[0]) for row in held[0].elements()) == list(range(9))


def test_a_process_that_was_followed_by_another_takes_no_operator_over(where: Place) -> None:
    """It froze between two takeovers: the operators that it had not reached are its successor's, too."""
    graph = _graph(where)
    with _opened(where, graph) as old, _opened(where, graph) as new:
        old.claim()
        assert old.take_over("numbers") == 1
        new.claim()
        assert [new.take_over(name) for name in ("numbers", "same")] == [2, 1]
        before = new.operators()
        for operator, current in (("numbers", 2), ("same", 1), ("same_sink", 0)):
            with pytest.raises(StaleWriter, match="was to start") as refused:
                old.take_over(operator)
            assert (refused.value.operator, refused.value.current) == (operator, current)
        assert new.operators() == before
        # Its own successor may restart what is its own.
        assert new.take_over("numbers") == 3
