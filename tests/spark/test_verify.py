"""A run is verified on executors as it is in this process: the same verdict, the same counts, the same findings."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clew import Batch, Count, Each, Pipeline
from clew.connectors import files, generator, sqlite
from clew.errors import SetupFailed
from clew.model.certificate import Verdict
from clew.run import run, verify
from tests.model.pipelines import PIPELINES, Rates, rates_database
from tests.model.runs import Finished, change, explained, finished
from tests.model.test_checker import DEEP, FLAT, NAN, typed


def mixed(directory: Path, events: int, frames: bool = True) -> Pipeline:
    """An Arrow function, functions of DataFrames, and a general operator with state, reads and writes."""
    pipeline = Pipeline("mixed")
    numbers = pipeline.source("numbers", generator(_numbers, events))

    @pipeline.operator(numbers, deterministic=True)
    def doubled(table: pa.Table) -> pa.Table:
        return table.set_column(0, "n", pc.multiply(table["n"], 2))

    pipeline.general(
        "rates", Rates(), doubled, reads={"rates": sqlite(rates_database(directory))},
        writes={"report": sqlite(directory / "report.db", table="report")}, deterministic=True,
    )  # fmt: skip
    pipeline.sink(doubled, files(directory / "doubled"))
    pipeline.sink("rates", sqlite(directory / "sink.db", table="rates"))
    if frames:
        _add_frames(pipeline, directory)
    return pipeline


def _numbers(index: int) -> pa.Table:
    return pa.table({"n": [3 * index, 3 * index + 1, 3 * index + 2], "x": [index / 7, 1.5, -index / 3]})


def _add_frames(pipeline: Pipeline, directory: Path) -> None:
    @pipeline.operator("doubled", window=Count(500), deterministic=True)
    def grouped(frame: DataFrame) -> DataFrame:
        return frame.groupBy((F.col("n") % 5).alias("rest")).agg(F.sum("x").alias("x"), F.count("*").alias("rows"))

    @pipeline.operator("doubled", window=Each(), row_local=True, deterministic=True)
    def kept(frame: DataFrame) -> DataFrame:
        return frame.where(F.col("n") % 4 == 0).withColumn("m", F.col("n") + 1)

    pipeline.sink(grouped, sqlite(directory / "sink.db", table="grouped"))
    pipeline.sink(kept, sqlite(directory / "sink.db", table="kept"))


def on_spark(made: Finished, spark: SparkSession) -> Verdict:
    return verify(made.pipeline, log=made.url, bodies=str(made.bodies), engine="spark", spark=spark)


def here(made: Finished) -> Verdict:
    return verify(made.pipeline, log=made.url, bodies=str(made.bodies), engine="inline")


def test_a_run_of_all_kinds_of_functions_is_explained(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = mixed(tmp_path, 1000)
    made = Finished(pipeline, tmp_path)
    run(pipeline, log=made.url, bodies=str(made.bodies), spark=spark)
    verdict = on_spark(made, spark)
    assert explained(verdict)
    inline = here(made)
    assert {(finding.operator, finding.weight) for finding in inline.findings} == {
        ("grouped", "undecided"), ("kept", "undecided"),
    }  # fmt: skip
    # Besides what only Spark can compute, the same was gone through.
    assert verdict.counts.pop("Output Sets") == inline.counts.pop("Output Sets") + 1000 + 2
    assert verdict.counts == inline.counts
    change(tmp_path / "sink.db", "UPDATE grouped SET x = x + 1 WHERE rowid = 3")
    (found,) = on_spark(made, spark).findings
    assert (found.operator, found.weight) == ("grouped_sink", "wrong")


@pytest.fixture(scope="module")
def thousands_once(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    directory = tmp_path_factory.mktemp("thousands")
    return finished(mixed(directory, 2500, frames=False), directory)


@pytest.fixture
def thousands(thousands_once: Finished, tmp_path: Path) -> Finished:
    """A finished run with a log that can be changed."""
    shutil.copytree(thousands_once.directory, tmp_path / "copy")
    return Finished(thousands_once.pipeline, tmp_path / "copy")


def test_the_verdict_and_the_counts_are_the_same_as_in_this_process(spark: SparkSession, thousands: Finished) -> None:
    verdict = on_spark(thousands, spark)
    assert explained(verdict)
    assert verdict == here(thousands)
    assert verdict.counts["Output Sets"] > 2500


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ordered_lineage SET input_set = input_set + 1 WHERE operator = 'rates' AND first > 200",
        "UPDATE state_event SET state = replace(state, '\"total\":1', '\"total\":2') WHERE input_set > 300",
        "DELETE FROM read_event WHERE operator = 'rates' AND action = 400",
        "DELETE FROM write_action WHERE operator = 'rates' AND number = 300",
        "UPDATE body SET checksums = replace(checksums, '1', '2') WHERE operator = 'doubled' AND first > 400",
        "DELETE FROM body WHERE operator = 'numbers' AND first > 100",
    ],
)
def test_a_finding_is_the_same_as_in_this_process(spark: SparkSession, thousands: Finished, statement: str) -> None:
    thousands.change(statement)
    verdict = on_spark(thousands, spark)
    assert verdict.word == "not explained"
    assert verdict.findings == here(thousands).findings


@pytest.mark.parametrize(
    "name", ["tumbling", "several_ports", "two_functions", "from_csv", "to_upsert", "to_files", "empty"]
)
def test_a_run_is_explained_on_executors(spark: SparkSession, tmp_path: Path, name: str) -> None:
    made = finished(PIPELINES[name](tmp_path), tmp_path)
    verdict = on_spark(made, spark)
    assert explained(verdict)
    assert verdict == here(made)


def test_every_type_comes_back_from_a_function_of_dataframes(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = typed(FLAT | DEEP | NAN)

    @pipeline.operator("same", window=Batch(), deterministic=True)
    def framed(frame: DataFrame) -> DataFrame:
        return frame

    @pipeline.operator("same", "other", window=Batch(), deterministic=True)
    def empty_side(frame: DataFrame, other: DataFrame) -> DataFrame:
        return frame.limit(1) if not other.columns else other

    pipeline.source("other", generator(lambda index: pa.table({}), 0))
    pipeline.sink(framed, files(tmp_path / "out"))
    made = Finished(pipeline, tmp_path)
    run(pipeline, log=made.url, bodies=str(made.bodies), spark=spark)
    assert explained(on_spark(made, spark))


def test_spark_is_chosen_for_dataframes_and_for_many_events(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def looked_at(pipeline: Pipeline, made: Finished) -> bool:
        seen.clear()
        verify(pipeline, log=made.url, bodies=str(made.bodies), spark=spark, progress=seen.append)
        return seen[0] == "Spark"

    made = finished(mixed(tmp_path, 20, frames=False), tmp_path)
    assert not looked_at(made.pipeline, made)
    monkeypatch.setattr("clew.run._LARGE", 10)
    assert looked_at(made.pipeline, made)


def test_a_verification_leaves_the_given_session_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("views")
    numbers = pipeline.source("numbers", generator(_numbers, 3))

    @pipeline.operator(numbers, window=Batch(), deterministic=True)
    def seen(frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView("theirs")
        return frame.sparkSession.sql("SELECT n FROM theirs")

    made = Finished(pipeline, tmp_path)
    run(pipeline, log=made.url, bodies=str(made.bodies), spark=spark)
    assert explained(on_spark(made, spark))
    assert not spark.catalog.tableExists("theirs")
    assert spark.range(3).count() == 3


def test_there_must_be_a_log(tmp_path: Path) -> None:
    with pytest.raises(SetupFailed, match=r"pipeline mixed has no log at .*; run it there first"):
        verify(mixed(tmp_path, 1, frames=False), log=f"sqlite:///{tmp_path / 'nowhere.db'}")
