"""`clew replay` and `clew diff`: what was made is made again, without a JVM; what would change is told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clew.ids import Port
from clew.run import Log
from tests.app.pipelines import call, write

SUMS = """
import os
import pyarrow as pa
import pyarrow.compute as pc
from clew import Connection, Count, Operator, Pipeline, files, generator

HERE = os.path.dirname(os.path.abspath(__file__))
pipeline = Pipeline("sums")
numbers = pipeline.source("numbers", generator(lambda i: pa.table({"n": [i, 10 * i]}), 8))


class Rates(Connection):
    def describe(self):
        return "rates"

    def read(self, action):
        # Another answer every time: only the log knows what it was.
        return pa.table({"rate": [int.from_bytes(os.urandom(3), "big")]})


class Rated(Operator):
    def assign(self, event, state):
        return [event.number]

    def ready(self, state, opened):
        return list(opened)

    def generate(self, input_set, context):
        rate = context.read("rates", %(asks)r)["rate"][0].as_py()
        return pa.table({"n": [rate + n for n in input_set.table()["n"].to_pylist()]})


rated = pipeline.general("rated", Rated(), numbers, reads={"rates": Rates()})


@pipeline.operator(numbers, window=Count(3))
def sums(table: pa.Table) -> pa.Table:
    total = pc.sum(table["n"]).as_py()
    return pa.table({"total": [%(total)s]})


pipeline.sink(sums, files(os.path.join(HERE, "sums")))
pipeline.sink(rated, files(os.path.join(HERE, "rated")))
"""
FIRST = {"total": "total", "asks": "EUR"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, "sums.py", SUMS % FIRST)
    assert call("run", path, "--engine", "inline").exit_code == 0
    return path


def rewrite(file: str, **changed: str) -> None:
    Path(file).write_text(SUMS % {**FIRST, **changed})


def test_an_output_set_is_made_again_from_what_it_was_made_of(file: str) -> None:
    answer = call("replay", file, "sums", "--event", "sums.out#2")
    assert answer.stdout == "sums, Input Set 2 (3 events), logged as sums.out#2: the same again\n"
    # The event that was taken leads there too.
    assert call("replay", file, "sums", "--event", "numbers.out#5").stdout == answer.stdout


def test_reads_are_answered_from_the_log(file: str) -> None:
    answer = call("replay", file, "rated", "--event", "rated.out#3", "--json")
    ((one,)) = json.loads(answer.stdout)
    assert (one["same"], one["inputs"]) == (True, ["numbers.out#3"])
    rewrite(file, asks="USD")
    answer = call("replay", file, "rated", "--event", "rated.out#3")
    assert answer.exit_code == 1
    assert "rated now reads 'USD' of rates, where it read 'EUR': the log has no answer to that" in answer.stdout


def test_what_a_changed_function_would_give_is_told(file: str) -> None:
    same = call("diff", file, "sums")
    assert (same.exit_code, same.stdout) == (0, "0 of 3 Input Sets of sums give something else\n")
    rewrite(file, total="total if total < 100 else total + 1")
    changed = call("diff", file, "sums")
    assert changed.exit_code == 1
    lines = changed.stdout.splitlines()
    assert lines[-1] == "2 of 3 Input Sets of sums give something else"
    assert lines[1:4] == ["  sums.out#2", "    logged total 132", "    now    total 133"]
    told = json.loads(call("diff", file, "sums", "--json").stdout)
    assert (told["input_sets"], [one["input_set"] for one in told["changed"]]) == (3, [2, 3])


def test_a_function_that_fails_now_is_shown_with_its_own_frames(file: str) -> None:
    rewrite(file, total="1 / 0")
    answer = call("replay", file, "sums", "--event", "sums.out#1")
    assert answer.exit_code == 1
    assert "fails now with ZeroDivisionError: division by zero" in answer.stdout
    assert "sums.py" in answer.stdout


def test_other_columns_are_told(file: str) -> None:
    Path(file).write_text((SUMS % FIRST).replace('{"total"', '{"sum"'))
    answer = call("replay", file, "sums", "--event", "sums.out#1")
    assert "logged columns ['total']" in answer.stdout
    assert "now    columns ['sum']" in answer.stdout


def test_the_debugger_stops_inside_the_function_and_no_jvm_is_started(file: str) -> None:
    command = [sys.executable, "-m", "clew.app.main", "replay", file, "sums", "--event", "sums.out#2", "--pdb"]
    ended = subprocess.run(
        command, input="p 'rows', table.num_rows\ncontinue\n", capture_output=True, text=True, timeout=120,
        env={**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "sums.py" in ended.stdout
    assert "('rows', 6)" in ended.stdout
    assert "the same again" in ended.stdout
    left = subprocess.run(command, input="quit\n", capture_output=True, text=True, timeout=120)
    assert (left.returncode, left.stderr) == (1, "the debugger was left before the function had ended\n")


YIELDING = """
import os
import pyarrow as pa
from clew import Operator, Pipeline, files, generator

HERE = os.path.dirname(os.path.abspath(__file__))
pipeline = Pipeline("yielding")
numbers = pipeline.source("numbers", generator(lambda i: pa.table({"n": [i]}), 3))


@pipeline.flat_map(numbers)
def twice(given):
    for half in range(2):
        yield {"n": given["n"], "half": half}


@pipeline.operator(numbers)
def apart(given: pa.Table):
    yield given
    yield given.slice(0, 0)


class Alone(Operator):
    def assign(self, event, state):
        return [event.number]

    def ready(self, state, opened):
        return list(opened)

    def generate(self, given, context):
        yield given.table()


alone = pipeline.general("alone", Alone(), numbers)


@pipeline.filter(numbers)
def kept(given):
    yield False


for name in ("twice", "apart", "alone", "kept"):
    pipeline.sink(pipeline.port(name), files(os.path.join(HERE, name)), name=f"{name}_sink")
"""


@pytest.mark.parametrize(
    ("operator", "line"),
    [
        ("twice", "for half in range(2):"), ("apart", "yield given"), ("alone", "yield given.table()"),
        # What it returns is true, whatever it yields: in the debugger too.
        ("kept", "yield False"),
    ],
)  # fmt: skip
def test_the_debugger_stops_inside_a_function_with_yield(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, "yielding.py", YIELDING)
    assert call("run", file, "--engine", "inline").exit_code == 0
    command = [sys.executable, "-m", "clew.app.main", "replay", file, operator, "--event", "numbers#2", "--pdb"]
    typed = "p 'type', type(given).__name__\ncontinue\n"
    ended = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert f"-> {line}\n(Pdb) ('type', " in ended.stdout
    assert ended.stdout.count("(Pdb)") == 2
    assert "the same again" in ended.stdout
    left = subprocess.run(command, input="quit\n", capture_output=True, text=True, timeout=120)
    assert (left.returncode, left.stderr) == (1, "the debugger was left before the function had ended\n")


@pytest.mark.parametrize(
    ("operator", "event", "said"),
    [
        ("numbers", "numbers.out#1", "numbers has no function that could be run again; there are: rated, sums"),
        ("sums", "rated.out#1", "rated.out#1 is neither an event that sums made nor one that it took; name one of"),
        ("sums", "sums.out#9", "sums.out#9 was never sent"),
    ],
)
def test_what_cannot_be_run_again_is_said(file: str, operator: str, event: str, said: str) -> None:
    answer = call("replay", file, operator, "--event", event)
    assert answer.exit_code == 1
    assert said in answer.stderr


@pytest.mark.parametrize("kept", [5, 6, 7, 9])
def test_an_input_set_of_which_events_are_gone_is_said(file: str, kept: int) -> None:
    collected(kept)
    answer = call("replay", file, "sums", "--event", "sums.out#2")
    assert answer.exit_code == 1
    assert "events of Input Set 2 of sums are no longer in the log, or may not all be; choose a later" in answer.stderr


def test_a_comparison_leaves_out_what_events_are_gone_of(file: str) -> None:
    collected(5)
    answer = call("diff", file, "sums")
    assert answer.exit_code == 0
    assert "0 of 1 Input Set of sums give something else" in answer.stdout
    assert "1 further Input Set was not run: events may be lost to collection, or another window" in answer.stdout
    assert json.loads(call("diff", file, "sums", "--json").stdout)["expired"] == [2]


def collected(kept: int) -> None:
    """Have the log forget the source's events before one."""
    store = Log.at(None, "sums").open("sums")
    store.collect(keep={Port("numbers", "out"): kept, Port("sums", "out"): 1})
    store.close()


@pytest.mark.parametrize("kept", [5, 6, 7, 9])
def test_a_trace_says_that_events_may_be_gone(file: str, kept: int) -> None:
    collected(kept)
    said = "of sums may have taken further events, which the log has forgotten; keep= of a lineage scope keeps more"
    assert said in call("trace", "back", file, "sums.out#2").stdout
    told = json.loads(call("trace", "back", file, "sums.out#2", "--json").stdout)
    assert told["may_lack_events"] == [{"operator": "sums", "input_set": 2}]


@pytest.mark.parametrize(("kept", "event"), [(4, 2), (4, 3), (6, 3), (7, 3)])
def test_a_trace_after_what_was_collected_is_whole(file: str, kept: int, event: int) -> None:
    collected(kept)
    assert "forgotten" not in call("trace", "back", file, f"sums.out#{event}").stdout
    assert json.loads(call("trace", "back", file, f"sums.out#{event}", "--json").stdout)["may_lack_events"] == []


@pytest.mark.parametrize(("kept", "event"), [(4, 2), (4, 3), (6, 3), (7, 3)])
def test_an_input_set_after_what_was_collected_is_run_again(file: str, kept: int, event: int) -> None:
    collected(kept)
    assert "the same again" in call("replay", file, "sums", "--event", f"sums.out#{event}").stdout


def test_an_output_that_was_collected_is_not_taken_for_nothing(file: str) -> None:
    store = Log.at(None, "sums").open("sums")
    store.collect(keep={Port("numbers", "out"): 1, Port("sums", "out"): 2})
    store.close()
    assert json.loads(call("diff", file, "sums", "--json").stdout) == {
        "operator": "sums", "input_sets": 2, "changed": [], "expired": [1],
    }  # fmt: skip
    said = "Input Set 1 of sums may have made further events, which the log has forgotten"
    assert said in call("trace", "forward", file, "numbers#1").stdout
    assert "forgotten" not in call("trace", "forward", file, "numbers#4", "--to", "sums").stdout


def test_without_lineage_nothing_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, "sums.py", (SUMS % FIRST).replace("window=Count(3)", "window=Count(3), lineage=False"))
    assert call("run", file, "--engine", "inline").exit_code == 0
    events = ("sums#1", "numbers#1")
    for words in (["diff", file, "sums"], *(["replay", file, "sums", "--event", event] for event in events)):
        answer = call(*words)
        assert answer.exit_code == 1
        assert "no lineage is captured for sums" in answer.stderr


def test_an_event_whose_input_set_is_on_no_path_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    both = """
from clew import Pipeline, files, generator
import pyarrow as pa
pipeline = Pipeline("both")
left = pipeline.source("left", generator(lambda i: pa.table({"n": [i]}), 2))
right = pipeline.source("right", generator(lambda i: pa.table({"n": [i]}), 2))
pipeline.sink(left.union(right, name="all"), files("out"), name="kept")
pipeline.lineage("right", "all")
"""
    file = write(tmp_path, "both.py", both)
    assert call("run", file, "--engine", "inline").exit_code == 0
    answers = [call("replay", file, "all", "--event", f"all#{number}") for number in range(1, 5)]
    assert sorted(answer.exit_code for answer in answers) == [0, 0, 1, 1]
    said = [answer.stderr for answer in answers if answer.exit_code]
    assert all("does not say which Input Set of all all.out#" in text for text in said)
    told = json.loads(call("diff", file, "all", "--json").stdout)
    assert (told["input_sets"], told["changed"]) == (2, [])


def test_an_input_set_that_was_collected_is_said(file: str) -> None:
    assert call("gc", file).exit_code == 0
    answer = call("replay", file, "sums", "--event", "sums.out#1")
    assert "sums.out#1 is no longer in the log" in answer.stderr
