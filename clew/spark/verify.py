"""Verification on Spark: work on records goes to executors, a few pieces of it at a time."""

import pickle
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from clew.errors import ClewError
from clew.model.work import Work, needs_frames
from clew.pipeline.graph import Graph
from clew.spark.engine import explained
from clew.spark.frames import for_spark
from clew.spark.options import SparkOptions
from clew.spark.program import Program, ProgramRef
from clew.spark.session import cancel, is_alive, open_session, require_classic
from clew.spark.worker import PROGRAM, Raised, load_program

#: How many pieces of work one job has for each core.
_PER_CORE = 4
#: How many jobs run at once: one with work on executors, and some of functions of DataFrames, which have one each.
_AT_ONCE = 5
#: Work that is larger than this stays in the driver: Spark refuses a task over 128 MiB.
_LARGEST = 32 << 20

#: Gives a result when it is there, or raises what the work raised.
_Result = Callable[[], Any]


class SparkCompute:
    """Does the work of a verification on a SparkSession: the user's, or one of Clew's own (a `Compute`)."""

    def __init__(
        self,
        graph: Graph,
        *,
        spark: SparkSession | None = None,
        options: SparkOptions | None = None,
        program: Program | None = None,
    ) -> None:
        self._graph = graph
        self._own = spark is None
        self._spark = open_session(options or SparkOptions()) if spark is None else require_classic(spark)
        self._program = program or Program.of_graph(graph)
        self._spark.sparkContext.addFile(self._program.write())
        self._window = _PER_CORE * self._spark.sparkContext.defaultParallelism
        # Temporary views and settings of the user's functions must not leak into the session that was given.
        self._session = self._spark.newSession()
        self._group = f"verify-{uuid.uuid4().hex[:8]}"
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="verify")

    def frames(self, function: Callable[..., Any], tables: Sequence[pa.Table]) -> Any:
        """Call a function of DataFrames with Arrow tables, and return its result with Arrow tables."""
        result = function(*(_frame(self._session, table) for table in tables))
        if isinstance(result, Mapping):
            return {port: frame.toArrow() for port, frame in result.items()}
        return result.toArrow() if isinstance(result, DataFrame) else result

    def map(self, works: Iterable[Work]) -> Iterator[Any]:
        """Do all work in order; while one job is under way the next one is put together."""
        under_way: deque[list[_Result]] = deque()
        batches = _batches(works, self._window)
        while True:
            try:
                batch = next(batches, None)
            except Exception:
                # What went before may tell more of what is wrong.
                yield from (result() for results in under_way for result in results)
                raise
            if batch is None:
                break
            under_way.append(self._start(batch))
            if len(under_way) > 1:
                yield from (result() for result in under_way.popleft())
        yield from (result() for results in under_way for result in results)

    def close(self) -> None:
        cancel(self._spark, self._group)
        self._threads.shutdown(cancel_futures=True)
        if self._own and is_alive(self._spark):
            self._spark.stop()

    def _start(self, batch: Sequence[Work]) -> list[_Result]:
        """Start one job for all work that goes to executors, and do the rest here."""
        away: list[bytes] = []
        places: list[int | Work] = []
        for work in batch:
            data = b"" if needs_frames(work, self._graph) else pickle.dumps(work, pickle.HIGHEST_PROTOCOL)
            if 0 < len(data) <= _LARGEST:
                places.append(len(away))
                away.append(data)
            else:
                places.append(work)
        job = self._threads.submit(self._job, away)
        return [
            partial(_picked, job.result, place)
            if isinstance(place, int)
            else self._threads.submit(self._here, place).result
            for place in places
        ]

    def _job(self, works: list[bytes]) -> list[Any]:
        if not works:
            return []
        context = self._named().sparkContext
        try:
            rdd = context.parallelize(works, len(works))
            return rdd.mapPartitions(partial(run_works, self._program.ref)).collect()
        except Exception as error:
            raise explained("", "verify-job", error) from error

    def _here(self, work: Work) -> Any:
        self._named()
        return work.run(self._graph, self.frames)

    def _named(self) -> SparkSession:
        self._spark.sparkContext.setJobGroup(self._group, f"verify {self._graph.name}", interruptOnCancel=True)
        self._spark.sparkContext.setLocalProperty(PROGRAM, self._program.ref.text)
        return self._spark


def run_works(ref: ProgramRef, works: Iterable[bytes]) -> Iterator[Any]:
    """Do the work of one partition; runs on an executor."""
    graph = load_program(ref)
    for work in works:
        try:
            yield pickle.loads(work).run(graph, None)
        except ClewError as error:
            yield Raised(error)


def _picked(results: Callable[[], list[Any]], index: int) -> Any:
    result = results()[index]
    if isinstance(result, Raised):
        raise result.error
    return result


def _batches(works: Iterable[Work], size: int) -> Iterator[list[Work]]:
    batch: list[Work] = []
    try:
        for work in works:
            batch.append(work)
            if len(batch) == size:
                yield batch
                batch = []
    except Exception:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return records as a DataFrame, decoded on executors as those of a run are."""
    if not table.schema.names:
        # Nothing was ever received there, so its columns are not known.
        return spark.createDataFrame([], StructType([]))
    size = max(1, -(-table.num_rows // spark.sparkContext.defaultParallelism))
    parts = [table.slice(at, size) for at in range(0, table.num_rows, size)] or [table]
    frame = spark.createDataFrame([(_stream(for_spark(part)),) for part in parts], "records binary")
    return frame.mapInArrow(_decode, from_arrow_schema(table.schema))


def _stream(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        # One chunk: thousands of small ones cost Spark more than the records in them.
        stream.write_table(table.combine_chunks())
    data: bytes = out.getvalue().to_pybytes()
    return data


def _decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode records; runs on an executor."""
    for batch in batches:
        for data in batch.column(0):
            with pa.ipc.open_stream(data.as_buffer()) as stream:
                yield from stream
