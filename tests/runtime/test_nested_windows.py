"""Windows over what windows give: minutes become hours, and hours days."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Pipeline, Session, Stream, Tumbling, generator, sqlite
from tests.model.runs import explained, finished

EVENTS = 300


def make(index: int) -> pa.Table:
    """Two records every half minute."""
    return pa.table({"user": ["a", "b"], "at": pa.array([index * 30_000_000] * 2, pa.timestamp("us", "UTC"))})


def held(tmp_path: Path, table: str) -> list[Any]:
    with closing(sqlite3.connect(tmp_path / "out.db")) as connection:
        return connection.execute(f"SELECT * FROM {table}").fetchall()


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline("rollup")


@pytest.fixture
def minutes(pipeline: Pipeline) -> Stream:
    source = pipeline.source("clicks", generator(make, events=EVENTS))
    return source.window(Tumbling("1 minute", on="at")).aggregate("user", n="count", name="minutes")


def test_an_aggregate_of_aggregates_has_the_bounds_of_the_outer_window(
    pipeline: Pipeline, minutes: Stream, tmp_path: Path
) -> None:
    hours = minutes.window(Tumbling("1 hour", on="window_start")).aggregate("user", n=("n", "sum"), name="hours")
    days = hours.window(Tumbling("1 day", on="window_start")).aggregate(n=("n", "sum"), name="days")
    hours.sink(sqlite(tmp_path / "out.db", table="hours"))
    days.sink(sqlite(tmp_path / "out.db", table="days"))
    assert explained(finished(pipeline, tmp_path).verify())
    zero, one, two, three = (f"1970-01-01 0{hour}:00:00.000000+00:00" for hour in range(4))
    assert held(tmp_path, "hours") == [
        (zero, one, "a", 120), (zero, one, "b", 120), (one, two, "a", 120), (one, two, "b", 120),
        (two, three, "a", 60), (two, three, "b", 60),
    ]  # fmt: skip
    assert held(tmp_path, "days") == [(zero, "1970-01-02 00:00:00.000000+00:00", 2 * EVENTS)]


def test_a_function_finds_the_bounds_of_windows_before_as_inner_ones(
    pipeline: Pipeline, minutes: Stream, tmp_path: Path
) -> None:
    def of_hour(table: pa.Table) -> pa.Table:
        return table

    def of_session(table: pa.Table) -> pa.Table:
        return table.rename_columns([name.replace("window_", "") for name in table.column_names])

    hours = minutes.window(Tumbling("1 hour", on="window_start")).apply(of_hour, name="hours", deterministic=True)
    sessions = hours.window(Session("2 minutes", on="inner_window_start", by="user", late="late"))
    found = sessions.apply(of_session, name="sessions", deterministic=True)
    found.sink(sqlite(tmp_path / "out.db", table="found"))
    found["late"].sink(sqlite(tmp_path / "out.db", table="late"))
    assert explained(finished(pipeline, tmp_path).verify())
    with closing(sqlite3.connect(tmp_path / "out.db")) as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(found)")]
    assert names == ["inner_inner_start", "inner_inner_end", "user", "n", "inner_start", "inner_end", "start", "end"]
    assert {
        (row[0][11:19], row[4][11:19], row[6][11:19]) for row in held(tmp_path, "found") if row[0][11:16] == "01:07"
    } == {("01:07:00", "01:00:00", "00:00:00")}
