"""Commands that only look never import pyspark, let alone start a JVM; and the small commands answer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clew import __version__
from clew.faultpoint import POINTS, Fault
from tests.app.pipelines import call, log_url, write, write_numbers

LOOK = """
import sys
from clew.app.main import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    assert end.code == int({code}), end.code
heavy = [name for name in ("pyspark", "py4j") if name in sys.modules]
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--help",), 0), (("run", "--help"), 0), (("chaos", "--help"), 0), (("version",), 0),
        (("crash-points",), 0), (("check", "FILE"), 0),
        (("graph", "FILE"), 0), (("status", "FILE", "--log", "LOG"), 1), (("gc", "FILE", "--log", "LOG"), 1),
        (("run", "FILE", "--log", "LOG", "--engine", "inline"), 0),
    ],
)  # fmt: skip
def test_pyspark_is_not_imported(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    given = {"FILE": write_numbers(tmp_path), "LOG": log_url(tmp_path)}
    command = [sys.executable, "-c", LOOK.format(code=code), *(given.get(word, word) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


NO_JVM = """
import sys
from clew.app.main import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    assert end.code in (0, 1), end.code
from pyspark import SparkContext
assert SparkContext._gateway is None
"""

FRAMES = """
import pyarrow as pa
from pyspark.sql import DataFrame, functions as F
from clew import Batch, Pipeline
from clew.connectors.generator import generator

pipeline = Pipeline("frames")
source = pipeline.source("source", generator(lambda i: pa.table({"n": [i]}), 3))

@pipeline.operator(source, window=Batch())
def same(df: DataFrame) -> DataFrame:
    return df.withColumn("m", F.col("n") + 1)
"""


@pytest.mark.parametrize("command", ["check", "graph", "status", "gc"])
def test_a_file_that_imports_pyspark_starts_no_jvm(tmp_path: Path, command: str) -> None:
    words = [command, write(tmp_path, "frames.py", FRAMES)]
    done = subprocess.run([sys.executable, "-c", NO_JVM, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_crash_points_are_listed_with_how_to_arm_them() -> None:
    told = call("crash-points").stdout
    assert all(point in told for point in POINTS)
    assert "CLEW_FAULTS='point[@operator][#nth][:action],...' clew run FILE" in told
    assert Fault.parse("inside-commit@paid#2").nth == 2, "the example is a fault that can be armed"


def test_crash_points_as_json() -> None:
    assert {row["point"]: row["where"] for row in json.loads(call("crash-points", "--json").stdout)} == POINTS


def test_version() -> None:
    assert call("version").stdout.startswith(f"clew {__version__} (python ")
    assert json.loads(call("version", "--json").stdout)["clew"] == __version__


def test_help_tells_the_exit_codes() -> None:
    told = " ".join(call("run", "--help").stdout.split())
    assert "3 this log holds a finished run already, which is final" in told


def test_no_words_show_the_help() -> None:
    assert "crash-points" in call().output


def test_a_failure_of_our_own_is_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("clew.app.graph._as_tree", lambda graph: 1 / 0)
    result = call("graph", write_numbers(tmp_path))
    assert result.exit_code == 1
    assert "error: ZeroDivisionError: division by zero; this is a failure that Clew did not expect" in result.stderr
