"""Large bodies go by reference: through files of the tasks, never through a Spark task or the log."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clew import Batch, Capacity, Count, Pipeline, files, generator
from clew.ids import Port
from clew.run import run
from clew.runtime.operator import TURN_INLINE_BYTES
from clew.store.sqlite import SqliteStore
from tests.spark.outside import rows

MEGABYTE = 1 << 20


def large(index: int) -> pa.Table:
    return pa.table({"n": [index], "data": [bytes([index]) * MEGABYTE]})


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_events_of_a_megabyte_pass_connections_that_hold_less_than_one(spark: SparkSession, tmp_path: Path) -> None:
    p = Pipeline("large")
    events = 8
    source = p.source("source", generator(large, events))

    # Every event is larger than what may wait; a turn may overshoot by one, or nothing would ever move.
    @p.operator(source, capacity=Capacity(bytes=MEGABYTE // 2))
    def arrow(table: pa.Table) -> pa.Table:
        return table

    @p.operator(arrow, window=Batch(), capacity=Capacity(bytes=MEGABYTE // 2))
    def frame(df: DataFrame) -> DataFrame:
        return df.withColumn("hash", F.md5("data"))

    p.sink(frame, files(tmp_path / "out"))
    run(p, spark=spark)
    found = rows(tmp_path / "out")
    assert sorted(row["n"] for row in found) == list(range(events))
    assert all(row["data"] == bytes([row["n"]]) * MEGABYTE for row in found)

    store = SqliteStore(tmp_path / ".clew/large/log.db")
    try:
        for operator in ("source", "arrow", "frame"):
            runs = store.events(Port(operator, "out"), 1, events)
            bodies = [body for run_ in runs for body in run_.bodies]
            assert bodies
            assert all(body.data is None and body.file for body in bodies)
    finally:
        store.close()
    assert size(tmp_path / ".clew/large/log.db.bodies") > 3 * events * MEGABYTE
    assert os.path.getsize(tmp_path / ".clew/large/log.db") < MEGABYTE


def test_a_window_of_many_small_bodies_is_larger_than_a_task_may_be(spark: SparkSession, tmp_path: Path) -> None:
    """Each body is small enough to stay in the log; together they are more than 32 MB in one Input Set."""
    events, each = 11_000, 3_600
    p = Pipeline("window")
    make = generator(lambda i: pa.table({"n": [i], "data": [b"x" * each]}), events)
    # Small turns: a task that reads much at once puts even small bodies into a file.
    source = p.source("source", make, max_turn_events=1500)

    @p.operator(source, window=Count(events))
    def arrow(table: pa.Table) -> pa.Table:
        lengths = pc.sum(pc.binary_length(table["data"])).as_py()
        return pa.table({"events": [table.num_rows], "bytes": [lengths], "last": [table["n"][-1].as_py()]})

    @p.operator(source, window=Count(events))
    def frame(df: DataFrame) -> DataFrame:
        return df.agg(F.count("*").alias("events"), F.sum(F.length("data")).alias("bytes"), F.max("n").alias("last"))

    p.sink(arrow, files(tmp_path / "arrow"))
    p.sink(frame, files(tmp_path / "frame"))
    run(p, spark=spark)
    expected = [{"events": events, "bytes": events * each, "last": events - 1}]
    assert rows(tmp_path / "arrow") == expected
    assert rows(tmp_path / "frame") == expected

    store = SqliteStore(tmp_path / ".clew/window/log.db")
    try:
        runs = store.events(Port("source", "out"), 1, events)
        inline = sum(len(body.data) for run_ in runs for body in run_.bodies if body.data is not None)
    finally:
        store.close()
    assert inline > max(32 * MEGABYTE, TURN_INLINE_BYTES)
