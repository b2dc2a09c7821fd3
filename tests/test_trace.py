"""Traces: what happened in a run, told as it happens."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from clew import Pipeline
from clew.connectors import generator, sqlite
from clew.errors import SetupFailed
from clew.faultpoint import arm
from clew.run import run
from clew.trace import KINDS, TraceStep, load, record, recorded


def _pipeline(tmp_path: Path) -> Pipeline:
    pipeline = Pipeline("traced")
    source = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), 9), max_turn_events=2)
    pipeline.sink(source, sqlite(tmp_path / "sink.db", table="numbers"), max_turn_events=2)
    return pipeline


def _run(tmp_path: Path) -> list[TraceStep]:
    trace = tmp_path / "trace.jsonl"
    run(_pipeline(tmp_path), log=f"sqlite:///{tmp_path / 'log.db'}", engine="inline", trace=str(trace))
    return list(load(str(trace)))


def test_a_trace_tells_what_was_committed_and_written_and_how_it_ended(tmp_path: Path) -> None:
    steps = _run(tmp_path)
    assert (steps[0].kind, steps[-1].kind) == ("started", "stopped")
    sent = [span for step in steps if step.kind == "committed" for span in step.what.get("sent", [])]
    # Nine events and the end of the stream, each logged once, in order.
    assert [number for _, first, count, _ in sent for number in range(first, first + count)] == list(range(1, 11))
    written = [step for step in steps if step.kind == "written"]
    assert [step.what["first"] for step in written] == list(range(1, len(written) + 1))
    assert {step.kind for step in steps} <= set(KINDS)


def test_a_trace_tells_of_a_failure_and_of_the_restart(tmp_path: Path) -> None:
    (fault,) = arm("after-write@numbers_sink#2:raise")
    try:
        kinds = [step.kind for step in _run(tmp_path)]
    finally:
        arm()
    assert fault.fired
    assert kinds.index("failed") < kinds.index("restarted")
    # The write that was performed and not marked is found to be there.
    assert "settled" in kinds


def test_a_trace_goes_on_where_another_process_left_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for number in (1, 2):
        with recorded(str(path), number=number):
            record("failed", "front")
    assert [step.kind for step in load(str(path))] == ["started", "failed", "stopped"] * 2
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()[::3]] == [1, 2]


def test_a_line_that_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with recorded(str(path)):
        pass
    path.write_text(path.read_text() + '{"kind":"failed","op')
    assert [step.kind for step in load(str(path))] == ["started", "stopped"]


def test_a_trace_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SetupFailed, match="cannot be written"):
        run(_pipeline(tmp_path), engine="inline", log="memory:", trace=str(tmp_path / "no" / "trace.jsonl"))
    with pytest.raises(SetupFailed, match="leaves no trace"):
        run(_pipeline(tmp_path), engine="inline", recovery="none", trace=str(tmp_path / "trace.jsonl"))


def test_a_file_that_is_no_trace_is_not_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("years of work\n")
    with pytest.raises(SetupFailed, match="holds something else than a trace"), recorded(str(path)):
        pass
    assert path.read_text() == "years of work\n"
