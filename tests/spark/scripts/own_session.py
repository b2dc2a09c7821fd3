"""`own_session.py PLACE`: the JVM of Clew's own session is killed under a run; the run goes on, on a new one."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from clew import Pipeline, files, generator
from clew.run import run
from clew.spark import engine

EVENTS = 12
# Made once, as in a user's module: it refers into the JVM that it was first used in.
twice = F.udf(lambda n: n * 2, LongType())


def pipeline(place: Path) -> Pipeline:
    p = Pipeline("lasting")
    source = p.source("source", generator(lambda i: pa.table({"n": [i]}), EVENTS), max_turn_events=2)

    @p.operator(source, max_turn_events=1)
    def arrow(table: pa.Table) -> pa.Table:
        return table.append_column("arrow", table["n"])

    @p.operator(arrow, max_turn_events=1, attempts=1)
    def frame(df: DataFrame) -> DataFrame:
        return df.withColumn("twice", twice("n"))

    p.sink(frame, files(place / "out"), max_turn_events=1)
    return p


def kill_the_jvm(place: Path, after: int) -> None:
    """Kill the driver's JVM when some writes are done and others are not."""
    while len(list((place / "out").glob("[!.]*.parquet"))) < after:
        time.sleep(0.02)
    os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)


def main(place: Path) -> None:
    os.chdir(place)
    made = []
    make = engine.open_session

    def counted(*arguments: object) -> object:
        made.append(arguments)
        return make(*arguments)

    engine.open_session = counted
    killer = threading.Thread(target=kill_the_jvm, args=(place, 3), daemon=True)
    killer.start()
    progress = run(pipeline(place))
    restarts = {name: row.restarts for name, row in progress.rows().items()}
    print(json.dumps({"sessions": len(made), "killed": not killer.is_alive(), "restarts": restarts}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
