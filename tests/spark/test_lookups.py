"""Lookups and setup hooks on real executors, for functions of every style."""

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from clew import Batch, Pipeline, Stream, files, generator, lookup
from clew.errors import HookFailed
from clew.run import run, verify
from tests.spark.outside import multiset, rows


def amounts(index: int) -> pa.Table:
    return pa.table({"currency": ["EUR", "USD", "JPY"], "amount": [index, 2 * index, 3 * index]})


def expected() -> list[dict[str, Any]]:
    rates = {"EUR": 1.0, "USD": 0.5}
    found = [row for index in range(4) for row in amounts(index).to_pylist() if row["currency"] in rates]
    return [{**row, "rate": rates[row["currency"]]} for row in found]


def source(pipeline: Pipeline) -> Stream:
    return pipeline.source("amounts", generator(amounts, 4))


def test_functions_of_every_style_get_lookups(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("currency,rate\nEUR,1.0\nUSD,0.5\n")
    pipeline = Pipeline("looked")
    stream = source(pipeline)
    given: dict[str, Any] = {"lookups": {"rates": lookup(path, key="currency")}, "deterministic": True}
    text = "SELECT amounts.*, rates.rate FROM amounts JOIN rates ON amounts.currency = rates.currency"
    pipeline.sql("queried", text, amounts=stream, **given)

    @pipeline.operator(stream, window=Batch(), **given)
    def framed(df: DataFrame, rates: DataFrame) -> DataFrame:
        return df.join(rates, "currency")

    @pipeline.operator(stream, row_local=True, **given)
    def tagged(df: DataFrame, rates: DataFrame) -> DataFrame:
        return df.join(rates, "currency")

    @pipeline.operator(stream, **given)
    def merged(frame: pd.DataFrame, rates: pd.DataFrame) -> pd.DataFrame:
        return frame.merge(rates, on="currency")

    @pipeline.flat_map(stream, **given)
    def each(record: dict[str, Any], rates: Any) -> list[dict[str, Any]]:
        found = rates.get(record["currency"])
        return [] if found is None else [{**record, "rate": found["rate"]}]

    names = ("queried", "framed", "tagged", "merged", "each")
    for name in names:
        pipeline.sink(f"{name}.out", files(tmp_path / name), name=f"sink_{name}")
    log = f"sqlite:///{tmp_path}/log.db"
    run(pipeline, log=log, spark=spark)
    for name in names:
        assert multiset(rows(tmp_path / name)) == multiset(expected()), name
    path.write_text("currency,rate\nEUR,9.0\n")
    verdict = verify(pipeline, log=log, spark=spark, engine="spark")
    assert verdict.word == "explained", verdict.findings


def test_a_hook_is_called_once_in_each_worker(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("set_up")

    def opened() -> int:
        with open(tmp_path / "calls", "a") as calls:
            calls.write(f"{os.getpid()}\n")
        return os.getpid()

    @pipeline.map(source(pipeline), setup=opened, max_turn_events=1)
    def own(record: dict[str, Any], resources: int) -> dict[str, Any]:
        assert resources == os.getpid()
        return record

    pipeline.sink(own, files(tmp_path / "out"))
    run(pipeline, log=f"sqlite:///{tmp_path}/log.db", spark=spark)
    assert len(rows(tmp_path / "out")) == 12
    calls = (tmp_path / "calls").read_text().split()
    assert calls
    assert len(calls) == len(set(calls))


@pytest.mark.parametrize("style", ["record", "frame"])
def test_a_hook_that_fails_is_no_records_fault(spark: SparkSession, tmp_path: Path, style: str) -> None:
    pipeline = Pipeline("set_up")

    def broken() -> None:
        raise ConnectionError("no server")

    def record(row: dict[str, Any]) -> dict[str, Any]:
        return row

    def frame(df: DataFrame, resources: None) -> DataFrame:
        return df

    settings: dict[str, Any] = {"setup": broken, "on_error": "quarantine", "name": "own"}
    if style == "record":
        made = source(pipeline).map(record, **settings)
    else:
        made = source(pipeline).window(Batch()).apply(frame, **settings)
    made.sink(files(tmp_path / "out"))
    with pytest.raises(HookFailed, match=r"setup of operator own failed: ConnectionError: no server\n.*in broken"):
        run(pipeline, log=f"sqlite:///{tmp_path}/log.db", spark=spark)
