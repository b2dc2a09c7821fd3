"""Write actions as DataFrames: bodies are decoded on executors, and the sink's function writes them where it likes."""

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from clew.pipeline.contracts import FrameSink
from clew.pipeline.schema import from_bytes
from clew.protocol.rows import Bodies
from clew.runtime.bodies import load
from clew.runtime.codec import decode, decode_stream
from clew.runtime.task import WriteTask, Written
from clew.spark.frames import described, for_spark, spread
from clew.spark.session import is_alive

#: The parts of a write action: bodies with their schema, or, without one, whole streams.
Parts = tuple[tuple[bytes | None, tuple[Bodies, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Load:
    """What one task decodes."""

    root: str | None
    schema: bytes | None
    bodies: tuple[Bodies, ...]


def write_frames(sink: FrameSink, task: WriteTask, spark: SparkSession) -> list[Written]:
    """Perform write actions in order, up to the first that fails."""
    done = 0
    for action, parts in task.writes:
        try:
            frame = _frame(task.root, parts, spark)
            if frame is not None:
                sink.write_frame(frame, action.name)
        except Exception as error:
            if type(error).__module__.startswith("py4j") or not is_alive(spark):
                raise
            return [Written(done, (), described(error, None, task.operator))]
        done += 1
    return [Written(done)]


def _frame(root: str | None, parts: Parts, spark: SparkSession) -> DataFrame | None:
    """Return the records of a write action; None where it has none, and so no columns."""
    schema = _schema(root, parts)
    if schema is None:
        return None
    cores = spark.sparkContext.defaultParallelism
    numbered = [(fixed, [(0, run) for run in bodies]) for fixed, bodies in parts]
    loads = [
        _Load(root, fixed, tuple(r for _, r in runs)) for fixed, bodies in numbered for runs in spread(bodies, cores)
    ]
    frame = spark.createDataFrame([(pickle.dumps(one),) for one in loads], "load binary")
    return frame.mapInArrow(_decode, from_arrow_schema(schema))


def _schema(root: str | None, parts: Parts) -> pa.Schema | None:
    for fixed, bodies in parts:
        if fixed is not None:
            return from_bytes(fixed)
        first = next(load(root, bodies), None)
        if first is not None:
            return decode_stream(first).schema
    return None


def _decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode bodies; runs on an executor."""
    for data in chain.from_iterable(batch.column(0).to_pylist() for batch in batches):
        todo: _Load = pickle.loads(data)
        bodies = load(todo.root, todo.bodies)
        if todo.schema is None:
            tables = [decode_stream(body) for body in bodies]
        else:
            schema = from_bytes(todo.schema)
            tables = [decode(body, schema) for body in bodies]
        if tables:
            # One chunk: thousands of small ones cost Spark more than the records in them.
            yield from for_spark(pa.concat_tables(tables)).combine_chunks().to_batches()
