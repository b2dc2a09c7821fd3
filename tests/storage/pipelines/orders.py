"""Orders, those that are paid, into files and into a table: as the environment says, into one of them or both."""

import os

import pyarrow as pa
import pyarrow.compute as pc

from clew import Pipeline
from clew.connectors import files, generator, sqlite

#: One group is one thread; turns are cut by number alone: each run makes the same calls in the same order.
TURNS = {"group": "all", "max_turn_events": 2, "turn_seconds": 1e6, "deterministic": True}
EVENTS = int(os.environ["EVENTS"])
HOME = os.environ["HOME_OF_RUN"]


def orders_of(index: int) -> pa.Table:
    """Four orders, after those before."""
    numbers = [4 * index + i for i in range(4)]
    texts = [f"order {number} " * 8 for number in numbers]
    return pa.table({"order": numbers, "paid": [n % 3 != 0 for n in numbers], "text": texts})


pipeline = Pipeline("orders")
orders = pipeline.source("orders", generator(orders_of, EVENTS), **TURNS)


@pipeline.operator(orders, **TURNS)
def paid(table: pa.Table) -> pa.Table:
    return table.filter(pc.field("paid")).drop_columns(["paid"])


if "files" in os.environ["SINKS"]:
    pipeline.sink(paid, files(f"{HOME}/files", format="jsonl"), name="paid_files", **TURNS)
if "paid" in os.environ["SINKS"]:
    pipeline.sink(paid, sqlite(f"{HOME}/table/sink.db", table="paid"), name="paid_table", **TURNS)
