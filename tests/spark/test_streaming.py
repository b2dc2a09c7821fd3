"""A Structured Streaming query is a source: each batch once, whatever dies, and whoever commits first."""

import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from clew import Pipeline, files, streaming
from clew.errors import ClewError, GraphError, SetupFailed, SourceFailed, UserFunctionFailed
from clew.faultpoint import arm
from clew.run import run, verify
from clew.runtime.engine import Job
from clew.runtime.gate import Gate
from clew.spark.streams import Handler, HandlerFailed
from clew.store.sqlite import SqliteStore
from clew.supervisor.threads import Policy
from tests.soak import every
from tests.spark.outside import KILLED, SCRIPTS, rows, script

POINTS = (
    "before-action-logged#2",
    "after-action-logged#2",
    "after-effect-stored#2",
    "after-action-complete#2",
    "after-source-read#3",
    "after-source-commit#3",
    "before-effect-dropped#2",
    "after-effect-dropped#2",
    "after-end",
)
FILES, EACH = 6, 10


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Any]:
    return {"log": f"sqlite:///{tmp_path / 'log.db'}", "bodies": str(tmp_path / "bodies")}


@pytest.fixture
def incoming(tmp_path: Path) -> Path:
    """A directory of files, two of which make a batch."""
    directory = tmp_path / "in"
    directory.mkdir()
    for index in range(FILES):
        lines = "".join(f'{{"n": {n}}}\n' for n in range(EACH * index, EACH * index + EACH))
        (directory / f"{index}.json").write_text(lines)
    return directory


def pipeline_of(incoming: Path, out: Path, **settings: Any) -> Pipeline:
    def made(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("json").schema("n BIGINT").option("maxFilesPerTrigger", 2)
        return reader.load(str(incoming))

    pipeline = Pipeline("streamed")
    given = {"until": "availableNow", "rows_per_event": 7, **settings}
    stream = pipeline.source("batches", streaming(made, **given), max_turn_events=2)
    pipeline.sink(stream, files(out / "out"), name="out", capacity=3)
    return pipeline


def numbers(out: Path) -> list[int]:
    return sorted(row["n"] for row in rows(out / "out"))


def seen(tmp_path: Path) -> dict[str, Any]:
    store = SqliteStore(tmp_path / "log.db")
    try:
        row = store.state("batches")
        return dict(row.state["seen"]) if row is not None else {}
    finally:
        store.close()


def committed(tmp_path: Path) -> int:
    """Return the last batch that Spark counts as done."""
    commits = tmp_path / "bodies" / ".streams" / "batches" / "commits"
    return max((int(path.name) for path in commits.glob("[0-9]*")), default=-1)


@pytest.mark.parametrize("point", every(4, POINTS))
def test_a_crash_at_any_point_reads_each_batch_once(
    spark: SparkSession,
    tmp_path: Path,
    incoming: Path,
    place: dict[str, Any],
    point: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, _, nth = point.partition("#")
    faults = arm(f"{name}@batches#{nth or 1}:raise")
    pipeline = pipeline_of(incoming, tmp_path)
    try:
        run(pipeline, spark=spark, policy=Policy(first_delay=0.01), **place)
    finally:
        arm()
    assert faults[0].fired
    assert numbers(tmp_path) == list(range(FILES * EACH))
    assert seen(tmp_path)["batch"] == committed(tmp_path) == 2
    assert "was not logged" not in caplog.text, "what is stopped on purpose is no error to show"
    assert verify(pipeline, engine="inline", **place).word == "explained"
    assert spark.streams.active == []


def test_batches_are_read_actions_and_the_query_waits_for_the_log(
    spark: SparkSession, tmp_path: Path, incoming: Path, place: dict[str, Any]
) -> None:
    run(pipeline_of(incoming, tmp_path), spark=spark, **place)
    store = SqliteStore(tmp_path / "log.db")
    try:
        actions = [row[:2] for row in store.table("READ_ACTION")]
        assert actions == [(1, "complete"), (2, "complete"), (3, "complete")]
        assert store.referenced_files() == set()
    finally:
        store.close()


# Killed, and resumed.


def killed(place: Path, fault: str) -> None:
    done = script("stream.py", str(place), check=False, CLEW_FAULTS=fault)
    assert done.returncode == KILLED, f"{fault}: {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"


@pytest.mark.timeout(600)
def test_a_process_killed_with_sparks_commit_log_behind_skips_the_batch_it_has(tmp_path: Path, incoming: Path) -> None:
    killed(tmp_path, "after-action-complete@batches#2")
    # The log has the second batch, Spark does not know that it is done.
    assert (seen(tmp_path)["batch"], committed(tmp_path)) == (1, 0)
    killed(tmp_path, "after-effect-stored@batches#1")
    # Neither has the third: nobody may count a batch as done that is not logged.
    assert (seen(tmp_path)["batch"], committed(tmp_path)) == (1, 1)
    script("stream.py", str(tmp_path))
    assert (seen(tmp_path)["batch"], committed(tmp_path)) == (2, 2)
    assert numbers(tmp_path) == list(range(FILES * EACH))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_rate_of_rows_is_read_without_a_gap_over_kills(tmp_path: Path) -> None:
    for fault in ("after-source-commit@batches#4", "before-action-logged@batches#3"):
        killed(tmp_path, fault)
    script("stream.py", str(tmp_path))
    found = numbers(tmp_path)
    assert len(found) > 100
    assert found == list(range(len(found)))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_an_endless_query_is_interrupted_and_goes_on(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "stream.py"), str(tmp_path), "endless"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "out").glob("[!.]*.parquet"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    script("stream.py", str(tmp_path))
    found = numbers(tmp_path)
    assert len(found) > 50
    assert found == list(range(len(found)))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_spark_driver_that_dies_under_a_query_is_replaced(tmp_path: Path, incoming: Path) -> None:
    script("stream.py", str(tmp_path), "jvm")
    assert (tmp_path / "killed").exists()
    assert numbers(tmp_path) == list(range(FILES * EACH))


@pytest.mark.timeout(600)
def test_a_checkpoint_that_does_not_belong_to_the_log_is_refused(
    spark: SparkSession, tmp_path: Path, incoming: Path, place: dict[str, Any]
) -> None:
    checkpoint, log = tmp_path / "bodies" / ".streams", tmp_path / "log.db"

    def stopped(fault: str) -> None:
        """Run until a fault stops it for good."""
        arm(f"{fault}:raise")
        try:
            with pytest.raises(ClewError, match="failed 1 times without committing"):
                run(pipeline_of(incoming, tmp_path), spark=spark, policy=Policy(give_up_after=1), **place)
        finally:
            arm()

    def refused(said: str) -> None:
        with pytest.raises(
            SourceFailed, match=rf"{said}.*; put back the checkpoint that belongs to this log, or start"
        ):
            run(pipeline_of(incoming, tmp_path), spark=spark, **place)

    stopped("before-action-logged@batches#2")
    shutil.copytree(checkpoint, tmp_path / "early")
    shutil.copyfile(log, tmp_path / "early.db")
    stopped("before-action-logged@batches#2")
    # Batches 0 and 1 are logged.
    shutil.move(checkpoint, tmp_path / "late")
    refused("its checkpoint is that of query .*, expected ")
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "early", checkpoint)
    for path in checkpoint.glob("*/commits/*"):
        path.unlink()
    for path in checkpoint.glob("*/offsets/*1*"):
        path.unlink()
    refused("Spark has come to batch 0, expected 2")
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "late", checkpoint)
    shutil.copyfile(log, tmp_path / "late.db")
    shutil.copyfile(tmp_path / "early.db", log)
    # A sink that holds more than its log has made would be the first to notice.
    shutil.move(tmp_path / "out", tmp_path / "held")
    refused("Spark has come to batch 2, expected 1")
    shutil.copyfile(tmp_path / "late.db", log)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    shutil.move(tmp_path / "held", tmp_path / "out")
    run(pipeline_of(incoming, tmp_path), spark=spark, **place)
    assert numbers(tmp_path) == list(range(FILES * EACH))


def test_a_batch_that_was_planned_anew_is_refused(
    spark: SparkSession, tmp_path: Path, incoming: Path, place: dict[str, Any]
) -> None:
    killed(tmp_path, "after-action-complete@batches#2")
    planned = tmp_path / "bodies" / ".streams" / "batches" / "offsets" / "1"
    planned.write_text(planned.read_text().replace("batchTimestampMs", "batchTimestampMs "))
    planned.with_name(".1.crc").unlink(missing_ok=True)
    with pytest.raises(
        SourceFailed, match="batch 1 was read with other offsets than those that its checkpoint has now"
    ):
        run(pipeline_of(incoming, tmp_path), spark=spark, **place)


# What goes wrong.


def test_a_query_that_fails_says_so_in_sparks_words(
    spark: SparkSession, tmp_path: Path, incoming: Path, place: dict[str, Any]
) -> None:
    pipeline = Pipeline("streamed")

    def failing(spark: SparkSession) -> DataFrame:
        frame = spark.readStream.format("json").schema("n BIGINT").load(str(incoming))
        return frame.selectExpr("raise_error('no such luck') AS n")

    pipeline.sink(pipeline.source("batches", streaming(failing, until="availableNow")), files(tmp_path / "out"))
    with pytest.raises(UserFunctionFailed, match=r"batches failed on batch 0 \(3 attempts\).*no such luck"):
        run(pipeline, spark=spark, **place)
    assert spark.streams.active == []


def test_a_query_that_cannot_start_says_so(spark: SparkSession, tmp_path: Path, place: dict[str, Any]) -> None:
    with pytest.raises(UserFunctionFailed, match=r"batches failed on its streaming query .*PATH_NOT_FOUND"):
        run(pipeline_of(tmp_path / "none", tmp_path), spark=spark, **place)


def test_what_is_no_stream_is_refused(spark: SparkSession, tmp_path: Path, place: dict[str, Any]) -> None:
    pipeline = Pipeline("streamed")
    pipeline.sink(pipeline.source("batches", streaming(lambda spark: spark.range(3))), files(tmp_path / "out"))
    with pytest.raises(
        SourceFailed, match=r"it gives no streaming DataFrame, expected one; return what spark.readStream"
    ):
        run(pipeline, spark=spark, **place)


def test_a_stream_needs_a_place_for_its_checkpoint(spark: SparkSession, tmp_path: Path, incoming: Path) -> None:
    with pytest.raises(
        SetupFailed, match="has no directory for them; give it one with --bodies DIR, or a log in a file"
    ):
        run(pipeline_of(incoming, tmp_path), spark=spark, log="memory:")


def test_the_inline_engine_has_no_streams(tmp_path: Path, incoming: Path, place: dict[str, Any]) -> None:
    with pytest.raises(SetupFailed, match="batches is a streaming query, which the inline engine has not; run it with"):
        run(pipeline_of(incoming, tmp_path), engine="inline", **place)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("x" * 100_000)])
def test_a_handler_never_exits_and_tells_spark_little(error: BaseException) -> None:
    class Broken(Gate):
        def offer(self, number: int) -> None:
            raise error

    handler = Handler(Broken(lambda: None), Job("batches", 1, 1, "", 60.0), 10)
    with pytest.raises(HandlerFailed, match=f"^batch 7 was not logged: {type(error).__name__}$") as raised:
        handler(None, 7)  # type: ignore[arg-type]
    assert len("".join(traceback.format_exception(raised.value))) < 2_000
    assert handler.error is error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"until": "tomorrow"}, "cannot go on until 'tomorrow'; say 'availableNow', or nothing"),
        ({"until": "availableNow", "trigger": "1 second"}, "either trigger= or until=, because Spark does; leave one"),
        ({"rows_per_event": 0}, "cannot make events of 0 rows; give it 1 or more"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        streaming(lambda spark: None, **arguments)
