"""The sales pipeline (LOG.io, Figure 1) in small, on DataFrames, whose source goes on as far as a file says."""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from clew import Count, Pipeline, Tumbling, generator, postgres

EVENTS = int(os.environ["EVENTS"])
START = datetime(2026, 1, 1, tzinfo=UTC)


def orders_of(index: int) -> pa.Table:
    """Three orders of ten minutes."""
    while int(Path(os.environ["GATE"]).read_text() or 0) <= index:
        time.sleep(0.01)
    numbers = range(3 * index, 3 * index + 3)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "item": [f"item {n % 2}" for n in numbers],
            "date": pa.array([START + timedelta(minutes=3 * n) for n in numbers], pa.timestamp("us", "UTC")),
            "amount": pa.array([n % 11 for n in numbers], pa.int64()),
            "status": ["open" if n % 4 == 0 else "paid" for n in numbers],
        }
    )


pipeline = Pipeline("sales")
# One at a time: what waits at the gate has a core, and the others need the second.
orders = pipeline.source("orders", generator(orders_of, EVENTS), max_turn_events=1)


@pipeline.operator(orders, deterministic=True, max_turn_events=4)
def paid(table: pa.Table) -> pa.Table:
    return table.filter(pc.equal(table["status"], "paid"))


@pipeline.operator(paid, window=Tumbling("1 hour", on="date"), deterministic=True)
def hourly(frame: DataFrame) -> DataFrame:
    return frame.groupBy("window_start", "item").agg(F.sum("amount").alias("total"))


@pipeline.operator(paid, window=Count(5), deterministic=True)
def fives(frame: DataFrame) -> DataFrame:
    return frame.agg(F.min("id").alias("first"), F.sum("amount").alias("total"))


pipeline.sink(hourly, postgres(os.environ["SINK"], table="hourly", key=["window_start", "item"]), name="hours")
pipeline.sink(fives, postgres(os.environ["SINK"], table="fives", key=["first"]), name="sums")
