"""`clew init` makes a project that runs as it is, and overwrites nothing."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from clew.app.init import project
from tests.app.pipelines import call

CLEW = [sys.executable, "-m", "clew.app.main"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shell(place: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, timeout=900)


def totals(place: Path) -> dict[str, int]:
    with sqlite3.connect(place / "totals.db") as connection:
        return dict(connection.execute("SELECT item, sum(cents) FROM daily GROUP BY item"))


def expected(place: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in (place / "data" / "orders.csv").read_text().splitlines()[1:]:
        _, item, cents, status = line.split(",")
        found[item] = found.get(item, 0) + (int(cents) if status == "paid" else 0)
    return found


def test_what_it_made_runs_and_its_own_test_passes(here: Path) -> None:
    said = call("init", "my shop")
    assert said.exit_code == 0
    place = here / "my shop"
    assert 'Pipeline("my_shop")' in (place / "pipeline.py").read_text()
    commands = re.findall(r"^  (.+)$", said.stdout, re.MULTILINE)
    assert commands[0] == "cd 'my shop'"
    assert len(commands) == 5
    for command in commands[1:]:
        assert command in (place / "README.md").read_text()
        _, *words = command.split()
        words += ["--engine", "inline"] if words[0] in ("run", "verify") else []
        done = shell(place, *CLEW, *words)
        assert done.returncode == 0, done.stdout + done.stderr
    assert totals(place) == expected(place)
    done = shell(place, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "2 passed" in done.stdout, done.stdout


@pytest.mark.soak
def test_what_it_made_runs_on_spark(here: Path) -> None:
    call("init", "shop")
    done = shell(here / "shop", *CLEW, "run", "pipeline.py", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcome"] == "finished"
    assert totals(here / "shop") == expected(here / "shop")


def test_it_overwrites_nothing(here: Path) -> None:
    (here / "clew.toml").write_text("mine")
    said = call("init")
    assert said.exit_code == 1
    assert f"error: clew.toml in {here} would be overwritten; name another directory: clew init DIR" in said.stderr
    assert [path.name for path in here.iterdir()] == ["clew.toml"]


def test_a_file_is_no_place_for_a_project(here: Path) -> None:
    (here / "taken").write_text("")
    assert "taken is a file; name a directory, or one that is to be made" in call("init", "taken").stderr


def test_a_place_that_cannot_be_written_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "taken").write_text("")
    said = call("init", "taken/below").stderr
    assert "cannot be written: " in said
    assert "; name another directory" in said


@pytest.mark.parametrize(("directory", "name"), [("2026", "pipeline_2026"), ("a.b", "a_b"), ("shop", "shop")])
def test_the_pipeline_is_named_after_its_directory(here: Path, directory: str, name: str) -> None:
    call("init", directory)
    assert f'Pipeline("{name}")' in (here / directory / "pipeline.py").read_text()


def test_no_word_is_left_to_be_filled_in() -> None:
    for file, text in project("shop").items():
        assert not re.search(r"\{(name|commands|apples|bread|cheese)\}", text), file
