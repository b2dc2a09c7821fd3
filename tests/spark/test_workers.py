"""kill -9 of a Python worker in the middle of a turn: Spark heals it within the turn, and the result is exact."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clew import Pipeline, Sink, WriteAction, files, generator, sqlite
from clew.faultpoint import arm
from clew.run import run
from tests.spark.outside import held, rows

EVENTS = 6


def first(flag: Path) -> bool:
    """Say yes to the first who asks, in whatever process."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die_once(flag: Path) -> None:
    """Kill the worker that this runs in, the first time; never the driver."""
    assert TaskContext.get() is not None
    if first(flag):
        os.kill(os.getpid(), signal.SIGKILL)


def pipeline(place: Path) -> Pipeline:
    """Workers die in a source's read, in an Arrow function and in a UDF; nothing is tried again but by Spark."""
    p = Pipeline("dying")

    def make(index: int) -> pa.Table:
        if index == 2:
            die_once(place / "died-in-source")
        return pa.table({"n": [index]})

    source = p.source("source", generator(make, EVENTS), attempts=1)

    @p.operator(source, attempts=1)
    def arrow(table: pa.Table) -> pa.Table:
        if table["n"][0].as_py() == 3:
            die_once(place / "died-in-arrow")
        return table

    def twice(n: int) -> int:
        if n == 3:
            die_once(place / "died-in-udf")
        return n * 2

    @p.operator(arrow, attempts=1, row_local=True)
    def frame(df: DataFrame) -> DataFrame:
        return df.withColumn("twice", F.udf(twice, "long")("n"))

    p.sink(frame, files(place / "out"), attempts=1)
    return p


def test_a_worker_killed_in_a_turn_is_healed_by_spark_within_it(spark: SparkSession, tmp_path: Path) -> None:
    progress = run(pipeline(tmp_path), spark=spark)
    assert {path.name for path in tmp_path.glob("died-in-*")} == {"died-in-source", "died-in-arrow", "died-in-udf"}
    assert [(row["n"], row["twice"]) for row in rows(tmp_path / "out")] == [(n, 2 * n) for n in range(EVENTS)]
    assert {row.restarts for row in progress.rows().values()} == {0}


class Struck(Sink):
    """A sink whose worker is killed at a crash point of the real one, on its second write."""

    transactional = idempotent = checkable = True

    def __init__(self, inner: Any, point: str, place: Path) -> None:
        self.inner, self.point, self.place = inner, point, place

    def describe(self) -> str:
        return f"struck {self.inner.describe()}"

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        if action.number == 2 and first(self.place / "armed"):
            os.environ["CLEW_FAULTS_FIRED"] = str(self.place / "fired")
            arm(f"{self.point}:kill")
        self.inner.write(action, tables, schema)

    def applied(self, action: WriteAction) -> bool:
        return bool(self.inner.applied(action))


@pytest.mark.parametrize("point", ["sink-before-commit", "sink-after-commit", "sink-before-rename"])
def test_a_worker_killed_inside_a_write_leaves_each_write_once(spark: SparkSession, tmp_path: Path, point: str) -> None:
    p = Pipeline("struck")
    source = p.source("source", generator(lambda i: pa.table({"n": [i]}), EVENTS))
    rename = point == "sink-before-rename"
    inner = files(tmp_path / "out") if rename else sqlite(tmp_path / "out.db", table="numbers")
    p.sink(source, Struck(inner, point, tmp_path), name="sink", max_turn_events=2, attempts=1)
    run(p, spark=spark)
    assert (tmp_path / "fired").read_text() == f"{point}@sink\n"
    if rename:
        assert [row["n"] for row in rows(tmp_path / "out")] == list(range(EVENTS))
        # What the dead worker had begun is gone, too.
        assert not list((tmp_path / "out").glob(".*"))
    else:
        assert held(tmp_path / "out.db", "SELECT n FROM numbers") == {(n,): 1 for n in range(EVENTS)}
