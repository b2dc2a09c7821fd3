"""What Spark can read and write, as sources and sinks: declared here, performed where the session is."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from clew.errors import GraphError
from clew.pipeline.contracts import Framed, FrameSink, Held, Streamed
from clew.pipeline.location import caller

#: Makes a DataFrame, given a SparkSession.
Make = Callable[[Any], Any]


@dataclass(frozen=True)
class SparkRead(Framed):
    """A DataFrame that is observed once: what it gave is stored before any event is made of it."""

    text: str
    make: Make
    rows_per_event: int = 1000
    declared: pa.Schema | None = None

    def describe(self) -> str:
        return self.text

    def whereabouts(self) -> str:
        return _without_function(self.text)

    def schema(self) -> pa.Schema | None:
        return self.declared

    def frame(self, spark: Any) -> Any:
        return self.make(spark)


@dataclass(frozen=True)
class _Reader:
    """Reads by format, path and options: `spark.read.format(...)...load(...)`."""

    format: str
    path: str | None
    # Kept out of repr, because they may hold a password.
    options: Mapping[str, Any] = field(repr=False)
    schema: str | None = None

    def __call__(self, spark: Any) -> Any:
        reader = spark.read.format(self.format).options(**self.options)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        return reader.load(self.path)

    @property
    def text(self) -> str:
        """What is read, without secrets: options are named, and their values left out."""
        words = ["spark.read", self.format, _masked(self.path or ""), ", ".join(self.options)]
        return " ".join(word for word in words if word)


def spark_read(
    make: Make | None = None,
    *,
    format: str | None = None,
    path: str | None = None,
    options: Mapping[str, Any] | None = None,
    schema: str | None = None,
    declared: pa.Schema | None = None,
    rows_per_event: int = 1000,
    describe: str | None = None,
) -> SparkRead:
    """Read anything that Spark reads, once: `spark_read(lambda spark: spark.read.orc("orders"))`.

    Or by name: `format`, `path`, `options`, and `schema` in Spark's words ("id BIGINT, at TIMESTAMP"). `declared` is
    the Arrow schema of the source's events. What the DataFrame gives need not be the same each time; what it gave
    is stored by Spark tasks before any event is made of it.
    """
    if (make is None) == (format is None):
        raise GraphError("spark_read needs either a function of the session or format=; give it one of them", caller())
    if make is not None and (path is not None or options or schema is not None):
        raise GraphError("spark_read with a function takes no path, options or schema; say them in it", caller())
    _require_rows("spark_read", rows_per_event)
    if make is None:
        reader = _Reader(str(format), path, dict(options or {}), schema)
        return SparkRead(describe or reader.text, reader, rows_per_event, declared)
    return SparkRead(describe or f"spark.read by {_called(make)}", make, rows_per_event, declared)


@dataclass(frozen=True)
class SparkStream(Streamed):
    """A Structured Streaming query: each batch is stored, and logged before Spark may count it as done."""

    text: str
    make: Make
    trigger: Mapping[str, Any] = field(default_factory=dict)
    rows_per_event: int = 1000
    declared: pa.Schema | None = None

    def describe(self) -> str:
        return self.text

    def whereabouts(self) -> str:
        return _without_function(self.text)

    def schema(self) -> pa.Schema | None:
        return self.declared

    def frame(self, spark: Any) -> Any:
        return self.make(spark)


def streaming(
    make: Make,
    *,
    trigger: str | None = None,
    until: Literal["availableNow"] | None = None,
    declared: pa.Schema | None = None,
    rows_per_event: int = 1000,
    describe: str | None = None,
) -> SparkStream:
    """Read a Structured Streaming query: `streaming(lambda spark: spark.readStream.format("rate").load())`.

    `trigger` is the time between two batches ("5 seconds"); without it one follows the other. `until="availableNow"`
    reads what is there when the run starts, and ends the stream; without it the stream ends only if the query does.
    """
    if until not in (None, "availableNow"):
        raise GraphError(f"streaming cannot go on until {until!r}; say 'availableNow', or nothing", caller())
    if until is not None and trigger is not None:
        raise GraphError(
            "streaming takes either trigger= or until=, because Spark does; leave one of them out", caller()
        )
    _require_rows("streaming", rows_per_event)
    when: dict[str, Any] = {"availableNow": True} if until else {"processingTime": trigger} if trigger else {}
    return SparkStream(describe or f"spark.readStream by {_called(make)}", make, when, rows_per_event, declared)


@dataclass(frozen=True)
class SparkWrite(FrameSink):
    """A DataFrame writer that is declared idempotent."""

    text: str
    function: Callable[[Any, str], object]
    held: Held | None = None

    def describe(self) -> str:
        return self.text

    def whereabouts(self) -> str:
        return _without_function(self.text)

    def holds(self) -> Held | None:
        return self.held

    def write_frame(self, frame: Any, name: str) -> None:
        self.function(frame, name)


def spark_write(
    function: Callable[[Any, str], object], *, describe: str | None = None, holds: Held | None = None
) -> SparkWrite:
    """Write with Spark: `spark_write(lambda frame, name: frame.write.mode("overwrite").parquet(f"out/{name}"))`.

    Each write action is one call, with its records and a name that never changes. After a crash the same call may come
    again, so it must be harmless: overwrite what has this name, or merge by a key. `holds` says where `clew verify` can
    read what was written.
    """
    if not callable(function):
        raise GraphError(
            f"spark_write needs a function of a DataFrame and a name, not {function!r}; give it one", caller()
        )
    return SparkWrite(describe or f"spark write by {_called(function)}", function, holds)


def _require_rows(what: str, rows: int) -> None:
    if rows < 1:
        raise GraphError(f"{what} cannot make events of {rows} rows; give it 1 or more", caller())


def _called(make: Callable[..., object]) -> str:
    return str(getattr(make, "__name__", type(make).__name__)).strip("<>")


def _masked(path: str) -> str:
    return re.sub(r"//[^/@]*@", "//***@", path)


def _without_function(text: str) -> str:
    """Return what names a place: a function is code, which may change, and so may its name."""
    return re.sub(r"^(spark\.read|spark\.readStream|spark write) by \S+$", r"\1", text)
