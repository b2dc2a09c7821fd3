"""Windows with keys, on a log in SQL: a group that fails while windows are open goes on with them."""

from pathlib import Path

import pyarrow as pa
import pytest

from clew import Count, Pipeline, Session, Sliding, Tumbling, generator, sqlite
from clew.faultpoint import arm
from clew.pipeline.windows import Window
from clew.run import run, verify

WINDOWS = [
    Count(7, by="user"),
    Tumbling(50, on="at", by="user"),
    Sliding(60, 20, on="at", by="user"),
    Session(12, on="at", by="user"),
    Session(12, on="at", by=["user", "page"], lateness=5),
]


def clicks(index: int) -> pa.Table:
    numbers = range(10 * index, 10 * index + 10)
    users, pages = [f"user {n * n % 5}" for n in numbers], [n % 2 for n in numbers]
    return pa.table({"user": users, "page": pages, "at": [3 * n for n in numbers], "n": numbers})


@pytest.mark.parametrize("window", WINDOWS, ids=repr)
def test_open_windows_are_found_again(window: Window, tmp_path: Path) -> None:
    pipeline = Pipeline("clicks")
    source = pipeline.source("source", generator(clicks, 30), max_turn_events=4)
    sums = source.window(window).aggregate("user", total=("n", "sum"), clicks="count", name="sums")
    sums.sink(sqlite(str(tmp_path / "out.db"), table="sums"))
    place = {"log": f"sqlite:///{tmp_path / 'log.db'}", "engine": "inline"}
    (fault,) = arm("after-generate@sums#3:raise")
    try:
        run(pipeline, **place)
    finally:
        arm()
    assert fault.fired
    verdict = verify(pipeline, **place)
    assert verdict.word == "explained", verdict.findings
