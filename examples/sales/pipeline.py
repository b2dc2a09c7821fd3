"""The sales pipeline of LOG.io's Figure 1, with a filter in front.

    orders ── paid ──┬── per_100 ── table per_100   every 100 events, summed by item and state (the paper's OP2)
                     └── hourly  ── table hourly    every hour of sales, summed by item and state (the paper's OP3)

Run it from this directory, on orders that `generate.py` made:

    python generate.py
    clew run pipeline.py
    clew verify pipeline.py

All three functions are declared deterministic, so that `clew verify` computes again what they gave.

The totals go to the SQLite file data/sales.db. Set SALES_DATABASE to a PostgreSQL URL to have them there, and
SALES_DATA to another directory than `data`.
"""

import os

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from clew import Count, Pipeline, Tumbling, files, postgres, sqlite

DATA = os.environ.get("SALES_DATA", "data")
DATABASE = os.environ.get("SALES_DATABASE", "")


def table(name: str, key: list[str] | None = None):
    """Name a table of the database that the totals go to."""
    if DATABASE:
        return postgres(DATABASE, table=name, key=key)
    return sqlite(f"{DATA}/sales.db", table=name, key=key)


pipeline = Pipeline("sales")

orders = pipeline.source("orders", files(f"{DATA}/orders/*.parquet", rows_per_event=100))


# At most 200 events wait on a connection: a slow operator holds back those before it, up to the source.
@pipeline.operator(orders, capacity=200, deterministic=True)
def paid(orders: pa.Table) -> pa.Table:
    """Keep the orders that were paid: stateless, each event alone."""
    return orders.filter(pc.equal(orders["status"], "paid"))


@pipeline.operator(paid, window=Count(100), capacity=200, deterministic=True)
def per_100(orders: DataFrame) -> DataFrame:
    """Sum every 100 events by item and state; `since` and `until` say which orders these were."""
    # Spark SQL: a job of its own for each 100 events.
    return orders.groupBy("item_id", "state").agg(
        F.min("date").alias("since"), F.max("date").alias("until"), F.sum("amount").alias("total")
    )


@pipeline.operator(paid, window=Tumbling("1 hour", on="date"), deterministic=True)
def hourly(orders: pa.Table) -> pa.Table:
    """Sum every hour by item and state; Tumbling adds `window_start`."""
    # Arrow: all the hours of a turn in one job. In one thread the groups come in the same order each time.
    groups = orders.group_by(["window_start", "item_id", "state"], use_threads=False)
    totals = groups.aggregate([("amount", "sum")])
    return totals.rename_columns(["window_start", "item_id", "state", "total"])


pipeline.sink(per_100, table("per_100"))
pipeline.sink(hourly, table("hourly", key=["window_start", "item_id", "state"]))
