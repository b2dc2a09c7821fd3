"""A SQL database in its four roles: a query replayed by keyset, a query observed, reads on the side, a table.

What differs between databases is in their `Dialect`, one file each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from clew.connectors.cures import before_the_sink
from clew.connectors.dialect import Dialect, Page, quote, subquery
from clew.connectors.recorded import recall, record
from clew.connectors.sqlvalues import ValueRefused, decode_key, encode_key, to_table
from clew.errors import GraphError, SinkFailed, SourceFailed, StaleWriter
from clew.faultpoint import fault_point
from clew.pipeline.contracts import (
    Connection,
    Json,
    Observed,
    Piece,
    Plan,
    Replayable,
    RowsHeld,
    Sink,
    Source,
    WriteAction,
)
from clew.pipeline.location import caller


def tables(dialect: Dialect, sql: str, size: int, declared: pa.Schema | None) -> Iterator[pa.Table]:
    """Run a query; all its tables have the types of the first."""
    schema = declared
    for page in dialect.pages(sql, (), declared, size):
        schema = schema or page.schema
        yield as_table(dialect, page, schema)


def as_table(dialect: Dialect, page: Page, schema: pa.Schema) -> pa.Table:
    """Make a table of a page, or say which value does not fit."""
    twice = sorted({name for name in page.names if page.names.count(name) > 1})
    missing = [name for name in schema.names if name not in page.names]
    if twice or missing:
        what = f"twice {', '.join(twice)}" if twice else f"no column {', '.join(missing)}"
        raise SourceFailed(
            dialect.describe(), f"the query gives {what} (its columns: {', '.join(page.names)})",
            "name the columns in the query with AS, or declare those to read with schema=",
        )  # fmt: skip
    try:
        return to_table(page.names, page.rows, schema)
    except ValueRefused as refused:
        raise SourceFailed(
            dialect.describe(), str(refused), "cast the column in the query, or declare its type with schema="
        ) from None


@dataclass(frozen=True)
class SqlQuery(Observed):
    """A query that cannot be replayed: its result is stored before any event is made of it."""

    dialect: Dialect
    query: str
    rows_per_event: int
    declared: pa.Schema | None

    def describe(self) -> str:
        return f"{self.dialect.describe()}: {self.query}"

    def schema(self) -> pa.Schema | None:
        return self.declared

    def validate(self) -> None:
        _try(self.dialect, self.query, self.declared)

    def observe(self) -> Iterator[pa.Table]:
        found = tables(self.dialect, self.query, self.rows_per_event, self.declared)
        return (table for table in found if table.num_rows)


@dataclass(frozen=True)
class SqlKeyset(Replayable):
    """A query that is replayed by a unique, ordered column: the offset is the last key that was read.

    Rows that are already read must not change, and new ones must have greater keys; only then does a
    replay find what was there before. The snapshot fixes the columns' types.
    """

    dialect: Dialect
    query: str
    unique: str
    rows_per_event: int
    declared: pa.Schema | None

    def describe(self) -> str:
        return f"{self.dialect.describe()}: {self.query} (by {self.unique})"

    def schema(self) -> pa.Schema | None:
        return self.declared

    def holds(self) -> RowsHeld:
        return RowsHeld(self.dialect.place(), query=self.query, order=self.unique, rows_per_event=self.rows_per_event)

    def validate(self) -> None:
        self._key_index(_try(self.dialect, self.query, self.declared))

    def snapshot(self) -> Json:
        self._refuse_null_keys()
        sql = f"SELECT * FROM {subquery(self.query)} ORDER BY {quote(self.unique)} LIMIT {self.rows_per_event}"
        page = next(self.dialect.pages(sql, (), self.declared, self.rows_per_event))
        self._key_index(page)
        as_table(self.dialect, page, self.declared or page.schema)
        return {"schema": record(self.declared or page.schema)}

    def plan(self, snapshot: Json, offset: Json, events: int) -> Plan:
        return Plan(([offset, events],), last=None)

    def read(self, snapshot: Json, piece: Json) -> Iterator[Piece]:
        after, events = piece
        schema = recall(snapshot["schema"])
        previous = [] if after is None else [decode_key(after)]
        # One row more than asked for shows a key that stands on both sides of the end.
        for page in self._after(previous, events * self.rows_per_event + 1, schema):
            index = self._key_index(page)
            keys = [*previous, *(row[index] for row in page.rows)]
            self._check_keys(keys)
            previous = keys[-1:]
            if not page.rows or not events:
                break
            yield Piece(as_table(self.dialect, page, schema), self._encoded(keys[-1]))
            events -= 1
        if events:
            # A comparison passes over nulls in silence, so the end is the place to look for them again.
            self._refuse_null_keys()

    def _after(self, previous: Sequence[Any], limit: int, schema: pa.Schema) -> Iterator[Page]:
        key = quote(self.unique)
        where = f" WHERE {key} > {self.dialect.placeholder}" if previous else ""
        query = self.dialect.literal(self.query) if previous else self.query
        sql = f"SELECT * FROM {subquery(query)}{where} ORDER BY {key} LIMIT {limit}"
        return self.dialect.pages(sql, previous, schema, self.rows_per_event)

    def _key_index(self, page: Page) -> int:
        if self.unique not in page.names:
            raise self._refused(f"the query has no column {self.unique}, only {', '.join(page.names)}")
        return page.names.index(self.unique)

    def _check_keys(self, keys: Sequence[Any]) -> None:
        if None in keys:
            raise self._null_key()
        for one, next_one in pairwise(keys):
            if one == next_one:
                raise self._refused(f"column {self.unique} holds {one!r} more than once, expected unique values")

    def _encoded(self, key: Any) -> Json:
        try:
            return encode_key(key)
        except ValueError as error:
            raise self._refused(f"column {self.unique}: {error}") from None

    def _refuse_null_keys(self) -> None:
        sql = f"SELECT 1 AS found FROM {subquery(self.query)} WHERE {quote(self.unique)} IS NULL LIMIT 1"
        if any(page.rows for page in self.dialect.pages(sql, (), None, 1)):
            raise self._null_key()

    def _null_key(self) -> SourceFailed:
        return self._refused(f"column {self.unique} holds null, expected a key in every row")

    def _refused(self, what: str) -> SourceFailed:
        return SourceFailed(
            self.dialect.describe(), what,
            "name a unique column that is never null and has an order, or leave unique= out: the result is then stored",
        )  # fmt: skip


@dataclass(frozen=True)
class SqlConnection(Connection):
    """A database that operators read on the side; the action is a query."""

    dialect: Dialect
    declared: pa.Schema | None = None

    def describe(self) -> str:
        return self.dialect.describe()

    def schema(self) -> pa.Schema | None:
        return self.declared

    def read(self, action: str) -> pa.Table:
        return pa.concat_tables(tables(self.dialect, _bare(action), 10_000, self.declared))


@dataclass(frozen=True)
class SqlTable(Sink):
    """A table that rows are appended to, or replaced in by key, exactly once.

    The write's own transaction locks the writer's row in `clew_writes`, refuses a lower incarnation,
    skips a write that is already there, and commits the row with the data.
    """

    transactional = True
    checkable = True

    dialect: Dialect
    table: str
    key: tuple[str, ...]

    def describe(self) -> str:
        return f"{self.dialect.describe()} table {self.table}"

    def whereabouts(self) -> str:
        return f"{self.describe()}, by key {', '.join(self.key)}" if self.key else self.describe()

    def holds(self) -> RowsHeld:
        return RowsHeld(self.dialect.place(), self.table, self.key)

    def validate_target(self) -> None:
        self.dialect.validate(self._failed, write=True)

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        self._refuse_missing_key(schema)
        with self.dialect.transaction() as transaction:
            marker = transaction.lock(action, self.table)
            if action.incarnation < marker.incarnation:
                raise StaleWriter(action.operator, action.incarnation, marker.incarnation)
            if action.number > marker.last:
                transaction.insert(self.table, self.key, self._checked(tables, schema), schema)
            transaction.mark(action, max(marker.last, action.number))
            fault_point("sink-before-commit", action.operator)
        fault_point("sink-after-commit", action.operator)

    def applied(self, action: WriteAction) -> bool:
        marker = self.dialect.marker(action)
        return marker is not None and action.number <= marker.last

    def _refuse_missing_key(self, schema: pa.Schema) -> None:
        missing = [name for name in self.key if name not in schema.names]
        if missing:
            raise self._failed(
                f"the records have no column {', '.join(missing)}, which key= names", "name columns that are there"
            )

    def _checked(self, tables: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
        for table in tables:
            for name in self.key:
                # A database may let null stand in a key, and then no row is ever the same as another.
                if table[name].null_count:
                    raise self._failed(
                        f"key column {name} holds null", before_the_sink("fill it in, or filter such records out")
                    )
            yield table.cast(schema)

    def _failed(self, what: str, cure: str) -> SinkFailed:
        return SinkFailed(self.describe(), what, cure)


def declare(
    dialect: Dialect, table: str | None, key: Sequence[str] | str | None, query: str | None, unique: str | None,
    rows_per_event: int, schema: pa.Schema | None,
) -> Any:  # fmt: skip
    """Choose the role that the arguments ask for."""
    _refuse_contradictions(table, key, query, unique, rows_per_event)
    if table is not None:
        return SqlTable(dialect, table, (key,) if isinstance(key, str) else tuple(key or ()))
    if query is None:
        return SqlConnection(dialect, schema)
    source: Source = (
        SqlKeyset(dialect, _bare(query), unique, rows_per_event, schema)
        if unique is not None
        else SqlQuery(dialect, _bare(query), rows_per_event, schema)
    )
    return source


def _refuse_contradictions(
    table: str | None, key: Sequence[str] | str | None, query: str | None, unique: str | None, rows_per_event: int
) -> None:
    wrong = [
        (table is not None and query is not None, "table= makes a sink and query= a source; give one of them"),
        (key is not None and table is None, "key= belongs to a sink; give table= with it"),
        (unique is not None and query is None, "unique= belongs to a source; give query= with it"),
        (rows_per_event < 1, "an event has at least one row; give rows_per_event=1 or more"),
    ]
    for applies, message in wrong:
        if applies:
            raise GraphError(message, caller())


def _bare(query: str) -> str:
    return query.strip().rstrip(";").rstrip()


def _try(dialect: Dialect, query: str, declared: pa.Schema | None) -> Page:
    """Run a query for no rows, which shows whether it can be run at all."""
    return next(dialect.pages(f"SELECT * FROM {subquery(query)} LIMIT 0", (), declared, 1))
