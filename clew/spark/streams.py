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
from clew.runtime.gate import Gate, GateClosed
from clew.spark.frames import described
from clew.spark.observe import caught, stored
from clew.spark.session import is_alive


@dataclass(frozen=True)
class SparkQuery:
    """A query that Spark runs."""

    operator: str
    query: StreamingQuery
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
            raise EngineLost(f"the Spark driver died under the streaming query of {self.operator}") from error

    def failure(self) -> ClewError | None:
        error = self.query.exception()
        return _failure(self.operator, error) if error is not None else None

    def stop(self) -> None:
        """Stop it, whatever it is doing: a batch that was not logged comes again at the next start."""
        self.gate.close()
        # Where the JVM is gone there is nothing left to stop.
        with contextlib.suppress(Exception):
            self.query.stop()


def start_query(source: Streamed, checkpoint: str, gate: Gate, job: Job, spark: SparkSession) -> SparkQuery:
    """Start a source's query; its handler runs in a thread of Spark's, one batch at a time."""
    # Added once, however often: a logger knows its filters.
    logging.getLogger("py4j.clientserver").addFilter(_hide_closed_gates)
    try:
        frame = _made(source, spark)
        writer = frame.writeStream.foreachBatch(_Handler(gate, job, source.rows_per_event))
        writer = writer.option("checkpointLocation", checkpoint).queryName(f"clew-{job.operator}")
        if source.trigger:
            writer = writer.trigger(**source.trigger)
        return SparkQuery(job.operator, writer.start(), gate, spark)
    except ClewError:
        raise
    except Exception as error:
        if type(error).__module__.startswith("py4j") or not is_alive(spark):
            raise
        raise _failure(job.operator, error) from error


def _hide_closed_gates(record: logging.LogRecord) -> bool:
    """Keep Py4J from showing that a query was stopped on purpose."""
    return not (record.exc_info and isinstance(record.exc_info[1], GateClosed))


class _Handler:
    """What Spark calls with each batch."""

    def __init__(self, gate: Gate, job: Job, rows: int) -> None:
        self._gate = gate
        self._job = job
        self._rows = rows

    def __call__(self, frame: DataFrame, number: int) -> None:
        try:
            place = self._gate.offer(number)
            if place is not None:
                spark = frame.sparkSession
                self._gate.deliver(caught(spark, lambda: stored(frame, place, self._job, self._rows)))
        except Exception:
            raise
        except BaseException as error:
            # A query whose handler exits hangs for ever.
            raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _made(source: Streamed, spark: SparkSession) -> DataFrame:
    frame: Any = source.frame(spark)
    if not isinstance(frame, DataFrame) or not frame.isStreaming:
        raise SourceFailed(
            source.describe(), "it gives no streaming DataFrame, expected one",
            "return what spark.readStream gives, without writeStream; or declare it with spark_read()",
        )  # fmt: skip
    return frame


def _failure(operator: str, error: Exception) -> ClewError:
    found = described(error, None)
    return UserFunctionFailed(operator, "its streaming query", found.kind, found.message, found.frames)
