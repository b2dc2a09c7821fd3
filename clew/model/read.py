"""Reads logs, sources and sinks for the judge: by itself, and without changing anything.

It knows the tables of a log from their description in docs/protocol.md, and shares no code with the store that wrote
them. This is the only module of the room that opens databases and files of outside systems.
"""

import glob
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Protocol
from urllib.parse import quote as percent

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from clew.errors import ClewError, SetupFailed
from clew.ids import Port
from clew.model.certificate import Answer, Body, Logged, Sent, Taken
from clew.pipeline.contracts import FilesHeld, RowsHeld

_EXTENSIONS = {"parquet": (".parquet",), "csv": (".csv",), "jsonl": (".jsonl", ".ndjson", ".json")}
_PAGE = 2_000


class Unreadable(ClewError):
    """What is to be judged cannot be read."""


class Database(Protocol):
    """A database opened for reading."""

    def rows(self, sql: str, *values: Any) -> Iterator[Sequence[Any]]:
        """Run a query with `?` for its values, and go through its rows as they come."""


class _Sqlite:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, *values: Any) -> Iterator[Sequence[Any]]:
        try:
            yield from self._connection.execute(sql, values)
        except sqlite3.Error as error:
            raise Unreadable(str(error)) from error


class _Postgres:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._cursors = 0

    def rows(self, sql: str, *values: Any) -> Iterator[Sequence[Any]]:
        import psycopg

        self._cursors += 1
        try:
            # A cursor of the server's: the client holds a page of rows, however many there are.
            with self._connection.cursor(f"clew_{self._cursors}") as cursor:
                cursor.itersize = _PAGE
                cursor.execute(sql.replace("%", "%%").replace("?", "%s") if values else sql, values or None)
                yield from cursor
        except psycopg.Error as error:
            raise Unreadable(" ".join(str(error).split())) from error


@contextmanager
def opened(url: str, schema: str = "") -> Iterator[Database]:
    """Open a database for reading; what is read is one state of it, whoever writes meanwhile."""
    if url.startswith("sqlite:///"):
        path = os.path.abspath(url.removeprefix("sqlite:///"))
        if not os.path.isfile(path):
            raise Unreadable(f"there is no database {path}")
        with closing(sqlite3.connect(f"file:{percent(path)}?mode=ro", uri=True, timeout=60)) as connection:
            connection.execute("BEGIN")
            yield _Sqlite(connection)
        return
    # Commands that read no PostgreSQL need not pay for its driver.
    import psycopg

    try:
        settings = f"-c search_path={schema},public -c timezone=UTC" if schema else "-c timezone=UTC"
        with psycopg.connect(url, options=settings, connect_timeout=10) as connection:
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            yield _Postgres(connection)
    except psycopg.OperationalError as error:
        raise Unreadable(" ".join(str(error).split())) from error


class Log:
    """The log of a run, as its tables hold it (a `Certificate`)."""

    def __init__(self, database: Database, root: str | None) -> None:
        self._database = database
        self.root = root
        self.run = str(self._meta("run_id"))

    def _meta(self, key: str) -> str:
        for (value,) in self._database.rows("SELECT value FROM meta WHERE key = ?", key):
            return str(value)
        raise Unreadable(f"the log has no {key}; it is not the log of a run")

    def statuses(self) -> dict[str, str]:
        return {str(name): str(status) for name, status in self._database.rows("SELECT name, status FROM operator")}

    def links(self) -> dict[Port, Port]:
        rows = self._database.rows("SELECT rec_operator, rec_port, operator, port FROM link")
        return {Port(rec, rec_port): Port(sender, port) for rec, rec_port, sender, port in rows}

    def schema(self, port: Port) -> pa.Schema | None:
        sql = "SELECT schema FROM port_schema WHERE operator = ? AND port = ?"
        for (data,) in self._database.rows(sql, port.operator, port.name):
            return pa.ipc.read_schema(pa.py_buffer(bytes(data)))
        return None

    def collected(self, port: Port) -> int:
        sql = "SELECT upto FROM collected WHERE operator = ? AND port = ?"
        return max((int(upto) for (upto,) in self._database.rows(sql, port.operator, port.name)), default=0)

    def sent(self, port: Port) -> Iterator[Sent]:
        sql = "SELECT first, headers FROM sent WHERE operator = ? AND port = ? ORDER BY first"
        for first, headers in self._database.rows(sql, port.operator, port.name):
            flat = json.loads(headers)
            for index in range(0, len(flat), 2):
                # The end of a stream has its count of records complemented.
                rows, size = flat[index], flat[index + 1]
                yield Sent(first + index // 2, max(rows, 0), size, rows < 0)

    def taken(self, receiver: Port) -> Iterator[Taken]:
        sql = (
            "SELECT first, part, count, seq, input_set, size, skip FROM ack WHERE operator = ? AND port = ? "
            "ORDER BY first, part"
        )
        run: list[Sequence[Any]] = []
        for row in self._database.rows(sql, receiver.operator, receiver.name):
            if run and run[0][0] != row[0]:
                yield from _taken(run)
                run = []
            run.append(row)
        yield from _taken(run)

    def lineage(self, port: Port) -> Iterator[tuple[int, int]]:
        sql = "SELECT first, input_set, counts FROM lineage WHERE operator = ? AND port = ? ORDER BY first, input_set"
        for first, input_set, counts in self._database.rows(sql, port.operator, port.name):
            for made, repeat in json.loads(counts):
                for _ in range(repeat):
                    for _ in range(made):
                        yield first, input_set
                        first += 1
                    input_set += 1

    def done_sets(self, operator: str) -> Iterator[tuple[int, int]]:
        sql = "SELECT first, count FROM done WHERE operator = ? ORDER BY first"
        return ((int(first), int(count)) for first, count in self._database.rows(sql, operator))

    def states(self, operator: str) -> Iterator[tuple[int, Any]]:
        sql = "SELECT input_set, state FROM state_event WHERE operator = ? ORDER BY state_id"
        return ((int(number), json.loads(state)) for number, state in self._database.rows(sql, operator))

    def bodies(self, port: Port, first: int, count: int) -> Sequence[Body]:
        sql = (
            "SELECT first, lengths, checksums, file, start, data FROM body "
            "WHERE operator = ? AND port = ? AND first < ? AND first + count > ? ORDER BY first"
        )
        found: list[Body] = []
        for start, *columns in self._database.rows(sql, port.operator, port.name, first + count, first):
            found += [body for number, body in enumerate(_bodies(columns), start) if first <= number < first + count]
        return found

    def writes(self, connection: Port) -> Iterator[Logged]:
        where = "WHERE operator = ? AND connection = ?"
        done = [
            range(first, first + count)
            for first, count in self._database.rows(
                f"SELECT first, count FROM done_write {where} ORDER BY first", connection.operator, connection.name
            )
        ]
        own = self._write_bodies(connection)
        sql = f"SELECT number, events FROM write_action {where} ORDER BY number"
        for number, events in self._database.rows(sql, connection.operator, connection.name):
            named = tuple((Port(operator, port), first, count) for operator, port, first, count in json.loads(events))
            while done and done[0].stop <= number:
                done.pop(0)
            yield Logged(number, bool(done) and number in done[0], named, own.get(number, ()))

    def _write_bodies(self, connection: Port) -> dict[int, tuple[Body, ...]]:
        sql = (
            "SELECT number, lengths, checksums, file, start, data FROM write_body "
            "WHERE operator = ? AND connection = ? ORDER BY number, part"
        )
        found: dict[int, tuple[Body, ...]] = {}
        for number, *columns in self._database.rows(sql, connection.operator, connection.name):
            found[number] = (*found.get(number, ()), *_bodies(columns))
        return found

    def answers(self, operator: str) -> Iterator[Answer]:
        sql = (
            "SELECT connection, action, input_set, lengths, checksums, file, start, data FROM read_event "
            "WHERE operator = ? AND input_set IS NOT NULL ORDER BY connection, action"
        )
        for connection, action, input_set, *columns in self._database.rows(sql, operator):
            for body in _bodies(columns):
                yield Answer(connection, action, input_set, body)

    def size(self) -> int:
        """Return how many events the log holds."""
        return sum(int(count or 0) for (count,) in self._database.rows("SELECT sum(count) FROM sent"))

    def pending(self, source: str) -> bool:
        sql = "SELECT 1 FROM read_event WHERE operator = ? AND input_set IS NULL AND lengths IS NOT NULL"
        return any(True for _ in self._database.rows(sql, source))


def _taken(run: Sequence[Sequence[Any]]) -> Iterator[Taken]:
    """Expand the rows of one run: several, where its events belong to several Input Sets each."""
    if not run:
        return
    first, _, count, seq, *_ = run[0]
    for index in range(count):
        sets = [input_set + (skip + index) // size if size else input_set for *_, input_set, size, skip in run]
        yield Taken(seq + index, first + index, tuple(number for number in sets if number))


def _bodies(columns: Sequence[Any]) -> Iterator[Body]:
    lengths, checksums, file, start, data = columns
    if lengths is None:
        return
    at = 0
    for length, checksum in zip(json.loads(lengths), json.loads(checksums)):
        part = bytes(data[at : at + length]) if data is not None else None
        yield Body(length, checksum, part, file, start + at)
        at += length


@contextmanager
def opened_log(url: str, pipeline: str, root: str | None) -> Iterator[Log]:
    """Open the log of a pipeline's run."""
    if not url.startswith(("sqlite:///", "postgresql:", "postgres:")):
        raise SetupFailed(
            f"{url!r} is no log that can be read", "use sqlite:///PATH or postgresql://USER@HOST/DATABASE"
        )
    with opened(url, f"clew_{pipeline}") as database:
        yield Log(database, root)


# What sources and sinks hold.


def other_runs(held: RowsHeld, run: str) -> int:
    """Return how many other runs have written to this database, by the markers they left."""
    with opened(held.database) as database:
        try:
            return sum(1 for (other,) in database.rows("SELECT DISTINCT run FROM clew_writes") if other != run)
        except Unreadable:
            return 0


def rows_held(held: RowsHeld, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read a table, or a query's result in its order, as records of the schema."""
    names = ", ".join(_quoted(name) for name in schema.names)
    if held.table:
        source, order = ".".join(_quoted(part) for part in held.table.split(".")), ""
    else:
        source, order = f"({held.query}\n) AS q", f" ORDER BY {_quoted(held.order)}" if held.order else ""
    with opened(held.database) as database:
        page: list[Sequence[Any]] = []
        for row in database.rows(f"SELECT {names} FROM {source}{order}"):
            page.append(row)
            if len(page) == _PAGE:
                yield _table(page, schema)
                page = []
        yield _table(page, schema)


def files_of(held: FilesHeld) -> list[str]:
    """Return the files of a source, in the order of their names."""
    found: list[str] = []
    for place in held.places:
        if os.path.isdir(place):
            found += [os.path.join(place, name) for name in os.listdir(place) if not name.startswith((".", "_"))]
        else:
            found += [place] if os.path.exists(place) else glob.glob(place)
    return sorted(path for path in set(found) if os.path.isfile(path))


def file_written(held: FilesHeld, name: str) -> str:
    """Return the path that a write action's file has."""
    return os.path.join(held.places[0], name + _EXTENSIONS[held.format or "parquet"][0])


def files_written(held: FilesHeld, prefix: str) -> list[str]:
    """Return all files of a sink whose names begin so."""
    place = held.places[0]
    names = os.listdir(place) if os.path.isdir(place) else []
    return sorted(os.path.join(place, name) for name in names if name.startswith(prefix))


def file_records(path: str, schema: pa.Schema, format: str | None = None) -> pa.Table:
    """Read a file as records of the schema."""
    ending = os.path.splitext(path)[1]
    kind = format or next((name for name, endings in _EXTENSIONS.items() if ending in endings), "")
    try:
        if kind == "parquet":
            return pa.parquet.read_table(path, partitioning=None).select(schema.names).cast(schema)
        if kind == "csv":
            return _csv(path, schema)
        with open(path, encoding="utf-8-sig") as lines:
            read = [json.loads(line, parse_float=_number) for line in lines if not line.isspace()]
        return _table([[row.get(name) for name in schema.names] for row in read], schema)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise Unreadable(f"{path} cannot be read as {', '.join(map(str, schema))}: {error}") from error


def _csv(path: str, schema: pa.Schema) -> pa.Table:
    # As text first: how a value is read is decided in one place for all that is text.
    options = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(schema.names, pa.string()),
        strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""],
    )  # fmt: skip
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    table = pa.csv.read_csv(path, convert_options=options, parse_options=parse)
    columns: Mapping[str, list[Any]] = {name: table.column(name).to_pylist() for name in schema.names}
    return _table(list(zip(*columns.values())), schema)


def _number(text: str) -> Decimal | float:
    """Keep a number with a point exact until its column's type is known."""
    return Decimal(text)


def _table(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows)) or [()] * len(schema)
    try:
        arrays = [pa.array([_coerced(v, f.type) for v in column], f.type) for column, f in zip(columns, schema)]
    except (TypeError, ValueError, ArithmeticError, pa.ArrowException) as error:
        raise Unreadable(f"a value does not fit {', '.join(map(str, schema))}: {error}") from error
    return pa.Table.from_arrays(arrays, schema=schema)


def _coerced(value: Any, kind: pa.DataType) -> Any:
    """Return a value that an outside system holds as one of the type it was written as."""
    types = pa.types
    if value is None:
        return None
    if types.is_decimal(kind):
        exact = Decimal(str(value))
        # As many places as the column has, which is what was written; more would be another number.
        return exact.quantize(Decimal(1).scaleb(-kind.scale)) if exact == round(exact, kind.scale) else exact
    if types.is_timestamp(kind):
        return datetime.fromisoformat(value) if isinstance(value, str) else value
    if types.is_date(kind):
        return date.fromisoformat(value) if isinstance(value, str) else value
    if types.is_boolean(kind):
        return value == "true" if isinstance(value, str) else bool(value)
    if types.is_floating(kind):
        return float(value)
    if types.is_integer(kind):
        return int(value)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return bytes(value)
    return value if types.is_nested(kind) else str(value)


def _quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'
