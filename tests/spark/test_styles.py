"""Functions of every style, and every window, on real executors; judged by the checker on Spark too."""

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clew import Count, Pipeline, Session, Sliding, Stream, Tumbling, files, generator
from clew.errors import UserFunctionFailed
from clew.run import decide_quarantined, quarantine_of, run, verify
from tests.spark.outside import multiset, rows


def records(index: int) -> pa.Table:
    numbers = list(range(4 * index, 4 * index + 4))
    return pa.table({"n": numbers, "t": [3 * n for n in numbers], "k": ["a", "b", "a", "c"]})


def ran(pipeline: Pipeline, spark: SparkSession, tmp_path: Path, *ports: str) -> dict[str, Any]:
    for port in ports:
        pipeline.sink(port, files(tmp_path / port), name=f"sink_{port.replace('.', '_')}")
    log = f"sqlite:///{tmp_path}/log.db"
    run(pipeline, log=log, spark=spark)
    verdict = verify(pipeline, log=log, spark=spark, engine="spark")
    assert verdict.word == "explained", verdict.findings
    return {port: rows(tmp_path / port) for port in ports}


def source(pipeline: Pipeline, events: int = 6) -> Stream:
    return pipeline.source("numbers", generator(records, events))


def test_sql_over_named_inputs(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("styles")
    numbers = source(pipeline)
    paid = numbers.filter(lambda record: record["n"] % 2 == 0, name="paid")
    refunds = numbers.filter(lambda record: record["n"] % 3 == 0, name="refunds")
    text = """SELECT paid.n, refunds.k, paid.window_start FROM paid JOIN refunds ON paid.n = refunds.n"""
    pipeline.sql("both", text, window=Tumbling(30, on="t"), paid=paid, refunds=refunds, deterministic=True)
    found = ran(pipeline, spark, tmp_path, "both")["both"]
    expected = [{"n": n, "k": "abac"[n % 4], "window_start": 3 * n // 30 * 30} for n in range(0, 24, 6)]
    assert multiset(found) == multiset(expected)


def test_sql_knows_the_columns_of_an_input_that_passes_nothing_on(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("styles")
    numbers = source(pipeline)
    refunds = numbers.filter(pc.field("n") < 0, name="refunds")
    text = "SELECT numbers.n, refunds.k FROM numbers LEFT JOIN refunds ON numbers.n = refunds.n"
    pipeline.sql("both", text, window=Tumbling(30, on="t"), numbers=numbers, refunds=refunds, deterministic=True)
    found = ran(pipeline, spark, tmp_path, "both")["both"]
    assert multiset(found) == multiset([{"n": n, "k": None} for n in range(24)])


def test_sql_over_columns_that_nobody_knows_says_whose_to_declare(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("styles")
    numbers = source(pipeline)
    empty = numbers.filter(pc.field("n") < 0).map(lambda record: record, name="refunds")
    text = "SELECT numbers.n, refunds.k FROM numbers LEFT JOIN refunds ON numbers.n = refunds.n"
    pipeline.sql("both", text, window=Tumbling(30, on="t"), numbers=numbers, refunds=empty, attempts=1)
    with pytest.raises(UserFunctionFailed, match=r"nothing has come from refunds yet.*declare its schema="):
        ran(pipeline, spark, tmp_path, "both")


def test_python_functions_run_on_executors(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("styles")
    numbers = source(pipeline)

    @pipeline.operator(numbers, window=Count(2), deterministic=True)
    def sums(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.groupby("k").agg(total=("n", "sum"))

    numbers.map(lambda record: {"n": record["n"] + 1}, name="next", deterministic=True)
    numbers.window(Sliding(40, 20, on="t", lateness=5)).aggregate("k", total=("n", "sum"), name="sliding")
    found = ran(pipeline, spark, tmp_path, "sums", "next", "sliding")
    assert multiset(found["next"]) == multiset([{"n": n + 1} for n in range(24)])
    assert sum(row["total"] for row in found["sums"]) == sum(range(24))
    totals: dict[Any, int] = {}
    for n in range(24):
        for start in range(-40, 80, 20):
            if start <= 3 * n < start + 40:
                totals[start, "abac"[n % 4]] = totals.get((start, "abac"[n % 4]), 0) + n
    expected = [{"window_start": s, "window_end": s + 40, "k": k, "total": t} for (s, k), t in totals.items()]
    assert multiset(found["sliding"]) == multiset(expected)


def test_frames_see_the_records_of_their_session(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("styles")

    @pipeline.operator(source(pipeline, 4), window=Session(20, on="t", by="k"), deterministic=True)
    def visits(frame: DataFrame) -> DataFrame:
        return frame.groupBy("k", "window_start", "window_end").agg(F.count("*").alias("rows"))

    found = ran(pipeline, spark, tmp_path, "visits")["visits"]
    # Records of a come every 6, so that they are one session; those of b and c every 12.
    assert multiset(found) == multiset(
        [
            {"k": "a", "window_start": 0, "window_end": 62, "rows": 8},
            {"k": "b", "window_start": 3, "window_end": 59, "rows": 4},
            {"k": "c", "window_start": 9, "window_end": 65, "rows": 4},
        ]
    )


def test_frames_see_so_many_records_of_a_key(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("styles")

    @pipeline.operator(source(pipeline, 4), window=Count(3, by="k"), deterministic=True)
    def threes(frame: DataFrame) -> DataFrame:
        return frame.groupBy("k").agg(F.sort_array(F.collect_list("n")).alias("numbers"))

    found = ran(pipeline, spark, tmp_path, "threes")["threes"]
    assert multiset(found) == multiset(
        [
            {"k": "a", "numbers": [0, 2, 4]},
            {"k": "a", "numbers": [6, 8, 10]},
            {"k": "a", "numbers": [12, 14]},
            {"k": "b", "numbers": [1, 5, 9]},
            {"k": "b", "numbers": [13]},
            {"k": "c", "numbers": [3, 7, 11]},
            {"k": "c", "numbers": [15]},
        ]
    )


def test_one_poison_record_in_a_hundred_thousand(spark: SparkSession, tmp_path: Path) -> None:
    poison, log = 67_891, f"sqlite:///{tmp_path}/log.db"

    def declared(mended: bool) -> Pipeline:
        pipeline = Pipeline("poison")
        numbers = pipeline.source(
            "numbers", generator(lambda i: pa.table({"n": range(1000 * i, 1000 * i + 1000)}), 100)
        )

        def inverse(record: dict[str, Any]) -> dict[str, Any]:
            if record["n"] == poison and not mended:
                raise ValueError(f"cannot invert {record['n']}")
            return {"n": record["n"], "inverse": -record["n"]}

        inverted = numbers.map(inverse, name="inverse", on_error="quarantine", attempts=1)
        inverted.sink(files(tmp_path / "out"), name="out")
        return pipeline

    def found() -> Counter[int]:
        return Counter(row["n"] for row in rows(tmp_path / "out"))

    broken, mended = declared(mended=False), declared(mended=True)
    assert run(broken, log=log, spark=spark).quarantined == 1
    (one,) = quarantine_of(broken.graph(), log=log)
    assert (one.id, one.events) == ("inverse#1", "numbers.out#68 record 891")
    assert one.row.error["message"] == f"cannot invert {poison}"
    assert found() == Counter(n for n in range(100_000) if n != poison)
    decide_quarantined(mended.graph(), [one], "retry", log=log)
    assert run(mended, log=log, spark=spark).quarantined == 0
    assert found() == Counter(range(100_000))
