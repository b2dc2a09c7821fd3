"""The log as tables of Spark: a Python data source whose partitions each read a range of events by themselves.

The driver plans with the numbers of events alone. An executor opens the log for reading, and sees what is committed
when it reads: of a run that goes on, later partitions may know more than earlier ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from clew.errors import BodyDamaged, NoSuchPort, SetupFailed
from clew.ids import WRITES, Port
from clew.lineage.steps import Connections, pairs
from clew.pipeline.schema import from_bytes
from clew.runtime.bodies import load
from clew.runtime.codec import decode
from clew.store.base import Entry, LogReader

#: How many events a partition has, unless somebody says otherwise.
_EVENTS_PER_PARTITION = 20_000
#: How many events are asked for at once, and how many rows or bytes are sent to Spark at once.
_PAGE = 5_000
_BATCH_ROWS = 10_000
_BATCH_BYTES = 8 << 20

_OPTIONS = ("log", "bodies", "pipeline", "table", "port", "events_per_partition")

Opens = Callable[[], LogReader]


@dataclass(frozen=True)
class Range(InputPartition):
    """Consecutive events of one port."""

    port: Port
    first: int
    count: int

    def pages(self) -> Iterator[tuple[int, int]]:
        """Yield (first, count) of the parts that are asked for at once."""
        for first in range(self.first, self.first + self.count, _PAGE):
            yield first, min(_PAGE, self.first + self.count - first)


@dataclass(frozen=True)
class Table(ABC):
    """A table that a log can be read as: of all ports, or of one."""

    port: Port | None
    #: Where the bodies of events are, on the driver and on executors.
    root: str | None

    def ports(self, log: LogReader) -> list[Port]:
        """Return the ports whose events have a part in the table."""
        known = log.ports()
        if self.port is not None and self.port not in known:
            raise NoSuchPort(str(self.port), "in this log", [str(port) for port in known])
        return known if self.port is None else [self.port]

    @abstractmethod
    def schema(self, log: LogReader) -> pa.Schema:
        """Return the columns."""

    @abstractmethod
    def rows(self, log: LogReader, events: Range, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of some events."""


class LineageTable(Table):
    """The lineage relation: a row for each input event and each output event of an Input Set."""

    def schema(self, log: LogReader) -> pa.Schema:
        text, number = pa.string(), pa.int64()
        return pa.schema(
            {
                "from_operator": text, "from_port": text, "from_event": number,
                "to_operator": text, "to_port": text, "to_event": number,
                "input_set": number, "via_operator": text,
            }
        )  # fmt: skip

    def rows(self, log: LogReader, events: Range, schema: pa.Schema) -> Iterator[pa.Table]:
        known = Connections(log)
        if known.is_source(events.port.operator):
            return
        batch: list[tuple[Any, ...]] = []
        for first, count in events.pages():
            for before, after, input_set in pairs(log, known, events.port, first, count):
                batch.append((*before.port, before.number, *after.port, after.number, input_set, after.port.operator))
                if len(batch) == _BATCH_ROWS:
                    yield _table(batch, schema)
                    batch = []
        yield _table(batch, schema)


class EventsTable(Table):
    """The events that are in the log, and what has become of each at its receivers; write actions among them."""

    def schema(self, log: LogReader) -> pa.Schema:
        text, number = pa.string(), pa.int64()
        taken = pa.struct({"operator": text, "port": text, "input_set": number, "status": text})
        return pa.schema(
            {
                "operator": text, "port": text, "event": number, "rows": number, "size": number, "end": pa.bool_(),
                "input_set": number, "status": text, "taken": pa.list_(taken),
            }
        )  # fmt: skip

    def rows(self, log: LogReader, events: Range, schema: pa.Schema) -> Iterator[pa.Table]:
        for first, count in events.pages():
            # Before the entries: what is sent meanwhile would have none, and look as if it were done.
            headers = _headers(log, events.port, first, count)
            entries: dict[int, list[Entry]] = {}
            for entry in log.entries(events.port, first, count):
                entries.setdefault(entry.number, []).append(entry)
            made_of = dict(log.origins(events.port, first, count))
            if events.port.name.startswith(WRITES):
                headers = dict.fromkeys(entries, (None, None, False))
            rows = [
                (*events.port, number, *header, made_of.get(number), *_taken(entries.get(number, ())))
                for number, header in headers.items()
            ]
            yield _table(rows, schema)


#: Columns of table records besides the port's own: the event of a record, and its place there.
EVENT, PLACE = "_clew_event", "_clew_record"


class RecordsTable(Table):
    """The records of a port, each with its event and its place there."""

    def ports(self, log: LogReader) -> list[Port]:
        if self.port is None:
            raise SetupFailed("table records is of one port, and none is named", "set option port to OPERATOR.PORT")
        return super().ports(log)

    def schema(self, log: LogReader) -> pa.Schema:
        (port,) = self.ports(log)
        own = log.schema(port)
        if own is None:
            raise SetupFailed(f"port {port} has sent no records, so that its columns are not known", "run it first")
        columns = from_bytes(own)
        for name in sorted({EVENT, PLACE}.intersection(columns.names)):
            raise SetupFailed(
                f"port {port} has a column {name} of its own, which table records has for something else",
                "let an operator rename it, and read what that sends",
            )
        return pa.schema([pa.field(EVENT, pa.int64()), pa.field(PLACE, pa.int64()), *columns])

    def rows(self, log: LogReader, events: Range, schema: pa.Schema) -> Iterator[pa.Table]:
        own = log.schema(events.port)
        assert own is not None, f"{events.port} has lost its schema"
        batch: list[pa.Table] = []
        size = 0
        for first, count in events.pages():
            for number, body in _bodies(log, self.root, events.port, first, count):
                batch.append(_numbered(number, decode(body, from_bytes(own))))
                size += len(body)
                if size >= _BATCH_BYTES or len(batch) == _PAGE:
                    yield pa.concat_tables(batch).cast(schema)
                    batch, size = [], 0
        if batch:
            yield pa.concat_tables(batch).cast(schema)


def _bodies(log: LogReader, root: str | None, port: Port, first: int, count: int) -> Iterator[tuple[int, memoryview]]:
    """Yield the bodies of events by their numbers; what is collected while they are read is passed over."""
    stop = first + count
    while first < stop:
        try:
            for run in log.events(port, first, stop - first):
                bodies = load(root, run.bodies)
                for number, header in enumerate(run.headers, run.first):
                    first = number
                    if not header.end:
                        yield number, next(bodies)
            return
        except BodyDamaged:
            collected, _ = log.extent(port)
            if collected < first:
                raise
            first = collected + 1


def _numbered(number: int, records: pa.Table) -> pa.Table:
    count = records.num_rows
    places = pa.array(range(count), pa.int64())
    columns = [pa.repeat(pa.scalar(number, pa.int64()), count), places, *records.columns]
    return pa.Table.from_arrays(columns, [EVENT, PLACE, *records.column_names])


def _headers(log: LogReader, port: Port, first: int, count: int) -> dict[int, tuple[int | None, int | None, bool]]:
    return {
        number: (header.rows, header.size, header.end)
        for run in log.headers(port, first, count)
        for number, header in enumerate(run.headers, run.first)
    }


def _taken(entries: Sequence[Entry]) -> tuple[str, list[dict[str, Any]]]:
    """Return whether an event is done, and what it is at each receiver."""
    undone = any(entry.status == "undone" for entry in entries)
    return "undone" if undone else "done", [
        {
            "operator": entry.receiver.operator, "port": entry.receiver.name,
            "input_set": entry.input_set, "status": entry.status,
        }
        for entry in entries
    ]  # fmt: skip


def _table(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows) if rows else ((),) * len(schema)
    return pa.Table.from_arrays([pa.array(column, field.type) for column, field in zip(columns, schema)], schema=schema)


TABLES: Mapping[str, type[Table]] = {"lineage": LineageTable, "events": EventsTable, "records": RecordsTable}


class TableReader(DataSourceReader):
    """Reads a table of a log, a range of events at a time."""

    def __init__(self, table: Table, opens: Opens, schema: StructType, events_per_partition: int) -> None:
        self._table = table
        self._opens = opens
        # As Spark speaks of these columns to Arrow: a time of day is one of nanoseconds there.
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._events = events_per_partition

    def partitions(self) -> Sequence[InputPartition]:
        with closing(self._opens()) as log:
            ports = [(port, *log.extent(port)) for port in self._table.ports(log)]
        return [
            Range(port, first, min(self._events, last + 1 - first))
            for port, collected, last in ports
            for first in range(collected + 1, last + 1, self._events)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Range):
            # Where a log has no events, Spark makes up a partition.
            return
        with closing(self._opens()) as log:
            for rows in self._table.rows(log, partition, self._schema):
                yield from rows.to_batches(max_chunksize=_BATCH_ROWS)


class LogTables(DataSource):
    """The data source; where a log is, and how it is opened, is told by who wires it."""

    @abstractmethod
    def place(self, pipeline: str, log: str | None, bodies: str | None) -> tuple[Opens, str | None]:
        """Return what opens the log of a pipeline, here and on executors, and where its bodies are."""

    @classmethod
    def name(cls) -> str:
        return "clew"

    def schema(self) -> StructType:
        table, opens = self._asked()
        with closing(opens()) as log:
            # So that a port that is not there is told before Spark plans anything.
            table.ports(log)
            return from_arrow_schema(table.schema(log))

    def reader(self, schema: StructType) -> TableReader:
        return TableReader(*self._asked(), schema, self._events_per_partition())

    def _asked(self) -> tuple[Table, Opens]:
        options = {name.lower(): value for name, value in self.options.items()}
        for name in options:
            if name not in _OPTIONS:
                raise SetupFailed(f"clew has no option {name}", f"leave it out; there are: {', '.join(_OPTIONS)}")
        chosen = options.get("table", "")
        if chosen not in TABLES:
            raise SetupFailed(f"a log has no table {chosen!r}", f"set option table to one of {', '.join(TABLES)}")
        pipeline = options.get("pipeline")
        if not pipeline:
            raise SetupFailed("it is not said of which pipeline the log is", "set option pipeline to its name")
        opens, root = self.place(pipeline, options.get("log"), options.get("bodies"))
        port = options.get("port")
        return TABLES[chosen](Port.parse(port) if port else None, root), opens

    def _events_per_partition(self) -> int:
        text = self.options.get("events_per_partition", str(_EVENTS_PER_PARTITION))
        if not text.isdigit() or int(text) == 0:
            raise SetupFailed(f"events_per_partition is {text!r}", "set it to a whole number above 0")
        return int(text)
