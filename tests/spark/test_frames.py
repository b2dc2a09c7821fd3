"""DataFrame functions: windows, several inputs and outputs, one job per turn, one schema per port."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clew import Batch, Count, Pipeline, Tumbling, files, generator
from clew.errors import ClewError, SchemaChanged
from clew.ids import Port
from clew.run import run
from clew.spark import frames
from clew.store.sqlite import SqliteStore
from tests.spark.outside import multiset, rows, written

HOUR = 3_600_000_000


def counting(index: int) -> pa.Table:
    """Four records per event, whose times cross an hour every five events."""
    numbers = list(range(index * 4, index * 4 + 4))
    at = pa.array([n * HOUR // 20 for n in numbers], pa.timestamp("us", "UTC"))
    return pa.table({"n": numbers, "k": [n % 3 for n in numbers], "at": at})


class Jobs:
    """The Spark jobs of some operator since this was made."""

    def __init__(self, spark: SparkSession) -> None:
        self._store = spark.sparkContext._jsc.sc().statusStore()
        self._before = self._last()

    def _all(self) -> Iterator[Any]:
        jobs = self._store.jobsList(None)
        for i in range(jobs.size()):
            yield jobs.apply(i)

    def _last(self) -> int:
        return max((job.jobId() for job in self._all()), default=-1)

    def descriptions(self) -> list[str]:
        found = [job for job in self._all() if job.jobId() > self._before]
        return [job.description().get() for job in found if job.description().isDefined()]

    def of(self, operator: str) -> list[str]:
        return [text for text in self.descriptions() if text.startswith(f"{operator}, turn ")]


def test_each_event_alone_and_all_events_of_a_turn(spark: SparkSession, tmp_path: Path) -> None:
    p = Pipeline("windows")
    source = p.source("source", generator(counting, 4))

    @p.operator(source)
    def each(df: DataFrame) -> DataFrame:
        return df.agg(F.count("*").alias("records"), F.min("n").alias("first"))

    @p.operator(source, window=Batch())
    def batch(df: DataFrame) -> DataFrame:
        return df.agg(F.count("*").alias("records"))

    p.sink(each, files(tmp_path / "each"))
    p.sink(batch, files(tmp_path / "batch"))
    run(p, spark=spark)
    assert multiset(rows(tmp_path / "each")) == multiset([{"records": 4, "first": first} for first in (0, 4, 8, 12)])
    assert sum(row["records"] for row in rows(tmp_path / "batch")) == 16


def test_windows_of_events_and_of_time_see_exactly_their_input_set(spark: SparkSession, tmp_path: Path) -> None:
    p = Pipeline("windows")
    source = p.source("source", generator(counting, 12))

    @p.operator(source, window=Count(5))
    def fives(df: DataFrame) -> DataFrame:
        return df.agg(F.sum("n").alias("total"))

    @p.operator(source, window=Tumbling("1 hour", on="at"))
    def hours(df: DataFrame) -> DataFrame:
        return df.groupBy("window_start", "window_end").agg(F.sum("n").alias("total"), F.count("*").alias("records"))

    p.sink(fives, files(tmp_path / "fives"))
    p.sink(hours, files(tmp_path / "hours"))
    run(p, spark=spark)
    numbers = range(48)
    assert [row["total"] for row in rows(tmp_path / "fives")] == [
        sum(numbers[:20]), sum(numbers[20:40]), sum(numbers[40:]),
    ]  # fmt: skip
    hour = [datetime(1970, 1, 1, h, tzinfo=UTC) for h in range(4)]
    assert rows(tmp_path / "hours") == [
        {"window_start": hour[i], "window_end": hour[i + 1], "total": sum(part), "records": len(part)}
        for i, part in enumerate((numbers[:20], numbers[20:40], numbers[40:]))
    ]


def test_several_inputs_are_joined_and_several_outputs_are_sent(spark: SparkSession, tmp_path: Path) -> None:
    p = Pipeline("join")
    left = p.source("left", generator(counting, 6))
    right = p.source("right", generator(lambda i: pa.table({"n": [i * 3], "name": [f"n{i * 3}"]}), 6))

    @p.operator(left, right, window=Count(12), outputs=("named", "nameless"))
    def join(numbers: DataFrame, names: DataFrame) -> dict[str, DataFrame]:
        joined = numbers.join(names, "n", "left").select("n", "name")
        return {"named": joined.where("name is not null"), "nameless": joined.where("name is null").select("n")}

    p.sink("join.named", files(tmp_path / "named"))
    p.sink("join.nameless", files(tmp_path / "nameless"))
    run(p, spark=spark)
    named = {n: f"n{n}" for n in range(0, 18, 3)}
    assert multiset(rows(tmp_path / "named")) == multiset([{"n": n, "name": name} for n, name in named.items()])
    assert sorted(row["n"] for row in rows(tmp_path / "nameless")) == [n for n in range(24) if n not in named]


def test_an_empty_result_makes_no_event_and_the_run_ends(spark: SparkSession, tmp_path: Path) -> None:
    p = Pipeline("empty")
    source = p.source("source", generator(counting, 3))

    @p.operator(source, outputs=("some", "none"))
    def filtered(df: DataFrame) -> dict[str, DataFrame]:
        return {"some": df.where("n = 5"), "none": df.where("n < 0")}

    @p.operator("filtered.none", window=Batch())
    def after(df: DataFrame) -> DataFrame:
        return df.agg(F.count("*").alias("records"))

    p.sink("filtered.some", files(tmp_path / "some"))
    p.sink(after, files(tmp_path / "after"))
    run(p, spark=spark)
    assert [row["n"] for row in rows(tmp_path / "some")] == [5]
    assert written(tmp_path / "after") == []


def test_a_row_local_function_costs_one_job_per_turn(spark: SparkSession, tmp_path: Path) -> None:
    p = Pipeline("local")
    source = p.source("source", generator(counting, 40))

    # The events wait until all are there, so that a turn holds many Input Sets.
    @p.operator(source, row_local=True, turn_seconds=30)
    def doubled(df: DataFrame) -> DataFrame:
        return df.withColumn("n", F.col("n") * 2)

    p.sink(doubled, files(tmp_path / "doubled"))
    jobs = Jobs(spark)
    progress = run(p, spark=spark)
    turns = progress.rows()["doubled"].turns
    assert turns < 20
    # The turn that only takes the end of the stream has no job.
    assert turns - 1 <= len(jobs.of("doubled")) <= turns
    assert sorted(row["n"] for row in rows(tmp_path / "doubled")) == [n * 2 for n in range(160)]
    assert progress.rows()["doubled"].events_out == 40


def test_a_row_local_function_that_loses_the_mark_is_told_so(spark: SparkSession) -> None:
    p = Pipeline("local")
    source = p.source("source", generator(counting, 2))

    @p.operator(source, row_local=True)
    def lost(df: DataFrame) -> DataFrame:
        return df.select("n")

    with pytest.raises(ClewError, match=r"lost is declared row_local, but .* keep it in select\(\)"):
        run(p, spark=spark)


def test_jobs_are_described_by_operator_and_turn(spark: SparkSession, tmp_path: Path) -> None:
    p = Pipeline("described")
    source = p.source("source", generator(counting, 2))

    @p.operator(source)
    def arrow(table: pa.Table) -> pa.Table:
        return table

    @p.operator(arrow, window=Batch())
    def frame(df: DataFrame) -> DataFrame:
        return df

    p.sink(frame, files(tmp_path / "out"), name="sink")
    jobs = Jobs(spark)
    run(p, spark=spark)
    assert "source, turn 1: source from None" in jobs.of("source")
    assert any("source.out#1" in text for text in jobs.of("arrow"))
    assert any("arrow.out#1" in text for text in jobs.of("frame"))
    assert any("write sink.out#1" in text for text in jobs.of("sink"))


def test_temporary_views_and_settings_do_not_leak_between_operators(spark: SparkSession, tmp_path: Path) -> None:
    p = Pipeline("views")
    source = p.source("source", generator(counting, 3))

    @p.operator(source, window=Batch())
    def first(df: DataFrame) -> DataFrame:
        df.createOrReplaceTempView("records")
        df.sparkSession.conf.set("spark.sql.ansi.enabled", "false")
        return df.sparkSession.sql("SELECT 'first' AS who, count(*) AS records, int('x') AS nothing FROM records")

    @p.operator(source, window=Batch())
    def second(df: DataFrame) -> DataFrame:
        session = df.sparkSession
        seen = session.catalog.tableExists("records")
        ansi = session.conf.get("spark.sql.ansi.enabled")
        df.createOrReplaceTempView("mine")
        return session.sql(f"SELECT {seen} AS seen, '{ansi}' AS ansi, count(*) AS records FROM mine")

    p.sink(first, files(tmp_path / "first"))
    p.sink(second, files(tmp_path / "second"))
    ansi = spark.conf.get("spark.sql.ansi.enabled")
    run(p, spark=spark)
    assert sum(row["records"] for row in rows(tmp_path / "first")) == 12
    assert {(row["seen"], row["ansi"]) for row in rows(tmp_path / "second")} == {(False, "true")}
    assert (spark.conf.get("spark.sql.ansi.enabled"), ansi) == ("true", "true")
    assert not spark.catalog.tableExists("records")


def test_the_first_event_fixes_the_schema_and_what_widens_follows_it(spark: SparkSession, tmp_path: Path) -> None:
    p = Pipeline("schema")
    source = p.source("source", generator(lambda i: pa.table({"i": [i]}), 3))

    @p.operator(source)
    def typed(df: DataFrame) -> DataFrame:
        # A function of the driver may look at its input: the second event gives a narrower type.
        return df.select(F.col("i").cast("long" if df.first()["i"] == 0 else "int").alias("i"))

    p.sink(typed, files(tmp_path / "typed"))
    run(p, spark=spark)
    assert sorted(row["i"] for row in rows(tmp_path / "typed")) == [0, 1, 2]
    store = SqliteStore(tmp_path / ".clew/schema/log.db")
    try:
        assert pa.ipc.read_schema(pa.py_buffer(store.schema(Port("typed", "out")))) == pa.schema({"i": pa.int64()})
    finally:
        store.close()


def test_another_schema_than_the_fixed_one_stops_the_run(spark: SparkSession, tmp_path: Path) -> None:
    p = Pipeline("schema")
    source = p.source("source", generator(lambda i: pa.table({"i": [i]}), 3))

    @p.operator(source)
    def typed(df: DataFrame) -> DataFrame:
        return df if df.first()["i"] == 0 else df.select(F.col("i").cast("string").alias("i"))

    p.sink(typed, files(tmp_path / "typed"))
    with pytest.raises(SchemaChanged) as error:
        run(p, spark=spark)
    assert (error.value.port, error.value.column) == ("typed.out", "i")
    assert (error.value.found, error.value.expected) == ("string", "int64")


class _Tracker:
    """A status tracker whose jobs had stages with these attempt numbers."""

    def __init__(self, *attempts: int) -> None:
        self.attempts = attempts

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return [7]

    def getJobInfo(self, job: int) -> Any:
        return SimpleNamespace(stageIds=list(range(len(self.attempts))))

    def getStageInfo(self, stage: int) -> Any:
        return SimpleNamespace(currentAttemptId=self.attempts[stage])


def _session(*attempts: int) -> Any:
    context = SimpleNamespace(statusTracker=lambda: _Tracker(*attempts), getLocalProperty=lambda key: "group")
    return SimpleNamespace(sparkContext=context)


@pytest.mark.parametrize(("attempts", "repeated"), [((0, 0), False), ((0, 1), True), ((2,), True), ((), False)])
def test_a_second_attempt_of_a_stage_is_seen(
    attempts: tuple[int, ...], repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "settled", lambda session, seconds: True)
    assert frames._repeated(_session(*attempts), frozenset()) is repeated
    # Those of an earlier computation, thrown away already, do not count again.
    assert not frames._repeated(_session(*attempts), frozenset([7]))


def test_bookkeeping_that_lags_behind_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "settled", lambda session, seconds: False)
    assert frames._repeated(_session(0, 0), frozenset())


@pytest.mark.parametrize(("deterministic", "computed"), [(False, 3), (True, 1)])
def test_a_result_of_which_a_stage_was_repeated_is_computed_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deterministic: bool, computed: int
) -> None:
    answers = iter([True, True])
    monkeypatch.setattr(frames, "_repeated", lambda session, before: next(answers, False))
    calls = tmp_path / "calls"
    p = Pipeline("repeated")
    source = p.source("source", generator(lambda i: pa.table({"i": [i]}), 1))

    @p.operator(source, deterministic=deterministic)
    def drawn(df: DataFrame) -> DataFrame:
        with calls.open("a") as out:
            out.write("called\n")
        return df.withColumn("call", F.lit(len(calls.read_text().splitlines())))

    p.sink(drawn, files(tmp_path / "drawn"))
    run(p, spark=spark)
    assert rows(tmp_path / "drawn") == [{"i": 0, "call": computed}]
