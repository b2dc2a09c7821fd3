"""`speculation.py PLACE`: Spark runs tasks twice, because they take long, and both attempts come to their end.

Spark starts the second attempt on another host only. Two addresses of the loopback are two hosts to it, so a standalone
cluster of two workers is made of them, within the driver's own JVM; the executors are processes of their own.
"""

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkContext, TaskContext

from clew import Pipeline, Sink, WriteAction, files, generator, sqlite
from clew.run import run
from clew.spark.session import make_session

EVENTS = 6
#: The event, and the write, that Spark makes two attempts of.
SLOW = 3
PATIENCE = 60.0
#: Where an attempt waits for the other one.
WAITS = ("function-begun", "function-done", "write-begun", "write-done")
#: Of each worker: enough for all attempts that wait for another one.
CORES = 3


def both(place: Path, what: str) -> None:
    """Come here, and go on when another attempt of the same task has come here, too."""
    task = TaskContext.get()
    assert task is not None
    (place / f"{what}-{task.taskAttemptId()}").touch()
    deadline = time.monotonic() + PATIENCE
    while len(list(place.glob(f"{what}-*"))) < 2:
        assert time.monotonic() < deadline, f"Spark made no second attempt of {what}"
        time.sleep(0.02)


class Doubled(Sink):
    """A table to which two attempts write at the same time."""

    transactional = checkable = True

    def __init__(self, table: Any, place: Path) -> None:
        self._table, self._place = table, place

    def describe(self) -> str:
        return str(self._table.describe())

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        if action.number == SLOW:
            both(self._place, "write-begun")
        self._table.write(action, tables, schema)
        if action.number == SLOW:
            both(self._place, "write-done")

    def applied(self, action: WriteAction) -> bool:
        return bool(self._table.applied(action))


def pipeline(place: Path) -> Pipeline:
    p = Pipeline("doubled")
    source = p.source("source", generator(lambda i: pa.table({"n": [i]}), EVENTS), max_turn_events=1)

    @p.operator(source, max_turn_events=1, attempts=1)
    def drawn(table: pa.Table) -> list[pa.Table]:
        # Something else in each attempt, in two events of one Output Set.
        number, token = table["n"][0].as_py(), uuid.uuid4().hex
        if number == SLOW:
            both(place, "function-begun")
            both(place, "function-done")
        return [pa.table({"n": [number], "part": [part], "token": [token]}) for part in (1, 2)]

    p.sink(drawn, Doubled(sqlite(place / "sink.db", table="drawn"), place), name="table", max_turn_events=2, attempts=1)
    p.sink(drawn, files(place / "files"), name="files", max_turn_events=2, attempts=1)
    return p


def cluster() -> str:
    """Start a master and two workers on two hosts, in the JVM of the driver; returns its URL."""
    SparkContext._ensure_initialized()
    gateway: Any = SparkContext._gateway
    jvm = gateway.jvm
    conf = jvm.org.apache.spark.SparkConf()
    for name, value in {"spark.ui.enabled": "false", "spark.master.ui.port": "0"}.items():
        conf.set(name, value)
    nothing = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    deploy = jvm.org.apache.spark.deploy
    started = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)
    url = f"spark://127.0.0.1:{started._1().address().port()}"
    masters = gateway.new_array(jvm.java.lang.String, 1)
    masters[0] = url
    for number, host in enumerate(("127.0.0.1", "127.0.0.2")):
        some = jvm.scala.Some(number)
        deploy.worker.Worker.startRpcEnvAndEndpoint(host, 0, 0, CORES, 1024, masters, os.getcwd(), some, conf, nothing)
    return url


def main(place: Path) -> None:
    os.chdir(place)
    session = make_session(
        cluster(),
        {
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.task.duration.threshold": "300ms",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        },
    )
    run(pipeline(place), spark=session)
    print(json.dumps({what: len(list(place.glob(f"{what}-*"))) for what in WAITS}))
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
