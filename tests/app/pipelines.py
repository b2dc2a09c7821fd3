"""Pipeline files for the tests of the command line, and ways to call it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from clew.app.main import app

KEEP = '''
import json
import os

from clew import Sink


class Keep(Sink):
    """Keeps each write in a file of its own."""

    idempotent = True

    def __init__(self, directory):
        self.directory = directory

    def describe(self):
        return f"kept in {os.path.basename(self.directory)}"

    def write(self, action, tables, schema):
        os.makedirs(self.directory, exist_ok=True)
        with open(os.path.join(self.directory, action.name), "w") as out:
            json.dump([row for table in tables for row in table.to_pylist()], out)
'''

NUMBERS = """
import os
import time

import pyarrow as pa
from keep import Keep

from clew import Pipeline
from clew.connectors.generator import generator

HERE = os.path.dirname(__file__)


def make(index):
    return pa.table({"n": [index]})


pipeline = Pipeline("numbers")
source = pipeline.source("source", generator(make, int(os.environ.get("EVENTS", "20"))), max_turn_events=5)


@pipeline.operator(source, max_turn_events=5)
def doubled(table: pa.Table) -> pa.Table:
    time.sleep(float(os.environ.get("PAUSE", "0")))
    while "GATE" in os.environ and table["n"][0].as_py() >= 30 and not os.path.exists(os.environ["GATE"]):
        time.sleep(0.05)
    if os.environ.get("POISON") == str(table["n"][0].as_py()):
        raise ValueError("a number that nobody likes")
    return pa.table({"n": [2 * number for number in table["n"].to_pylist()]})


pipeline.sink(doubled, Keep(os.path.join(HERE, "out")))
"""


def write_numbers(directory: Path) -> str:
    """Write a pipeline file, and a module beside it that it imports; return its path."""
    (directory / "keep.py").write_text(KEEP)
    return write(directory, "numbers_file.py", NUMBERS)


def write(directory: Path, name: str, text: str) -> str:
    (directory / name).write_text(text)
    return str(directory / name)


def kept(directory: Path) -> list[int]:
    """Return all numbers that the sink holds, in order."""
    rows = [row for path in (directory / "out").iterdir() for row in json.loads(path.read_text())]
    return sorted(row["n"] for row in rows)


def log_url(directory: Path) -> str:
    return f"sqlite:///{directory / 'log.db'}"


def call(*words: str, **environment: str) -> Result:
    """Call the command line in this process."""
    return CliRunner().invoke(app, list(words), env=environment)


def start(*words: str, **environment: str) -> "subprocess.Popen[str]":
    """Start the command line as a process of its own."""
    command = [sys.executable, "-m", "clew.app.main", *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, text=True, env={**os.environ, **environment}, **pipes)


def finish(process: "subprocess.Popen[str]", timeout: float = 240) -> tuple[int, str, str]:
    """Wait for a process; return its exit code, stdout and stderr."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err
