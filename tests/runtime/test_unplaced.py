"""A record that a window cannot place is a failure of the window's operator, and of nobody else."""

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from clew import Context, Count, InputSet, Operator, Pipeline, Session, Tumbling, files, generator
from clew.errors import ClewError, NotPlaced
from clew.pipeline.windows import Window
from clew.run import decide_quarantined, quarantine_of, quarantined_records, run, verify
from tests.app.pipelines import call, write
from tests.spark.outside import rows

BAD = 3


class Mended:
    yes = False


@pytest.fixture(autouse=True)
def _broken() -> None:
    Mended.yes = False


def times(index: int) -> pa.Table:
    """Four records; one of one event has no time."""
    numbers = list(range(4 * index, 4 * index + 4))
    given = [None if index == BAD and place == 2 else n for place, n in enumerate(numbers)]
    return pa.table({"n": numbers, "t": pa.array(given, pa.int64()), "k": [n % 2 for n in numbers]})


def declared(tmp_path: Path, window: Window, made: Any = times, **settings: Any) -> Pipeline:
    pipeline = Pipeline("timed")
    source = pipeline.source("times", generator(made, 6))
    # Before the window: nothing of this operator's is anybody's business but its own.
    same = source.map(lambda record: record, name="same", on_error="quarantine", deterministic=True)

    @pipeline.operator(same, window=window, **{"deterministic": True, **settings})
    def sums(table: pa.Table) -> pa.Table:
        return table.select(["n"])

    pipeline.sink(sums, files(tmp_path / "out"))
    return pipeline


def place(tmp_path: Path) -> dict[str, Any]:
    return {"log": f"sqlite:///{tmp_path}/log.db"}


def ran(pipeline: Pipeline, tmp_path: Path) -> int:
    return run(pipeline, **place(tmp_path), engine="inline").quarantined


def found(tmp_path: Path) -> Counter[int]:
    return Counter(row["n"] for row in rows(tmp_path / "out"))


def rest(*without: int) -> Counter[int]:
    return Counter(n for n in range(24) if n // 4 not in without)


def explained(pipeline: Pipeline, tmp_path: Path) -> None:
    verdict = verify(pipeline, **place(tmp_path), engine="inline")
    assert verdict.word == "explained", verdict.findings


WINDOWS = {"tumbling": Tumbling(5, on="t"), "session": Session(2, on="t"), "keyed": Tumbling(5, on="t", by="k")}


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS.keys())
def test_the_windows_operator_stops_and_names_event_and_record(window: Window, tmp_path: Path) -> None:
    with pytest.raises(NotPlaced) as stopped:
        ran(declared(tmp_path, window), tmp_path)
    name = type(window).__name__
    assert str(stopped.value) == (
        "operator sums cannot place same.out#4, record 2 {'n': 14, 't': None, 'k': 0}: column t has type int64: it has "
        f"records without a time, but {name} must place every record; filter them out before this operator\n"
        'mend its declaration and run again, or let it set such events aside with on_error="quarantine"'
    )


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS.keys())
def test_it_is_set_aside_and_everything_else_is_exact(window: Window, tmp_path: Path) -> None:
    pipeline = declared(tmp_path, window, on_error="quarantine")
    assert ran(pipeline, tmp_path) == 1
    (one,) = quarantine_of(pipeline.graph(), **place(tmp_path))
    assert (one.operator, one.events, one.row.error["kind"]) == ("sums", "same.out#4", "NotPlaced")
    assert one.row.error["message"].startswith("record 2 {'n': 14, 't': None, 'k': 0}: column t has type int64")
    assert quarantined_records(pipeline.graph(), one, **place(tmp_path))["in"]["n"].to_pylist() == [12, 13, 14, 15]
    with pytest.raises(ClewError, match="sums#1 cannot be tried again: its event had no place in any window"):
        decide_quarantined(pipeline.graph(), [one], "retry", **place(tmp_path))
    decide_quarantined(pipeline.graph(), [one], "drop", **place(tmp_path))
    assert ran(pipeline, tmp_path) == 0
    assert found(tmp_path) == rest(BAD)
    explained(pipeline, tmp_path)


def test_a_run_that_stopped_goes_on_when_such_events_may_be_set_aside(tmp_path: Path) -> None:
    with pytest.raises(NotPlaced):
        ran(declared(tmp_path, Tumbling(5, on="t")), tmp_path)
    assert ran(declared(tmp_path, Tumbling(5, on="t"), on_error="quarantine"), tmp_path) == 1


def test_a_run_that_stopped_goes_on_when_the_window_was_mended(tmp_path: Path) -> None:
    with pytest.raises(NotPlaced):
        ran(declared(tmp_path, Tumbling(5, on="nope")), tmp_path)
    assert ran(declared(tmp_path, Tumbling(5, on="n")), tmp_path) == 0
    assert found(tmp_path) == rest()


@pytest.mark.parametrize(
    ("window", "reason"),
    [
        (Tumbling(5, on="nope"), r"Tumbling\(on='nope'\) finds no such column; the records have n, t, k"),
        (Tumbling("5 minutes", on="n"), "column n has type int64: the size of Tumbling is of another kind"),
        (Count(2, by="nope"), r"Count\(by='nope'\) finds no such column; the records have n, t, k"),
    ],
    ids=["no column", "wrong type", "no key"],
)
def test_where_all_records_are_to_blame_the_event_is_named(window: Window, reason: str, tmp_path: Path) -> None:
    with pytest.raises(NotPlaced, match=rf"operator sums cannot place same.out#1: {reason}"):
        ran(declared(tmp_path, window), tmp_path)


class Own(Operator):
    """An operator of the user's, whose own code tells the facts."""

    def initial(self) -> dict[str, Any]:
        return {"taken": 0}

    def facts(self, table: pa.Table) -> Any:
        return -1 if Mended.yes and table["t"].null_count else int(pc.sum(table["t"], skip_nulls=False).as_py())

    def assign(self, event: Any, state: Any) -> Any:
        assert isinstance(event.facts, int)
        state["taken"] += 1
        return [state["taken"]]

    def ready(self, state: Any, opened: Any) -> Any:
        return list(opened)

    def generate(self, input_set: InputSet, context: Context) -> pa.Table:
        return input_set.table().select(["n"])


def general(tmp_path: Path, **settings: Any) -> Pipeline:
    pipeline = Pipeline("own")
    source = pipeline.source("times", generator(times, 6))
    pipeline.general("own", Own(), source, deterministic=True, **settings).sink(files(tmp_path / "out"))
    return pipeline


def test_facts_of_an_own_operator_that_fail_are_its_own_failure(tmp_path: Path) -> None:
    with pytest.raises(NotPlaced) as stopped:
        ran(general(tmp_path), tmp_path)
    message = str(stopped.value)
    assert message.startswith("operator own cannot place times.out#4: TypeError: int() argument must be")
    assert "in facts" in message
    Mended.yes = True
    assert ran(general(tmp_path), tmp_path) == 0
    assert found(tmp_path) == rest()
    # What tells facts decides on Input Sets, so those of the code before cannot be followed.
    (finding,) = verify(general(tmp_path), **place(tmp_path), engine="inline").findings
    assert (finding.weight, finding.operator) == ("undecided", "own")


def test_what_was_set_aside_stays_explained_when_the_code_is_mended(tmp_path: Path) -> None:
    pipeline = general(tmp_path, on_error="quarantine")
    assert ran(pipeline, tmp_path) == 1
    decide_quarantined(pipeline.graph(), quarantine_of(pipeline.graph(), **place(tmp_path)), "drop", **place(tmp_path))
    Mended.yes = True
    assert ran(pipeline, tmp_path) == 0
    assert found(tmp_path) == rest(BAD)
    explained(pipeline, tmp_path)


def test_the_end_of_a_stream_sets_the_rest_free(tmp_path: Path) -> None:
    """The first event and the last one have no place; windows neither wait for them nor count them as late."""

    def ends(index: int) -> pa.Table:
        first, *others = range(4 * index, 4 * index + 4)
        given = [None if index in (0, 5) else first, *others]
        return pa.table({"n": [first, *others], "t": pa.array(given, pa.int64())})

    pipeline = declared(tmp_path, Tumbling(5, on="t", late="late"), ends, on_error="quarantine")
    assert ran(pipeline, tmp_path) == 2
    asides = quarantine_of(pipeline.graph(), **place(tmp_path))
    assert [one.events for one in asides] == ["same.out#1", "same.out#6"]
    decide_quarantined(pipeline.graph(), asides, "drop", **place(tmp_path))
    assert ran(pipeline, tmp_path) == 0
    assert found(tmp_path) == rest(0, 5)
    explained(pipeline, tmp_path)


def test_verify_finds_an_event_without_a_place_that_was_not_set_aside(tmp_path: Path) -> None:
    pipeline = declared(tmp_path, Tumbling(5, on="t"), on_error="quarantine")
    ran(pipeline, tmp_path)
    asides = quarantine_of(pipeline.graph(), **place(tmp_path))
    decide_quarantined(pipeline.graph(), asides, "drop", **place(tmp_path))
    ran(pipeline, tmp_path)
    with sqlite3.connect(tmp_path / "log.db") as log:
        ((decision,),) = log.execute("SELECT decision FROM decision WHERE operator = 'sums'").fetchall()
        assert json.loads(decision) == {"": [[1, None]]}
        log.execute("DELETE FROM aside")
    (finding,) = verify(pipeline, **place(tmp_path), engine="inline").findings
    assert (finding.event, finding.fact) == ("same.out#4", "has no place in any window, and was not set aside")


def test_verify_finds_that_something_was_made_of_it(tmp_path: Path) -> None:
    pipeline = declared(tmp_path, Tumbling(5, on="t"), on_error="quarantine", deterministic=False)
    ran(pipeline, tmp_path)
    asides = quarantine_of(pipeline.graph(), **place(tmp_path))
    decide_quarantined(pipeline.graph(), asides, "drop", **place(tmp_path))
    ran(pipeline, tmp_path)
    with sqlite3.connect(tmp_path / "log.db") as log:
        log.execute("DELETE FROM ordered_lineage WHERE operator = 'sums'")
        made = (asides[0].row.input_set, "[[1, 1]]")
        log.execute("INSERT INTO ordered_lineage VALUES ('sums', 'out', 1, 1, ?, ?)", made)
    findings = verify(pipeline, **place(tmp_path), engine="inline").findings
    assert any("yet something was made of it" in str(finding) for finding in findings), findings


PIPELINE = """
import pyarrow as pa
from clew import Pipeline, Tumbling, files, generator

pipeline = Pipeline("timed")
times = pipeline.source("times", generator(lambda i: pa.table({"t": pa.array([None if i == 1 else i])}), 3))

@pipeline.operator(times, window=Tumbling(2, on="t"), on_error="quarantine")
def same(table: pa.Table) -> pa.Table:
    return table
"""


def test_the_command_line_leaves_it_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, "timed.py", PIPELINE)
    call("run", file, "--engine", "inline")
    assert "same#1 cannot be tried again" in call("quarantine", "retry", file, "same#1").stderr
    assert "nothing was named" in call("quarantine", "retry", file, "--all").stderr
    assert "same#1 is dropped by the next run: times.out#2" in call("quarantine", "drop", file, "--all").stdout
    assert call("run", file, "--engine", "inline").exit_code == 0
