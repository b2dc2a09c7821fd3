"""Kafka is read through Spark's own connector, where that is there; where it is not, Spark says how to get it."""

from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from clew import Pipeline, files, spark_read, streaming
from clew.errors import UserFunctionFailed
from clew.run import run

JARS = list(Path(pyspark.__file__).parent.glob("jars/spark-sql-kafka-0-10_*.jar"))
without = pytest.mark.skipif(
    not JARS, reason="Spark's Kafka connector is not among its jars: it is fetched with --packages, and no test fetches"
)
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def batch(spark: SparkSession) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:9")
    return reader.option("subscribe", "orders").load()


def stream(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:9")
    return reader.option("subscribe", "orders").load()


@without
def test_the_connectors_frames_have_the_columns_that_the_page_names(spark: SparkSession) -> None:
    assert spark_read(batch).frame(spark).columns == COLUMNS
    assert streaming(stream).frame(spark).columns == COLUMNS


@pytest.mark.skipif(bool(JARS), reason="Spark's Kafka connector is here")
@pytest.mark.parametrize("source", [spark_read(batch), streaming(stream)], ids=["spark_read", "streaming"])
def test_without_the_connector_sparks_own_words_are_shown(spark: SparkSession, tmp_path: Path, source: object) -> None:
    pipeline = Pipeline("kafka")
    pipeline.sink(pipeline.source("orders", source), files(tmp_path / "out"))  # type: ignore[arg-type]
    with pytest.raises(UserFunctionFailed, match=r"orders failed on .*kafka.*Kafka Integration Guide"):
        run(pipeline, spark=spark, log=f"sqlite:///{tmp_path / 'log.db'}")
