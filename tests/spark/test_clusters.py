"""The same pipeline on threads of the driver and on executors that are processes of their own."""

import sqlite3
import uuid
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from clew.run import run
from tests.spark.outside import held, rows, said, script
from tests.spark.scripts import sales


def outcome(place: Path) -> dict[str, Counter[tuple[Any, ...]]]:
    """Read what the sinks hold."""
    database = place / "sink.db"
    return {
        "hourly": Counter(
            (start, item, total.rstrip()) for start, item, total in held(database, "SELECT * FROM hourly").elements()
        ),
        "batches": Counter((row["first"], f"{row['total']:f}") for row in rows(place / "batches")),
        "points": held(database, "SELECT id, points FROM points"),
        "aside": held(database, "SELECT id FROM aside"),
    }


def expected() -> dict[str, Counter[tuple[Any, ...]]]:
    wanted = sales.expected()
    # SQLite holds moments as text with microseconds.
    wanted["hourly"] = Counter(
        (f"{start[:19]}.000000{start[19:]}", item, total) for start, item, total in wanted["hourly"].elements()
    )
    return wanted


def prepared(place: Path) -> Path:
    sales.make(place)
    with closing(sqlite3.connect(place / "rates.db")) as connection, connection:
        connection.execute("CREATE TABLE rates (factor INTEGER)")
        connection.execute("INSERT INTO rates VALUES (?)", (sales.FACTOR,))
    return place


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """What a session on two executors of one core made, and what its script said."""
    place = tmp_path_factory.mktemp("cluster")
    prepared(place / "sales")
    return place, said(script("cluster.py", str(place), CLEW_TEST_MARK=uuid.uuid4().hex))


def test_threads_of_the_driver_give_the_exact_result(spark: SparkSession, tmp_path: Path) -> None:
    run(sales.pipeline(prepared(tmp_path / "sales")), spark=spark)
    assert outcome(tmp_path / "sales") == expected()


@pytest.mark.soak
def test_executors_of_their_own_give_the_same(cluster: tuple[Path, Any]) -> None:
    assert outcome(cluster[0] / "sales") == expected()


@pytest.mark.soak
def test_a_result_is_computed_again_when_an_executor_was_lost_after_a_shuffle(cluster: tuple[Path, Any]) -> None:
    """Scenario 4 of the faults: what is drawn at random must come from one computation only."""
    place, found = cluster
    assert (place / "lost").exists()
    assert found["repeated"][-1] is False
    assert True in found["repeated"]
    assert found["calls"] == len(found["repeated"])
    drawn = rows(place / "drawn")
    assert sorted(row["n"] for row in drawn) == list(range(40))
    assert len({row["drawn"] for row in drawn}) == 40
