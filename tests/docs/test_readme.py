"""The README's first pipeline runs as it says, and the commands it names exist."""

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.app.pipelines import call
from tests.docs.pages import ROOT, blocks

README = ROOT / "README.md"
CLEW = [sys.executable, "-m", "clew.app.main"]


def clew(line: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    """Run a line of the README, `[NAME=VALUE] clew COMMAND ...`, without Spark to be quick."""
    settings, _, arguments = line.partition("clew ")
    environment = {**os.environ, **dict(part.split("=", 1) for part in settings.split())}
    command = [*CLEW, *shlex.split(arguments)]
    if arguments.startswith("run"):
        command += ["--engine", "inline"]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)


def steps() -> list[str]:
    """Return the commands that follow the first pipeline."""
    block = next(block for block in blocks(README, "sh") if "clew check first.py" in block)
    return block.strip().splitlines()


@pytest.fixture
def first(tmp_path: Path) -> Path:
    (code,) = blocks(README, "python")
    (tmp_path / "first.py").write_text(code)
    return tmp_path


def test_the_first_pipeline_dies_and_resumes_as_the_readme_says(first: Path) -> None:
    assert any("CLEW_FAULTS" in line for line in steps()), "the README must show a crash"
    for line in steps():
        done = clew(line, first)
        assert done.returncode == (-9 if "CLEW_FAULTS" in line else 0), f"{line}\n{done.stdout}{done.stderr}"
    assert clew("clew run first.py", first).returncode == 3


def test_the_first_pipeline_is_short() -> None:
    (code,) = blocks(README, "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 12


def test_the_first_pipelines_table_holds_each_sum_once(first: Path) -> None:
    for line in steps():
        clew(line, first)
    with sqlite3.connect(first / "first.db") as connection:
        rows = connection.execute("SELECT item, total FROM totals").fetchall()
    found: Counter[str] = Counter()
    for item, total in rows:
        found[item] += total
    expected: Counter[str] = Counter()
    for number in range(2000):
        expected[f"item {number % 7}"] += number % 50
    assert found == expected
    # 200 events, 20 to an Input Set, 7 items in each.
    assert len(rows) == 70


def test_every_command_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"`clew ([a-z-]+)", README.read_text()))
    named |= {line.partition("clew ")[2].split()[0] for line in steps()}
    shown = subprocess.run([*CLEW, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    known = set(re.findall(r"^  ([a-z][a-z-]*)  ", shown, re.MULTILINE))
    assert named
    assert named <= known
    assert known <= named, "a command is not in the README"


def test_every_make_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make (\w+)", "\n".join(blocks(README, "sh")), re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_the_readmes_options_exist() -> None:
    commands = (["run"], ["check"], ["graph"], ["trace", "back"], ["replay"], ["group"])
    shown = "".join(call(*command, "--help").stdout for command in commands)
    for option in set(re.findall(r"--[a-z]+", README.read_text())):
        assert option in shown, option
