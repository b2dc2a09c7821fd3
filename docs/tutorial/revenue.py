"""Step 3: join orders with refunds, sort them apart, and sum them up with Spark."""

import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from clew import Each, Pipeline, Tumbling, files, sqlite

pipeline = Pipeline("revenue")

orders = pipeline.source("orders", files("data/orders.csv"))
refunds = pipeline.source("refunds", files("data/refunds.csv"))

joined = orders.join(refunds, on="order", how="left", window=Tumbling("1 day", on="time"), name="joined")

sizes = joined.branch(large=pc.field("cents") >= 10_000, rest="small", name="sizes")

large = pipeline.sql(
    "large",
    """
    SELECT date(window_start) AS day, item, sum(cents - coalesce(refund, 0)) AS cents
    FROM orders GROUP BY day, item ORDER BY item
    """,
    window=Each(),
    orders=sizes["large"],
    deterministic=True,
)


@pipeline.operator(sizes["small"], deterministic=True)
def small(orders: DataFrame) -> DataFrame:
    kept = F.col("cents") - F.coalesce("refund", F.lit(0))
    days = orders.groupBy(F.to_date("window_start").alias("day"))
    return days.agg(F.count("*").alias("orders"), F.sum(kept).alias("cents"))


large.sink(sqlite("revenue.db", table="large"))
pipeline.sink(small, sqlite("revenue.db", table="small"))
