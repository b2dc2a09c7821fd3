"""DataFrame functions: events become a DataFrame on executors, and its rows become events there again.

The driver passes references only. Bodies are decoded by the first stage of the job, and the last stage encodes and
stores the result, so that big data never passes through the driver.
"""

import linecache
import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from textwrap import indent
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.errors import PySparkException, PythonException, QueryContext, QueryContextType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from clew.errors import ClewError
from clew.ids import InputSetId, Port
from clew.pipeline.graph import Generative, OperatorSpec
from clew.pipeline.schema import from_bytes
from clew.pipeline.windows import Window
from clew.protocol.log.alg3_generate import Output, Productions
from clew.protocol.rows import Bodies, Header
from clew.protocol.step import FixSchema
from clew.runtime.bodies import BodyPlace, load
from clew.runtime.codec import decode
from clew.runtime.encoding import Encoder
from clew.runtime.engine import Job
from clew.runtime.generation import contents, resources_of
from clew.runtime.lookups import content
from clew.runtime.task import Failure, GenerateTask, SetWork, failure
from clew.runtime.tracebacks import is_ours
from clew.spark.program import ProgramRef
from clew.spark.session import is_alive, settled
from clew.spark.stacks import keep_stack
from clew.spark.worker import load_program

T = TypeVar("T")

#: The column that tells Input Sets apart where several are computed in one job.
TAG = "_clew_input_set"
#: The most records that go into one event of a DataFrame's result.
ROWS_PER_EVENT = 100_000
#: How often a job is computed again because Spark repeated one of its stages.
_MOST_REPEATS = 5
#: How long Spark's bookkeeping may lag behind a job, in seconds, before its result is not trusted.
_LONGEST_LAG = 10.0


@dataclass(frozen=True, slots=True)
class _Stored:
    """The events that one partition of a result became, by Input Set."""

    port: str
    sets: tuple[int, ...]
    headers: tuple[Header, ...]
    bodies: Bodies | None
    schema: bytes | None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class _Load:
    """What the first stage decodes: bodies of one port for one Input Set."""

    root: str | None
    schema: bytes
    window: Window
    key: Any
    seen: Any
    #: The number of the first event of each run of bodies.
    runs: tuple[tuple[int, Bodies], ...]
    tag: int | None


def generate_frames(
    spec: OperatorSpec, ref: ProgramRef, task: GenerateTask, job: Job, spark: SparkSession
) -> list[Productions | Failure]:
    """Compute the Output Sets of `task.sets` in one job."""
    function = spec.function(task.sets[0].function)
    numbers = [work.number for work in task.sets]
    try:
        stored = computed_once(spark, job, lambda: _compute(spec, function, ref, task, spark))
    except Exception as error:
        if type(error).__module__.startswith("py4j") or not is_alive(spark):
            # Spark's own failure, or its end, and not the function's; a dead JVM shows as a refused connection.
            raise
        return [_with_unknown_inputs(described(error, numbers[0], spec.name), spec, task)]
    broken = next((part.failure for part in stored if part.failure is not None), None)
    if broken is not None:
        return [Failure(numbers[0], broken.kind, broken.message, broken.frames, broken.error)]
    return [_productions(spec, function, numbers, stored)]


def _with_unknown_inputs(told: Failure, spec: OperatorSpec, task: GenerateTask) -> Failure:
    """Say of which inputs a function that failed had no columns to find."""
    unknown = [sender.operator for port, sender in spec.inputs.items() if port not in task.inputs]
    if not unknown:
        return told
    why = f"nothing has come from {' and '.join(unknown)} yet, so its columns are not known; declare its schema="
    return replace(told, message=f"{told.message} ({why})")


def computed_once(spark: SparkSession, job: Job, compute: Callable[[], T]) -> T:
    """Compute until Spark has repeated no stage of it, unless what is computed is deterministic."""
    for _ in range(_MOST_REPEATS):
        before = _jobs(spark)
        result = compute()
        if job.deterministic or not _repeated(spark, before):
            return result
    raise ClewError(f"Spark repeated a stage of {job.operator} {_MOST_REPEATS} times; is an executor failing?")


def _compute(
    spec: OperatorSpec, function: Generative, ref: ProgramRef, task: GenerateTask, spark: SparkSession
) -> list[_Stored]:
    tagged = function.row_local
    frames = [_frame(spec, function, task, port, spark, tagged) for port in spec.inputs]
    arguments = function.besides.arguments(_lookups(spec, function, task, spark), resources_of(spec, function))
    result = function.run(*frames, **arguments)
    by_port: Mapping[str, DataFrame] = (
        {} if result is None else result if isinstance(result, Mapping) else {function.outputs[0]: result}
    )
    stored: list[_Stored] = []
    for port, frame in by_port.items():
        _check_result(spec, function, port, frame, tagged)
        number = None if tagged else task.sets[0].number
        store = partial(_store, ref, port, dict(task.outputs), task.place, number)
        rows = frame.mapInArrow(store, "stored binary").collect()
        stored += [pickle.loads(row.stored) for row in rows]
    return stored


def _check_result(spec: OperatorSpec, function: Generative, port: str, frame: Any, tagged: bool) -> None:
    if port not in spec.outputs:
        raise ClewError(
            f"{spec.name} returned records for port {port!r}; it has {', '.join(spec.outputs) or 'none'}: "
            "return records for those, or declare the port with outputs="
        )
    if not isinstance(frame, DataFrame):
        raise ClewError(
            f"{spec.name} returned {type(frame).__name__} on port {port}; return a DataFrame, or a dict of them by port"
        )
    if tagged and TAG not in frame.columns:
        raise ClewError(
            f"{spec.name} is declared row_local, but its result has lost the column {TAG}, which tells Input Sets "
            "apart; keep it in select(), or drop row_local=True"
        )


def _frame(
    spec: OperatorSpec, function: Generative, task: GenerateTask, port: str, spark: SparkSession, tagged: bool
) -> DataFrame:
    """Return the records received on a port as a DataFrame that executors decode."""
    if port not in task.inputs:
        # Nothing was ever received there, and its columns are not known.
        return spark.createDataFrame([], StructType([]))
    window = function.window
    schema = window.extend(from_bytes(task.inputs[port]))
    if tagged:
        schema = schema.append(pa.field(TAG, pa.int64()))
    loads = [load for work in task.sets for load in _loads(task, work, port, window, tagged, spark)]
    rows = [(pickle.dumps(load),) for load in loads]
    frame = spark.createDataFrame(rows, "load binary")
    return frame.mapInArrow(_decode, from_arrow_schema(schema))


def _lookups(spec: OperatorSpec, function: Generative, task: GenerateTask, spark: SparkSession) -> dict[str, DataFrame]:
    """Return the function's lookups as DataFrames that executors decode, and that Spark sends to all of them."""
    frames = {}
    known = contents(spec, task) if function.besides.lookups else {}
    for row in task.lookups:
        if row.name in function.besides.lookups:
            place = spark.createDataFrame([(pickle.dumps((task.place.root, row)),)], "lookup binary")
            frame = place.mapInArrow(_decode_lookup, from_arrow_schema(known[row.name].table.schema))
            frames[row.name] = broadcast(frame)
    return frames


def _decode_lookup(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Load the kept content of a lookup; runs on an executor."""
    for batch in batches:
        for data in batch.column(0).to_pylist():
            root, row = pickle.loads(data)
            yield from for_spark(content(root, row, None).table).to_batches()


def _loads(
    task: GenerateTask, work: SetWork, port: str, window: Window, tagged: bool, spark: SparkSession
) -> Iterator[_Load]:
    runs = [run for part in work.parts if part.port == port for run in part.runs()]
    tag = work.number if tagged else None
    parts = 1 if tagged or window.whole else spark.sparkContext.defaultParallelism
    for chunk in spread(runs, parts):
        yield _Load(task.place.root, task.inputs[port], window, work.key, work.state, tuple(chunk), tag)


def spread(runs: Sequence[tuple[int, Bodies]], parts: int) -> Iterator[list[tuple[int, Bodies]]]:
    """Cut runs of bodies into about `parts` lists, keeping their order; at least one, which may be empty."""
    total = sum(len(run) for _, run in runs)
    size = max(1, -(-total // parts))
    chunk: list[tuple[int, Bodies]] = []
    room = size
    for first, run in runs:
        at = 0
        while at < len(run):
            take = min(room, len(run) - at)
            chunk.append((first + at, run.cut(at, at + take)))
            at, room = at + take, room - take
            if room == 0:
                yield chunk
                chunk, room = [], size
    if chunk or not total:
        yield chunk


def _decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode bodies into record batches; runs on an executor."""
    for batch in batches:
        for data in batch.column(0).to_pylist():
            todo: _Load = pickle.loads(data)
            schema = from_bytes(todo.schema)
            events = [
                (first + index, decode(body, schema))
                for first, run in todo.runs
                for index, body in enumerate(load(todo.root, [run]))
            ]
            selected = todo.window.select(events or [(0, schema.empty_table())], todo.key, todo.seen)
            # One chunk: thousands of small ones cost Spark more than the records in them.
            table = for_spark(selected).combine_chunks()
            if todo.tag is not None:
                table = table.append_column(TAG, pa.repeat(pa.scalar(todo.tag, pa.int64()), table.num_rows))
            yield from table.to_batches()


def for_spark(table: pa.Table) -> pa.Table:
    """Give times of day the nanoseconds that Spark expects; they come back as microseconds, none is ever lost."""
    return table.cast(pa.schema([field.with_type(_for_spark(field.type)) for field in table.schema]))


def _for_spark(kind: pa.DataType) -> pa.DataType:
    if pt.is_time64(kind):
        return pa.time64("ns")
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(_for_spark(kind.value_type)))
    if pt.is_map(kind):
        return pa.map_(_for_spark(kind.key_type), kind.item_field.with_type(_for_spark(kind.item_type)))
    if pt.is_struct(kind):
        return pa.struct([field.with_type(_for_spark(field.type)) for field in kind])
    return kind


def _store(
    ref: ProgramRef,
    port: str,
    schemas: Mapping[str, bytes],
    place: BodyPlace,
    number: int | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Turn one partition of a result into stored events; runs on an executor."""
    try:
        encoder = Encoder(load_program(ref), place.operator, schemas)
        stored = _store_partition(encoder, port, place, number, batches)
    except Exception as error:
        stored = _Stored(port, (), (), None, None, failure(error))
    yield pa.RecordBatch.from_pydict({"stored": [pickle.dumps(stored)]})


def _store_partition(
    encoder: Encoder, port: str, place: BodyPlace, number: int | None, batches: Iterable[pa.RecordBatch]
) -> _Stored:
    sets: list[int] = []
    headers: list[Header] = []
    bodies: list[bytes] = []
    for owner, table in _events(number, [batch for batch in batches if batch.num_rows]):
        encoded = encoder.encode(port, table)
        if encoded is not None:
            sets.append(owner)
            headers.append(encoded[0])
            bodies.append(encoded[1])
    learned = [schema.schema for schema in encoder.learned() if schema.port.name == port]
    stored = place.store([bodies])[0] if bodies else None
    return _Stored(port, tuple(sets), tuple(headers), stored, learned[0] if learned else None)


def _events(number: int | None, batches: Sequence[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Yield (Input Set, records of one event)."""
    if not batches:
        return
    table = pa.Table.from_batches(batches)
    owners = [number] if number is not None else sorted(pc.unique(table[TAG]).to_pylist())
    for owner in owners:
        part = table if number is not None else table.filter(pc.equal(table[TAG], owner)).drop_columns([TAG])
        for at in range(0, part.num_rows, ROWS_PER_EVENT):
            yield owner, part.slice(at, ROWS_PER_EVENT)


def _productions(
    spec: OperatorSpec, function: Generative, numbers: Sequence[InputSetId], stored: Sequence[_Stored]
) -> Productions:
    """Put the events of all partitions together, in the order of the Input Sets."""
    outputs: dict[str, Output] = {}
    schemas: dict[str, bytes] = {}
    for port in function.outputs:
        parts = [part for part in stored if part.port == port]
        events = [
            (owner, header, part.bodies.cut(index, index + 1))
            for part in parts
            if part.bodies is not None
            for index, (owner, header) in enumerate(zip(part.sets, part.headers))
        ]
        # Partitions are in order; within an Input Set their events keep it.
        events.sort(key=lambda event: event[0])
        counts = tuple(sum(owner == number for owner, _, _ in events) for number in numbers)
        outputs[port] = Output(counts, tuple(header for _, header, _ in events), tuple(body for _, _, body in events))
        learned = [part.schema for part in parts if part.schema is not None and part.headers]
        if learned:
            schemas[port] = learned[0]
    fixes = tuple(FixSchema(Port(spec.name, port), schema) for port, schema in schemas.items())
    return Productions(tuple(numbers), outputs, schemas=fixes)


def _jobs(spark: SparkSession) -> frozenset[int]:
    """Return the jobs of the current group."""
    group = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    return frozenset(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def _repeated(spark: SparkSession, before: frozenset[int]) -> bool:
    """Say whether Spark computed a stage twice in the jobs of the current group that were not there before.

    The result may then mix two computations, which only agree when the function is deterministic.
    """
    if not settled(spark, _LONGEST_LAG):
        return True
    tracker = spark.sparkContext.statusTracker()
    for job in _jobs(spark) - before:
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            seen = tracker.getStageInfo(stage)
            if seen is not None and seen.currentAttemptId > 0:
                return True
    return False


# What the user's function did wrong, wherever Spark found it.

_FRAME = re.compile(r'  File "(?P<file>.*?)", line (?P<line>\d+)')


def described(error: Exception, number: InputSetId | None, operator: str) -> Failure:
    """Describe what a DataFrame function raised while it was built, in Python on an executor, or in Spark's own SQL.

    What Spark's own code raised has no frame of the user's: it is told by the expression, and its Java stack is kept.
    """
    if isinstance(error, PythonException):
        return _failure_on_executor(str(error), number)
    plain = failure(error, number)
    if not isinstance(error, PySparkException):
        return plain
    # The query plan that may follow is for Spark's own authors.
    message = (error.getMessage() or str(error)).strip().split("\n\n")[0].split("\n\tat ")[0]
    return Failure(number, plain.kind, message, plain.frames or _expressions(error, number, operator))


def _expressions(error: PySparkException, number: InputSetId | None, operator: str) -> str:
    # One file for all attempts at an Input Set: they fail alike.
    about = "read-or-write" if number is None else str(number)
    kept = f"  the Java stack is in {keep_stack(f'{operator}-{about}-{os.getpid()}', error)}"
    return "\n".join([*map(_expression, error.getQueryContext()), kept])


def _failure_on_executor(text: str, number: InputSetId | None) -> Failure:
    """Read the traceback that a Python worker sent as text."""
    lines = text.rpartition("Traceback (most recent call last):\n")[2].splitlines()
    at = next((i for i, line in enumerate(lines) if not line.startswith(" ")), len(lines))
    kind, _, message = "\n".join(lines[at:]).strip().partition(": ")
    if kind.startswith("clew."):
        return Failure(number, kind, message, "", ClewError(message))
    return Failure(number, kind.rpartition(".")[2], message, _own_frames(lines[:at]))


def _own_frames(lines: Sequence[str]) -> str:
    """Keep the frames of a formatted traceback that are the user's."""
    kept: list[str] = []
    own = False
    for line in lines:
        frame = _FRAME.match(line)
        own = not is_ours(frame["file"]) if frame else own
        kept += [line] if own else []
    return "\n".join(kept)


def _expression(context: QueryContext) -> str:
    """Name the expression that failed in Spark, as a traceback names a line."""
    if context.contextType() is QueryContextType.SQL:
        # A text of SQL has no line in a file; Spark shows where in the text it is.
        return indent(context.summary().strip(), "  ")
    file, _, line = str(context.callSite()).rpartition(":")
    if not line.isdigit():
        return f"  {context.fragment()}"
    code = linecache.getline(file, int(line)).strip()
    return f'  File "{file}", line {line}, in {context.fragment()}' + (f"\n    {code}" if code else "")
