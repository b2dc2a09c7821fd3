"""`clew verify` says its verdict in a word, in its exit code and in JSON, with the smallest explanation first."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.app.pipelines import call, finish, log_url, start, write
from tests.app.test_terminal import Terminal
from tests.model.runs import change, rows

TOTALS = """
import os

import pyarrow as pa
import pyarrow.compute as pc

from clew import Count, Pipeline, generator, sqlite

HERE = os.path.dirname(os.path.abspath(__file__))
pipeline = Pipeline("totals")
other = Pipeline("other")
other.source("numbers", generator(lambda index: pa.table({"n": [index]}), 3))


def make(index):
    print("made", index)
    return pa.table({"n": [index, index + 1], "x": [index / 3, 1.0]})


numbers = pipeline.source("numbers", generator(make, 30), max_turn_events=7)


@pipeline.operator(numbers, window=Count(4), deterministic=True, max_turn_events=7)
def sums(table: pa.Table) -> pa.Table:
    return pa.table({"n": [pc.sum(table["n"]).as_py()], "x": [pc.sum(table["x"]).as_py()]})


pipeline.sink(sums, sqlite(os.path.join(HERE, "sink.db"), table="sums"))
"""

LIGHT = """
import sys
from clew.app.main import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    assert end.code == 0, end.code
heavy = [name for name in ("pyspark", "py4j") if name in sys.modules]
assert not heavy, heavy
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A pipeline whose run has finished."""
    path = write(tmp_path, "totals_file.py", TOTALS) + ":pipeline"
    trace = str(tmp_path / "trace.jsonl")
    done = call("run", path, "--engine", "inline", "--log", log_url(tmp_path), "--trace", trace)
    assert done.exit_code == 0, done.output
    return path


def verify(file: str, tmp_path: Path, *words: str) -> Result:
    return call("verify", file, "--log", log_url(tmp_path), *words)


def test_a_run_that_is_explained(file: str, tmp_path: Path) -> None:
    result = verify(file, tmp_path)
    assert result.exit_code == 0
    verdict, through = result.stdout.splitlines()[-2:]
    assert verdict == "explained: a run without failures could have left what is there"
    writes = len(rows(tmp_path / "log.db", "write_action"))
    counted = f"71 events, 60 source records, {8 + writes} Input Sets, 8 Output Sets, 8 sink records"
    assert through == f"gone through: {counted}"


def test_a_run_that_is_not_explained(file: str, tmp_path: Path) -> None:
    change(tmp_path / "sink.db", "UPDATE sums SET n = 17 WHERE n = 16")
    result = verify(file, tmp_path)
    assert result.exit_code == 1
    verdict, expected, found, through = result.stdout.splitlines()[-4:]
    assert verdict == (
        "not explained: sums_sink, event sums.out#1, Input Set 1: a record of write action #1 is not in table sums"
    )
    assert expected.startswith("  expected n 16, x ")
    assert found.startswith("  found    n 17, x ")
    assert through.startswith("gone through: ")
    assert "error: " not in result.stderr


def test_the_smallest_explanation_comes_first_and_the_others_are_counted(file: str, tmp_path: Path) -> None:
    change(tmp_path / "sink.db", "UPDATE sums SET n = 17 WHERE n = 16")
    change(tmp_path / "log.db", "UPDATE ordered_lineage SET input_set = input_set + 1 WHERE operator = 'sums'")
    told = verify(file, tmp_path).stdout
    assert "not explained: sums, event numbers.out#1, Input Set 1: the Output Set on port out is not what" in told
    assert "and 1 more finding, which --json lists" in told
    answer = json.loads(verify(file, tmp_path, "--json").stdout)
    assert [finding["operator"] for finding in answer["findings"]] == ["sums", "sums_sink"]


def test_what_is_wrong_comes_before_what_is_undecided(file: str, tmp_path: Path) -> None:
    change(tmp_path / "sink.db", "UPDATE sums SET n = 17 WHERE n = 16")
    answer = json.loads(verify(file, tmp_path, "--json", "--trace", _trace_of_nobody(tmp_path)).stdout)
    assert answer["verdict"] == "not explained"
    assert [finding["weight"] for finding in answer["findings"]] == ["wrong", "undecided"]


def _trace_of_nobody(tmp_path: Path) -> str:
    step = {"kind": "started", "operator": "", "process": 1, "at": 0.0, "run": "of nobody"}
    (tmp_path / "nobody.jsonl").write_text(json.dumps(step) + "\n")
    return str(tmp_path / "nobody.jsonl")


def test_a_run_that_has_not_finished_is_undecided(tmp_path: Path) -> None:
    file = write(tmp_path, "totals_file.py", TOTALS) + ":pipeline"
    words = ("run", file, "--engine", "inline", "--log", log_url(tmp_path))
    finish(start(*words, CLEW_FAULTS="before-write@sums_sink#1"))
    result = verify(file, tmp_path)
    assert result.exit_code == 4
    assert "undecided: totals: the run has not finished (" in result.stdout
    assert "run it to its end, and verify it then" in result.stdout


def test_the_verdict_as_json(file: str, tmp_path: Path) -> None:
    answer = json.loads(verify(file, tmp_path, "--json").stdout)
    assert answer["verdict"] == "explained"
    assert answer["pipeline"] == "totals"
    assert answer["findings"] == []
    assert answer["counts"]["sink records"] == 8
    assert answer["seconds"] >= 0
    change(tmp_path / "sink.db", "DELETE FROM sums WHERE n = 16")
    result = verify(file, tmp_path, "--json")
    assert result.exit_code == 1
    (finding,) = json.loads(result.stdout)["findings"]
    assert finding["weight"] == "wrong"
    assert (finding["operator"], finding["event"], finding["input_set"]) == ("sums_sink", "sums.out#1", 1)
    assert (finding["expected"].partition(",")[0], finding["found"]) == ("n 16", "no record")


def test_operators_that_were_only_counted_are_named(tmp_path: Path) -> None:
    file = write(tmp_path, "totals_file.py", TOTALS.replace("deterministic=True, ", "")) + ":pipeline"
    assert call("run", file, "--engine", "inline", "--log", log_url(tmp_path)).exit_code == 0
    result = verify(file, tmp_path)
    assert result.exit_code == 0
    verdict, counted = result.stdout.splitlines()[:2]
    assert verdict.startswith("explained: ")
    assert counted == "counted, not computed again: Output Sets of sums, not declared deterministic"
    assert json.loads(verify(file, tmp_path, "--json").stdout)["counted"] == ["sums"]


def test_what_functions_print_is_no_part_of_the_answer(file: str, tmp_path: Path) -> None:
    path = Path(file.removesuffix(":pipeline"))
    path.write_text(path.read_text().replace("    return pa.table", "    print('called')\n    return pa.table"))
    result = verify(file, tmp_path)
    assert result.stdout.startswith("explained: ")
    assert "called" in result.stderr


@pytest.mark.parametrize(
    ("table", "edit", "of"),
    [
        ("sent", "UPDATE sent SET headers = '[1, 2' WHERE operator = 'sums'", "sums.out"),
        ("sent", "UPDATE sent SET headers = x'ff00' WHERE operator = 'numbers'", "numbers.out"),
        ("body", "UPDATE body SET lengths = '{}', data = 'text' WHERE operator = 'sums'", "sums.out"),
        ("body", "UPDATE body SET lengths = CAST(x'c328' AS TEXT) WHERE operator = 'numbers'", "numbers.out"),
        ("write_action", "UPDATE write_action SET events = 'none'", "sums_sink.out"),
        ("lineage", "UPDATE ordered_lineage SET counts = '[7]' WHERE operator = 'sums'", "sums.out"),
        ("port_schema", "UPDATE port_schema SET schema = x'00' WHERE operator = 'sums'", "sums.out"),
        ("done", "UPDATE done SET first = 'zz' WHERE operator = 'sums'", "sums"),
        ("done_write", "UPDATE done_write SET count = 'zz'", "sums_sink.out"),
        ("collected", "INSERT INTO collected VALUES ('numbers', 'out', 'zz')", "numbers.out"),
        ("collected", "INSERT INTO collected VALUES ('sums_sink', 'writes:out', 'zz')", "sums_sink.writes:out"),
        ("aside", "INSERT INTO aside VALUES ('sums', 1, 1, '{', '', '', '[7', '', 'held', NULL)", "sums"),
        ("latest_state", "UPDATE latest_state SET state = '[]' WHERE operator = 'sums'", "sums"),
        ("decision", "INSERT INTO decision VALUES ('sums', 1, 'none')", "sums"),
        ("rejoined", "INSERT INTO rejoined VALUES ('sums', 'in', 1, 'zz', 1, 1)", "sums.in"),
        ("ack", "UPDATE ack SET count = 'zz' WHERE operator = 'sums'", "sums.in"),
        ("meta", "UPDATE meta SET value = '7' WHERE key = 'uncaptured'", "uncaptured"),
        ("meta", "UPDATE meta SET value = '7' WHERE key = 'captures'", "captures"),
    ],
)
def test_a_log_that_cannot_be_read_in_some_place_is_named(
    file: str, tmp_path: Path, table: str, edit: str, of: str
) -> None:
    change(tmp_path / "log.db", edit)
    result = verify(file, tmp_path)
    assert result.exit_code == 1, result.output
    assert f"table {table} of the log holds what cannot be read, of {of}: " in result.stdout
    assert "error: " not in result.stderr


@pytest.mark.parametrize(
    ("edit", "fact"),
    [
        (
            "UPDATE ack SET count = 999999999 WHERE operator = 'sums' AND first = "
            "(SELECT max(first) FROM ack WHERE operator = 'sums')",
            "was taken and never sent",
        ),
        (
            "INSERT INTO rejoined VALUES ('sums', 'in', 1, 999999999, 1, 1)",
            "joined an Input Set later that it does not",
        ),
        ("UPDATE ordered_lineage SET counts = '[[999999999,1]]' WHERE operator = 'numbers'", "its lineage"),
    ],
)
def test_a_log_that_tells_of_more_than_was_ever_sent_is_gone_through_as_far_as_that(
    file: str, tmp_path: Path, edit: str, fact: str
) -> None:
    change(tmp_path / "log.db", edit)
    result = verify(file, tmp_path)
    assert result.exit_code == 1, result.output
    assert fact in result.stdout


def test_a_log_whose_version_is_no_number_is_refused(file: str, tmp_path: Path) -> None:
    change(tmp_path / "log.db", "UPDATE meta SET value = 'x' WHERE key = 'schema_version'")
    result = verify(file, tmp_path)
    assert result.exit_code == 1
    assert "did not expect" not in result.stderr
    assert "'x'" in result.stderr


@pytest.mark.parametrize("table", ["body", "done_write", "action"])
def test_a_log_that_is_damaged_is_told_from_what_is_outside(file: str, tmp_path: Path, table: str) -> None:
    change(tmp_path / "log.db", f"DROP TABLE {table}", "UPDATE meta SET value = value")
    result = verify(file, tmp_path)
    assert result.exit_code == 1
    assert f"error: the log cannot be read: no such table: {table}; if it is damaged, restore it" in result.stderr


@pytest.mark.parametrize(
    "step",
    [
        {"kind": "committed", "sent": None},
        {"kind": "committed", "sent": [["out", 1]]},
        {"kind": "committed", "writes": [["out", 0, 1, 1]]},
        {"kind": "committed", "writes": 5},
        {"kind": "committed", "incarnation": "x"},
        {"kind": "written", "first": 1, "count": 1},
    ],
)
def test_a_step_of_a_trace_that_cannot_be_read_is_undecided(file: str, tmp_path: Path, step: dict[str, Any]) -> None:
    trace = tmp_path / "trace.jsonl"
    count = len(trace.read_text().splitlines())
    with trace.open("a") as lines:
        lines.write(json.dumps({"operator": "sums_sink", "process": 1, "at": 1.0, **step}) + "\n")
    result = verify(file, tmp_path, "--trace", str(trace))
    assert result.exit_code == 4, result.output
    assert f"undecided: trace: step {count + 1} of the trace tells what cannot be read (" in result.stdout
    assert "; give the trace as `clew run --trace` wrote it" in result.stdout


def test_an_empty_trace_is_undecided(file: str, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    result = verify(file, tmp_path, "--trace", str(tmp_path / "empty.jsonl"))
    assert result.exit_code == 4
    assert "undecided: trace: the trace is empty" in result.stdout


def test_a_file_that_is_no_trace_is_refused_before_anything_is_gone_through(file: str, tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text("no trace\n")
    change(tmp_path / "log.db", "DROP TABLE sent", "UPDATE meta SET value = value")
    result = verify(file, tmp_path, "--trace", str(tmp_path / "trace.jsonl"), "--trace", str(tmp_path / "text.jsonl"))
    assert "text.jsonl is no trace" in result.stderr


def test_a_trace_is_judged_too(file: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    assert verify(file, tmp_path, "--trace", str(trace)).exit_code == 0
    lines = trace.read_text().splitlines()
    twice = next(line for line in lines if '"sent"' in line)
    (tmp_path / "more.jsonl").write_text(f"{twice}\n")
    result = verify(file, tmp_path, "--trace", str(trace), "--trace", str(tmp_path / "more.jsonl"))
    assert result.exit_code == 1
    assert "was logged twice: what was seen of it was taken back" in result.stdout


@pytest.mark.parametrize(("name", "text"), [("none.jsonl", None), ("text.jsonl", "no trace\n"), ("json.jsonl", "[]\n")])
def test_what_is_no_trace_is_refused(file: str, tmp_path: Path, name: str, text: str | None) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    result = verify(file, tmp_path, "--trace", str(tmp_path / name))
    assert result.exit_code == 1
    assert "name a file that `clew run --trace` has written" in result.stderr
    assert result.stderr.startswith("error: ")


def test_without_a_log_it_says_so_and_makes_none(tmp_path: Path) -> None:
    file = write(tmp_path, "totals_file.py", TOTALS) + ":pipeline"
    result = verify(file, tmp_path)
    assert result.exit_code == 1
    assert f"pipeline totals has no log at {log_url(tmp_path)}: it has not been run there; `clew run" in result.stderr
    assert json.loads(verify(file, tmp_path, "--json").stdout)["exists"] is False
    assert not (tmp_path / "log.db").exists()


def test_a_log_of_another_pipeline_is_refused(file: str, tmp_path: Path) -> None:
    result = verify(file.replace(":pipeline", ":other"), tmp_path)
    assert result.exit_code == 1
    assert "error: this log is of pipeline totals, not other; use another --log" in result.stderr


def test_a_wrong_command_line_is_the_usual_two(file: str, tmp_path: Path) -> None:
    assert verify(file, tmp_path, "--engine", "abacus").exit_code == 2


def test_the_log_is_not_changed(file: str, tmp_path: Path) -> None:
    before = (tmp_path / "log.db").read_bytes(), (tmp_path / "sink.db").read_bytes()
    verify(file, tmp_path)
    assert ((tmp_path / "log.db").read_bytes(), (tmp_path / "sink.db").read_bytes()) == before


def test_a_small_run_is_verified_without_spark(file: str, tmp_path: Path) -> None:
    words = ["verify", file, "--log", log_url(tmp_path)]
    done = subprocess.run([sys.executable, "-c", LIGHT, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_person_at_a_terminal_sees_how_far_it_is(file: str, tmp_path: Path) -> None:
    terminal = Terminal("verify", file, "--log", log_url(tmp_path))
    assert terminal.finish() == 0, terminal.seen
    shown = [
        line for line in terminal.seen.replace("\r", "").splitlines() if line.startswith(("verifying", "explained"))
    ]
    places = ["numbers", "sums", "sums_sink", "sinks"]
    assert shown[:-1] == [f"verifying: {place}" for place in places]
    assert shown[-1].startswith("explained: ")


def test_help_tells_the_exit_codes() -> None:
    told = " ".join(call("verify", "--help").stdout.split())
    assert "0 it is explained; 1 it is not, or there is no log; 2 the command line is wrong; 4 it cannot be" in told


def test_a_function_that_ends_the_process_does_not_give_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = "sums(table: pa.Table) -> pa.Table:\n    if 'LEAVE' in os.environ:\n        raise SystemExit(0)\n"
    file = write(tmp_path, "leaving.py", TOTALS.replace("sums(table: pa.Table) -> pa.Table:\n", gone)) + ":pipeline"
    assert call("run", file, "--engine", "inline", "--log", log_url(tmp_path)).exit_code == 0
    assert verify(file, tmp_path).exit_code == 0
    monkeypatch.setenv("LEAVE", "1")
    done = verify(file, tmp_path)
    assert done.exit_code == 1
    assert "its Output Set cannot be computed again: SystemExit: 0" in done.output
