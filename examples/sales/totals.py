"""The totals of the sales pipeline, from its two tables and from plain Spark SQL: as exact text, to be compared."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pipeline import DATA, DATABASE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: (item, state) or (hour, item, state), and its total.
Totals = dict[tuple[str, ...], Decimal]


def of_plain_spark(spark: "SparkSession") -> dict[str, Any]:
    """Ask Spark SQL, without Clew, for the totals of the same files; keys and money as text."""
    spark.read.parquet(f"{DATA}/orders").where("status = 'paid'").createOrReplaceTempView("orders")
    query = "SELECT {keys}, CAST(sum(amount) AS string) FROM orders GROUP BY ALL"
    hour = "date_format(date_trunc('HOUR', date), 'yyyy-MM-dd HH:mm:ss')"
    return {
        "item_state": [list(row) for row in spark.sql(query.format(keys="item_id, state")).collect()],
        "hour_item_state": [list(row) for row in spark.sql(query.format(keys=f"{hour}, item_id, state")).collect()],
    }


def in_tables() -> tuple[Totals, Totals]:
    """Read what the sinks hold: the totals of table per_100 by item and state, and table hourly as it is."""
    per_100 = add(_rows("SELECT item_id, state, total FROM per_100"))
    hours = _rows("SELECT window_start, item_id, state, total FROM hourly")
    return per_100, exactly_once((str(hour)[:19], *rest) for hour, *rest in hours)


def add(rows: Iterable[Iterable[Any]]) -> Totals:
    """Add up rows whose last column is money."""
    sums: Totals = defaultdict(Decimal)
    for *key, money in rows:
        sums[tuple(map(str, key))] += Decimal(money)
    return dict(sums)


def exactly_once(rows: Iterable[Iterable[Any]]) -> Totals:
    """Return rows by key; a key that comes twice is an error, never overwritten."""
    found: Totals = {}
    for *key, money in rows:
        name = tuple(map(str, key))
        if name in found:
            raise AssertionError(f"{name} is there twice")
        found[name] = Decimal(money)
    return found


def by_state(sums: Totals) -> Totals:
    """Add up totals by state, the last part of their keys."""
    return add((key[-1], money) for key, money in sums.items())


def row_counts() -> dict[str, int]:
    """Say how many rows the tables hold now; none while they are not there."""
    return {table: int(_rows(f"SELECT count(*) FROM {table}")[0][0]) for table in _tables()}


def clear() -> None:
    """Remove the two tables, and nothing else, from a PostgreSQL database; a SQLite file goes with its directory."""
    if DATABASE:
        import psycopg

        with psycopg.connect(DATABASE, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS per_100, hourly")


def _tables() -> list[str]:
    if DATABASE:
        found = _rows("SELECT tablename FROM pg_tables WHERE tablename IN ('hourly', 'per_100')")
    else:
        found = _rows("SELECT name FROM sqlite_master WHERE name IN ('hourly', 'per_100')")
    return sorted(name for (name,) in found)


def _rows(query: str) -> list[tuple[Any, ...]]:
    if DATABASE:
        import psycopg

        with psycopg.connect(DATABASE, options="-c timezone=UTC") as connection:
            return connection.execute(query).fetchall()
    connection = sqlite3.connect(f"{DATA}/sales.db", timeout=60)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()
