"""`clew quarantine`: what functions fail on is listed, shown, tried again and dropped from the command line."""

import json
from pathlib import Path

import pytest

from tests.app.pipelines import call, write
from tests.spark.outside import held

PARSE = """
import os
import pyarrow as pa
from clew import Pipeline, generator, sqlite

HERE = os.path.dirname(os.path.abspath(__file__))
pipeline = Pipeline("parse")
lines = pipeline.source("lines", generator(lambda i: pa.table({"text": [str(i), str(i + 100)]}), 10))


@pipeline.map(lines, on_error="quarantine", attempts=2)
def parse(line):
    if line["text"] in %s:
        raise ValueError("no number: " + line["text"])
    return {"n": int(line["text"])}


pipeline.sink(parse, sqlite(os.path.join(HERE, "sink.db"), table="numbers"))
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A pipeline that has run, and failed on three records."""
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, "parse.py", PARSE % '("3", "5", "107")')
    ended = call("run", path, "--engine", "inline")
    assert ended.exit_code == 5, ended.output
    assert "everything is done but for what is in quarantine (3)" in ended.stderr
    assert f"`clew quarantine list {path}`" in ended.stderr
    return path


def numbers(tmp_path: Path) -> set[int]:
    return {n for (n,) in held(tmp_path / "sink.db", "SELECT n FROM numbers")}


ALL = {*range(10), *range(100, 110)}


def test_what_is_in_quarantine_is_listed_with_what_to_do(file: str) -> None:
    answer = call("quarantine", "list", file)
    assert answer.exit_code == 0
    assert [line.split()[0] for line in answer.stdout.splitlines()[1:4]] == ["parse#1", "parse#2", "parse#3"]
    assert "lines.out#4 record 0" in answer.stdout
    assert "ValueError: no number: 3" in answer.stdout
    assert "{'text': '3'}" in answer.stdout
    assert f"3 not decided: `clew quarantine retry {file} ID`" in answer.stdout
    (first, *_) = json.loads(call("quarantine", "list", file, "--json").stdout)["quarantined"]
    assert (first["id"], first["status"], first["attempts"]) == ("parse#1", "held", 2)
    assert "parse: 3 in quarantine" in call("status", file).stdout


def test_one_is_shown_with_its_record_and_the_users_own_frames(file: str) -> None:
    answer = call("quarantine", "show", file, "parse#3")
    assert answer.exit_code == 0
    assert "ValueError: no number: 107 (2 attempts)" in answer.stdout
    assert "parse.py" in answer.stdout
    assert "1 record on in:\n  {'text': '107'}" in answer.stdout
    assert json.loads(call("quarantine", "show", file, "parse#3", "--json").stdout)["records"] == {
        "in": [{"text": "107"}]
    }


def test_some_are_dropped_and_the_rest_is_tried_again_once_it_is_mended(file: str, tmp_path: Path) -> None:
    assert numbers(tmp_path) == ALL - {3, 5, 107}
    dropped = call("quarantine", "drop", file, "parse#2")
    assert "parse#2 is dropped by the next run: lines.out#6 record 0" in dropped.stdout
    write(tmp_path, "parse.py", PARSE % "()")
    retried = call("quarantine", "retry", file, "--all")
    # Whoever says --all means all, also what was to be dropped.
    assert retried.stdout.count("is tried again by the next run") == 3
    call("quarantine", "drop", file, "parse#2")
    ended = call("run", file, "--engine", "inline")
    assert ended.exit_code == 0, ended.output
    assert numbers(tmp_path) == ALL - {5}
    assert [row["status"] for row in json.loads(call("quarantine", "list", file, "--json").stdout)["quarantined"]] == [
        "retried", "dropped", "retried",
    ]  # fmt: skip
    assert call("run", file, "--engine", "inline").exit_code == 3


def decided(file: str, tmp_path: Path) -> None:
    """Let the run have the three tried again or dropped; one of them fails again."""
    write(tmp_path, "parse.py", PARSE % '("107",)')
    call("quarantine", "drop", file, "parse#2")
    call("quarantine", "retry", file, "parse#1", "parse#3")
    assert call("run", file, "--engine", "inline").exit_code == 5


def test_what_is_decided_is_not_asked_for_again(file: str, tmp_path: Path) -> None:
    call("quarantine", "drop", file, "parse#2")
    last = call("quarantine", "list", file).stdout.splitlines()[-2:]
    assert last[0].startswith(f"2 not decided: `clew quarantine retry {file} ID`")
    assert last[1] == f"1 to be dropped by the next run: `clew run {file}`"
    call("quarantine", "retry", file, "parse#1", "parse#3")
    (last_line,) = call("quarantine", "list", file).stdout.splitlines()[4:]
    assert last_line == f"2 to be tried again, 1 to be dropped by the next run: `clew run {file}`"
    decided(file, tmp_path)
    last = call("quarantine", "list", file).stdout.splitlines()[-2:]
    assert last[0].startswith("1 not decided: ")
    assert last[1] == "2 tried again, 1 dropped by an earlier run"


@pytest.mark.parametrize("what", ["retry", "drop"])
def test_what_was_decided_is_final(file: str, tmp_path: Path, what: str) -> None:
    decided(file, tmp_path)
    cure = "expected something that is still in quarantine; there is parse#4: name one, or --all"
    for id, became in (("parse#1", "tried again"), ("parse#2", "dropped"), ("parse#3", "tried again")):
        refused = call("quarantine", what, file, "parse#4", id)
        assert refused.exit_code == 1
        assert refused.stderr == f"error: {id} was {became} by an earlier run, {cure}\n"
        assert not refused.stdout
    # Nothing was decided of the one that could have been either.
    assert "1 not decided" in call("quarantine", "list", file).stdout
    call("quarantine", "drop", file, "--all")
    assert call("run", file, "--engine", "inline").exit_code == 0
    refused = call("quarantine", what, file, "parse#4")
    assert refused.exit_code == 1
    assert "there is nothing left, so there is nothing to decide" in refused.stderr
    refused = call("quarantine", what, file, "--all")
    assert refused.exit_code == 1
    assert "nothing was named; there is nothing that is left to decide" in refused.stderr
    assert "not decided" not in call("quarantine", "list", file).stdout


def test_a_fresh_start_says_what_it_gives_up(file: str) -> None:
    begun = call("run", file, "--engine", "inline", "--fresh")
    assert "given up with the run before: 3 in quarantine" in begun.stderr
    assert "given up" not in call("run", file, "--engine", "inline").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["retry", "FILE", "parse#9"], "parse#9 is not in quarantine; there is parse#1, parse#2, parse#3: name one"),
        (["drop", "FILE"], "nothing was named; there is parse#1, parse#2, parse#3: name one, or --all"),
    ],
)
def test_what_is_not_there_is_said_to_be_not_there(file: str, words: list[str], message: str) -> None:
    answer = call("quarantine", *[file if word == "FILE" else word for word in words])
    assert answer.exit_code == 1
    assert message in answer.stderr


def test_a_pipeline_that_never_ran_has_no_quarantine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = call("quarantine", "list", write(tmp_path, "parse.py", PARSE % "()"))
    assert answer.exit_code == 1
    assert "has no log" in answer.stderr


def test_a_run_without_failures_has_nothing_in_quarantine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, "parse.py", PARSE % "()")
    assert call("run", path, "--engine", "inline").exit_code == 0
    assert "nothing of pipeline parse is in quarantine" in call("quarantine", "list", path).stdout


def test_the_log_is_found_where_the_settings_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clew.toml").write_text('log = "sqlite:///elsewhere.db"\n')
    path = write(tmp_path, "parse.py", PARSE % '("3",)')
    assert call("run", path, "--engine", "inline").exit_code == 5
    assert (tmp_path / "elsewhere.db").exists()
    assert "parse#1" in call("quarantine", "list", path).stdout


WHOLE = """
@pipeline.operator(lines, on_error="quarantine", attempts=1)
def parse(table: pa.Table) -> pa.Table:
    texts = table["text"].to_pylist()
    if any(text in %s for text in texts):
        raise ValueError("no number")
    return pa.table({"n": [int(text) for text in texts]})


pipeline.sink("""


@pytest.mark.parametrize("whole", [False, True])
def test_what_was_tried_again_is_compared_where_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    before, _, after = PARSE.partition("@pipeline.map")
    text = before + WHOLE + after.partition("pipeline.sink(")[2] if whole else PARSE
    file = write(tmp_path, "parse.py", text % '("3", "107")')
    assert call("run", file, "--engine", "inline").exit_code == 5
    write(tmp_path, "parse.py", text % "()")
    assert call("quarantine", "retry", file, "parse#1").exit_code == 0
    assert call("quarantine", "drop", file, "parse#2").exit_code == 0
    assert call("run", file, "--engine", "inline").exit_code == 0
    answer = call("diff", file, "parse")
    assert (answer.exit_code, answer.stdout[:2]) == (0, "0 ")
    again = call("replay", file, "parse", "--event", "lines#4")
    assert again.exit_code == 0, again.stdout
    assert again.stdout.count("the same again") == (1 if whole else 2)


ASKING = """
import os
import pyarrow as pa
from clew import Connection, Operator, Pipeline, files, generator

HERE = os.path.dirname(os.path.abspath(__file__))
pipeline = Pipeline("asking")
numbers = pipeline.source("numbers", generator(lambda i: pa.table({"n": [i]}), 4))


class Prices(Connection):
    def describe(self):
        return "prices"

    def read(self, action):
        # Another answer every time: only the log knows what it was.
        return pa.table({"price": [int.from_bytes(os.urandom(3), "big")]})


class Priced(Operator):
    def assign(self, event, state):
        return [event.number]

    def ready(self, state, opened):
        return list(opened)

    def generate(self, given, context):
        n = given.table()["n"][0].as_py()
        if n == %(before)s:
            raise ValueError("failed before it read")
        price = context.read("prices", f"of {n}")["price"][0].as_py()
        if n == %(after)s:
            raise ValueError("failed after it read")
        return pa.table({"price": [price]})


priced = pipeline.general("priced", Priced(), numbers, reads={"prices": Prices()}, on_error="quarantine", attempts=1)
pipeline.sink(priced, files(os.path.join(HERE, "priced")))
"""


@pytest.fixture
def asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, "asking.py", ASKING % {"before": 1, "after": 2})
    assert call("run", file, "--engine", "inline").exit_code == 5
    return file


def test_answers_of_an_attempt_that_failed_are_said_not_to_be_kept(asking: str) -> None:
    answer = call("replay", asking, "priced", "--event", "numbers#3")
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert answer.stderr == (
        "error: Input Set 3 of priced was set aside, and the log does not have what its reads were answered: the "
        "answers of an attempt that failed are not kept; have it tried again with `clew quarantine retry` and a run, "
        "which keeps those of an attempt that succeeds, or choose another event\n"
    )


def test_what_failed_before_it_read_is_run_again(asking: str) -> None:
    answer = call("replay", asking, "priced", "--event", "numbers#2")
    assert answer.exit_code == 1
    assert "logged as nothing: fails now with ValueError: failed before it read" in answer.stdout


def test_what_was_tried_again_has_the_answers_that_it_got_then(asking: str) -> None:
    Path(asking).write_text(ASKING % {"before": None, "after": None})
    call("quarantine", "retry", asking, "--all")
    assert call("run", asking, "--engine", "inline").exit_code == 0
    for event in ("numbers#2", "numbers#3"):
        assert "the same again" in call("replay", asking, "priced", "--event", event).stdout
