"""SQLite databases.

Columns are made with declared types that keep values exact: a decimal is text under the declared
type `DECIMAL_TEXT(p,s)`, times are ISO text. They are read back by the declared types; a column without one
(an expression) takes the type of its first values.
"""

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import quote as percent

import pyarrow as pa
import pyarrow.compute as pc

from clew.connectors.cures import before_the_sink
from clew.connectors.dialect import MARKERS, Dialect, Failed, Marker, Page, Transaction, quote, quote_table
from clew.connectors.sql import declare
from clew.connectors.sqlvalues import UNCONSTRAINED, infer
from clew.disk import sync_directory, sync_file
from clew.errors import SinkFailed, SourceFailed
from clew.pipeline.contracts import WriteAction

_WAIT_SECONDS = 60
_DECIMAL = re.compile(r"(?:DECIMAL|NUMERIC)\w*\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")


@dataclass(frozen=True)
class Sqlite(Dialect):
    """A database file."""

    placeholder = "?"

    path: str
    given: str

    def place(self) -> str:
        return f"sqlite:///{self.path}"

    def describe(self) -> str:
        return f"sqlite {self.given}"

    def validate(self, failed: Failed, *, write: bool) -> None:
        with _explained(failed), closing(self._connect(write=write)) as connection:
            connection.execute("PRAGMA schema_version").fetchone()

    def pages(self, sql: str, parameters: Sequence[Any], schema: pa.Schema | None, size: int) -> Iterator[Page]:
        with _explained(self._source_failed), closing(self._connect(write=False)) as connection:
            declared = {} if schema is not None else _declared_types(connection, sql)
            # The user's query shall not change what it reads.
            connection.execute("PRAGMA query_only = ON")
            cursor = connection.execute(sql, tuple(parameters))
            names = tuple(column[0] for column in cursor.description or ())
            rows = cursor.fetchmany(size)
            schema = schema if schema is not None else _schema(names, declared, rows)
            while True:
                yield Page(names, schema, rows)
                rows = cursor.fetchmany(size)
                if not rows:
                    return

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with _explained(self._sink_failed), closing(self._connect(write=True)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield _SqliteTransaction(connection, self._sink_failed)
            except BaseException:
                # On a full disk SQLite has rolled back by itself.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def marker(self, action: WriteAction) -> Marker | None:
        with _explained(self._sink_failed), closing(self._connect(write=True)) as connection:
            made = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (MARKERS,)).fetchone()
            found = _marker(connection, action) if made else None
            if found is not None:
                self._sync()
            return found

    def _connect(self, *, write: bool) -> sqlite3.Connection:
        mode = "rwc" if write else "rw"
        connection = sqlite3.connect(
            f"file:{percent(self.path)}?mode={mode}", uri=True, timeout=_WAIT_SECONDS, isolation_level=None
        )
        # A commit is on disk when it returns; in a file that is in WAL mode too. FULL would not do: without one, the
        # name of the journal may come back after a power failure, and with it what was before the commit.
        connection.execute("PRAGMA synchronous = EXTRA")
        return connection

    def _sync(self) -> None:
        """Make what was read durable: who committed it may have failed, or died, before the last sync of a commit."""
        try:
            if os.path.exists(f"{self.path}-wal"):
                sync_file(f"{self.path}-wal")
            sync_directory(os.path.dirname(self.path))
        except OSError as error:
            what = f"cannot be synced ({error.strerror})"
            raise self._sink_failed(what, "mend the database's disk, then run again") from error

    def _source_failed(self, what: str, cure: str) -> SourceFailed:
        return SourceFailed(self.describe(), what, cure)

    def _sink_failed(self, what: str, cure: str) -> SinkFailed:
        return SinkFailed(self.describe(), what, cure)


@dataclass(frozen=True)
class _SqliteTransaction(Transaction):
    connection: sqlite3.Connection
    failed: Failed

    def lock(self, action: WriteAction, table: str) -> Marker:
        # BEGIN IMMEDIATE has locked the whole database, so nothing can race with this.
        self.connection.execute(
            f"CREATE TABLE IF NOT EXISTS {MARKERS} (run TEXT NOT NULL, operator TEXT NOT NULL, "
            "connection TEXT NOT NULL, incarnation INTEGER NOT NULL, last INTEGER NOT NULL, target TEXT, "
            "PRIMARY KEY (run, operator, connection))"
        )
        return _marker(self.connection, action) or self._begin(action, table)

    def _begin(self, action: WriteAction, table: str) -> Marker:
        """Make the writer's marker, which says to which table it writes; those of an older Clew do not say."""
        if "target" not in [row[1] for row in self.connection.execute(f"PRAGMA table_info({MARKERS})")]:
            self.connection.execute(f"ALTER TABLE {MARKERS} ADD COLUMN target TEXT")
        self.connection.execute(
            f"INSERT INTO {MARKERS} (run, operator, connection, incarnation, last, target) VALUES (?, ?, ?, 0, 0, ?)",
            (action.run, action.operator, action.connection, quote_table(table)),
        )
        return Marker(0, 0)

    def mark(self, action: WriteAction, last: int) -> None:
        self.connection.execute(
            f"UPDATE {MARKERS} SET incarnation = ?, last = ? WHERE run = ? AND operator = ? AND connection = ?",
            (action.incarnation, last, action.run, action.operator, action.connection),
        )

    def insert(self, table: str, key: tuple[str, ...], tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        self.connection.execute(_create(table, key, schema, self.failed))
        names = ", ".join(quote(name) for name in schema.names)
        marks = ", ".join("?" for _ in schema)
        sql = f"INSERT INTO {quote_table(table)} ({names}) VALUES ({marks}){_on_conflict(key, schema)}"
        for part in tables:
            columns = [_values(part[field.name], field, self.failed) for field in schema]
            self.connection.executemany(sql, zip(*columns))


def sqlite(
    path: str | os.PathLike[str],
    *,
    table: str | None = None,
    key: Sequence[str] | str | None = None,
    query: str | None = None,
    unique: str | None = None,
    rows_per_event: int = 1000,
    schema: pa.Schema | None = None,
) -> Any:
    """Name a SQLite database: a source with `query=`, a sink with `table=`, else a connection to read from.

    A query with `unique=`, a unique and ordered column of it, is replayed by that column; without, its
    result is stored first. A table is appended to, or, with `key=`, rows with the same key are replaced.
    """
    given = os.fspath(path)
    dialect = Sqlite(os.path.abspath(os.path.expanduser(given)), given)
    return declare(dialect, table, key, query, unique, rows_per_event, schema)


@contextmanager
def _explained(failed: Failed) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise failed(str(error), _cure(str(error))) from None


def _cure(said: str) -> str:
    for sign, cure in (
        ("unable to open", "check that the file, or for a sink its directory, is there and may be read and written"),
        ("not a database", "name a SQLite database file"),
        ("locked", "let the process that holds the database's lock finish, then run again"),
        ("readonly", "let Clew write to the file and its directory; a query can only read"),
        ("disk I/O error", "mend the database's disk, then run again"),
        ("full", "make room on the disk, then run again"),
        ("no such table", "check the name of the table"),
        ("ON CONFLICT", "give the table a primary key or a unique index on the columns of key="),
        ("constraint", "check the records against the table's constraints, or name its key with key="),
    ):
        if sign in said:
            return cure
    return "check the statement and the table's columns against the records"


def _marker(connection: sqlite3.Connection, action: WriteAction) -> Marker | None:
    found = connection.execute(
        f"SELECT incarnation, last FROM {MARKERS} WHERE run = ? AND operator = ? AND connection = ?",
        (action.run, action.operator, action.connection),
    ).fetchone()
    return Marker(*found) if found else None


def _declared_types(connection: sqlite3.Connection, sql: str) -> dict[str, str]:
    """Ask for the declared types of a query's columns, which only a view makes visible."""
    connection.execute(f"CREATE TEMP VIEW clew_query AS {sql}")
    return {name: kind for _, name, kind, *_ in connection.execute("PRAGMA temp.table_info(clew_query)")}


def _schema(names: Sequence[str], declared: dict[str, str], rows: Sequence[Sequence[Any]]) -> pa.Schema:
    return pa.schema(
        [
            (name, _type_of(declared.get(name, "").upper()) or infer([row[index] for row in rows]))
            for index, name in enumerate(names)
        ]
    )


def _type_of(declared: str) -> pa.DataType | None:
    """Return the Arrow type of a declared type, or None when it says nothing."""
    decimal = _DECIMAL.search(declared)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2] or 0))
    for signs, kind in (
        (("DECIMAL", "NUMERIC"), UNCONSTRAINED),
        (("BOOL",), pa.bool_()),
        (("TIMESTAMPTZ", "WITH TIME ZONE"), pa.timestamp("us", "UTC")),
        (("TIMESTAMP", "DATETIME"), pa.timestamp("us")),
        (("DATE",), pa.date32()),
        # From here on as SQLite itself reads a declared type.
        (("INT",), pa.int64()),
        (("CHAR", "CLOB", "TEXT"), pa.string()),
        (("BLOB",), pa.binary()),
        (("REAL", "FLOA", "DOUB"), pa.float64()),
    ):
        if any(sign in declared for sign in signs):
            return kind
    return None


def _create(table: str, key: tuple[str, ...], schema: pa.Schema, failed: Failed) -> str:
    columns = [f"{quote(field.name)} {_declaration(field, failed)}" for field in schema]
    if key:
        columns.append(f"PRIMARY KEY ({', '.join(quote(name) for name in key)})")
    return f"CREATE TABLE IF NOT EXISTS {quote_table(table)} ({', '.join(columns)})"


def _declaration(field: pa.Field, failed: Failed) -> str:
    types, kind = pa.types, field.type
    if types.is_decimal128(kind):
        return f"DECIMAL_TEXT({kind.precision},{kind.scale})"
    if types.is_timestamp(kind) and kind.unit != "ns":
        return "TIMESTAMP" if kind.tz is None else "TIMESTAMPTZ"
    for matches, declared in (
        # The largest numbers of 64 bits without a sign do not fit.
        (lambda kind: types.is_integer(kind) and not types.is_uint64(kind), "INTEGER"),
        (types.is_floating, "REAL"),
        (types.is_boolean, "BOOLEAN"),
        (types.is_date32, "DATE"),
        (lambda kind: types.is_string(kind) or types.is_large_string(kind), "TEXT"),
        (lambda kind: types.is_binary(kind) or types.is_large_binary(kind), "BLOB"),
    ):
        if matches(kind):
            return declared
    raise failed(
        f"column {field.name} has type {kind}, which SQLite has no exact place for",
        before_the_sink("make it a plain column, or text (JSON),"),
    )


def _on_conflict(key: tuple[str, ...], schema: pa.Schema) -> str:
    if not key:
        return ""
    others = [quote(name) for name in schema.names if name not in key]
    update = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "NOTHING"
    return f" ON CONFLICT ({', '.join(quote(name) for name in key)}) DO {update}"


def _values(column: pa.ChunkedArray, field: pa.Field, failed: Failed) -> list[Any]:
    """Return a column as values that SQLite keeps exactly."""
    kind = field.type
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        raise failed(f"column {field.name} holds NaN, which SQLite stores as null", before_the_sink("replace it"))
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", "UTC" if kind.tz else None))
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        raise failed(
            f"column {field.name} has a time outside of the years 1 to 9999, which SQLite's text has no form for",
            before_the_sink("make it a whole number"),
        ) from None
    if pa.types.is_timestamp(kind):
        return [value and value.isoformat(sep=" ", timespec="microseconds") for value in values]
    if pa.types.is_date(kind):
        return [value and value.isoformat() for value in values]
    if pa.types.is_decimal(kind):
        return [format(value, "f") if isinstance(value, Decimal) else None for value in values]
    return values
