"""What each example should leave in its sinks: computed in plain Python from the records, and read from the sinks.

Nothing here uses Clew, Spark or the functions of the examples.
"""

import csv
import json
import re
import sqlite3
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

#: The records of each sink, as multisets of tuples.
Outcome = dict[str, Counter[tuple[Any, ...]]]


@dataclass(frozen=True)
class Example:
    """How to judge one example: what its records should come to, and what its sinks hold."""

    name: str
    expected: Callable[[Path], Outcome]
    #: Also takes the port of the bank.
    held: Callable[[Path, str], Outcome]


def broken_cars(place: Path) -> Outcome:
    reports = [{key: int(value) for key, value in row.items()} for row in _csv(place / "data" / "reports.csv")]
    standing = defaultdict(list)
    for report in reports:
        if report["speed"] == 0:
            standing[report["car"]].append(report)
    broken: Counter[tuple[Any, ...]] = Counter()
    for car, stops in standing.items():
        for since in range(-120, max(report["time"] for report in reports) + 30, 30):
            positions = [stop["position"] for stop in stops if since <= stop["time"] < since + 120]
            if len(positions) == 4 and len(set(positions)) == 1:
                broken[since, car, positions[0]] += 1
    at_once = Counter((since, position) for since, _, position in broken)
    return {"broken_down": broken, "accidents": Counter((*at, cars) for at, cars in at_once.items() if cars >= 2)}


def dark_days(place: Path) -> Outcome:
    rows = [
        (datetime.fromisoformat(row["time"]), int(row["meter"]), int(row["watt_hours"]))
        for row in _csv(place / "data" / "readings.csv")
    ]
    totals: dict[tuple[date, int], int] = defaultdict(int)
    too_late: Counter[tuple[Any, ...]] = Counter()
    latest = datetime.min
    for first in range(0, len(rows), 60):
        event = rows[first : first + 60]
        for at, meter, watt_hours in event:
            # A day that was summed up six hours after its end has no place for more.
            if datetime.combine(at, datetime.min.time()) + timedelta(days=1, hours=6) <= latest:
                too_late[at, meter, watt_hours] += 1
            else:
                totals[at.date(), meter] += watt_hours
        latest = max(latest, *(at for at, _, _ in event))
    dark = Counter(day for (day, _), total in totals.items() if total == 0)
    return {"blackouts": Counter((day, meters) for day, meters in dark.items() if meters > 7), "too_late": too_late}


def captured(place: Path) -> Outcome:
    table: dict[int, tuple[Any, ...]] = {}
    deletions: Counter[tuple[Any, ...]] = Counter()
    for file in sorted((place / "data" / "changes").glob("*.jsonl")):
        for change in map(json.loads, file.read_text().splitlines()):
            gone = change["op"] == "d"
            row = change["before"] if gone else change["after"]
            table[row["id"]] = (row["id"], row["name"], row["city"], row["cents"], int(gone), change["position"])
            if gone:
                deletions[table[row["id"]]] += 1
    return {"customers": Counter(table.values()), "deletions": deletions}


def visited(place: Path) -> Outcome:
    by_address = defaultdict(list)
    odd: Counter[tuple[Any, ...]] = Counter()
    for line in (json.loads(text)["line"] for text in (place / "data" / "access.jsonl").read_text().splitlines()):
        if not line.startswith("10."):
            odd[(line,)] += 1
            continue
        address, _, _, day, zone, _, path, _, status, _ = line.split()
        at = datetime.strptime(f"{day[1:]} {zone[:-1]}", "%d/%b/%Y:%H:%M:%S %z")
        by_address[address].append((at, path, int(status)))
    visits = [(address, visit) for address, requests in by_address.items() for visit in _bursts(sorted(requests))]
    return {"visits": Counter(_summed(address, visit) for address, visit in visits), "odd": odd}


def _bursts(requests: list[tuple[datetime, str, int]]) -> Iterator[list[tuple[datetime, str, int]]]:
    burst = [requests[0]]
    for request in requests[1:]:
        if request[0] - burst[-1][0] >= timedelta(minutes=30):
            yield burst
            burst = []
        burst.append(request)
    yield burst


def _summed(address: str, visit: list[tuple[datetime, str, int]]) -> tuple[Any, ...]:
    (began, entry, _), (ended, _, _) = visit[0], visit[-1]
    failed = sum(status >= 500 for _, _, status in visit)
    return str(began.date()), address, began, int((ended - began).total_seconds()), entry, len(visit), failed


def paid(place: Path) -> Outcome:
    charges, ledger, refused = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    for row in _csv(place / "data" / "payments.csv"):
        payment, account, cents = int(row["payment"]), int(row["account"]), int(row["cents"])
        # What the bank says of accounts: every fifth is blocked, and a greater number may spend more.
        if account % 5 == 0:
            refused[payment, account, cents, "blocked"] += 1
        elif cents > 20_000 + 1000 * account:
            refused[payment, account, cents, "limit"] += 1
        else:
            charges[payment, account, cents] += 1
            ledger.update([(payment, str(account), -cents), (payment, "merchant", cents)])
    return {"charges": charges, "ledger": ledger, "refused": refused}


def _csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _rows(database: Path, table: str) -> Counter[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return Counter(connection.execute(f"SELECT * FROM {table}").fetchall())


def _records(directory: Path) -> list[dict[str, Any]]:
    """Return the records of all files below a directory, with the day that a file's directory is named of."""
    found = []
    for file in directory.glob("**/[!.]*.parquet"):
        day = re.findall(r"day=([^/]+)", str(file))
        found += [{**row, **({"day": day[0]} if day else {})} for row in pq.ParquetFile(file).read().to_pylist()]
    return found


def _of_files(directory: Path, *columns: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[column] for column in columns) for row in _records(directory))


def _road(place: Path, port: str) -> Outcome:
    return {table: _rows(place / "data" / "road.db", table) for table in ("broken_down", "accidents")}


def _grid(place: Path, port: str) -> Outcome:
    blackouts = Counter((row["day"].date(), row["meters"]) for row in _records(place / "out" / "blackouts"))
    return {"blackouts": blackouts, "too_late": _of_files(place / "out" / "too_late", "time", "meter", "watt_hours")}


def _copy(place: Path, port: str) -> Outcome:
    return {table: _rows(place / "data" / "copy.db", table) for table in ("customers", "deletions")}


def _visits(place: Path, port: str) -> Outcome:
    columns = ("day", "address", "began", "seconds", "entry", "requests", "failed")
    return {"visits": _of_files(place / "out" / "visits", *columns), "odd": _rows(place / "data" / "odd.db", "odd")}


def _shop(place: Path, port: str) -> Outcome:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/charges", timeout=30) as answer:
        charges = Counter((one["payment"], one["account"], one["cents"]) for one in json.load(answer))
    return {"charges": charges, **{table: _rows(place / "data" / "shop.db", table) for table in ("ledger", "refused")}}


EXAMPLES = (
    Example("linear_road", broken_cars, _road),
    Example("smart_grid", dark_days, _grid),
    Example("change_data_capture", captured, _copy),
    Example("log_sessions", visited, _visits),
    Example("payments", paid, _shop),
)
