"""Every log that cannot be used is explained in one message: fact, expectation, cure."""

import sqlite3
from pathlib import Path

import pytest

from tests.app.pipelines import call, log_url, write, write_numbers


def run_on(tmp_path: Path, url: str, *words: str):
    return call("run", write_numbers(tmp_path), "--engine", "inline", "--log", url, *words)


@pytest.mark.parametrize("url", ["/some/where.db", "mysql://host/x", "sqlite:log.db", "sqlite://log.db", "sqlite:///"])
@pytest.mark.parametrize("command", ["run", "status", "gc"])
def test_a_wrong_url_is_refused(tmp_path: Path, command: str, url: str) -> None:
    result = call(command, write_numbers(tmp_path), "--log", url)
    assert result.exit_code == 1
    assert f"error: {url!r} is no log that Clew knows; use sqlite:///PATH, postgresql://" in result.stderr


def test_a_log_of_a_newer_clew_is_refused(tmp_path: Path) -> None:
    run_on(tmp_path, log_url(tmp_path))
    _set_version(tmp_path / "log.db", 999)
    for command in ("run", "status", "gc"):
        result = call(command, write_numbers(tmp_path), "--log", log_url(tmp_path))
        assert result.exit_code == 1
        assert "schema version 999" in result.stderr
        assert "upgrade Clew, or start a new log with --fresh" in result.stderr


def test_fresh_replaces_a_log_of_a_newer_clew(tmp_path: Path) -> None:
    run_on(tmp_path, log_url(tmp_path))
    _set_version(tmp_path / "log.db", 999)
    assert run_on(tmp_path, log_url(tmp_path), "--fresh").exit_code == 0


def test_a_log_directory_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run_on(tmp_path, f"sqlite:///{tmp_path / 'file' / 'sub' / 'log.db'}")
    assert result.exit_code == 1
    assert "cannot make the log directory" in result.stderr
    assert "choose another one with --log sqlite:///PATH" in result.stderr


def test_a_log_that_cannot_be_opened_is_explained(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    result = run_on(tmp_path, f"sqlite:///{tmp_path / 'folder'}")
    assert result.exit_code == 1
    assert "cannot be opened or created" in result.stderr


@pytest.mark.parametrize("words", [(), ("--fresh",)])
def test_a_file_that_is_no_log_is_left_alone(tmp_path: Path, words: tuple[str, ...]) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("my notes, which are longer than the header of a database " * 10)
    result = run_on(tmp_path, f"sqlite:///{notes}", *words)
    assert result.exit_code == 1
    assert "is not a log" in result.stderr
    assert notes.read_text().startswith("my notes")


@pytest.mark.parametrize("words", [(), ("--fresh",)])
def test_a_database_of_something_else_is_left_alone(tmp_path: Path, words: tuple[str, ...]) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE treasure (gold)")
    other.close()
    result = run_on(tmp_path, f"sqlite:///{tmp_path / 'other.db'}", *words)
    assert result.exit_code == 1
    assert "not a log of Clew; use another --log" in result.stderr
    with sqlite3.connect(tmp_path / "other.db") as other:
        assert other.execute("SELECT * FROM treasure").fetchall() == []
    other.close()


@pytest.mark.parametrize("words", [("run",), ("run", "--fresh"), ("gc",), ("status",)])
def test_the_log_of_another_pipeline_is_left_alone(tmp_path: Path, words: tuple[str, ...]) -> None:
    run_on(tmp_path, log_url(tmp_path))
    text = """
import pyarrow as pa
from clew import Pipeline
from clew.connectors.generator import generator

pipeline = Pipeline("other")
pipeline.source("elsewhere", generator(lambda i: pa.table({"n": [i]}), 3))
"""
    command, *rest = words
    result = call(command, write(tmp_path, "other.py", text), "--log", log_url(tmp_path), *rest)
    assert result.exit_code == 1
    assert "use another --log" in result.stderr
    assert "finished" in call("status", write_numbers(tmp_path), "--log", log_url(tmp_path)).stdout


def test_the_log_of_another_pipeline_of_the_same_name_has_no_status(tmp_path: Path) -> None:
    run_on(tmp_path, log_url(tmp_path))
    text = """
import pyarrow as pa
from clew import Pipeline
from clew.connectors.generator import generator

pipeline = Pipeline("numbers")
pipeline.source("elsewhere", generator(lambda i: pa.table({"n": [i]}), 3))
"""
    result = call("status", write(tmp_path, "other.py", text), "--log", log_url(tmp_path))
    assert result.exit_code == 1
    assert "of which pipeline numbers has none; use another --log" in result.stderr


def _set_version(path: Path, version: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(version),))
    connection.commit()
    connection.close()


def test_a_database_that_refuses_the_connection_is_explained(tmp_path: Path) -> None:
    pytest.importorskip("clew.store.postgres")
    # Port 1 of the loopback: nothing listens there.
    result = run_on(tmp_path, "postgresql://clew:secret@127.0.0.1:1/clew?sslpassword=secret")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "127.0.0.1" in result.stderr
    assert "secret" not in result.output
    assert "Traceback" not in result.output
