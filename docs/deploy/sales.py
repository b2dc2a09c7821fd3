"""What was sold of each item, from files that keep coming: the pipeline that is deployed here."""

import os

import pyarrow as pa

from clew import Count, Pipeline, files, postgres

#: Where files of orders appear, and the database with the totals; every process of the run sees the same.
ORDERS = os.environ.get("ORDERS", "/shared/orders")
SHOP = os.environ.get("SHOP", "postgresql://clew@db.example.com/shop")
COLUMNS = pa.schema([("item", pa.string()), ("amount", pa.int64()), ("status", pa.string())])

pipeline = Pipeline("sales")
orders = pipeline.source("orders", files(f"{ORDERS}/*.jsonl", schema=COLUMNS, follow=True))
paid = orders.filter(lambda order: order["status"] == "paid", name="paid", deterministic=True, group="totals")
totals = paid.window(Count(20)).aggregate("item", total=("amount", "sum"), name="totals")
totals.sink(postgres(SHOP, table="totals"), name="writer")
