"""A record that came too late is said to have, also where others of its event were in time."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from clew import Pipeline, Session, Sliding, Tumbling
from clew.connectors import files, generator
from clew.errors import ClewError
from clew.ids import EventId, Port
from clew.pipeline.graph import Graph
from clew.retrace import opened, trace_record
from clew.run import run
from tests.app.pipelines import call

EVENTS, RECORDS = 16, 4
STOP = 12


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'log.db'}"


def scattered(index: int) -> pa.Table:
    """Event `index`: records of three keys, some of them of long ago."""
    random = Random(index)
    times = [10 * index - random.choice([0, 0, 5, 15, 40]) for _ in range(RECORDS)]
    return pa.table({"t": times, "k": [random.choice("abc") for _ in times], "n": list(range(RECORDS))})


def first(table: pa.Table) -> pa.Table:
    return table.slice(0, 1)


def windowed(directory: Path, window: Any, make: Any = scattered) -> Graph:
    pipeline = Pipeline("late")
    source = pipeline.source("s", generator(make, EVENTS), max_turn_events=1, attempts=1, group="all")
    made = source.window(window).apply(first, name="w", group="all")
    pipeline.sink(made, files(directory / "out"), group="all")
    return pipeline.graph()


def told(graph: Graph, url: str, events: int = EVENTS) -> tuple[list[tuple[int, int]], int]:
    """Return the records that are told to have come too late, and how many are in events that did as a whole."""
    late, in_whole_events = [], 0
    for number in range(1, events + 1):
        traces = [trace_record(graph, f"s#{number}", place, log=url, direction="forward") for place in range(RECORDS)]
        late += [(event.number, place) for one in traces for event, place, _ in one.late]
        in_whole_events += RECORDS * len(traces[0].trace.passed)
    return late, in_whole_events


WINDOWS = [
    Tumbling(10, on="t", lateness=5),
    Tumbling(10, on="t", by="k", key_groups=2),
    Sliding(20, every=10, on="t"),
    Session(4, on="t", by="k"),
    Session(6, on="t", lateness=5),
]


@pytest.mark.parametrize("window", WINDOWS, ids=repr)
def test_all_records_that_are_counted_as_late_are_told_of(tmp_path: Path, url: str, window: Any) -> None:
    graph = windowed(tmp_path, window)
    run(graph, log=url, engine="inline")
    with opened(graph, url, None) as (store, _):
        state = store.state("w")
        assert state is not None
        counted = state.state["first"]["late"]
    late, in_whole_events = told(graph, url)
    assert len(late) > 2
    assert len(late) + in_whole_events == counted


def test_records_that_go_to_a_port_of_late_ones_are_not_told_of(tmp_path: Path, url: str) -> None:
    graph = windowed(tmp_path, Tumbling(10, on="t", late="late"))
    run(graph, log=url, engine="inline")
    assert told(graph, url) == ([], 0)


def stopped(index: int) -> pa.Table:
    if index == STOP:
        raise RuntimeError("that will do")
    return scattered(index)


def test_while_windows_are_open_only_what_is_certain_is_told_of(tmp_path: Path, url: str) -> None:
    for window in (Tumbling(10, on="t"), Session(6, on="t", lateness=5)):
        (tmp_path / repr(window)).mkdir()
        url = f"sqlite:///{tmp_path / repr(window) / 'log.db'}"
        with pytest.raises(ClewError):
            run(windowed(tmp_path, window, stopped), log=url, engine="inline")
        before, _ = told(windowed(tmp_path, window), url, STOP)
        run(windowed(tmp_path, window), log=url, engine="inline")
        after, _ = told(windowed(tmp_path, window), url, STOP)
        assert before
        assert set(before) <= set(after)


def test_another_window_in_the_file_tells_of_none(tmp_path: Path, url: str) -> None:
    run(windowed(tmp_path, Tumbling(10, on="t")), log=url, engine="inline")
    assert told(windowed(tmp_path, Tumbling(20, on="t")), url)[0] == []


PARTLY_LATE = """
import pyarrow as pa
from clew import Pipeline, Tumbling, files, generator

pipeline = Pipeline("partly_late")
source = pipeline.source("s", generator(lambda i: pa.table({"t": [10 * i, 10 * i - (50 if i == 8 else 0)]}), 12))
made = source.window(Tumbling(10, on="t")).aggregate(name="w", n="count")
made.sink(files("out"))
source.sink(files("all"), name="all")
"""


def test_a_late_record_is_told_of_on_the_terminal(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "partly_late.py"
    file.write_text(PARTLY_LATE)
    assert call("run", str(file), "--engine", "inline", "--log", url).exit_code == 0
    said = "record 1 of s.out#9 is in no window of w: it came too late"

    def asked(record: str, *words: str) -> str:
        return call("trace", "forward", str(file), "s#9", "--record", record, "--log", url, *words).stdout

    assert asked("1").splitlines()[:3] == ["s.out", "  #9 record 1: {'t': 30}", f"  {said}"]
    assert said in asked("1", "--to", "w")
    assert said not in asked("0")
    assert said not in asked("1", "--to", "all")
    expected = [{"event": "s.out#9", "record": 1, "operator": "w"}]
    assert json.loads(asked("1", "--json"))["records_passed_over"] == expected
    assert json.loads(asked("0", "--json"))["records_passed_over"] == []


def test_late_records_of_a_join_are_told_of_either_side(tmp_path: Path, url: str) -> None:
    pipeline = Pipeline("late")
    sides = [pipeline.source(name, generator(scattered, EVENTS), max_turn_events=1, group="all") for name in ("a", "b")]
    joined = sides[0].join(sides[1], on="k", window=Tumbling(10, on="t"), name="j", group="all")
    pipeline.sink(joined, files(tmp_path / "out"), group="all")
    graph = pipeline.graph()
    run(graph, log=url, engine="inline")
    late = set()
    for side in ("a", "b"):
        events = [EventId(Port(side, "out"), number) for number in range(5, STOP)]
        traces = [trace_record(graph, one, at, log=url, direction="forward") for one in events for at in range(RECORDS)]
        late |= {(event.port.operator, by) for one in traces for event, _, by in one.late}
    assert late == {("a", "j"), ("b", "j")}
