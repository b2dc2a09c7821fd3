"""A small sales pipeline with decimal money, and what it must leave in its sinks.

As a script: `sales.py PLACE [MASTER]` runs it, or goes on with it, on a session of Clew's own.
"""

import json
import os
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from clew import Count, Operator, Pipeline, Tumbling, files, sqlite
from clew.run import run

ROWS, FILES, PER_EVENT = 360, 3, 6
#: Events per turn at most, so that there is work left to be cut off in.
TURN = 4
START = datetime(2026, 3, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "at": pa.timestamp("us", "UTC"),
        "item": pa.string(),
        "status": pa.string(),
        "amount": pa.decimal128(12, 2),
    }
)


def orders() -> list[dict[str, Any]]:
    """One order a minute; sums of such money are not exact in binary."""
    return [
        {
            "id": n,
            "at": START + timedelta(minutes=n),
            "item": f"item {n % 5}",
            "status": "paid" if n % 4 else "open",
            "amount": Decimal(n * 37 % 1000).scaleb(-1) + Decimal("0.01"),
        }
        for n in range(ROWS)
    ]


def make(place: Path) -> None:
    """Write the orders, and the prices that an operator looks up while it works."""
    (place / "orders").mkdir(parents=True)
    rows, size = orders(), ROWS // FILES
    for number in range(FILES):
        part = pa.Table.from_pylist(rows[number * size : (number + 1) * size], SCHEMA)
        pq.write_table(part, place / "orders" / f"{number}.parquet")


class Ledger(Operator):
    """Sets aside every third event of paid orders, with a look at the outside on the way."""

    def initial(self) -> dict[str, Any]:
        return {"seen": 0}

    def facts(self, table: pa.Table) -> int:
        return int(pc.max(table["id"]).as_py())

    def assign(self, event: Any, state: dict[str, Any]) -> list[int]:
        state["seen"] += 1
        return [state["seen"]]

    def ready(self, state: dict[str, Any], opened: Any) -> list[int]:
        return list(opened)

    def generate(self, input_set: Any, context: Any) -> pa.Table | None:
        table = input_set.table()
        factor = context.read("rates", "SELECT factor FROM rates")["factor"][0].as_py()
        if input_set.key % 3 == 0:
            context.write("aside", table.select(["id"]))
        return pa.table({"id": table["id"], "points": pc.multiply(table["id"], factor)})


def pipeline(place: Path) -> Pipeline:
    p = Pipeline("sales")
    source = p.source("orders", files(place / "orders" / "*.parquet", rows_per_event=PER_EVENT), max_turn_events=TURN)

    @p.operator(source, max_turn_events=TURN)
    def paid(table: pa.Table) -> pa.Table:
        return table.filter(pc.equal(table["status"], "paid"))

    @p.operator(paid, window=Tumbling("1 hour", on="at"))
    def hourly(df: DataFrame) -> DataFrame:
        return df.groupBy("window_start", "item").agg(F.sum("amount").alias("total"))

    @p.operator(paid, window=Count(5), max_turn_events=TURN)
    def batches(table: pa.Table) -> pa.Table:
        return pa.table({"first": [pc.min(table["id"]).as_py()], "total": [pc.sum(table["amount"]).as_py()]})

    ledger = p.general(
        "ledger", Ledger(), paid, max_turn_events=TURN,
        reads={"rates": sqlite(place / "rates.db")}, writes={"aside": sqlite(place / "sink.db", table="aside")},
    )  # fmt: skip
    p.sink(hourly, sqlite(place / "sink.db", table="hourly"), name="hourly_sink")
    p.sink(batches, files(place / "batches"), name="batches_sink")
    p.sink(ledger, sqlite(place / "sink.db", table="points"), name="points_sink", max_turn_events=TURN)
    return p


FACTOR = 7


def expected() -> dict[str, Counter[tuple[Any, ...]]]:
    """What a failure-free run leaves behind, computed without Clew."""
    rows = orders()
    events = [rows[at : at + PER_EVENT] for at in range(0, ROWS, PER_EVENT)]
    kept = [[row for row in event if row["status"] == "paid"] for event in events]
    flat = [row for event in kept for row in event]
    totals: dict[tuple[datetime, str], Decimal] = {}
    for row in flat:
        key = (row["at"].replace(minute=0), row["item"])
        totals[key] = totals.get(key, Decimal(0)) + row["amount"]
    fives = [[row for event in kept[at : at + 5] for row in event] for at in range(0, len(kept), 5)]
    return {
        "hourly": Counter((str(start), item, f"{total:f}") for (start, item), total in totals.items()),
        "batches": Counter((five[0]["id"], f"{sum(row['amount'] for row in five):f}") for five in fives),
        "points": Counter((row["id"], row["id"] * FACTOR) for row in flat),
        "aside": Counter((row["id"],) for event in kept[2::3] for row in event),
    }


def main(place: Path, master: str | None) -> None:
    os.chdir(place)
    progress = run(pipeline(place), master=master)
    print(json.dumps({name: row.turns for name, row in progress.rows().items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
