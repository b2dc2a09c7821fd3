"""DataFrames as read actions: Spark tasks store what they give, each in files of its own attempt.

What a DataFrame gives may be something else each time it is computed. So all that is stored is of one computation: the
result of a job in which Spark repeated a stage is thrown away.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from clew.errors import ClewError, SourceFailed
from clew.pipeline.contracts import Framed
from clew.pipeline.schema import normalise
from clew.protocol.rows import Bodies
from clew.runtime.bodies import BodyPlace
from clew.runtime.codec import encode_stream
from clew.runtime.engine import Job
from clew.runtime.task import Failure, failure
from clew.spark.frames import computed_once, described
from clew.spark.session import is_alive


def observe_frame(source: Framed, place: BodyPlace, job: Job, rows: int, spark: SparkSession) -> list[Any]:
    """Store what a source's DataFrame gives; return the runs of bodies, in order, or a Failure."""
    return caught(spark, job.operator, lambda: stored(_made(source, spark), place, job, rows))


def caught(spark: SparkSession, operator: str, compute: Callable[[], list[Any]]) -> list[Any]:
    """Return what is computed, or what the user's part of it did wrong; Spark's own failures are raised."""
    try:
        return compute()
    except Exception as error:
        if type(error).__module__.startswith("py4j") or not is_alive(spark):
            raise
        return [described(error, None, operator)]


def stored(frame: DataFrame, place: BodyPlace, job: Job, rows: int) -> list[Any]:
    """Store the rows of a DataFrame as the bodies of an effect."""
    store = partial(_store, place, rows)
    collected = computed_once(frame.sparkSession, job, lambda: frame.mapInArrow(store, "stored binary").collect())
    parts = [pickle.loads(row.stored) for row in collected]
    broken = [part for part in parts if isinstance(part, Failure)]
    return broken[:1] or joined(parts)


def joined(parts: Sequence[Bodies]) -> list[Bodies]:
    """Put small runs of bodies together: each is a row of the log."""
    runs: list[Bodies] = [Bodies((), (), b"")]
    for part in parts:
        last = runs[-1]
        if part.data is not None and last.data is not None:
            lengths, checksums = (*last.lengths, *part.lengths), (*last.checksums, *part.checksums)
            runs[-1] = Bodies(lengths, checksums, last.data + part.data)
        else:
            runs.append(part)
    return [run for run in runs if len(run)] or runs[:1]


def _made(source: Framed, spark: SparkSession) -> DataFrame:
    frame = source.frame(spark)
    if not isinstance(frame, DataFrame):
        raise SourceFailed(
            source.describe(), f"it gives {type(frame).__name__}, expected a DataFrame",
            "return what spark.read gives, without an action such as collect()",
        )  # fmt: skip
    if frame.isStreaming:
        raise SourceFailed(
            source.describe(), "it gives a streaming DataFrame, expected one that ends",
            "declare it with streaming(), or read it with spark.read",
        )  # fmt: skip
    return frame


def _store(place: BodyPlace, rows: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Store one partition; runs on an executor."""
    result: Bodies | Failure
    try:
        result = place.store([[encode_stream(normalise(table)) for table in _events(batches, rows)]])[0]
    except ClewError as error:
        result = failure(error)
    yield pa.RecordBatch.from_pydict({"stored": [pickle.dumps(result)]})


def _events(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Cut a partition into events, and hold no more of it than one at a time."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while count + batch.num_rows >= rows:
            room = rows - count
            yield pa.Table.from_batches([*held, batch.slice(0, room)]).combine_chunks()
            held, count, batch = [], 0, batch.slice(room)
        if batch.num_rows:
            held.append(batch)
            count += batch.num_rows
    if held:
        yield pa.Table.from_batches(held).combine_chunks()
