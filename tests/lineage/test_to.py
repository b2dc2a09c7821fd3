"""A trace to a port shows what leads there and nothing else: not all that an operator on the way has done does."""

from pathlib import Path

import pyarrow as pa
import pytest

from clew import Pipeline
from clew.connectors.generator import generator
from clew.pipeline.graph import Graph
from clew.retrace import trace_back, trace_forward, trace_record
from clew.run import run
from tests.app.pipelines import call

NOWHERE = """
import pyarrow as pa
from clew import Pipeline, generator

pipeline = Pipeline("nowhere")
n = pipeline.source("n", generator(lambda i: pa.table({"n": [i]}), 1))


@pipeline.operator(n)
def none(table: pa.Table) -> pa.Table | None:
    return None
"""


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, str]:
    """Two sources in one, of which only even numbers go on, and the same numbers beside them."""
    url = f"sqlite:///{tmp_path_factory.mktemp('to')}/log.db"
    pipeline = Pipeline("to")
    left = pipeline.source("left", generator(lambda i: pa.table({"n": [i], "from": ["left"]}), 4))
    right = pipeline.source("right", generator(lambda i: pa.table({"n": [i], "from": ["right"]}), 4))

    both = left.union(right, name="both")

    @pipeline.operator(both, deterministic=True)
    def even(table: pa.Table) -> pa.Table | None:
        return table if table["n"][0].as_py() % 2 == 0 else None

    @pipeline.operator(even, deterministic=True)
    def last(table: pa.Table) -> pa.Table:
        return table

    graph = pipeline.graph()
    run(graph, log=url, engine="inline")
    return graph, url


def _of(graph: Graph, url: str, source: str) -> list[str]:
    """Return the events of `last` that came from a source, by all that is known of them."""
    met = [f"last.out#{number}" for number in range(1, 5)]
    return [event for event in met if any(str(e).startswith(source) for e in _met(graph, url, event))]


def _met(graph: Graph, url: str, event: str) -> list[str]:
    return [str(one) for step in trace_back(graph, event, log=url).steps for one in (*step.inputs, *step.outputs)]


def test_back_after_a_union_only_the_path_that_was_gone_is_shown(logged: tuple[Graph, str]) -> None:
    graph, url = logged
    for event in (from_left := _of(graph, url, "left.out")):
        operators = [step.operator for step in trace_back(graph, event, "left", log=url).steps]
        assert operators == ["last", "even", "both"]
        assert trace_back(graph, event, "right", log=url).steps == ()
    assert len(from_left) == 2


def test_forward_what_led_nowhere_is_not_shown(logged: tuple[Graph, str]) -> None:
    graph, url = logged
    whole = trace_forward(graph, "left#2", log=url)
    assert [step.operator for step in whole.steps] == ["both", "even"]
    assert trace_forward(graph, "left#2", "last", log=url).steps == ()
    assert [step.operator for step in trace_forward(graph, "left#3", "last", log=url).steps] == ["both", "even", "last"]


def test_records_of_other_paths_are_not_shown(logged: tuple[Graph, str]) -> None:
    graph, url = logged
    (event, _) = _of(graph, url, "left.out")
    ports = {met.port.operator for met in trace_record(graph, event, 0, "left", log=url).records}
    assert ports == {"left", "both", "even", "last"}
    assert list(trace_record(graph, event, 0, "right", log=url).records) == [trace_back(graph, event, log=url).start]


def test_the_command_says_that_nothing_led_there(tmp_path: Path) -> None:
    file = tmp_path / "nowhere.py"
    file.write_text(NOWHERE)
    words = (str(file), "--log", f"sqlite:///{tmp_path}/log.db")
    assert call("run", *words, "--engine", "inline").exit_code == 0
    told = call("trace", "forward", str(file), "n#1", "--to", "none", *words[1:]).stdout
    assert "no event of none.out was made of it" in told, told
