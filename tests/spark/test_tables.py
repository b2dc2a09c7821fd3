"""Tables that Clew writes file by file, seen by Spark: read by it, and written from its workers."""

import datetime
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from clew import Pipeline, delta, files, generator
from clew.pipeline.contracts import WriteAction
from clew.run import run, verify
from tests.connectors.crashes import EVENTS, expected, multiset, records
from tests.model.runs import explained

SIGNS = [chr(sign) for sign in range(0x20, 0x80)]


def test_spark_reads_partitions_with_any_sign_in_them(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({
        "n": list(range(len(SIGNS) + 1)), "s": [*(f"a{sign}b" for sign in SIGNS), None],
        "day": [datetime.date(2024, 1, 1)] * len(SIGNS) + [None], "b": [True] * (len(SIGNS) + 1),
    })  # fmt: skip
    out = files(tmp_path / "out", partition_by=["s", "day", "b"])
    out.write(WriteAction("run1", "totals", "out", 1, 1), iter([table]), table.schema)
    frame = spark.read.schema("n long, s string, day date, b boolean").parquet(str(tmp_path / "out"))
    assert multiset(row.asDict() for row in frame.collect()) == multiset(table.to_pylist())


def test_spark_writes_the_same_names(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(number, f"a{sign}b") for number, sign in enumerate(SIGNS)] + [(-1, None)]
    frame = spark.createDataFrame(rows, "n long, s string").coalesce(1)
    frame.write.partitionBy("s").parquet(str(tmp_path / "spark"))
    table = pa.table({"n": [n for n, _ in rows], "s": [s for _, s in rows]})
    files(tmp_path / "clew", partition_by="s").write(WriteAction("r", "o", "c", 1, 1), iter([table]), table.schema)
    names = [{one.name for one in (tmp_path / place).iterdir() if "=" in one.name} for place in ("spark", "clew")]
    assert names[0] == names[1]


def test_sparks_workers_write_both_kinds_of_tables(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("tables")
    events = pipeline.source("events", generator(records, EVENTS), max_turn_events=2)
    pipeline.sink(events, files(tmp_path / "files", partition_by="day"), name="to_files")
    pipeline.sink(events, delta(tmp_path / "delta", partition_by="day"), name="to_delta")
    log, bodies = f"sqlite:///{tmp_path / 'log.db'}", str(tmp_path / "bodies")
    run(pipeline, log=log, bodies=bodies, spark=spark)
    frame = spark.read.schema("n long, day date").parquet(str(tmp_path / "files"))
    assert multiset(row.asDict() for row in frame.collect()) == expected()
    assert multiset(DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()) == expected()
    for engine in ("inline", "spark"):
        assert explained(verify(pipeline, log=log, bodies=bodies, engine=engine, spark=spark))
