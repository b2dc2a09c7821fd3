"""Any DataFrame writer that is declared idempotent is a sink: one call per write action, under a name that stays."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from clew import Context, InputSet, Operator, Pipeline, generator, spark_read, spark_write, streaming
from clew.errors import GraphError, SetupFailed, UserFunctionFailed
from clew.faultpoint import arm
from clew.run import run, verify
from clew.supervisor.threads import Policy
from tests.soak import every

EVENTS = 12
POINTS = ("before-write#2", "after-write", "after-write#2", "after-write-done", "after-commit#2", "before-running")


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Any]:
    return {"log": f"sqlite:///{tmp_path / 'log.db'}", "bodies": str(tmp_path / "bodies")}


def numbers(index: int) -> pa.Table:
    return pa.table({"n": [3 * index, 3 * index + 1, 3 * index + 2], "text": ["x" * 3000] * 3})


def pipeline_of(sink: Any) -> Pipeline:
    pipeline = Pipeline("written")
    source = pipeline.source("numbers", generator(numbers, EVENTS), max_turn_events=4)
    pipeline.sink(source, sink, name="out", max_turn_events=4)
    return pipeline


@pytest.mark.parametrize("point", every(3, POINTS))
def test_a_crash_at_any_point_leaves_each_write_once(
    spark: SparkSession, tmp_path: Path, place: dict[str, Any], point: str
) -> None:
    calls: dict[str, list[list[int]]] = {}

    def write(frame: DataFrame, name: str) -> None:
        calls.setdefault(name, []).append(sorted(row.n for row in frame.select("n").collect()))
        frame.write.mode("overwrite").parquet(str(tmp_path / "out" / name))

    name, _, nth = point.partition("#")
    faults = arm(f"{name}@out#{nth or 1}:raise")
    pipeline = pipeline_of(spark_write(write))
    try:
        run(pipeline, spark=spark, policy=Policy(first_delay=0.01), **place)
    finally:
        arm()
    assert faults[0].fired
    held = spark.read.parquet(str(tmp_path / "out" / "*"))
    assert sorted(row.n for row in held.collect()) == list(range(3 * EVENTS))
    assert {row.text for row in held.collect()} == {"x" * 3000}
    # A call that comes again brings the same records under the same name (W1).
    assert all(call == first for first, *again in calls.values() for call in again)
    assert ("after-write" in name and "done" not in name) == any(len(all_) > 1 for all_ in calls.values())
    assert [name.rpartition("-")[2] for name in sorted(calls)] == [f"{n:09d}" for n in range(1, len(calls) + 1)]
    assert verify(pipeline, engine="inline", **place).word == "undecided"


def test_a_general_operator_writes_frames_of_its_own(
    spark: SparkSession, tmp_path: Path, place: dict[str, Any]
) -> None:
    class Ledger(Operator):
        def assign(self, event: Any, state: dict[str, Any]) -> list[int]:
            return [event.number]

        def ready(self, state: dict[str, Any], opened: Any) -> list[int]:
            return list(opened)

        def generate(self, input_set: InputSet, context: Context) -> None:
            table = input_set.table().select(["n"])
            context.write("book", table)
            context.write("book", table.slice(0, 0))

    found: dict[str, list[int]] = {}

    def write(frame: DataFrame, name: str) -> None:
        assert frame.columns == ["n"]
        found[name] = [row.n for row in frame.collect()]

    pipeline = Pipeline("written")
    source = pipeline.source("numbers", generator(numbers, 3))
    pipeline.general("ledger", Ledger(), source, outputs=(), writes={"book": spark_write(write)})
    run(pipeline, spark=spark, **place)
    assert [found[name] for name in sorted(found)] == [[0, 1, 2], [], [3, 4, 5], [], [6, 7, 8], []]


def test_a_writer_that_fails_shows_its_own_frames(spark: SparkSession, tmp_path: Path, place: dict[str, Any]) -> None:
    def write(frame: DataFrame, name: str) -> None:
        raise ValueError("no room")

    with pytest.raises(UserFunctionFailed, match=r"out failed on write out.out#1 \(3 attempts\): ValueError: no room"):
        run(pipeline_of(spark_write(write)), spark=spark, **place)


def test_functions_of_sources_and_sinks_may_hold_a_session(
    spark: SparkSession, tmp_path: Path, place: dict[str, Any]
) -> None:
    """They stay in the driver; nobody can pickle a session."""
    rates = spark.createDataFrame([(n, 2 * n) for n in range(4)], "n BIGINT, rate BIGINT")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"n": 1}\n{"n": 3}\n')
    found: list[tuple[int, int]] = []

    def write(frame: DataFrame, name: str) -> None:
        assert spark.version
        found.extend((row.n, row.rate) for row in frame.collect())

    def stream(own: SparkSession) -> DataFrame:
        return spark.readStream.format("json").schema("n BIGINT").load(str(tmp_path / "in")).join(rates, "n")

    pipeline = Pipeline("held")
    sink = spark_write(write)
    pipeline.sink(pipeline.source("rates", spark_read(lambda own: rates)), sink, name="one", group="sinks")
    batches = pipeline.source("batches", streaming(stream, until="availableNow"))
    pipeline.sink(batches, sink, name="other", group="sinks")
    run(pipeline, spark=spark, **place)
    assert sorted(found) == sorted([(0, 0), (1, 2), (2, 4), (3, 6), (1, 2), (3, 6)])


# Without Spark.


def test_the_inline_engine_writes_no_frames(place: dict[str, Any]) -> None:
    with pytest.raises(
        SetupFailed, match="the sink of out takes DataFrames, which the inline engine has not; run it with"
    ):
        run(pipeline_of(spark_write(lambda frame, name: None)), engine="inline", **place)


def test_a_writer_must_be_a_function() -> None:
    with pytest.raises(GraphError, match="needs a function of a DataFrame and a name, not 'out'; give it one"):
        spark_write("out")  # type: ignore[arg-type]


def test_a_frame_sink_is_not_for_executors() -> None:
    sink = spark_write(lambda frame, name: None, describe="the lake")
    with pytest.raises(TypeError, match="the lake writes DataFrames, where the session is"):
        sink.write(None, iter(()), pa.schema([]))  # type: ignore[arg-type]
