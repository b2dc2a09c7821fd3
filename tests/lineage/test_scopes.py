"""Lineage scopes (LOG.io, Section 3.1): which ports are enabled, and what is recorded for them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Each, Operator, Pipeline
from clew.connectors import files, generator
from clew.errors import GraphErrors, UserFunctionFailed
from clew.ids import Capture, EventId, Port
from clew.lineage.trace import backward, forward
from clew.pipeline.graph import Graph
from clew.pipeline.operators import Context, InputSet
from clew.retrace import step_back, trace_back
from clew.run import Log, run, verify


def one(index: int) -> pa.Table:
    return pa.table({"n": [index]})


class Apart(Operator):
    """Two functions: one has the events of in1, the other those of in2; both send on the one port."""

    functions = ("first", "second")

    def assign(self, event: Any, state: dict[str, Any]) -> Any:
        return [("first" if event.port == "in1" else "second", event.number)]

    def ready(self, state: dict[str, Any], opened: Any) -> Any:
        return list(opened)

    def first(self, input_set: InputSet, context: Context) -> Any:
        return input_set.table("in1")

    def second(self, input_set: InputSet, context: Context) -> Any:
        return input_set.table("in2")


def figure_2(directory: Path) -> Pipeline:
    """The pipeline of Figure 2: R1 and R2, OP1 with two outputs, OP2 with two inputs, OP3 that joins two paths."""
    pipeline = Pipeline("figure_2")
    r1 = pipeline.source("R1", generator(one, 6))
    r2 = pipeline.source("R2", generator(one, 6))

    @pipeline.operator(r2, name="OP1", outputs=("out1", "out2"))
    def op1(table: pa.Table) -> dict[str, pa.Table]:
        return {"out1": table, "out2": table}

    pipeline.general("OP2", Apart(), r1, "OP1.out1", ports=("in1", "in2"))

    @pipeline.operator("OP2.out", "OP1.out2", name="OP3", window=Each())
    def op3(in1: pa.Table, in2: pa.Table) -> pa.Table:
        return in1 if in1.num_rows else in2

    pipeline.sink("OP3.out", files(directory / "out"), name="W")
    return pipeline


def test_example_5_the_enabled_ports_follow_from_the_lineage_paths(tmp_path: Path) -> None:
    pipeline = figure_2(tmp_path)
    pipeline.lineage("R2.out", "OP3.out")
    assert pipeline.graph().captures == {
        "OP1": Capture(("in",), ("out1", "out2")),
        "OP2": Capture(("in2",), ("out",), labels=True),
        "OP3": Capture(("in1", "in2"), ("out",)),
    }


def test_example_5_what_comes_of_a_port_off_the_paths_is_not_recorded(tmp_path: Path) -> None:
    """An event c1 made of events received on in1 only has no lineage; c2, made of one received on in2, has."""
    pipeline = figure_2(tmp_path)
    pipeline.lineage("R2.out", "OP3.out")
    url = f"sqlite:///{tmp_path / 'log.db'}"
    run(pipeline, log=url, engine="inline")
    store = Log.at(url, "figure_2").open("figure_2")
    _, last = store.extent(Port("OP2", "out"))
    recorded = store.origins(Port("OP2", "out"), 1, last)
    # Twelve events and the end of the stream; only those of in2 are recorded.
    assert (last, len(recorded)) == (13, 6)
    (step,) = backward(store, EventId(Port("OP2", "out"), recorded[0][0]), to=Port("OP1", "out1")).steps
    assert [event.port for event in step.inputs] == [Port("OP1", "out1")]
    met = forward(store, EventId(Port("R2", "out"), 3)).events(Port("OP3", "out"))
    assert len(met) == 2
    assert forward(store, EventId(Port("R1", "out"), 3)).steps == ()
    # The sink is beyond the target.
    assert store.table("EVENT_LINEAGE") == [row for row in store.table("EVENT_LINEAGE") if row[1] != "W"]


def test_scopes_add_up_and_may_end_at_a_sink(tmp_path: Path) -> None:
    pipeline = figure_2(tmp_path)
    pipeline.lineage("R1.out", "OP2.out")
    pipeline.lineage("OP3.out", "W")
    assert pipeline.graph().captures == {
        "OP2": Capture(("in1",), ("out",), labels=True),
        "W": Capture(("in",), ("writes:out",)),
    }


def test_lineage_is_captured_everywhere_by_default_and_nothing_is_written_where_it_is_off(tmp_path: Path) -> None:
    assert set(figure_2(tmp_path).graph().captures) == {"R1", "R2", "OP1", "OP2", "OP3", "W"}
    pipeline = Pipeline("off")
    source = pipeline.source("source", generator(one, 6), lineage=False)

    @pipeline.operator(source, lineage=False)
    def same(table: pa.Table) -> pa.Table:
        return table

    pipeline.sink(same, files(tmp_path / "out"), lineage=False)
    url = f"sqlite:///{tmp_path / 'log.db'}"
    run(pipeline, log=url, engine="inline")
    store = Log.at(url, "off").open("off")
    assert store.captures() == {}
    assert store.table("EVENT_LINEAGE") == []


@pytest.mark.parametrize(
    ("start", "target", "said"),
    [
        ("R2.out", "OP9.out", r"\(R2.out, OP9.out\): there is no port OP9.out; there are OP1.out1, OP1.out2, OP2.out"),
        ("OP3.out", "R2.out", r"no path leads from OP3.out to R2.out; name the earlier port first"),
        ("R2.out", "Off.out", r"leads through Off, which says lineage=False; take one of the two back"),
    ],
)
def test_a_scope_that_cannot_be_is_refused(tmp_path: Path, start: str, target: str, said: str) -> None:
    pipeline = figure_2(tmp_path)

    @pipeline.operator("OP1.out1", name="Off", lineage=False)
    def off(table: pa.Table) -> pa.Table:
        return table

    pipeline.lineage(start, target)
    with pytest.raises(GraphErrors, match=said):
        pipeline.graph()


def test_output_sets_without_lineage_are_undecided_also_when_it_is_captured_later(tmp_path: Path) -> None:
    def declare(lineage: bool, events: int) -> Pipeline:
        pipeline = Pipeline("late")
        source = pipeline.source("source", generator(one, events))

        @pipeline.operator(source, lineage=lineage, deterministic=True, attempts=1)
        def same(table: pa.Table) -> pa.Table:
            if not lineage and table["n"][0].as_py() == 3:
                raise ValueError("stop")
            return table

        pipeline.sink(same, files(tmp_path / "out"))
        return pipeline

    url = f"sqlite:///{tmp_path / 'log.db'}"
    with pytest.raises(UserFunctionFailed):
        run(declare(False, 6), log=url, engine="inline")
    run(declare(True, 6), log=url, engine="inline")
    verdict = verify(declare(True, 6), log=url, engine="inline")
    assert verdict.word == "undecided"
    assert [finding.operator for finding in verdict.findings] == ["same"]
    assert "no lineage was captured of it, or not of all its ports" in verdict.findings[0].fact
    store = Log.at(url, "late").open("late")
    assert [number for number, _ in store.origins(Port("same", "out"), 1, 9)] == [4, 5, 6]


@pytest.fixture
def scoped(tmp_path: Path) -> tuple[Graph, str]:
    """A run of the pipeline of Figure 2 with scopes from a source, and from a port in its middle."""
    pipeline = figure_2(tmp_path)
    pipeline.lineage("R2.out", "OP1.out1")
    pipeline.lineage("OP2.out", "W")
    url = f"sqlite:///{tmp_path / 'log.db'}"
    run(pipeline, log=url, engine="inline")
    return pipeline.graph(), url


@pytest.mark.parametrize(
    ("event", "steps", "begins"),
    [
        ("OP1.out1#3", ["OP1"], ["R2.out"]),
        ("R2#3", [], ["R2.out"]),
        # No scope leads to what a source reads, whether or not one begins there.
        ("R1#3", [], ["R1.out"]),
        ("OP2#3", [], ["OP2.out"]),
    ],
)
def test_a_trace_to_where_its_scope_begins_is_whole(
    scoped: tuple[Graph, str], event: str, steps: list[str], begins: list[str]
) -> None:
    graph, url = scoped
    trace = trace_back(graph, event, log=url)
    assert [step.operator for step in trace.steps] == steps
    assert ([str(port) for port in trace.begins], trace.cut) == (begins, ())
    assert len(step_back(graph, event, log=url)) == len(steps)


def test_a_trace_to_a_port_beyond_its_scope_goes_as_far_as_the_scope(scoped: tuple[Graph, str]) -> None:
    graph, url = scoped
    traces = [trace_back(graph, event, "R1", log=url) for event in ("OP2#3", *(f"OP3#{n}" for n in range(1, 13)))]
    assert {(tuple(step.operator for step in trace.steps), trace.begins, trace.cut) for trace in traces} == {
        ((), (Port("OP2", "out"),), ()),
        (("OP3",), (Port("OP2", "out"),), ()),
        # What came on the other path, of which nothing is captured.
        ((), (), (Port("OP3", "out"),)),
    }


def test_what_a_scope_leaves_out_is_cut_off_also_where_another_one_begins(tmp_path: Path) -> None:
    pipeline = figure_2(tmp_path)
    pipeline.lineage("R1.out", "OP2.out")
    pipeline.lineage("OP1.out2", "OP3.out")
    url = f"sqlite:///{tmp_path / 'log.db'}"
    run(pipeline, log=url, engine="inline")
    traces = [trace_back(pipeline.graph(), f"OP3#{number}", log=url) for number in range(1, 13)]
    # Events on the other path to OP3 have no lineage there: they may have a part in each, and others are made of them.
    assert {(trace.cut, trace.begins) for trace in traces} == {
        ((Port("OP2", "out"),), (Port("OP1", "out2"),)), ((Port("OP3", "out"),), ()),
    }  # fmt: skip
