"""A trace costs what it shows: the rows that it reads do not grow with the log."""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Count, Pipeline, Tumbling
from clew.connectors import files, generator
from clew.ids import EventId, InputSetId, Port
from clew.lineage.steps import Step
from clew.lineage.trace import Trace, backward, forward
from clew.provenance.records import records_forward
from clew.retrace import diff, replay
from clew.run import Log, run
from clew.store.sqlite_writer import SqliteLog


def chain(directory: Path, events: int) -> Pipeline:
    pipeline = Pipeline("chain")
    source = pipeline.source("source", generator(lambda index: pa.table({"n": [index]}), events), max_turn_events=50)

    @pipeline.operator(source, max_turn_events=50)
    def each(table: pa.Table) -> pa.Table:
        return table

    @pipeline.operator(each, window=Count(10), max_turn_events=50)
    def tens(table: pa.Table) -> pa.Table:
        return table.slice(0, 1)

    pipeline.sink(tens, files(directory / "out"))
    return pipeline


def logged(pipeline: Pipeline, directory: Path) -> str:
    directory.mkdir()
    url = f"sqlite:///{directory / 'log.db'}"
    run(pipeline, log=url, engine="inline")
    return url


def late(directory: Path, events: int) -> str:
    """A pipeline whose event in the middle is cut into twenty that come too late, among some that do not."""

    def make(index: int) -> pa.Table:
        return pa.table({"t": [-1_000 if index == events // 2 else index] * 16, "k": list(range(16))})

    pipeline = Pipeline("late")
    source = pipeline.source("source", generator(make, events), max_turn_events=50)

    @pipeline.operator(source, max_turn_events=50)
    def parts(table: pa.Table) -> list[pa.Table]:
        return [table.slice(n % 16, 1) for n in range(20)] if table["t"][0].as_py() < 0 else [table]

    windows = pipeline.port("parts").window(Tumbling(10, on="t", by="k"))
    pipeline.sink(windows.aggregate("k", name="windows", n="count"), files(directory / "out"))
    return logged(pipeline, directory)


def failing(directory: Path, events: int) -> Pipeline:
    """A pipeline that sets aside four records of five."""
    pipeline = Pipeline("failing")
    source = pipeline.source(
        "source", generator(lambda index: pa.table({"n": list(range(5))}), events), max_turn_events=50
    )

    def first_only(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"]:
            raise ValueError("not the first")
        return row

    kept = source.map(first_only, name="kept", on_error="quarantine", attempts=1, deterministic=True, max_turn_events=1)
    pipeline.sink(kept, files(directory / "out"))
    return pipeline


class Counting:
    """Counts the rows that SQLite gives, and what it does to find them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.steps = 0

    def _step(self) -> None:
        self.steps += 1

    def __call__(self, ask: Callable[[], object]) -> int:
        read = []
        self.steps = 0
        fetch = SqliteLog.fetch

        def counted(log: SqliteLog, sql: str, *values: object) -> list[tuple[object, ...]]:
            log._connection.set_progress_handler(self._step, 10)
            rows = fetch(log, sql, *values)
            log._connection.set_progress_handler(None, 0)
            read.append(len(rows))
            return rows

        with self._monkeypatch.context() as patch:
            patch.setattr(SqliteLog, "fetch", counted)
            assert ask()
        return sum(read)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(monkeypatch)


def rows_read(directory: Path, events: int, rows: Counting) -> tuple[int, int]:
    """Return how many rows a trace back and a trace forward read, in the middle of a log."""
    with closing(Log.at(logged(chain(directory, events), directory), "chain").open("chain")) as store:
        made, taken = EventId(Port("tens", "out"), events // 20), EventId(Port("source", "out"), events // 2)
        back = rows(lambda: len(backward(store, made).events(Port("source", "out"))) == 10)
        return back, rows(lambda: forward(store, taken).events(Port("tens", "out")))


def test_the_rows_that_a_trace_reads_do_not_grow_with_the_log(tmp_path: Path, rows: Counting) -> None:
    small = rows_read(tmp_path / "small", 200, rows)
    large = rows_read(tmp_path / "large", 4_000, rows)
    # How turns were cut may differ by a row or two.
    assert large[0] <= small[0] + 8
    assert large[1] <= small[1] + 8


def cost_of_late_ones(directory: Path, events: int, rows: Counting) -> tuple[int, int]:
    """Return what is read, and done, to say of twenty events that they came too late."""
    with closing(Log.at(late(directory, events), "late").open("late")) as store:
        taken = EventId(Port("source", "out"), events // 2 + 1)
        return rows(lambda: len(forward(store, taken).passed) == 20), rows.steps


def test_the_rows_that_tell_of_late_events_do_not_grow_with_the_log(tmp_path: Path, rows: Counting) -> None:
    small = cost_of_late_ones(tmp_path / "small", 100, rows)
    large = cost_of_late_ones(tmp_path / "large", 1_000, rows)
    assert large[0] <= small[0] + 8
    # What is found by halves takes a step more where there is twice as much.
    assert large[1] <= small[1] * 1.5


def cost_with_quarantine(directory: Path, events: int, rows: Counting) -> list[tuple[int, int]]:
    """Return what is read, and done, by a trace forward, by running one Input Set again, and by comparing all."""
    pipeline = failing(directory, events)
    url, graph, taken = logged(pipeline, directory), pipeline.graph(), EventId(Port("source", "out"), events // 2)
    with closing(Log.at(url, "failing").open("failing")) as store:
        asides = rows(lambda: [len(one.asides) for one in forward(store, taken).steps] == [4, 0])
    costs = [(asides, rows.steps)]
    costs.append((rows(lambda: [one.same for one in replay(graph, "kept", taken, log=url)] == [True]), rows.steps))
    compared = rows(lambda: [one.same for one in diff(graph, "kept", log=url)] == [True] * events)
    return [*costs, (compared, rows.steps)]


def test_what_is_asked_does_not_cost_more_with_more_in_quarantine(tmp_path: Path, rows: Counting) -> None:
    small = cost_with_quarantine(tmp_path / "small", 40, rows)
    large = cost_with_quarantine(tmp_path / "large", 240, rows)
    # All Input Sets are compared: of six times as many, six times as much.
    for before, after, times in zip(small, large, (1, 1, 6)):
        assert after[0] <= before[0] * times + 8
        # What is found by halves takes a step more where there is twice as much.
        assert after[1] <= before[1] * times * 1.5


def cost_after_collection(directory: Path, events: int, rows: Counting) -> tuple[int, int]:
    """Return what is read, and done, by a comparison of which collection has left the last twenty Input Sets."""
    pipeline = chain(directory, events)
    url, graph = logged(pipeline, directory), pipeline.graph()
    with closing(Log.at(url, "chain").open("chain")) as store:
        store.collect(keep=dict.fromkeys((Port("source", "out"), Port("each", "out")), events - 19))
    return rows(lambda: [one.input_set for one in diff(graph, "each", log=url)] == last(20, events)), rows.steps


def last(count: int, events: int) -> list[int]:
    return list(range(events - count + 1, events + 1))


def test_a_comparison_does_not_cost_more_with_more_collected(tmp_path: Path, rows: Counting) -> None:
    small = cost_after_collection(tmp_path / "small", 100, rows)
    large = cost_after_collection(tmp_path / "large", 900, rows)
    assert large[0] <= small[0] + 8
    assert large[1] <= small[1] * 1.5


@pytest.mark.parametrize("at_once", [1, 3, 10, 1_000])
def test_a_comparison_begins_with_the_first_input_set_of_which_anything_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("clew.retrace._WORN_AT_ONCE", at_once)
    pipeline = chain(tmp_path / "run", 150)
    url = logged(pipeline, tmp_path / "run")
    with closing(Log.at(url, "chain").open("chain")) as store:
        store.collect(keep={Port("source", "out"): 96, Port("each", "out"): 96, Port("tens", "out"): 1})
    found = [(one.input_set, one.expired) for one in diff(pipeline.graph(), "tens", log=url)]
    # The tenth has lost half of its events.
    assert found == [(10, True), *((number, False) for number in range(11, 16))]


def asked_forward(rows: int, reached: set[int]) -> int:
    """Return how many times a trace forward narrows an Output Set of so many records down, to find some of them."""
    taken, made = EventId(Port("source", "out"), 1), EventId(Port("made", "out"), 1)
    asked = []

    def narrow(_: Step, places: Mapping[EventId, tuple[int, ...]]) -> Mapping[EventId, tuple[int, ...]]:
        asked.append(places)
        return {taken: tuple(0 if place in reached else 1 for place in places[made])}

    trace = Trace(taken, "forward", (Step("made", InputSetId(1), (taken,), (made,)),))
    found = records_forward(trace, 0, lambda _: rows, narrow).records
    assert found == {taken: (0,), **({made: tuple(sorted(reached))} if reached else {})}
    return len(asked)


@pytest.mark.parametrize("reached", [set(), {0}, {5}, {15_999}, {0, 15_999}, set(range(8_000, 8_016))], ids=len)
def test_what_a_trace_forward_of_a_record_asks_grows_with_what_it_finds(reached: set[int]) -> None:
    # By quarters, a record of 16,000 is found in seven steps.
    assert asked_forward(16_000, reached) <= 1 + 4 * 7 * len(reached)


def test_a_trace_forward_finds_all_records_that_a_record_has_a_part_in() -> None:
    for rows in range(12):
        for reached in (set(range(rows)), set(range(0, rows, 2)), set(range(0, rows, 5))):
            asked_forward(rows, reached)
    assert asked_forward(1_000, set(range(1_000))) < 1_400
