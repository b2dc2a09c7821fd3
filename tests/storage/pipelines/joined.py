"""Sales from files and prices from a database, joined by the hour: into files of another format, and a table by key."""

import os

import pyarrow as pa
import pyarrow.compute as pc

from clew import Pipeline, Tumbling
from clew.connectors import files, sqlite

#: One group is one thread; turns are cut by number alone: each run makes the same calls in the same order.
TURNS = {"group": "all", "max_turn_events": 2, "turn_seconds": 1e6, "deterministic": True}
HOME = os.environ["HOME_OF_RUN"]

pipeline = Pipeline("joined")
sales = pipeline.source("sales", files(f"{HOME}/input/sales", format="jsonl", rows_per_event=2), **TURNS)
query = sqlite(f"{HOME}/input/prices.db", query="SELECT t, price FROM prices", unique="t", rows_per_event=2)
prices = pipeline.source("prices", query, **TURNS)


@pipeline.operator(sales, prices, window=Tumbling(5, on="t"), **TURNS)
def hours(sold: pa.Table, priced: pa.Table) -> pa.Table:
    start = (sold if sold.num_rows else priced)["window_start"][0].as_py()
    return pa.table({"start": [start], "sold": [sold.num_rows], "best": [pc.max(priced["price"]).as_py() or 0]})


pipeline.sink(sales, files(f"{HOME}/files/sales", format="csv"), name="sales_files", **TURNS)
pipeline.sink(hours, files(f"{HOME}/files/hours", format="parquet"), name="hours_files", **TURNS)
pipeline.sink(hours, sqlite(f"{HOME}/table/sink.db", table="hours", key="start"), name="hours_table", **TURNS)
