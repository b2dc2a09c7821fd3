"""The engine service on a real session: what is asked of it runs on Spark, and is cancelled there."""

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clew import Batch, Pipeline, files, generator, spark_read, spark_write, streaming
from clew.errors import EngineLost
from clew.run import run
from clew.runtime.engine import Job
from clew.spark.client import RemoteEngine
from clew.spark.engine import SparkEngine
from tests.engine.served import InThread, asked, numbers, piece, served, until
from tests.spark.outside import rows

#: Seconds that a job would last if nobody cancelled it.
SLOW = 60.0


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    return {"log": f"sqlite:///{tmp_path / 'log.db'}", "bodies": str(tmp_path / "bodies")}


def pipeline_of(tmp_path: Path) -> Pipeline:
    """A pipeline with every kind of work that an engine has."""
    incoming = tmp_path / "in"
    incoming.mkdir()
    for index in range(3):
        (incoming / f"{index}.json").write_text(f'{{"n": {100 + index}}}\n')

    def streamed(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("json").schema("n BIGINT").option("maxFilesPerTrigger", 1).load(str(incoming))

    def written(frame: DataFrame, name: str) -> None:
        frame.write.mode("overwrite").parquet(str(tmp_path / "frames" / name))

    pipeline = Pipeline("everything")
    made = pipeline.source("made", generator(lambda i: pa.table({"n": [i]}), 4))
    framed = pipeline.source("framed", spark_read(lambda spark: spark.range(10, 13).withColumnRenamed("id", "n")))
    batches = pipeline.source("batches", streaming(streamed, until="availableNow"))

    @pipeline.operator(made, window=Batch())
    def more(df: DataFrame) -> DataFrame:
        return df.withColumn("n", F.col("n") + 1)

    pipeline.sink(more, files(tmp_path / "more"))
    pipeline.sink(framed, spark_write(written))
    pipeline.sink(batches, files(tmp_path / "batches"))
    return pipeline


def test_every_kind_of_work_passes(spark: SparkSession, tmp_path: Path, place: dict[str, str]) -> None:
    graph = pipeline_of(tmp_path).graph()
    computes = SparkEngine(graph, spark=spark, bodies=place["bodies"])
    with served(computes, application=computes.application) as service, asked(service) as engine:
        assert engine.hello["application"] == spark.sparkContext.applicationId
        assert engine.parallelism == 2
        run(graph, engine=engine, **place)
    computes.close()
    assert sorted(row["n"] for row in rows(tmp_path / "more")) == [1, 2, 3, 4]
    assert sorted(row["n"] for row in rows(tmp_path / "batches")) == [100, 101, 102]
    frames = [row.n for row in spark.read.parquet(str(tmp_path / "frames" / "*")).collect()]
    assert sorted(frames) == [10, 11, 12]


@pytest.fixture
def slow(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[RemoteEngine, SparkEngine]]:
    pipeline = Pipeline("slow")
    gone = str(tmp_path / "began")

    def make(index: int) -> pa.Table:
        Path(f"{gone}-{index}").touch()
        if index == 0:
            time.sleep(SLOW)
        return pa.table({"n": [index]})

    pipeline.source("source", generator(make, 4))
    computes = SparkEngine(pipeline.graph(), spark=spark)
    with served(computes, code="slow") as service, asked(service, code="slow") as engine:
        yield engine, computes
    computes.close()


def test_the_jobs_of_an_older_attempt_are_cancelled(slow: tuple[RemoteEngine, SparkEngine], tmp_path: Path) -> None:
    engine, computes = slow
    old = InThread(lambda: engine.map(Job("source", 1, 1, "", 300.0), piece(0)))
    until((tmp_path / "began-0").exists)
    assert engine.map(Job("source", 1, 2, "", 300.0), piece(1)).results[0].pieces == 1
    assert isinstance(old.ended().error, EngineLost)
    # It has left Spark too: the group has ended, long before its work would have.
    until(lambda: not computes._groups)


def test_a_driver_that_died_is_not_replaced_where_nobody_wants_that(spark: SparkSession) -> None:
    class Died(Exception):
        pass

    def died() -> None:
        raise Died

    computes = SparkEngine(numbers(), spark=spark, died=died)
    assert computes.is_alive()
    with pytest.raises(Died):
        computes._replace(0)
    computes.close()
