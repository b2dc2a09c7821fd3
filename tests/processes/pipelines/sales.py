"""A small version of the sales pipeline (LOG.io, Figure 1): orders, those that are paid, sums by count and by hour."""

import os
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
from places import TURNS, directory, table

from clew import Count, Pipeline, Tumbling
from clew.connectors import generator

EVENTS = int(os.environ.get("EVENTS", "14"))
PAUSE = float(os.environ.get("PAUSE", "0.005"))
START = datetime(2026, 1, 1, tzinfo=UTC)


def orders_of(index: int) -> pa.Table:
    """Four orders, after those before; some events reach from one hour into the next."""
    rows = [
        {
            "order_id": 4 * index + i,
            "item_id": (index + i) % 3,
            "date": START + timedelta(minutes=25 * index + 8 * i),
            "amount": Decimal(101 * index + 7 * i) / 100,
            "status": "paid" if (index + i) % 4 else "open",
        }
        for i in range(4)
    ]
    fields = {"order_id": pa.int64(), "item_id": pa.int64(), "date": pa.timestamp("us", "UTC"),
              "amount": pa.decimal128(12, 2), "status": pa.string()}  # fmt: skip
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


pipeline = Pipeline("sales")
orders = pipeline.source("orders", generator(orders_of, EVENTS), **TURNS)


@pipeline.operator(orders, **TURNS)
def paid(table: pa.Table) -> pa.Table:
    time.sleep(PAUSE)
    return table.filter(pc.equal(table["status"], "paid"))


@pipeline.operator(paid, window=Count(3), **TURNS)
def totals(table: pa.Table) -> pa.Table:
    sums = table.group_by("item_id").aggregate([("amount", "sum"), ("order_id", "min")]).sort_by("item_id")
    return sums.rename_columns(["item_id", "total", "first_order"])


@pipeline.operator(paid, window=Tumbling(os.environ.get("WINDOW", "1 hour"), on="date"), **TURNS)
def hourly(table: pa.Table) -> pa.Table:
    keys = ["window_start", "item_id"]
    return table.group_by(keys).aggregate([("amount", "sum")]).rename_columns([*keys, "total"]).sort_by("item_id")


pipeline.sink(totals, table("totals"), **TURNS)
pipeline.sink(hourly, table("hourly", key=["window_start", "item_id"]), **TURNS)
pipeline.sink(paid, directory("paid"), **TURNS)
