"""Scenario 4: a function that gives something else each time, and a worker that is lost in the middle of a stage."""

import os
import signal
import uuid
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
from pyspark import TaskContext
from pyspark.sql import SparkSession

from clew import Pipeline, files, generator
from clew.run import run

EVENTS = 16


def test_scenario_4_an_output_set_is_never_a_mix_of_two_computations(spark: SparkSession, tmp_path: Path) -> None:
    flag = tmp_path / "died"
    pipeline = Pipeline("mixed")
    source = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), EVENTS))

    @pipeline.operator(source, attempts=1)
    def tagged(table: pa.Table) -> list[pa.Table]:
        token, number = uuid.uuid4().hex, table["n"][0].as_py()
        if number == EVENTS - 2 and not flag.exists():
            # Part of the stage has finished: the other task's Output Sets, and those before this one in its own.
            assert TaskContext.get() is not None
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return [pa.table({"n": [number], "part": [part], "token": [token]}) for part in range(3)]

    pipeline.sink(tagged, files(tmp_path / "one", format="parquet"), name="one")
    pipeline.sink(tagged, files(tmp_path / "other", format="parquet"), name="other")
    run(pipeline, log=f"sqlite:///{tmp_path / 'log.db'}", spark=spark)
    assert flag.exists(), "the worker was to be killed"
    held = [pa.parquet.read_table(tmp_path / name).to_pylist() for name in ("one", "other")]
    for rows in held:
        assert Counter((row["n"], row["part"]) for row in rows) == Counter(
            (n, p) for n in range(EVENTS) for p in range(3)
        )
        tokens = {n: {row["token"] for row in rows if row["n"] == n} for n in range(EVENTS)}
        assert all(len(found) == 1 for found in tokens.values()), f"a mix of two computations: {tokens}"
    assert sorted(map(str, held[0])) == sorted(map(str, held[1])), "two sinks hold two computations"
