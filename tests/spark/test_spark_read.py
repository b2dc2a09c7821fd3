"""What Spark reads is a source: observed once, stored by its tasks, and exact whatever dies meanwhile."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clew import Pipeline, Tumbling, files, spark_read
from clew.errors import ClewError, GraphError, SetupFailed, UserFunctionFailed
from clew.faultpoint import arm
from clew.protocol.rows import Bodies
from clew.run import gc, run, verify
from clew.spark import frames
from clew.spark.observe import joined
from clew.store.sqlite import SqliteStore
from clew.supervisor.threads import Policy
from tests.soak import every
from tests.spark.outside import rows

ROWS = 300
POINTS = (
    "before-action-logged",
    "after-action-logged",
    "after-effect-stored",
    "after-action-complete",
    "after-source-read#2",
    "after-source-commit#2",
    "before-effect-dropped",
    "after-effect-dropped",
    "after-end",
)


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Any]:
    return {"log": f"sqlite:///{tmp_path / 'log.db'}", "bodies": str(tmp_path / "bodies")}


def drawn(spark: SparkSession) -> DataFrame:
    """Rows that are other ones each time: a random token each, after a shuffle."""
    return spark.range(ROWS, numPartitions=3).repartition(4).withColumn("token", F.expr("uuid()"))


def pipeline_of(source: Any, out: Path) -> Pipeline:
    pipeline = Pipeline("read")
    stream = pipeline.source("drawn", source, max_turn_events=4)

    @pipeline.operator(stream)
    def same(table: pa.Table) -> pa.Table:
        return table

    pipeline.sink(same, files(out / "one"), name="one")
    pipeline.sink(stream, files(out / "other"), name="other")
    return pipeline


@pytest.mark.parametrize("point", every(4, POINTS))
def test_a_crash_at_any_point_leaves_one_observation(
    spark: SparkSession, tmp_path: Path, place: dict[str, Any], point: str
) -> None:
    name, _, nth = point.partition("#")
    faults = arm(f"{name}@drawn#{nth or 1}:raise")
    pipeline = pipeline_of(spark_read(drawn, rows_per_event=11), tmp_path)
    try:
        run(pipeline, spark=spark, policy=Policy(first_delay=0.01), **place)
    finally:
        arm()
    assert faults[0].fired
    one, other = rows(tmp_path / "one"), rows(tmp_path / "other")
    assert sorted(row["id"] for row in one) == list(range(ROWS))
    assert len({row["token"] for row in one}) == ROWS
    assert one == other, "two readers saw two observations"
    assert verify(pipeline, engine="inline", **place).word == "explained"


def test_an_effect_that_was_used_up_is_collected(spark: SparkSession, tmp_path: Path, place: dict[str, Any]) -> None:
    def large(spark: SparkSession) -> DataFrame:
        return spark.range(64, numPartitions=4).withColumn("text", F.expr("repeat(uuid(), 500)"))

    pipeline = pipeline_of(spark_read(large, rows_per_event=4), tmp_path)
    run(pipeline, spark=spark, **place)
    effect = Path(place["bodies"]) / "drawn"
    # One file for each of the partitions, and one for each turn of the source.
    assert len(list(effect.iterdir())) >= 8
    gc(pipeline.graph(), **place)
    assert list(effect.iterdir()) == []
    assert len(rows(tmp_path / "one")) == 64


def test_any_format_is_read_by_name(spark: SparkSession, tmp_path: Path, place: dict[str, Any]) -> None:
    spark.range(50).select(F.col("id"), (F.col("id") * 2).alias("twice")).write.orc(str(tmp_path / "orc"))
    (tmp_path / "in.json").write_text('{"a": 1}\n{"a": 2}\n')
    pipeline = Pipeline("formats")
    orc = pipeline.source("orc", spark_read(format="orc", path=str(tmp_path / "orc")))
    json = pipeline.source(
        "json", spark_read(format="json", path=str(tmp_path / "in.json"), options={"mode": "FAILFAST"}, schema="a INT")
    )
    pipeline.sink(orc, files(tmp_path / "one"))
    pipeline.sink(json, files(tmp_path / "other"))
    run(pipeline, spark=spark, **place)
    found = sorted((row["id"], row["twice"]) for row in rows(tmp_path / "one"))
    assert found == [(n, 2 * n) for n in range(50)]
    assert [row["a"] for row in rows(tmp_path / "other")] == [1, 2]
    described = ["spark.read json " + str(tmp_path / "in.json") + " mode", "spark.read orc " + str(tmp_path / "orc")]
    store = SqliteStore(tmp_path / "log.db")
    try:
        assert sorted(row[4] for row in store.table("READ_ACTION")) == described
    finally:
        store.close()


def test_a_frame_without_rows_ends_the_stream(spark: SparkSession, tmp_path: Path, place: dict[str, Any]) -> None:
    run(pipeline_of(spark_read(lambda spark: spark.range(0)), tmp_path), spark=spark, **place)
    assert rows(tmp_path / "one") == []


def test_windows_see_the_facts_of_what_was_read(spark: SparkSession, tmp_path: Path, place: dict[str, Any]) -> None:
    pipeline = Pipeline("windows")
    source = pipeline.source("read", spark_read(lambda spark: spark.range(40).coalesce(1), rows_per_event=7))

    @pipeline.operator(source, window=Tumbling(10, on="id"))
    def counted(table: pa.Table) -> pa.Table:
        return pa.table({"count": [table.num_rows]})

    pipeline.sink(counted, files(tmp_path / "out"))
    run(pipeline, spark=spark, **place)
    assert [row["count"] for row in rows(tmp_path / "out")] == [10] * 4


def test_a_job_in_which_spark_repeated_a_stage_is_thrown_away(
    spark: SparkSession, tmp_path: Path, place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [True, True, False]
    monkeypatch.setattr(frames, "_repeated", lambda spark, before: answers.pop(0))
    run(pipeline_of(spark_read(drawn), tmp_path), spark=spark, **place)
    assert answers == []
    assert sorted(row["id"] for row in rows(tmp_path / "one")) == list(range(ROWS))


def test_stages_that_are_repeated_for_ever_stop_the_run(
    spark: SparkSession, tmp_path: Path, place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "_repeated", lambda spark, before: True)
    with pytest.raises(ClewError, match="Spark repeated a stage of drawn 5 times; is an executor failing"):
        run(pipeline_of(spark_read(drawn), tmp_path), spark=spark, **place)


def test_what_cannot_be_read_says_so_in_sparks_words(
    spark: SparkSession, tmp_path: Path, place: dict[str, Any]
) -> None:
    with pytest.raises(UserFunctionFailed, match=r"drawn failed on spark.read orc .*PATH_NOT_FOUND.*(?s:.)*run again"):
        run(pipeline_of(spark_read(format="orc", path=str(tmp_path / "none")), tmp_path), spark=spark, **place)


def test_what_is_no_frame_is_refused(spark: SparkSession, tmp_path: Path, place: dict[str, Any]) -> None:
    with pytest.raises(
        ClewError, match=r"it gives list, expected a DataFrame; return what spark.read gives, without an"
    ):
        run(pipeline_of(spark_read(lambda spark: spark.range(3).collect()), tmp_path), spark=spark, **place)


def test_a_stream_is_refused(spark: SparkSession, tmp_path: Path, place: dict[str, Any]) -> None:
    source = spark_read(lambda spark: spark.readStream.format("rate").load())
    with pytest.raises(
        ClewError, match=r"a streaming DataFrame, expected one that ends; declare it with streaming\(\)"
    ):
        run(pipeline_of(source, tmp_path), spark=spark, **place)


def test_columns_that_cannot_be_told_apart_are_refused(
    spark: SparkSession, tmp_path: Path, place: dict[str, Any]
) -> None:
    source = spark_read(lambda spark: spark.range(3).select("id", "id"))
    with pytest.raises(ClewError, match="id"):
        run(pipeline_of(source, tmp_path), spark=spark, **place)


def test_small_runs_of_bodies_are_put_together() -> None:
    small, file = Bodies((1,), (7,), b"a"), Bodies((5,), (8,), None, "f", 0)
    parts = [small, small, file, file, small]
    assert joined(parts) == [Bodies((1, 1), (7, 7), b"aa"), file, file, small]
    assert joined([]) == [Bodies((), (), b"")]


# Without Spark.


def test_the_inline_engine_has_no_frames(tmp_path: Path, place: dict[str, Any]) -> None:
    with pytest.raises(SetupFailed, match="source drawn is a DataFrame, which the inline engine has not; run it with"):
        run(pipeline_of(spark_read(drawn), tmp_path), engine="inline", **place)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "needs either a function of the session or format=; give it one of them"),
        ({"make": drawn, "format": "orc"}, "needs either"),
        ({"make": drawn, "path": "x"}, "takes no path, options or schema; say them in it"),
        ({"make": drawn, "rows_per_event": 0}, "cannot make events of 0 rows; give it 1 or more"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        spark_read(**arguments)


def test_secrets_are_not_shown() -> None:
    options = {"url": "jdbc:x", "password": "hidden"}
    source = spark_read(format="jdbc", path="s3://key:secret@bucket/x", options=options)
    assert source.describe() == "spark.read jdbc s3://***@bucket/x url, password"
    assert "hidden" not in repr(source)
