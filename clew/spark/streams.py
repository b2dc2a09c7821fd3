"""Streaming queries: each batch is stored by Spark tasks, and offered to the source that logs it."""

import contextlib
import logging
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from clew.errors import ClewError, EngineLost, SourceFailed, UserFunctionFailed
from clew.pipeline.contracts import Streamed
from clew.runtime.engine import Job
from clew.runtime.gate import Gate
from clew.spark.frames import described
from clew.spark.observe import caught, stored
from clew.spark.session import is_alive

#: How long a query may take to end when it is stopped.
_STOP_TIMEOUT = "10s"


@dataclass(frozen=True)
class SparkQuery:
    """A query that Spark runs."""

    operator: str
    query: StreamingQuery
    handler: "Handler"
    gate: Gate
    spark: SparkSession

    @property
    def id(self) -> str:
        return str(self.query.id)

    def ended(self) -> bool:
        try:
            return not self.query.isActive
        except Exception as error:
            if is_alive(self.spark):
                raise
            raise EngineLost(
                f"the Spark driver died under the streaming query of {self.operator}; if it is short of memory, raise "
                "it with --conf spark.driver.memory=SIZE"
            ) from error

    def failure(self) -> ClewError | None:
        error = self.query.exception()
        if error is None:
            return None
        kept = self.handler.error
        if isinstance(kept, ClewError):
            return kept
        return _failure(self.operator, kept if isinstance(kept, Exception) else error)

    def stop(self) -> None:
        """Stop it, whatever it is doing: a batch that was not logged comes again at the next start."""
        self.gate.close()
        # Where the JVM is gone there is nothing left to stop.
        with contextlib.suppress(Exception):
            self.query.stop()


def start_query(source: Streamed, checkpoint: str, gate: Gate, job: Job, spark: SparkSession) -> SparkQuery:
    """Start a source's query; its handler runs in a thread of Spark's, one batch at a time."""
    # Added once, however often: a logger knows its filters.
    logging.getLogger("py4j.clientserver").addFilter(_hide_handlers)
    # A query that does not end must not hold up the end of the run. The session is the source's own.
    spark.conf.set("spark.sql.streaming.stopTimeout", _STOP_TIMEOUT)
    try:
        frame = _made(source, spark)
        handler = Handler(gate, job, source.rows_per_event)
        writer = frame.writeStream.foreachBatch(handler)
        writer = writer.option("checkpointLocation", checkpoint).queryName(f"clew-{job.operator}")
        if source.trigger:
            writer = writer.trigger(**source.trigger)
        return SparkQuery(job.operator, writer.start(), handler, gate, spark)
    except ClewError:
        raise
    except Exception as error:
        if type(error).__module__.startswith("py4j") or not is_alive(spark):
            raise
        raise _failure(job.operator, error) from error


def _hide_handlers(record: logging.LogRecord) -> bool:
    """Keep Py4J from showing what a handler told Spark: why is said by who restarts it, or stops the run."""
    return not (record.exc_info and isinstance(record.exc_info[1], HandlerFailed))


class HandlerFailed(Exception):
    """What Spark is told when a batch was not logged; why is kept on this side.

    Spark searches what it is told with a pattern that overflows its stack where the text is long, as a Java stack is,
    and the query then neither runs nor ends. It also hangs if a handler exits.
    """


class Handler:
    """What Spark calls with each batch."""

    def __init__(self, gate: Gate, job: Job, rows: int) -> None:
        self._gate = gate
        self._job = job
        self._rows = rows
        self.error: BaseException | None = None

    def __call__(self, frame: DataFrame, number: int) -> None:
        try:
            place = self._gate.offer(number)
            if place is not None:
                spark = frame.sparkSession
                self._gate.deliver(
                    caught(spark, self._job.operator, lambda: stored(frame, place, self._job, self._rows))
                )
        except BaseException as error:
            self.error = error
            raise HandlerFailed(f"batch {number} was not logged: {type(error).__name__}") from None


def _made(source: Streamed, spark: SparkSession) -> DataFrame:
    frame: Any = source.frame(spark)
    if not isinstance(frame, DataFrame) or not frame.isStreaming:
        raise SourceFailed(
            source.describe(), "it gives no streaming DataFrame, expected one",
            "return what spark.readStream gives, without writeStream; or declare it with spark_read()",
        )  # fmt: skip
    return frame


def _failure(operator: str, error: Exception) -> ClewError:
    found = described(error, None, operator)
    return UserFunctionFailed(operator, "its streaming query", found.kind, found.message, found.frames)
