"""A trace never shows less than there was without saying so: after changes, at the edges of capture, of late events."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from clew import Count, Operator, Pipeline, Session, Sliding, Tumbling
from clew.connectors import files, generator
from clew.errors import CameTooLate, ClewError, FormedOtherwise, NoSuchPort, SetOpen, SetupFailed
from clew.ids import Port
from clew.lineage.retention import Keep, kept
from clew.lineage.steps import Connections
from clew.lineage.trace import Trace
from clew.pipeline.graph import Graph
from clew.provenance.records import RecordTrace
from clew.retrace import diff, records_of, replay, trace_back, trace_forward, trace_record
from clew.run import Log, decide_quarantined, gc, quarantine_of, run
from clew.store.memory import MemoryStore
from tests.app.pipelines import call


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'log.db'}"


def shown(found: RecordTrace, port: str) -> dict[int, tuple[int, ...]]:
    return {event.number: places for event, places in found.records.items() if str(event.port) == port}


def cut(found: Trace) -> list[str]:
    return [str(port) for port in found.cut]


def pairs(index: int) -> pa.Table:
    return pa.table({"t": [10 * index, 10 * index + 5], "k": ["a", "b"]})


def windowed(directory: Path, window: Any, events: int = 6) -> Pipeline:
    pipeline = Pipeline("windowed")
    source = pipeline.source("s", generator(pairs, events))

    @pipeline.operator(source, window=window)
    def total(table: pa.Table) -> pa.Table:
        return pa.table({"n": [table.num_rows]})

    pipeline.sink(total, files(directory / "out"))
    return pipeline


@pytest.mark.parametrize("other", [Tumbling(10, on="t"), Count(3), Count(2, by="k"), Session(3, on="t")], ids=repr)
def test_where_the_window_was_changed_in_the_file_all_records_are_shown(tmp_path: Path, url: str, other: Any) -> None:
    before = windowed(tmp_path, Tumbling(30, on="t")).graph()
    run(before, log=url, engine="inline")
    was = trace_record(before, "total#1", 0, log=url)
    assert (shown(was, "s.out"), was.widened) == ({1: (0, 1), 2: (0, 1), 3: (0, 1)}, ())
    now = windowed(tmp_path, other).graph()
    found = trace_record(now, "total#1", 0, log=url)
    assert shown(found, "s.out") == shown(was, "s.out")
    assert found.widened == (("total", 1),)
    with pytest.raises(FormedOtherwise, match="Input Set 1 of total was formed by a window or by inputs that"):
        replay(now, "total", "total#1", log=url)
    assert {one.expired for one in diff(now, "total", log=url)} == {True}


def stopped_at(event: int) -> Any:
    def make(index: int) -> pa.Table:
        if index == event:
            raise RuntimeError("that will do")
        return pa.table({"n": [3 * index, 3 * index + 1, 3 * index + 2], "k": ["x"] * 3})

    return make


def counted(directory: Path, window: Count, stop: int) -> Pipeline:
    pipeline = Pipeline("counted")
    source = pipeline.source("s", generator(stopped_at(stop), 4), max_turn_events=1, attempts=1, group="all")

    @pipeline.operator(source, window=window, group="all")
    def total(table: pa.Table) -> pa.Table:
        return pa.table({"ns": [table["n"].to_pylist()]})

    pipeline.sink(total, files(directory / "out"), group="all")
    return pipeline


def test_where_the_window_was_changed_in_the_run_only_what_it_has_formed_is_narrowed(tmp_path: Path, url: str) -> None:
    with pytest.raises(ClewError):
        run(counted(tmp_path, Count(3, by="k"), 2), log=url, engine="inline")
    later = counted(tmp_path, Count(2, by="k"), 9).graph()
    run(later, log=url, engine="inline")
    assert records_of(later, "total#1", log=url).to_pylist() == [{"ns": [0, 1, 2]}]
    found = trace_record(later, "total#1", 0, log=url)
    assert (shown(found, "s.out"), found.widened) == ({1: (0, 1, 2)}, (("total", 1),))
    assert shown(trace_record(later, "s#1", 2, log=url, direction="forward"), "total.out") == {1: (0,)}
    # What the new window has formed is told by the new window.
    assert records_of(later, "total#3", log=url).to_pylist() == [{"ns": [6, 7]}]
    again = trace_record(later, "total#3", 0, log=url)
    assert (shown(again, "s.out"), again.widened) == ({3: (0, 1)}, ())
    assert [one.same for one in replay(later, "total", "total#3", log=url)] == [True]
    assert [one.expired for one in diff(later, "total", log=url)] == [True, True, False, False, False]


def reversed_or_mapped(directory: Path, mapped: bool, name: str = "m") -> Graph:
    pipeline = Pipeline("om")
    source = pipeline.source("s", generator(lambda index: pa.table({"n": [index, index + 1, index + 2]}), 2))
    if mapped:
        made: Any = source.map(lambda record: record, name=name)
    else:

        @pipeline.operator(source, name=name)
        def made(table: pa.Table) -> pa.Table:
            return table.take(pa.array([2, 1, 0]))

    pipeline.sink(made, files(directory / "om"), name="kept")
    return pipeline.graph()


def test_a_function_that_became_another_tells_nothing_of_what_was_made_before(tmp_path: Path, url: str) -> None:
    run(reversed_or_mapped(tmp_path, False), log=url, engine="inline")
    found = trace_record(reversed_or_mapped(tmp_path, True), "m#1", 0, log=url)
    assert (shown(found, "s.out"), found.widened) == ({1: (0, 1, 2)}, (("m", 1),))


def test_of_an_operator_that_has_another_name_now_whole_events_are_shown(tmp_path: Path, url: str) -> None:
    run(reversed_or_mapped(tmp_path, True), log=url, engine="inline")
    renamed = reversed_or_mapped(tmp_path, True, "other")
    assert shown(trace_record(renamed, "m#1", 0, log=url), "s.out") == {1: (0, 1, 2)}
    assert shown(trace_record(renamed, "kept#1", 1, log=url), "m.out") == {1: (1,)}
    assert shown(trace_record(renamed, "s#1", 0, log=url, direction="forward"), "m.out") == {1: (0, 1, 2)}


def test_all_records_are_said_to_be_shown_on_the_terminal_too(tmp_path: Path, url: str) -> None:
    text = """
import os
import pyarrow as pa
from clew import Count, Pipeline, files, generator

pipeline = Pipeline("windowed")
s = pipeline.source("s", generator(lambda index: pa.table({"n": [index]}), 4))


@pipeline.operator(s, window=Count(int(os.environ.get("SIZE", "2"))), lineage=True)
def total(table: pa.Table) -> pa.Table:
    return pa.table({"n": [table.num_rows]})


pipeline.sink(total, files("HERE/out"))
"""
    file = tmp_path / "windowed.py"
    file.write_text(text.replace("HERE", str(tmp_path)))
    assert call("run", str(file), "--engine", "inline", "--log", url).exit_code == 0
    told = "all records of Input Set 1 of total are shown: it was declared otherwise then"
    asked = ("trace", "back", str(file), "total#1", "--record", "0", "--log", url)
    assert told not in call(*asked).stdout
    assert told in call(*asked, SIZE="3").stdout
    assert '"not_narrowed": [{"operator": "total", "input_set": 1}]' in call(*asked, "--json", SIZE="3").stdout


def test_a_function_that_gives_something_else_now_is_told_of(tmp_path: Path, url: str) -> None:
    file = tmp_path / "again.py"
    file.write_text(
        f"""
import os
import pyarrow as pa
from clew import Pipeline, files, generator

pipeline = Pipeline("again")
s = pipeline.source("s", generator(lambda index: pa.table({{"n": [index, index]}}), 2))
made = s.flat_map(lambda record: [{{"n": os.environ.get("WHAT", "a")}}], name="m", deterministic=True)
pipeline.sink(made, files({str(tmp_path / "out")!r}))
"""
    )
    assert call("run", str(file), "--engine", "inline", "--log", url).exit_code == 0
    told = "all records of Input Set 2 of m are shown: run again, it does not give what it gave then"
    asked = ("trace", "back", str(file), "m#2", "--record", "0", "--log", url)
    assert told not in call(*asked).stdout
    assert told in call(*asked, WHAT="b").stdout
    assert '"not_narrowed": [{"operator": "m", "input_set": 2}]' in call(*asked, "--json", WHAT="b").stdout


def rewired(directory: Path, to_b: bool) -> Pipeline:
    pipeline = Pipeline("rewired")
    a = pipeline.source("a", generator(stopped_at(9 if to_b else 2), 4), max_turn_events=1, attempts=1, group="all")
    b = pipeline.source("b", generator(stopped_at(9), 4), max_turn_events=1, group="all")

    @pipeline.operator(b if to_b else a, group="all")
    def op(table: pa.Table) -> pa.Table:
        return table

    pipeline.sink(op, files(directory / "out"), group="all")
    pipeline.sink(a if to_b else b, files(directory / "rest"), group="all", name="rest")
    return pipeline


def test_what_was_made_of_another_input_says_that_it_is_not_known_any_more(tmp_path: Path, url: str) -> None:
    with pytest.raises(ClewError):
        run(rewired(tmp_path, False), log=url, engine="inline")
    later = rewired(tmp_path, True).graph()
    # Before it has gone on, the log knows it, whatever the file says.
    assert shown(trace_record(later, "op#1", 0, log=url), "a.out") == {1: (0, 1, 2)}
    run(later, log=url, engine="inline", accept=["all"])
    found = trace_back(later, "op#1", log=url)
    assert [(step.operator, step.inputs) for step in found.steps] == [("op", ())]
    assert [(step.operator, step.input_set) for step in found.edge] == [("op", 1)]
    last = trace_back(later, "op#4", log=url)
    assert (len(last.steps), last.edge) == (2, ())


def test_a_number_that_is_none_deep_in_a_column_does_not_hide_where_a_record_came_from(
    tmp_path: Path, url: str
) -> None:
    pipeline = Pipeline("nan")
    values = {"n": [1, 2], "v": [[float("nan")], [1.0]], "_clew_event": [7, 8]}
    source = pipeline.source("s", generator(lambda index: pa.table(values), 1))
    pipeline.sink(source.filter(pc.field("n") > 0, name="f"), files(tmp_path / "out", format="parquet"))
    run(pipeline, log=url, engine="inline")
    for place in (0, 1):
        assert shown(trace_record(pipeline.graph(), "f#1", place, log=url), "s.out") == {1: (place,)}


def scoped(directory: Path) -> Graph:
    """A join of which one input is on the paths of a scope, and a branch of which one output is."""
    pipeline = Pipeline("scoped")
    a, b = (
        pipeline.source(name, generator(lambda index: pa.table({"t": [index], "k": [1]}), 4)) for name in ("a", "b")
    )
    joined = a.join(b, on=["k"], window=Tumbling(2, on="t"), name="j")
    split = joined.branch(x=pc.field("t") < 2, y=pc.field("t") >= 0, name="split")
    pipeline.sink(split["x"], files(directory / "x"), name="xs")
    pipeline.sink(split["y"], files(directory / "y"), name="ys")
    pipeline.lineage(a, "xs")
    return pipeline.graph()


def test_an_input_or_an_output_without_capture_is_where_a_trace_ends(tmp_path: Path, url: str) -> None:
    graph = scoped(tmp_path)
    run(graph, log=url, engine="inline")
    assert "b.out" in cut(trace_back(graph, "j#1", log=url))
    assert "b.out" not in cut(trace_back(graph, "j#1", "a", log=url))
    assert "b.out" in cut(trace_back(graph, "j#1", "b", log=url))
    assert "split.y" in cut(trace_forward(graph, "j#2", log=url))
    assert "split.y" not in cut(trace_forward(graph, "j#1", "xs", log=url))


def captured_late(directory: Path, captured: bool) -> Graph:
    pipeline = Pipeline("late")
    source = pipeline.source(
        "s", generator(stopped_at(9 if captured else 2), 4), max_turn_events=1, attempts=1, group="g"
    )

    @pipeline.operator(source, lineage=captured, group="g")
    def one(table: pa.Table) -> pa.Table:
        return table

    @pipeline.operator(source, group="g")
    def other(table: pa.Table) -> pa.Table:
        return table

    @pipeline.operator(one, other, window=Count(2), group="g")
    def both(a: pa.Table, b: pa.Table) -> pa.Table:
        return pa.table({"n": [a.num_rows + b.num_rows]})

    pipeline.sink(both, files(directory / "out"), group="g")
    return pipeline.graph()


def test_events_from_before_lineage_was_switched_on_are_where_a_trace_ends(tmp_path: Path, url: str) -> None:
    with pytest.raises(ClewError):
        run(captured_late(tmp_path, False), log=url, engine="inline")
    graph = captured_late(tmp_path, True)
    run(graph, log=url, engine="inline")
    assert cut(trace_back(graph, "both#1", log=url)) == ["one.out"]
    assert cut(trace_back(graph, "one#4", log=url)) == []


def test_what_is_off_the_paths_to_a_port_is_not_said_to_end_a_trace(tmp_path: Path, url: str) -> None:
    graph = captured_late(tmp_path, False)
    with pytest.raises(ClewError):
        run(graph, log=url, engine="inline")
    assert cut(trace_forward(graph, "s#1", "other", log=url)) == []
    assert cut(trace_forward(graph, "s#1", log=url)) == ["s.out"]


def test_where_a_trace_of_a_record_ends_is_said(tmp_path: Path, url: str) -> None:
    file = tmp_path / "ends.py"
    file.write_text(
        f"""
import pyarrow as pa
from clew import Pipeline, files, generator

pipeline = Pipeline("ends")
s = pipeline.source("s", generator(lambda index: pa.table({{"n": [index]}}), 2), lineage=False)
pipeline.sink(s.map(lambda record: record, name="m"), files({str(tmp_path / "out")!r}))
"""
    )
    assert call("run", str(file), "--engine", "inline", "--log", url).exit_code == 0
    told = call("trace", "back", str(file), "m#1", "--record", "0", "--log", url).stdout
    assert "the trace ends at s.out: no lineage is captured of all that comes there" in told


def held(directory: Path, fails: bool, target: str = "w") -> Pipeline:
    def check(record: dict[str, Any]) -> dict[str, Any]:
        if fails and record["n"] == 1:
            raise ValueError("not this one")
        return record

    pipeline = Pipeline("held")
    source = pipeline.source("s", generator(lambda index: pa.table({"n": [index]}), 6))
    mapped = source.map(lambda record: record, name="m")
    checked = mapped.map(check, name="q", on_error="quarantine", attempts=1)
    pipeline.sink(checked, files(directory / "q"), name=target)
    pipeline.lineage(source, target, keep="1 second")
    return pipeline


def test_what_is_in_quarantine_keeps_what_it_came_from(tmp_path: Path, url: str) -> None:
    run(held(tmp_path, True), log=url, engine="inline")
    scope = Keep(Port("s", "out"), Port("w", "writes:out"), seconds=0)
    with closing(Log.at(url, "held").open("held")) as store:
        first = kept(store, [scope], 1e12)
        assert first[Port("m", "out")] == 2
        assert first[Port("s", "out")] == 2
        store.collect(keep=first)
    graph = held(tmp_path, False).graph()
    decide_quarantined(graph, quarantine_of(graph, url), "retry", url)
    run(graph, log=url, engine="inline")
    steps = trace_back(graph, "q#6", log=url).steps
    assert [(step.operator, [str(event) for event in step.inputs]) for step in steps] == [
        ("q", ["m.out#2"]), ("m", ["s.out#2"]),
    ]  # fmt: skip


def test_a_scope_that_the_log_does_not_know_keeps_everything(tmp_path: Path, url: str) -> None:
    run(held(tmp_path, False), log=url, engine="inline")
    assert gc(held(tmp_path, False, "renamed").graph(), log=url).events == 0
    trace_back(held(tmp_path, False).graph(), "m#1", log=url)


def test_an_input_set_that_is_open_is_not_run_again(tmp_path: Path, url: str) -> None:
    with pytest.raises(ClewError):
        run(counted(tmp_path, Count(2), 3), log=url, engine="inline")
    graph = counted(tmp_path, Count(2), 9).graph()
    with pytest.raises(SetOpen, match=r"s\.out#3 is in an Input Set of total that is still open: nothing was made"):
        replay(graph, "total", "s#3", log=url)
    assert [one.same for one in replay(graph, "total", "s#2", log=url)] == [True]


class Writes(Operator):
    """Two write actions for each event: its first record, and all of them twice."""

    def assign(self, event: Any, state: dict[str, Any]) -> Any:
        return [event.number]

    def ready(self, state: dict[str, Any], opened: Any) -> Any:
        return list(opened)

    def generate(self, input_set: Any, context: Any) -> pa.Table:
        table = input_set.table()
        context.write("w", table.slice(0, 1))
        context.write("w", pa.concat_tables([table, table]))
        return table


def test_write_actions_of_general_operators_have_their_own_records(tmp_path: Path, url: str) -> None:
    pipeline = Pipeline("writes")
    source = pipeline.source("s", generator(lambda index: pa.table({"n": [index, index + 10]}), 2))
    made = pipeline.general("g", Writes(), source, writes={"w": files(tmp_path / "w")})
    pipeline.sink(made, files(tmp_path / "out"), name="kept")
    graph = pipeline.graph()
    run(graph, log=url, engine="inline")
    assert records_of(graph, "g.w#2", log=url)["n"].to_pylist() == [0, 10, 0, 10]
    assert records_of(graph, "kept#1", log=url)["n"].to_pylist() == [0, 10]
    assert shown(trace_record(graph, "g.w#2", 3, log=url), "s.out") == {1: (0, 1)}
    found = trace_record(graph, "s#1", 0, log=url, direction="forward")
    assert shown(found, "g.writes:w") == {1: (0,), 2: (0, 1, 2, 3)}


def test_at_the_edge_of_what_was_collected_records_are_shown_as_far_as_they_are_there(tmp_path: Path, url: str) -> None:
    pipeline = Pipeline("edge")
    source = pipeline.source("s", generator(lambda index: pa.table({"t": [index, index + 3]}), 12))

    @pipeline.operator(source, window=Sliding(4, every=2, on="t", lateness=4))
    def total(table: pa.Table) -> pa.Table:
        return pa.table({"n": [table.num_rows]})

    pipeline.sink(total, files(tmp_path / "out"))
    graph = pipeline.graph()
    run(graph, log=url, engine="inline")
    before = {n: shown(trace_record(graph, f"total#{n}", 0, log=url), "s.out") for n in range(1, 7)}
    with closing(Log.at(url, "edge").open("edge")) as store:
        store.collect(keep={Port("s", "out"): 7, Port("total", "out"): 1})
    worn = 0
    for number, records in before.items():
        found = trace_record(graph, f"total#{number}", 0, log=url)
        left = {event: places for event, places in records.items() if event >= 7}
        assert all(set(places) <= set(shown(found, "s.out")[event]) for event, places in left.items())
        worn += len(found.trace.edge)
    assert worn > 0


def test_an_event_that_came_too_late_is_said_to_have(tmp_path: Path, url: str) -> None:
    pipeline = Pipeline("too_late")
    source = pipeline.source("s", generator(lambda index: pa.table({"t": [[0, 100, 1][index]]}), 3), max_turn_events=1)

    @pipeline.operator(source, window=Tumbling(10, on="t"))
    def total(table: pa.Table) -> pa.Table:
        return table

    pipeline.sink(total, files(tmp_path / "out"))
    run(pipeline, log=url, engine="inline")
    graph = pipeline.graph()
    assert [(event.number, by) for event, by in trace_forward(graph, "s#3", log=url).passed] == [(3, "total")]
    assert trace_forward(graph, "s#1", log=url).passed == ()
    with pytest.raises(CameTooLate, match=r"s\.out#3 is in no Input Set of total: all its records came too late"):
        replay(graph, "total", "s#3", log=url)


def test_how_deep_an_operator_lies_is_found_once_each() -> None:
    class Stacked(MemoryStore):
        """Forty operators, each of which reads the one before twice."""

        def captures(self) -> dict[str, Any]:
            return {}

        def links(self) -> list[tuple[Port, Port]]:
            return [(Port(f"{n}", "out"), Port(f"{n + 1}", port)) for n in range(40) for port in ("left", "right")]

    assert Connections(Stacked()).depth("40") == 41


def test_what_names_no_event_is_refused(tmp_path: Path, url: str) -> None:
    graph = reversed_or_mapped(tmp_path, True)
    run(graph, log=url, engine="inline")
    with pytest.raises(SetupFailed, match="'m#²' is no event"):
        trace_back(graph, "m#²", log=url)
    with pytest.raises(NoSuchPort, match=r"there is no port m\.out before m\.out; there are: s\.out"):
        trace_back(graph, "m#1", "m", log=url)


def test_a_write_action_is_told_as_it_was_logged(tmp_path: Path, url: str) -> None:
    graph = reversed_or_mapped(tmp_path, True)
    run(graph, log=url, engine="inline")
    with closing(Log.at(url, "om").open("om")) as store:
        row = store.write_action(Port("kept", "writes:out"), 2)
        assert row is not None
        assert row.events == ((Port("m", "out"), 2, 1),)
        assert store.write_action(Port("kept", "writes:out"), 99) is None
        store.collect()
        assert store.write_action(Port("kept", "writes:out"), 2) is None
