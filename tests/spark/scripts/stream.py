"""A stream of files where the place has some, else of rows at a rate: the rate ends when nothing is to kill it.

With `endless` it does not end. With `jvm` the Spark driver is killed once the first batch is committed.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from clew import Pipeline, files, streaming
from clew.run import run

place = Path(sys.argv[1]).resolve()


def of_files(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("json").schema("n BIGINT").option("maxFilesPerTrigger", 2)
    return reader.load(str(place / "in"))


def of_rate(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", 100).load().selectExpr("value AS n")


def kill_jvm() -> None:
    while not (place / "bodies" / ".streams" / "batches" / "commits" / "0").exists():
        time.sleep(0.01)
    os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
    (place / "killed").touch()


if "jvm" in sys.argv:
    threading.Thread(target=kill_jvm, daemon=True).start()
endless = "endless" in sys.argv or (not (place / "in").exists() and bool(os.environ.get("CLEW_FAULTS")))
pipeline = Pipeline("streamed")
few = (place / "in").exists()
make, rows = (of_files, 7) if few else (of_rate, 200)
source = streaming(make, until=None if endless else "availableNow", rows_per_event=rows)
pipeline.sink(pipeline.source("batches", source, max_turn_events=2), files(place / "out"), name="out", capacity=3)
run(pipeline, log=f"sqlite:///{place / 'log.db'}", bodies=str(place / "bodies"))
