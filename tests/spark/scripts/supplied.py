"""`supplied.py PLACE`: a session of the user's own, which never tries a task again, loses workers and then its JVM."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clew import Pipeline, Sink, WriteAction, files, generator
from clew.errors import SetupFailed
from clew.run import run

sys.path.insert(0, str(Path(__file__).parent))
import own_session

SETTINGS = {
    "spark.app.name": "the user's own",
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.shuffle.partitions": "3",
    "spark.ui.enabled": "false",
}


def die_once(flag: Path) -> None:
    """Kill the process that this runs in, the first time."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly(Sink):
    """Files, written by a worker that dies before its first write."""

    idempotent = True

    def __init__(self, place: Path) -> None:
        self.place = place
        self.inner = files(place / "out")

    def describe(self) -> str:
        return "deadly"

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        die_once(self.place / "died-in-sink")
        self.inner.write(action, tables, schema)


def dying(place: Path) -> Pipeline:
    p = Pipeline("dying")

    def make(index: int) -> pa.Table:
        if index == 2:
            die_once(place / "died-in-source")
        # A moment, to see that the session's own time zone shifts nothing.
        return pa.table({"n": [index], "at": pa.array([index * 3_600_000_000], pa.timestamp("us", "UTC"))})

    source = p.source("source", generator(make, 4))

    @p.operator(source)
    def arrow(table: pa.Table) -> pa.Table:
        if table["n"][0].as_py() == 1:
            die_once(place / "died-in-arrow")
        return table

    def udf(n: int) -> int:
        if n == 1:
            die_once(place / "died-in-udf")
        return n * 2

    @p.operator(arrow)
    def frame(df: DataFrame) -> DataFrame:
        return df.withColumn("twice", F.udf(udf, "long")("n"))

    p.sink(frame, Deadly(place))
    return p


def main(place: Path) -> None:
    os.chdir(place)
    builder = SparkSession.builder.master("local[2]")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    before = {key: session.conf.get(key) for key in [*SETTINGS, "spark.scheduler.mode", "spark.sql.ansi.enabled"]
              if session.conf.get(key, None) is not None}  # fmt: skip
    run(dying(place), spark=session)
    after = {key: session.conf.get(key) for key in before}
    said = {"changed": before != after, "alive": session.range(3).count() == 3}

    (place / "killed").mkdir()
    threading.Thread(target=own_session.kill_the_jvm, args=(place / "killed", 3), daemon=True).start()
    try:
        run(own_session.pipeline(place / "killed"), spark=session)
        said["stopped"] = "it did not stop"
    except SetupFailed as error:
        said["stopped"] = str(error)
    run(own_session.pipeline(place / "killed"))
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
