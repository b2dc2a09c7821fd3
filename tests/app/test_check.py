"""`clew check` says everything that is wrong, with file and line, and exits 1."""

import json
from pathlib import Path

import pytest

from tests.app.pipelines import call, write, write_numbers

WRONG = """
import pyarrow as pa
from clew import Pipeline

pipeline = Pipeline("wrong")

@pipeline.operator("nowhere")
def first(table: pa.Table) -> pa.Table:
    return table

@pipeline.operator("first", colour="red")
def second(table) -> pa.Table:
    return table
"""

COSTLY = """
import pyarrow as pa
from clew import Pipeline, files
from clew.connectors.generator import generator

pipeline = Pipeline("costly")
source = pipeline.source("source", generator(lambda i: pa.table({"n": [i]}), 3))

@pipeline.operator(source)
def each(df: "pyspark.sql.DataFrame") -> "pyspark.sql.DataFrame":
    return df

pipeline.sink(each, files("out"))
"""


def test_a_good_pipeline_passes(tmp_path: Path) -> None:
    result = call("check", write_numbers(tmp_path))
    assert result.exit_code == 0
    assert result.stdout == "pipeline numbers: 3 operators, 2 connections, 3 groups; no errors\n"


def test_every_error_is_told_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("check", write(tmp_path, "wrong.py", WRONG))
    assert result.exit_code == 1
    assert "wrong.py:7: error: first reads from unknown port nowhere.out" in result.stderr
    assert "wrong.py:11: error: second has no setting colour" in result.stderr
    assert "wrong.py:11: error: second takes table without an annotation, expected pyarrow.Table" in result.stderr
    assert "wrong.py:5: error: pipeline wrong has no source" in result.stderr
    assert "Traceback" not in result.output


def test_errors_as_json(tmp_path: Path) -> None:
    result = call("check", write(tmp_path, "wrong.py", WRONG), "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 1
    assert not answer["ok"]
    assert {finding["location"].rpartition(":")[2] for finding in answer["findings"]} == {"5", "7", "11"}
    assert {finding["kind"] for finding in answer["findings"]} == {"error"}


def test_a_warning_is_told_and_passes(tmp_path: Path) -> None:
    result = call("check", write(tmp_path, "costly.py", COSTLY))
    assert result.exit_code == 0
    assert "costly.py:9: warning: each costs one Spark job per event" in result.stdout


def test_a_warning_as_json(tmp_path: Path) -> None:
    answer = json.loads(call("check", write(tmp_path, "costly.py", COSTLY), "--json").stdout)
    assert answer["ok"]
    assert answer["pipeline"] == "costly"
    assert [(finding["kind"], finding["location"]) for finding in answer["findings"]] == [
        ("warning", f"{tmp_path}/costly.py:9")
    ]


def test_a_bad_name_is_an_error_like_any_other(tmp_path: Path) -> None:
    result = call("check", write(tmp_path, "a.py", 'from clew import Pipeline\np = Pipeline("a b")\n'))
    assert result.exit_code == 1
    assert "a.py:2: error: 'a b' cannot name a pipeline" in result.stderr


def test_what_the_file_prints_does_not_disturb_the_answer(tmp_path: Path) -> None:
    file = write_numbers(tmp_path)
    Path(file).write_text(Path(file).read_text() + '\nprint("hello from the file")\n')
    result = call("check", file, "--json")
    assert json.loads(result.stdout)["ok"]
    assert "hello from the file" in result.stderr


@pytest.mark.parametrize("command", ["check", "graph", "run", "status", "gc"])
@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("missing.py", None, "there is no such file; give the path"),
        ("notes.txt", "hello", "this is not a Python file; give the path"),
        ("empty.py", "", "it declares no pipeline; declare one"),
        ("raises.py", "raise OSError('no such luck')", "cannot be imported: OSError: no such luck"),
    ],
)
def test_every_command_explains_a_file_it_cannot_use(
    tmp_path: Path, command: str, name: str, text: str | None, told: str
) -> None:
    if text is not None:
        write(tmp_path, name, text)
    result = call(command, str(tmp_path / name))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert told in result.stderr
    assert "Traceback" not in result.output
    assert "importlib" not in result.output
