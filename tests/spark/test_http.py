"""HTTP from real executors: settings travel, every worker opens connections of its own."""

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from clew import Context, InputSet, Operator, Pipeline, cached, generator, http
from clew.faultpoint import arm
from clew.run import run
from tests.connectors.http_server import Server, serving

EVENTS = 20


def _pipeline(server: Server) -> Pipeline:
    class Rated(Operator):
        def assign(self, event, state):
            return [event.number]

        def ready(self, state, opened):
            return tuple(opened)

        def generate(self, input_set: InputSet, context: Context):
            orders = input_set.table()
            return orders.append_column("asked", context.read("rates", "/rates?day=1")["asked"])

    pipeline = Pipeline("rated")
    source = pipeline.source("source", generator(lambda index: pa.table({"n": [index]}), EVENTS))
    rates = cached(http(server.url("")), seconds=600)
    rated = pipeline.general("rated", Rated(), source, reads={"rates": rates}, max_turn_events=5)
    pipeline.sink(rated, http(server.url(), timeout=5), name="sink", max_turn_events=5)
    return pipeline


def test_lost_answers_and_a_crash_leave_each_record_once(spark: SparkSession, tmp_path: Path) -> None:
    with serving() as server:
        server.writes = ["fine", "lose"]
        (fault,) = arm("after-write@sink#2:raise")
        try:
            run(_pipeline(server), spark=spark, log=f"sqlite:///{tmp_path / 'log.db'}", bodies=str(tmp_path / "bodies"))
        finally:
            arm()
        assert fault.fired
        assert server.happened["lose"] == 1
        assert server.records() == [{"n": n, "asked": "/rates?day=1"} for n in range(EVENTS)]
        # Once per worker process, not once per event.
        assert server.count("GET", "/rates") < EVENTS
