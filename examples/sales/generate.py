"""Makes the order files of the sales pipeline: the same ones each time, in time order."""

import argparse
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("store_id", pa.int32()),
        ("item_id", pa.int32()),
        ("city", pa.string()),
        ("state", pa.string()),
        ("date", pa.timestamp("us", "UTC")),
        ("amount", pa.decimal128(12, 2)),
        ("status", pa.string()),
    ]
)
CITIES = [
    ("Los Angeles", "CA"), ("San Diego", "CA"), ("Denver", "CO"), ("Miami", "FL"), ("Tampa", "FL"),
    ("Chicago", "IL"), ("New York", "NY"), ("Buffalo", "NY"), ("Portland", "OR"), ("Austin", "TX"),
    ("Houston", "TX"), ("Seattle", "WA"),
]  # fmt: skip
ITEMS = 25
FIRST_DATE = datetime(2024, 3, 1, 8)
HOURS = 36


def generate(directory: Path, files: int = 40, rows: int = 120_000, seed: int = 1) -> int:
    """Write the order files into `directory`; return the number of orders."""
    directory.mkdir(parents=True, exist_ok=True)
    random_numbers = random.Random(seed)
    per_file = rows // files
    for number in range(files):
        orders = [_order(random_numbers, date) for date in _dates(number * per_file, per_file, per_file * files)]
        table = pa.Table.from_pylist(orders, SCHEMA)
        pq.write_table(table, directory / f"orders-{number:03d}.parquet")
    return per_file * files


def _dates(first: int, count: int, of: int) -> Iterator[datetime]:
    """Yield the times of some orders, which are spread evenly: Tumbling expects records in time order."""
    for index in range(first, first + count):
        yield FIRST_DATE + timedelta(seconds=index * HOURS * 3600 / of)


def _order(numbers: random.Random, date: datetime) -> dict[str, object]:
    store = numbers.randrange(len(CITIES) * 4)
    city, state = CITIES[store % len(CITIES)]
    return {
        "store_id": store,
        "item_id": numbers.randrange(1, ITEMS + 1),
        "city": city,
        "state": state,
        "date": date,
        # Money is decimal from the start: no float is ever on its way.
        "amount": Decimal(numbers.randrange(99, 50_000)).scaleb(-2),
        "status": numbers.choices(("paid", "open", "cancelled"), (90, 7, 3))[0],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data", help="the directory; files go into its subdirectory `orders`")
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--rows", type=int, default=120_000)
    options = parser.parse_args()
    place = Path(options.data) / "orders"
    print(f"{generate(place, options.files, options.rows):,} orders in {place}")
