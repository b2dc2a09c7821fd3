"""`clew trace`: from the command line, as a tree, as JSON and as a flowchart; without a JVM."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from clew.app.target import Target
from clew.errors import NoSuchEvent
from clew.ids import EventId, Port
from clew.retrace import records_of, step_back, step_forward, trace_back
from tests.app.pipelines import call, write

PAIRS = """
import os
import pyarrow as pa
from clew import Count, Pipeline, files, generator

HERE = os.path.dirname(os.path.abspath(__file__))
pipeline = Pipeline("pairs")
numbers = pipeline.source("numbers", generator(lambda i: pa.table({"n": [i]}), 6))


@pipeline.map(numbers, on_error="quarantine", attempts=1)
def inverse(record):
    return {"x": 1 / (record["n"] - 3)}


@pipeline.operator(inverse, window=Count(2))
def pairs(table: pa.Table) -> pa.Table:
    return table


pipeline.sink(pairs, files(os.path.join(HERE, "out")))
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, "pairs.py", PAIRS)
    assert call("run", path, "--engine", "inline").exit_code == 5
    return path


def test_a_tree_leads_back_to_the_source(file: str) -> None:
    answer = call("trace", "back", file, "pairs.out#2")
    assert answer.exit_code == 0, answer.output
    lines = [line.lstrip("│├└─ ") for line in answer.stdout.splitlines()]
    assert lines[0] == "pairs.out#2"
    assert lines[1] == "made by pairs in Input Set 2"
    assert lines[2] == "inverse.out#3..4 (2 events)"
    assert lines[3] == "made by inverse in Input Sets 3, 5"
    assert lines[4] == "numbers.out#3, 5 (2 events)"
    assert lines[5].startswith("read by numbers from generator")


def test_a_write_action_is_traced_by_the_name_of_its_sink(file: str) -> None:
    steps = json.loads(call("trace", "back", file, "pairs_sink#1", "--to", "pairs", "--json").stdout)["steps"]
    assert [step["operator"] for step in steps] == ["pairs_sink"]
    assert steps[0]["outputs"] == ["pairs_sink.writes:out#1"]
    forward = call("trace", "forward", file, "pairs.out#1")
    assert "write pairs_sink.out#1" in forward.stdout


def test_what_was_set_aside_leads_to_its_error(file: str) -> None:
    answer = call("trace", "forward", file, "numbers.out#4")
    assert "set aside as inverse#1 (held): ZeroDivisionError: division by zero" in answer.stdout
    (step,) = json.loads(call("trace", "forward", file, "numbers.out#4", "--json").stdout)["steps"]
    (aside,) = step["quarantined"]
    assert (step["outputs"], aside["id"], aside["status"]) == ([], "inverse#1", "held")
    assert aside["error"]["message"] == "division by zero"
    chart = call("trace", "forward", file, "numbers.out#4", "--mermaid").stdout
    assert '["set aside as inverse#1 (held): ZeroDivisionError"]' in chart


PARTLY = """
import pyarrow as pa
from clew import Pipeline, Session, files, generator

pipeline = Pipeline("partly")
TIMES = [0, 6, 4]
numbers = pipeline.source("numbers", generator(lambda i: pa.table({"n": [2 * i, 2 * i + 1], "t": [TIMES[i]] * 2}), 3))


@pipeline.map(numbers, on_error="quarantine", attempts=1, deterministic=True)
def even(record):
    if record["n"] == 1:
        raise ValueError("odd")
    return record


@pipeline.operator(even, window=Session(5, on="t", lateness=20))
def sessions(table: pa.Table) -> pa.Table:
    return table


pipeline.sink(sessions, files("partly"))
"""


@pytest.fixture
def partly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, "partly.py", PARTLY)
    assert call("run", path, "--engine", "inline").exit_code == 5
    return path


def test_a_record_that_was_set_aside_leads_to_its_error(partly: str) -> None:
    aside = "set aside as even#1 (held): ValueError: odd"
    for words in ([], ["--to", "even"]):
        lines = call("trace", "forward", partly, "numbers#1", "--record", "1", *words).stdout.splitlines()
        assert lines == ["numbers.out", "  #1 record 1: {'n': 1, 't': 0}", f"  {aside}"]
    # The other record of the event has no part in that.
    assert aside not in call("trace", "forward", partly, "numbers#1", "--record", "0").stdout


def test_a_record_says_that_its_input_set_was_given_to_no_function(partly: str) -> None:
    lines = call("trace", "forward", partly, "even#2", "--record", "0").stdout.splitlines()
    said = "  Input Set 2 was given to no function: dropped, or part of another one"
    assert lines == ["even.out", "  #2 record 0: {'n': 2, 't': 6}", said]


def test_a_record_says_what_was_read_for_it(partly: str) -> None:
    lines = call("trace", "back", partly, "even#1", "--record", "0").stdout.splitlines()
    assert lines[2] == "numbers.out"
    assert lines[-1].startswith("  read numbers.in#1: generator")


def test_a_flowchart_names_events_and_input_sets(file: str) -> None:
    lines = call("trace", "back", file, "pairs.out#1", "--to", "inverse", "--mermaid").stdout.splitlines()
    assert lines[0] == "flowchart LR"
    assert '    n0["pairs.out#1"]' in lines
    assert any('"inverse.out#1"' in line for line in lines)
    assert any('(["pairs 1"])' in line for line in lines)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("pairs.out", "'pairs.out' is no event; name one as OPERATOR.PORT#NUMBER, for example paid.out#17"),
        ("pairs.out#99", "pairs.out#99 was never sent: pairs.out has sent events 1 to"),
        ("nobody.out#1", "there is no port nobody.out in this log; there are: inverse.out, numbers.out, pairs.out"),
    ],
)
def test_what_cannot_be_traced_is_said(file: str, event: str, said: str) -> None:
    answer = call("trace", "back", file, event)
    assert answer.exit_code == 1
    assert said in answer.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["trace", "back", "FILE", "EVENT"], ["trace", "forward", "FILE", "EVENT"],
        ["trace", "back", "FILE", "EVENT", "--record", "0"], ["replay", "FILE", "pairs", "--event", "EVENT"],
    ],
    ids=["back", "forward", "record", "replay"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("digits", "said"),
    [
        (19, f"pairs.out#{'9' * 19} was never sent: pairs.out has sent events 1 to"),
        (20, f"'pairs.out#{'9' * 20}' is no event; name one as OPERATOR.PORT#NUMBER, for example paid.out#17"),
        # Python reads no number of so many.
        (5_000, f"'pairs.out#{'9' * 70}...' is no event; name one as OPERATOR.PORT#NUMBER, for example paid.out#17"),
    ],
    ids=["19 digits", "20 digits", "5000 digits"],
)
def test_a_number_that_no_event_can_have_is_said(file: str, words: list[str], digits: int, said: str) -> None:
    given = {"FILE": file, "EVENT": f"pairs.out#{'9' * digits}"}
    answer = call(*(given.get(word, word) for word in words))
    assert answer.exit_code == 1
    assert said in answer.stderr


def test_a_pipeline_that_was_never_run_has_nothing_to_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, "pairs.py", PAIRS)
    answer = call("trace", "back", path, "pairs.out#1")
    assert "pipeline pairs has no log at sqlite:///.clew/pairs/log.db; run it there first" in answer.stderr
    assert not (tmp_path / ".clew").exists()


ANOTHER = """
import pyarrow as pa
from clew import Pipeline, files, generator

pipeline = Pipeline("another")
numbers = pipeline.source("numbers", generator(lambda i: pa.table({"n": [i]}), 6))
pipeline.sink(numbers.map(lambda record: record, name="inverse"), files("another"))
"""

QUESTIONS = [
    ("trace", "back", "{}", "inverse.out#1"),
    ("trace", "forward", "{}", "numbers.out#1", "--record", "0"),
    ("replay", "{}", "inverse", "--event", "inverse.out#1"),
    ("diff", "{}", "inverse"),
    ("status", "{}"),
    ("quarantine", "list", "{}"),
    ("quarantine", "drop", "{}", "--all"),
    ("stop", "{}"),
]


@pytest.mark.parametrize("words", QUESTIONS, ids=" ".join)
def test_a_log_of_another_pipeline_answers_nothing_where_names_are_the_same(file: str, words: tuple[str, ...]) -> None:
    another = write(Path(file).parent, "another.py", ANOTHER)
    answer = call(*(word.format(another) for word in words), "--log", "sqlite:///.clew/pairs/log.db")
    assert answer.exit_code == 1
    assert "this log is of pipeline pairs, not another; use another --log" in answer.stderr
    # It is left to its own pipeline as it was.
    assert "inverse#1" in call("quarantine", "list", file).stdout


@pytest.mark.parametrize("words", [*QUESTIONS, ("gc", "{}"), ("verify", "{}")], ids=" ".join)
def test_an_empty_file_is_no_log_and_stays_empty(file: str, words: tuple[str, ...]) -> None:
    empty = Path(file).with_name("empty.db")
    empty.touch()
    answer = call(*(word.format(file) for word in words), "--log", f"sqlite:///{empty}")
    assert answer.exit_code == 1
    assert f"pipeline pairs has no log at sqlite:///{empty}" in answer.stderr
    assert empty.stat().st_size == 0
    assert call("run", file, "--engine", "inline", "--log", f"sqlite:///{empty}").exit_code == 5


def test_a_log_that_does_not_say_of_which_pipeline_is_read(file: str) -> None:
    with closing(sqlite3.connect(Path(file).parent / ".clew/pairs/log.db")) as log, log:
        log.execute("DELETE FROM meta WHERE key = 'pipeline'")
    assert "inverse.out#1" in call("trace", "forward", file, "numbers.out#1").stdout


def test_a_trace_says_where_its_scope_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scopes = 'pipeline.lineage("numbers", "inverse")\npipeline.lineage("pairs", "pairs_sink")\n'
    file = write(tmp_path, "pairs.py", PAIRS + scopes)
    assert call("run", file, "--engine", "inline").exit_code == 5
    source = "numbers.out is where the trace begins: no lineage scope leads to what a source reads"
    for words in (["inverse#1"], ["numbers#1"], ["inverse#1", "--record", "0"]):
        answer = call("trace", "back", file, *words)
        assert answer.exit_code == 0
        assert answer.stdout.splitlines()[-1] == source
    told = json.loads(call("trace", "back", file, "inverse#1", "--json").stdout)
    assert (told["cut"], told["begins"]) == ([], ["numbers.out"])
    answer = call("trace", "back", file, "pairs_sink#1")
    assert answer.stdout.splitlines()[-1] == "pairs.out is where the trace begins: a lineage scope begins here"


def test_a_trace_to_a_port_beyond_its_scope_says_that_nothing_is_known_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, "pairs.py", PAIRS + 'pipeline.lineage("inverse", "pairs_sink")\n')
    assert call("run", file, "--engine", "inline").exit_code == 5
    scope = "inverse.out is where the trace begins: a lineage scope begins here, and no lineage leads there from"
    for words in (["pairs#1"], ["inverse#1"], ["pairs#1", "--record", "0"]):
        answer = call("trace", "back", file, *words, "--to", "numbers")
        assert "no event of" not in answer.stdout
        assert answer.stdout.splitlines()[-1] == f"{scope} numbers.out"
    (step,) = json.loads(call("trace", "back", file, "pairs#1", "--to", "numbers", "--json").stdout)["steps"]
    assert step["inputs"] == ["inverse.out#1", "inverse.out#2"]
    answer = call("trace", "forward", file, "numbers#1", "--to", "pairs")
    assert "no event of" not in answer.stdout
    assert "the trace ends at numbers.out: no lineage is captured of all that comes there" in answer.stdout


def test_one_record_is_followed_forward(file: str) -> None:
    answer = call("trace", "forward", file, "numbers.out#2", "--record", "0")
    assert answer.exit_code == 0
    assert "#2 record 0: {'n': " in answer.stdout
    assert "inverse.out" in answer.stdout
    told = json.loads(call("trace", "forward", file, "numbers.out#2", "--record", "0", "--json").stdout)
    assert told["direction"] == "forward"
    assert told["records"]["numbers.out#2"] == [0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--json", "--mermaid"], "--mermaid and --json are two forms of one answer"),
        (["--record", "0", "--mermaid"], "--record has no --mermaid"),
        (["--to", "pairs"], "there is no port pairs.out before numbers.out; there are: none"),
    ],
)
def test_what_cannot_be_asked_together_is_said(file: str, words: list[str], said: str) -> None:
    answer = call("trace", "back", file, "numbers.out#1", *words)
    assert answer.exit_code == 1
    assert said in answer.stderr


def test_events_may_be_named_as_people_name_them(file: str) -> None:
    graph = Target.parse(file).graph()
    named = trace_back(graph, "pairs#1", to="numbers")
    assert named == trace_back(graph, EventId(Port("pairs", "out"), 1), Port("numbers", "out"))
    (step,) = step_back(graph, "pairs#1")
    assert (step.operator, step.outputs) == ("pairs", (EventId(Port("pairs", "out"), 1),))
    assert {one.operator for one in step_forward(graph, "numbers#1")} == {"inverse"}
    with pytest.raises(NoSuchEvent, match=r"pairs\.out#99 was never sent"):
        records_of(graph, "pairs#99")
