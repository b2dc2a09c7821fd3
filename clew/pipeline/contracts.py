"""What a source, a sink and a connection must offer: the seam between pipelines and outside systems.

Objects of these classes travel to Spark executors, so they hold settings only; connections and files
are opened where they are used and closed there again.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa

#: What may stand in STATE, in a snapshot or in an offset.
Json = Any


@dataclass(frozen=True, slots=True)
class FilesHeld:
    """Files: a source's under these places, in the order of their names; a sink's, one per write action, in one."""

    places: tuple[str, ...]
    format: str | None = None
    #: The columns that directories are named of, as `column=value`; a sink's write then has a file in several.
    partition_by: tuple[str, ...] = ()
    #: Whether a source's files were read as they came: each as a whole, in an order that their names do not tell.
    as_they_came: bool = False
    #: Endings of names that are no data in these places.
    without: tuple[str, ...] = ()
    #: How many rows of a file an event of a source has, the last one of each file fewer; 0 where that is not said.
    rows_per_event: int = 0


@dataclass(frozen=True, slots=True)
class RowsHeld:
    """Rows of a database (`sqlite:///PATH` or `postgresql://...`): of a sink's table, or of a source's query."""

    # Kept out of repr, because it may hold the password.
    database: str = field(repr=False)
    table: str = ""
    #: The columns that rows are replaced by; none where rows are appended.
    key: tuple[str, ...] = ()
    query: str = ""
    #: The column that a query's rows are read in the order of.
    order: str = ""
    #: How many rows an event of a source has, fewer where there are no more at the time; 0 where that is not said.
    rows_per_event: int = 0


class RecordsHeld(ABC):
    """What a system of your own holds, as records that it can be asked for; travels to executors."""

    #: The columns that records are replaced by; none where records are appended.
    key: tuple[str, ...] = ()

    @abstractmethod
    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read everything that is held, as records of this schema; a source's in order."""


#: Where somebody else can read what an outside system holds, to judge a run by it.
Held = FilesHeld | RowsHeld | RecordsHeld


@dataclass(frozen=True, slots=True)
class Plan:
    """What one turn of a source reads.

    `slices` are read in parallel and their events are numbered in the order of the slices.
    `last` says that nothing is left after them; None leaves that to `read`, whose slice is then
    the last one when it yields fewer events than it was asked for.
    """

    slices: tuple[Json, ...]
    last: bool | None


@dataclass(frozen=True, slots=True)
class Piece:
    """One event's records, and the offset from which reading goes on after it."""

    table: pa.Table
    offset: Json


class Source(ABC):
    """A source's read action A (LOG.io, Section 2.2)."""

    @abstractmethod
    def describe(self) -> str:
        """Return the text of the read action, as READ_ACTION keeps it; secrets are masked."""

    def whereabouts(self) -> str:
        """Tell what is read, secrets masked: a run that has begun to read one place cannot go on with another."""
        return self.describe()

    def validate(self) -> None:
        """Raise SourceFailed when the outside system can be seen to be missing; opens nothing for long."""

    def release(self, snapshot: Json) -> None:
        """Consume what was read (delete it, commit its offset).

        Called after the read action is complete and all its events are logged; after a crash it may
        be called again, so it must bear that.
        """

    def schema(self) -> pa.Schema | None:
        """Return the schema that the user declared, or None to take it from the first event."""
        return None

    def holds(self) -> Held | None:
        """Say where `clew verify` can read the same records again, or None where nobody can."""
        return None


class Replayable(Source):
    """A read action that can be replayed from any offset, given its snapshot."""

    @property
    def stores_snapshot(self) -> bool:
        """Whether something must be stored before anything is read."""
        return type(self).snapshot is not Replayable.snapshot

    def snapshot(self) -> Json:
        """Observe what must be stored before anything is read (a directory listing), or None.

        A snapshot makes the action one that is not replayable by itself: Algorithm 1 stores it
        first. Everything after it is replayed from offsets.
        """
        return None

    @abstractmethod
    def plan(self, snapshot: Json, offset: Json, events: int) -> Plan:
        """Choose the slices to read next, about `events` events, from `offset` on (None: the start)."""

    @abstractmethod
    def read(self, snapshot: Json, piece: Json) -> Iterator[Piece]:
        """Read one slice; runs on an executor.

        From one offset on it gives the same events each time, however many it is asked for.
        """


@dataclass(frozen=True, slots=True)
class News:
    """What a look at a source found: the snapshot of its next read action, and what the look after it must know.

    `seen` is kept in STATE, which is written with every turn, so it must stay small.
    """

    snapshot: Json
    seen: Json


class Continuing(Replayable):
    """A source whose read actions follow each other, each with a snapshot of its own that is stored first.

    A read action ends without the end of the stream; the next one begins when there is something new. The end of the
    stream is an event of its own.
    """

    #: Seconds between two looks.
    poll: float = 1.0

    @property
    def stores_snapshot(self) -> bool:
        """Always: each read action's snapshot is its own."""
        return True

    @abstractmethod
    def more(self, seen: Json, quiet: float) -> News | Literal["nothing", "over"]:
        """Look for what is new since `seen`, which the last look left (None: there was none).

        `quiet` is for how many seconds nothing has come, counted from the start of the process at the earliest. What is
        found may be thrown away and looked for again; once its snapshot is stored it is read, exactly once.
        """


class Observed(Source):
    """A read action that is not replayable: its effect is stored before any event is made of it."""

    @abstractmethod
    def observe(self) -> Iterator[pa.Table]:
        """Perform the read action, one table per event; runs on an executor."""


class Framed(Source):
    """A read action that is a Spark DataFrame: it is not replayable, so Spark tasks store its effect first."""

    #: How many rows an event has; the last one of each partition may have fewer.
    rows_per_event: int = 1000

    @abstractmethod
    def frame(self, spark: Any) -> Any:
        """Return the DataFrame, given a SparkSession; runs where the session is, and again after a failure."""


class Streamed(Source):
    """A Structured Streaming query: each of its batches is a read action, whose effect Spark tasks store first."""

    #: How many rows an event has; the last one of each partition may have fewer.
    rows_per_event: int = 1000
    #: When Spark makes the next batch, as `DataStreamWriter.trigger` takes it.
    trigger: Mapping[str, Any] = MappingProxyType({})

    @abstractmethod
    def frame(self, spark: Any) -> Any:
        """Return the streaming DataFrame, given a SparkSession; runs where the session is, at each start."""


class Connection(ABC):
    """A system that an operator reads while it generates an Output Set (Algorithm 4)."""

    @abstractmethod
    def describe(self) -> str:
        """Name the system; secrets are masked."""

    @abstractmethod
    def read(self, action: str) -> pa.Table:
        """Perform a side-effect read action; runs on an executor."""

    def schema(self) -> pa.Schema | None:
        """Return the columns that every answer has, where they are declared."""
        return None


@dataclass(frozen=True, slots=True)
class WriteAction:
    """One external write: its name is fixed in the log before it is performed (invariant W1)."""

    run: str
    operator: str
    connection: str
    number: int
    incarnation: int

    @property
    def name(self) -> str:
        """The write's identity; it holds nothing that changes at a restart."""
        return f"{self.run}-{self.operator}-{self.connection}-{self.number:09d}"


class Sink(ABC):
    """Where write actions go.

    A sink must be transactional (it keeps our marker with the data), idempotent (a late repeat under
    the same name is harmless) or checkable (it can say whether a write was applied).
    """

    transactional = False
    idempotent = False
    checkable = False

    @abstractmethod
    def describe(self) -> str:
        """Name the system and the place in it; secrets are masked."""

    def whereabouts(self) -> str:
        """Tell where writes go and how they are applied there, secrets masked."""
        return self.describe()

    def holds(self) -> Held | None:
        """Say where `clew verify` can read what was written, or None where nobody can."""
        return None

    def validate_target(self) -> None:
        """Raise SinkFailed when the outside system can be seen to be missing."""

    @abstractmethod
    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        """Perform one write action; runs on an executor. `tables` may be empty."""

    def applied(self, action: WriteAction) -> bool:
        """Say whether the write was applied (only for checkable sinks); runs on an executor."""
        raise TypeError(f"{self.describe()} is not checkable")


class FrameSink(Sink):
    """A sink that takes the records of a write action as a Spark DataFrame, where the session is.

    It is declared idempotent: writing again under the same name must leave what writing once leaves.
    """

    idempotent = True

    @abstractmethod
    def write_frame(self, frame: Any, name: str) -> None:
        """Perform one write action."""

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        raise TypeError(f"{self.describe()} writes DataFrames, where the session is")
