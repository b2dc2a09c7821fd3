"""A function that hangs is cut off at the turn's time limit; the other operators go on meanwhile."""

import os
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clew import Pipeline, files, generator
from clew.errors import TurnTimedOut
from clew.run import run
from tests.spark.outside import rows

#: Seconds; on a busy machine a job without any fault takes one or two.
LIMIT = 8
SLOW = 600


def hang(place: Path) -> None:
    (place / "hanging").write_text(str(os.getpid()))
    time.sleep(SLOW)


def pipeline(place: Path, style: str, mended: bool) -> Pipeline:
    """The third event hangs in one operator; another takes all events beside it, slowly enough to need its while."""
    p = Pipeline("hanging")
    source = p.source("source", generator(lambda i: pa.table({"n": [i]}), 5))

    limit = 300 if mended else LIMIT

    def stuck(n: int) -> int:
        if not mended and n == 2:
            hang(place)
        return n

    if style == "arrow":

        @p.operator(source, name="stuck", turn_timeout=limit, attempts=1, max_turn_events=1)
        def arrow(table: pa.Table) -> pa.Table:
            return pa.table({"n": [stuck(n) for n in table["n"].to_pylist()]})

    elif style == "udf":

        @p.operator(source, name="stuck", turn_timeout=limit, attempts=1, max_turn_events=1)
        def udf(df: DataFrame) -> DataFrame:
            return df.select(F.udf(stuck, "long")("n").alias("n"))

    else:

        @p.operator(source, name="stuck", turn_timeout=limit, attempts=1, max_turn_events=1)
        def plan(df: DataFrame) -> DataFrame:
            stuck(df.first()["n"])
            return df

    @p.operator(source, max_turn_events=1)
    def other(table: pa.Table) -> pa.Table:
        # It waits for the other one to hang, to show that both are under way at once.
        deadline = time.monotonic() + 60
        while not mended and not (place / "hanging").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return table

    p.sink("stuck.out", files(place / "stuck"))
    p.sink(other, files(place / "other"))
    return p


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A process that nobody has waited for yet is dead all the same.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("style", ["arrow", pytest.param("udf", marks=pytest.mark.soak), "plan"])
def test_a_function_that_hangs_is_cut_off_and_the_run_resumes_once_it_is_mended(
    spark: SparkSession, tmp_path: Path, style: str
) -> None:
    # Workers that have imported all they need: their start counts as part of a turn, too.
    run(pipeline(tmp_path, style, mended=True), spark=spark, recovery="none")
    shutil.rmtree(tmp_path / "stuck")
    shutil.rmtree(tmp_path / "other")
    start = time.monotonic()
    with pytest.raises(TurnTimedOut) as raised:
        run(pipeline(tmp_path, style, mended=False), spark=spark)
    assert time.monotonic() - start < 90
    error = raised.value
    assert (error.operator, error.events, error.seconds) == ("stuck", "source.out#3", LIMIT)
    hung = int((tmp_path / "hanging").read_text())
    if style == "plan":
        # It hung in the driver, where a thread can only be left behind.
        assert hung == os.getpid()
    else:
        deadline = time.monotonic() + 20
        while is_running(hung) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not is_running(hung)
    # The other operator went on while this one hung.
    assert rows(tmp_path / "other")

    run(pipeline(tmp_path, style, mended=True), spark=spark)
    for name in ("stuck", "other"):
        assert [row["n"] for row in rows(tmp_path / name)] == list(range(5))
