"""Step 5: read prices, some of which are none."""

from dataclasses import dataclass
from decimal import Decimal

from clew import Pipeline, files, sqlite

pipeline = Pipeline("prices")

lines = pipeline.source("lines", files("data/prices.csv", rows_per_event=4))


@dataclass
class Price:
    item: str
    cents: int


@pipeline.map(lines, on_error="quarantine", deterministic=True)
def price(line: dict[str, str]) -> Price:
    return Price(line["item"], int(100 * Decimal(line["price"])))


pipeline.sink(price, sqlite("prices.db", table="prices", key="item"))
