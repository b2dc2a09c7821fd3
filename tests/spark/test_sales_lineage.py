"""The sales pipeline of LOG.io's Figure 1 on Spark, with crashes: its lineage is the one that its input files tell."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from clew.faultpoint import arm
from clew.ids import EventId, Port
from clew.lineage.trace import backward, forward
from clew.pipeline.load import load
from clew.retrace import replay, trace_record
from clew.run import Log, run
from clew.store.base import KeptStore

SALES = Path(__file__).parents[2] / "examples" / "sales"
ORDERS, PAID, HOURLY, PER_100 = (Port(name, "out") for name in ("orders", "paid", "hourly", "per_100"))
ROWS, PER_EVENT = 24_000, 100


def orders(directory: Path) -> list[dict[str, Any]]:
    """Make the input, and return all orders in the order in which they are read."""
    sys.path.insert(0, str(SALES))
    try:
        from generate import generate  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(SALES))
    generate(directory / "data" / "orders", 8, ROWS)
    files = sorted((directory / "data" / "orders").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.mark.usefixtures("unarmed")
def test_every_relation_is_the_one_that_the_input_tells(
    spark: SparkSession, log_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SALES_DATA", str(tmp_path / "data"))
    read = orders(tmp_path)
    graph = load(str(SALES / "pipeline.py"), None).graph()
    faults = arm("after-commit@hourly#2:raise", "inside-commit@paid#2:raise", "after-generate@per_100:raise")
    run(graph, log=log_url, bodies=str(tmp_path / "bodies"), spark=spark)
    assert all(fault.fired for fault in faults)
    arm()
    store = Log.at(log_url, "sales", str(tmp_path / "bodies")).open("sales")
    try:
        _check(store, read)
    finally:
        store.close()
    _check_record(graph, read, log_url, str(tmp_path / "bodies"))


def _check(store: KeptStore, read: list[dict[str, Any]]) -> None:
    """Compute from the orders alone what came from what, and compare all of it, both ways."""
    events = {n + 1: read[n * PER_EVENT : (n + 1) * PER_EVENT] for n in range(ROWS // PER_EVENT)}
    hours: dict[datetime, set[int]] = {}
    for number, rows in events.items():
        for row in rows:
            if row["status"] == "paid":
                hours.setdefault(_hour(row["date"]), set()).add(number)
    by_hour = [numbers for _, numbers in sorted(hours.items())]
    hundreds = [set(range(n, min(n + 100, len(events) + 1))) for n in range(1, len(events) + 1, 100)]
    for port, expected in ((HOURLY, by_hour), (PER_100, hundreds)):
        # The last event is the end of the stream.
        assert store.extent(port)[1] == len(expected) + 1
        for number, origins in enumerate(expected, 1):
            trace = backward(store, EventId(port, number))
            # Every event of orders has a paid one, so both have the same numbers.
            assert {event.number for event in trace.events(ORDERS)} == origins, (port, number)
            assert {event.number for event in trace.events(PAID)} == origins, (port, number)
        for source in events:
            made = {number for number, origins in enumerate(expected, 1) if source in origins}
            ahead = forward(store, EventId(ORDERS, source), to=port).events(port)
            assert {event.number for event in ahead} == made, (source, port)


def _check_record(graph: Any, read: list[dict[str, Any]], log_url: str, bodies: str) -> None:
    """A total of an hour, run again, is the same; by its window alone it leads to the paid orders of that hour."""
    event = EventId(HOURLY, 3)
    (again,) = replay(graph, "hourly", event, log=log_url, bodies=bodies)
    assert again.same
    found = trace_record(graph, event, 0, log=log_url, bodies=bodies).records
    met = {(e.number, place) for e, places in found.items() if e.port == ORDERS for place in places}
    hours = sorted({_hour(row["date"]) for row in read if row["status"] == "paid"})
    expected = {
        (n // PER_EVENT + 1, n % PER_EVENT)
        for n, row in enumerate(read)
        if row["status"] == "paid" and _hour(row["date"]) == hours[2]
    }
    # `paid` is a function of the user's, of which nothing is declared: whole events of it remain.
    assert expected <= met
    assert {number for number, _ in met} == {number for number, _ in expected}


def _hour(date: datetime) -> datetime:
    return date.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
