"""A function of the user that raises stops the run with operator, event and its own frames; mended, it resumes."""

import os
from collections.abc import Callable
from pathlib import Path
from socket import socket
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clew import Batch, Count, Each, Pipeline, Tumbling, files, generator
from clew.errors import SourceFailed, UserFunctionFailed
from clew.run import decide_quarantined, quarantine_of, run, verify
from clew.spark.daemon import ending_quietly
from clew.spark.engine import cause_of
from tests.spark.outside import multiset, rows

EVENTS = 6
#: The event, counted from 1, that the functions below cannot bear: it holds n = 3.
POISON = 4

Declare = Callable[[Pipeline, Any, int, bool], Any]


def arrow(p: Pipeline, source: Any, attempts: int, mended: bool) -> Any:
    @p.operator(source, attempts=attempts)
    def culprit(table: pa.Table) -> pa.Table:
        if not mended and table["n"][0].as_py() == 3:
            raise ValueError("three is too many")
        return table.append_column("twice", pc.multiply(table["n"], 2))

    return culprit


def built(p: Pipeline, source: Any, attempts: int, mended: bool) -> Any:
    @p.operator(source, attempts=attempts)
    def culprit(df: DataFrame) -> DataFrame:
        if not mended and df.first()["n"] == 3:
            raise ValueError("three is too many")
        return df.withColumn("twice", F.col("n") * 2)

    return culprit


def udf(p: Pipeline, source: Any, attempts: int, mended: bool) -> Any:
    def twice(n: int) -> int:
        if not mended and n == 3:
            raise ValueError("three is too many")
        return n * 2

    @p.operator(source, attempts=attempts)
    def culprit(df: DataFrame) -> DataFrame:
        return df.withColumn("twice", F.udf(twice, "long")("n"))

    return culprit


def ansi(p: Pipeline, source: Any, attempts: int, mended: bool) -> Any:
    @p.operator(source, attempts=attempts)
    def culprit(df: DataFrame) -> DataFrame:
        by_three = F.lit(6) * F.col("n") / (F.col("n") - (100 if mended else 3))
        return df.withColumn("twice", F.col("n") * 2).where(by_three.isNotNull())

    return culprit


def cast(p: Pipeline, source: Any, attempts: int, mended: bool) -> Any:
    @p.operator(source, attempts=attempts)
    def culprit(df: DataFrame) -> DataFrame:
        text = F.when(F.col("n") == (100 if mended else 3), F.lit("three")).otherwise(F.col("n").cast("string"))
        return df.withColumn("twice", text.cast("long") * 2)

    return culprit


def pipeline(declare: Declare, place: Path, attempts: int, mended: bool) -> Pipeline:
    p = Pipeline("failing")
    source = p.source("source", generator(lambda i: pa.table({"n": [i]}), EVENTS))
    p.sink(declare(p, source, attempts, mended), files(place / "out"))
    return p


@pytest.mark.parametrize(
    ("declare", "attempts", "kind", "message", "line"),
    [
        (arrow, 3, "ValueError", "three is too many", 'raise ValueError("three is too many")'),
        (built, 2, "ValueError", "three is too many", 'raise ValueError("three is too many")'),
        (udf, 1, "ValueError", "three is too many", 'raise ValueError("three is too many")'),
        pytest.param(ansi, 1, "ArithmeticException", "DIVIDE_BY_ZERO", "by_three = F.lit(6)", marks=pytest.mark.soak),
        (cast, 1, "NumberFormatException", "CAST_INVALID_INPUT", 'text.cast("long")'),
    ],
    ids=["arrow", "dataframe", "udf", "division", "cast"],
)
def test_a_function_that_raises_stops_the_run_and_the_mended_one_resumes_it(
    spark: SparkSession, tmp_path: Path, declare: Declare, attempts: int, kind: str, message: str, line: str
) -> None:
    """Spark itself tries four times what raises on executors, so those need few attempts of ours here."""
    with pytest.raises(UserFunctionFailed) as raised:
        run(pipeline(declare, tmp_path, attempts, mended=False), spark=spark)
    error = raised.value
    assert (error.operator, error.events, error.kind) == ("culprit", f"source.out#{POISON}", kind)
    assert message in error.message
    # The user's own frames, with the line at fault, and nothing of Clew's or Spark's.
    assert line in error.frames
    named = [text for text in error.frames.splitlines() if text.startswith("  File ")]
    assert named
    assert all(f'File "{__file__}"' in text for text in named), error.frames
    assert error.attempts == attempts
    # What came before the culprit is committed, and nothing of what came after it.
    written = [row["n"] for row in rows(tmp_path / "out")]
    assert written == list(range(len(written)))
    assert len(written) < POISON

    run(pipeline(declare, tmp_path, attempts, mended=True), spark=spark)
    assert [(row["n"], row["twice"]) for row in rows(tmp_path / "out")] == [(n, 2 * n) for n in range(EVENTS)]


def test_the_culprit_is_tried_so_often_as_the_operator_says(spark: SparkSession, tmp_path: Path) -> None:
    """Twice by itself: larger turns in which it was met first do not count. Good events are not made again."""
    p = Pipeline("attempts")
    source = p.source("source", generator(lambda i: pa.table({"n": [i]}), EVENTS))
    calls = tmp_path / "calls"

    @p.operator(source, attempts=2)
    def culprit(table: pa.Table) -> pa.Table:
        with calls.open("a") as out:
            out.write(f"{table['n'][0]}\n")
        if table["n"][0].as_py() == 3:
            raise ValueError("three is too many")
        return table

    with pytest.raises(UserFunctionFailed) as raised:
        run(p, spark=spark)
    assert raised.value.attempts == 2
    called = calls.read_text().split()
    assert called.count("3") >= 2
    assert [called.count(str(n)) for n in range(3)] == [1, 1, 1]


def test_good_windows_of_a_turn_are_kept_when_a_later_one_fails(spark: SparkSession, tmp_path: Path) -> None:
    p = Pipeline("windows")
    source = p.source("source", generator(lambda i: pa.table({"n": [i]}), 12))

    @p.operator(source, window=Count(3))
    def sums(table: pa.Table) -> pa.Table:
        total = pc.sum(table["n"]).as_py()
        if total == 3 * 7:
            raise RuntimeError("unlucky")
        return pa.table({"total": [total]})

    p.sink(sums, files(tmp_path / "sums"))
    with pytest.raises(UserFunctionFailed) as raised:
        run(p, spark=spark)
    assert raised.value.events == "source.out#7..9"
    # The sink may have stopped before it took them; the log has them, and the next run writes them.
    with pytest.raises(UserFunctionFailed):
        run(p, spark=spark)
    assert [row["total"] for row in rows(tmp_path / "sums")] == [3, 12]


def test_a_row_local_function_names_the_one_event_that_failed(spark: SparkSession, tmp_path: Path) -> None:
    """Many Input Sets share its job, so the culprit is found by trying fewer."""
    p = Pipeline("local")
    source = p.source("source", generator(lambda i: pa.table({"n": [i]}), 8))

    @p.operator(source, row_local=True, attempts=1, turn_seconds=30)
    def inverse(df: DataFrame) -> DataFrame:
        return df.withColumn("inverse", F.lit(1) / (F.col("n") - 5))

    p.sink(inverse, files(tmp_path / "out"))
    with pytest.raises(UserFunctionFailed) as raised:
        run(p, spark=spark)
    assert (raised.value.operator, raised.value.events) == ("inverse", "source.out#6")
    assert "DIVIDE_BY_ZERO" in raised.value.message


def test_a_data_error_in_a_text_of_sql_is_the_users_with_sparks_own_condition(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The text is a query, or an expression in a DataFrame function; neither has a line in a file."""
    p = Pipeline("texts")
    source = p.source("source", generator(lambda i: pa.table({"n": ["x" if i == 1 else str(i)]}), 3))

    @p.operator(source, attempts=1, on_error="quarantine")
    def frame(df: DataFrame) -> DataFrame:
        return df.withColumn("z", F.expr("cast(n as int)"))

    query = p.sql("query", "SELECT cast(n AS int) AS z FROM r", window=Each(), r=source, attempts=1)
    p.sink(frame, files(tmp_path / "out"))
    p.sink(query, files(tmp_path / "out2"))
    log = f"sqlite:///{tmp_path}/log.db"
    with pytest.raises(UserFunctionFailed) as raised:
        run(p, log=log, spark=spark)
    error = raised.value
    assert (error.operator, error.events, error.kind) == ("query", "source.out#2", "NumberFormatException")
    assert error.message.startswith("[CAST_INVALID_INPUT] The value 'x'")
    *shown, kept = error.frames.splitlines()
    assert shown == [
        "  == SQL (line 1, position 8) ==", "  SELECT cast(n AS int) AS z FROM r", "         ^^^^^^^^^^^^^^",
    ]  # fmt: skip
    stack = Path(kept.removeprefix("  the Java stack is in ")).read_text()
    assert "\tat org.apache.spark" in stack
    (one,) = quarantine_of(p.graph(), log=log)
    assert (one.operator, one.events) == ("frame", "source.out#2")
    assert "[CAST_INVALID_INPUT]" in one.row.error["message"]
    assert "  cast(n as int)\n" in one.row.error["frames"]
    # Workers whose job has failed end without a word.
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_worker_that_spark_hears_no_more_ends_without_a_word(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)

    def worker(sock: socket, authenticated: bool) -> int:
        raise error

    with socket() as sock:
        ending_quietly(worker)(sock, True)
        assert ended == [1]
        assert ending_quietly(lambda *_: 7)(sock, True) == 7


def test_a_query_on_a_column_that_is_not_there_shows_the_line(spark: SparkSession) -> None:
    p = Pipeline("column")
    source = p.source("source", generator(lambda i: pa.table({"n": [i]}), 1))

    @p.operator(source, window=Batch())
    def missing(df: DataFrame) -> DataFrame:
        return df.select("nowhere")

    with pytest.raises(UserFunctionFailed) as raised:
        run(p, spark=spark)
    assert raised.value.kind == "AnalysisException"
    assert "`nowhere` cannot be resolved" in raised.value.message
    assert 'return df.select("nowhere")' in raised.value.frames
    assert "Project [" not in str(raised.value)


def test_a_source_whose_function_raises_says_where(spark: SparkSession) -> None:
    def broken(index: int) -> pa.Table:
        return pa.table({"n": [1 // (index - 2)]})

    p = Pipeline("source")
    p.source("source", generator(broken, 5))
    with pytest.raises(UserFunctionFailed) as raised:
        run(p, spark=spark)
    assert (raised.value.operator, raised.value.kind) == ("source", "ZeroDivisionError")
    assert 'pa.table({"n": [1 // (index - 2)]})' in raised.value.frames


def test_a_source_that_gives_no_table_is_told_so(spark: SparkSession) -> None:
    p = Pipeline("source")
    p.source("source", generator(lambda index: index, 1))
    with pytest.raises(SourceFailed, match="returned int, expected pyarrow"):
        run(p, spark=spark)


def test_a_record_that_a_window_cannot_place_is_set_aside_by_the_windows_operator(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline("timed")

    def times(index: int) -> pa.Table:
        return pa.table({"n": [2 * index, 2 * index + 1], "t": pa.array([None if index == 3 else index, index])})

    numbers = pipeline.source("times", generator(times, 6))

    @pipeline.operator(numbers, window=Batch())
    def framed(df: DataFrame) -> DataFrame:
        return df.coalesce(1)

    counted = pipeline.port("framed.out").window(Tumbling(2, on="t"))
    # What a DataFrame gives is one event; those of the source are six.
    counted.aggregate(rows="count", name="framed_counts", settings={"on_error": "quarantine"})
    numbers.window(Tumbling(2, on="t")).aggregate(
        rows="count", name="counts", settings={"on_error": "quarantine"}
    ).sink(files(tmp_path / "out"))
    log = f"sqlite:///{tmp_path}/log.db"
    assert run(pipeline, log=log, spark=spark).quarantined >= 2
    asides = quarantine_of(pipeline.graph(), log=log)
    (one,) = [one for one in asides if one.operator == "counts"]
    assert (one.events, one.row.error["message"][:26]) == ("times.out#4", "record 0 {'n': 6, 't': Non")
    assert {one.operator for one in asides} == {"counts", "framed_counts"}
    decide_quarantined(pipeline.graph(), asides, "drop", log=log)
    run(pipeline, log=log, spark=spark)
    assert multiset(rows(tmp_path / "out")) == multiset(
        [{"window_start": start, "window_end": start + 2, "rows": {2: 2}.get(start, 4)} for start in (0, 2, 4)]
    )
    verdict = verify(pipeline, log=log, spark=spark, engine="spark")
    assert verdict.word == "explained", verdict.findings


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted: "
            "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            "  File \"worker.py\", line 3, in main\n    load()\nModuleNotFoundError: No module named 'taxes'\n\n"
            "\tat org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:1)\n",
            "ModuleNotFoundError: No module named 'taxes'",
        ),
        ("boom\n: java.io.IOException: No space left\n\tat java.io\n", "java.io.IOException: No space left"),
        ("Python worker exited unexpectedly", "Python worker exited unexpectedly"),
        ("no more is known\nof it", "no more is known"),
        ("", "no reason given"),
    ],
)
def test_a_failed_job_is_told_by_the_line_that_says_why(text: str, cause: str) -> None:
    assert cause_of(text) == cause
