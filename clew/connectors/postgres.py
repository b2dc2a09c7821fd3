"""PostgreSQL databases.

Rows go in by COPY. Types are taken from the result's own description; a numeric without a precision (a
sum) is read as decimal128(38,9) where that is exact.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote as percent

import pyarrow as pa

from clew.connectors.dialect import MARKERS, Dialect, Failed, Marker, Page, Transaction, quote, quote_table
from clew.connectors.postgrescopy import columns, csv, ordered
from clew.connectors.sql import declare
from clew.connectors.sqlvalues import UNCONSTRAINED
from clew.errors import GraphError, SinkFailed, SourceFailed
from clew.pipeline.contracts import WriteAction
from clew.pipeline.location import caller

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

# Two writers that make the same table at once would collide in the catalogue; this lock keeps them apart.
_CREATE_LOCK = 0x636C6577
# A writer that froze inside its transaction must not hold up the one that took over for ever.
_SETTINGS = "-c idle_in_transaction_session_timeout=60s -c lock_timeout=120s -c timezone=UTC -c synchronous_commit=on"
#: How long a write waits for a lock before it ends those of the same writer that are of an older incarnation.
_PATIENCE = "2s"
#: Sessions are named `clew WRITER INCARNATION`, of 16 and 12 digits.
_END_OLDER = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND left(application_name, 22) = left(current_setting('application_name'), 22)
    AND application_name COLLATE "C" < current_setting('application_name')"""
_TEXT_TYPES = ("text", "varchar", "bpchar", "name", '"char"', "uuid", "json", "jsonb", "xml")
_ARROW_TYPES = {
    "int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64(), "float4": pa.float32(), "float8": pa.float64(),
    "bool": pa.bool_(), "date": pa.date32(), "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", "UTC"),
    "bytea": pa.binary(), **dict.fromkeys(_TEXT_TYPES, pa.string()),
}  # fmt: skip


@dataclass(frozen=True)
class Postgres(Dialect):
    """A database, by its URL."""

    placeholder = "%s"

    # Kept out of repr, because it may hold the password.
    url: str = field(repr=False)

    def place(self) -> str:
        return self.url

    def describe(self) -> str:
        parts = _parts(self.url)
        user = f"{percent(str(parts['user']))}@" if parts.get("user") else ""
        port = f":{parts['port']}" if parts.get("port") else ""
        return f"postgresql://{user}{parts.get('host') or ''}{port}/{parts.get('dbname') or ''}"

    def validate(self, failed: Failed, *, write: bool) -> None:
        with self._connected(failed):
            pass

    def pages(self, sql: str, parameters: Sequence[Any], schema: pa.Schema | None, size: int) -> Iterator[Page]:
        with self._connected(self._source_failed) as connection:
            # The user's query shall not change what it reads.
            connection.read_only = True
            with connection.cursor("clew") as cursor:
                cursor.execute(_text(sql), tuple(parameters) or None)
                described = cursor.description or []
                names = tuple(column.name for column in described)
                if schema is None:
                    schema = pa.schema([(column.name, self._type_of(connection, column)) for column in described])
                rows = cursor.fetchmany(size)
                while True:
                    yield Page(names, schema, rows)
                    rows = cursor.fetchmany(size)
                    if not rows:
                        return

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self._connected(self._sink_failed) as connection:
            yield _PostgresTransaction(connection, self._sink_failed)
            connection.commit()

    def marker(self, action: WriteAction) -> Marker | None:
        with self._connected(self._sink_failed) as connection:
            return _marker(connection, action) if _exists(connection, MARKERS) else None

    def literal(self, query: str) -> str:
        return query.replace("%", "%%")

    @contextmanager
    def _connected(self, failed: Failed) -> Iterator["psycopg.Connection[Any]"]:
        import psycopg
        from psycopg.types.string import TextLoader

        try:
            parts = _parts(self.url)
            parts["options"] = f"{_SETTINGS} {parts.get('options') or ''}".strip()
            parts.setdefault("connect_timeout", "10")
            parts.setdefault("application_name", "clew")
            connection = psycopg.connect(**parts)
            try:
                for name in ("uuid", "json", "jsonb"):
                    connection.adapters.register_loader(name, TextLoader)
                yield connection
            finally:
                # Whatever is not committed by now is rolled back by the server.
                connection.close()
        except psycopg.Error as error:
            failure = failed(self._masked(_said(error)), _cure(error))
            failure.away = _is_away(error)
            raise failure from None

    def _masked(self, text: str) -> str:
        password = _parts(self.url).get("password")
        return text.replace(str(password), "***") if password else text

    def _type_of(self, connection: "psycopg.Connection[Any]", column: "psycopg.Column") -> pa.DataType:
        info = connection.adapters.types.get(column.type_code)
        name = info.name if info and column.type_code == info.oid else ""
        if name == "numeric":
            precision, scale = column.precision, column.scale
            if precision is None or scale is None:
                return UNCONSTRAINED
            if precision <= 38 and 0 <= scale <= precision:
                return pa.decimal128(precision, scale)
        elif name in _ARROW_TYPES:
            return _ARROW_TYPES[name]
        raise self._source_failed(
            f"column {column.name} has type {column.type_display}, which has no exact counterpart here",
            f"cast it in the query, for example {column.name}::text",
        )

    def _source_failed(self, what: str, cure: str) -> SourceFailed:
        return SourceFailed(self.describe(), what, cure)

    def _sink_failed(self, what: str, cure: str) -> SinkFailed:
        return SinkFailed(self.describe(), what, cure)


@dataclass(frozen=True)
class _PostgresTransaction(Transaction):
    connection: "psycopg.Connection[Any]"
    failed: Failed

    def lock(self, action: WriteAction, table: str) -> Marker:
        writer = hashlib.sha256(f"{action.run}/{action.operator}/{action.connection}".encode()).hexdigest()[:16]
        name = f"clew {writer} {action.incarnation:012d}"
        self.connection.execute("SELECT set_config('application_name', %s, true)", (name,))
        return self._patiently(lambda: self._locked(action, table))

    def _patiently(self, work: Callable[[], T]) -> T:
        """Do what may wait for a lock; a frozen process that was replaced shall not hold up the one that follows it."""
        import psycopg

        with suppress(psycopg.errors.LockNotAvailable), self.connection.transaction():
            self._run(f"SET LOCAL lock_timeout TO '{_PATIENCE}'")
            done = work()
            self._run("SET LOCAL lock_timeout TO DEFAULT")
            return done
        self._run(_END_OLDER)
        return work()

    def _locked(self, action: WriteAction, table: str) -> Marker:
        self._create(
            MARKERS,
            '("run" text NOT NULL, "operator" text NOT NULL, "connection" text NOT NULL, '
            '"incarnation" bigint NOT NULL, "last" bigint NOT NULL, "target" text, '
            'PRIMARY KEY ("run", "operator", "connection"))',
        )
        marker = _marker(self.connection, action, " FOR UPDATE") or self._begin(action, table)
        assert marker is not None, "the marker was inserted or was there before"
        return marker

    def _begin(self, action: WriteAction, table: str) -> Marker | None:
        """Make the writer's marker, which says to which table it writes; those of an older Clew do not say."""
        named = self.connection.execute(
            "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'target' AND NOT attisdropped",
            (MARKERS,),
        ).fetchone()
        if named is None:
            self._run(f'ALTER TABLE {MARKERS} ADD COLUMN IF NOT EXISTS "target" text')
        self.connection.execute(
            _text(
                f'INSERT INTO {MARKERS} ("run", "operator", "connection", "incarnation", "last", "target") '
                "VALUES (%s, %s, %s, 0, 0, %s) ON CONFLICT DO NOTHING"
            ),
            (action.run, action.operator, action.connection, quote_table(table)),
        )
        return _marker(self.connection, action, " FOR UPDATE")

    def mark(self, action: WriteAction, last: int) -> None:
        self.connection.execute(
            _text(
                f'UPDATE {MARKERS} SET "incarnation" = %s, "last" = %s '
                'WHERE "run" = %s AND "operator" = %s AND "connection" = %s'
            ),
            (action.incarnation, last, action.run, action.operator, action.connection),
        )

    def insert(self, table: str, key: tuple[str, ...], tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        self._create(table, columns(schema, key, self.failed))
        target, names = quote_table(table), ", ".join(quote(name) for name in schema.names)
        if not key:
            self._copy(target, names, tables, schema)
            return
        # No constraints on the way in: of several rows with one key only the last must satisfy them.
        self._run(
            "CREATE TEMP TABLE clew_incoming ON COMMIT DROP AS "
            f"SELECT {names}, 0::bigint AS clew_order FROM {target} WITH NO DATA"
        )
        with_order = schema.append(pa.field("clew_order", pa.int64()))
        self._copy("clew_incoming", f"{names}, clew_order", ordered(tables), with_order)
        keys = ", ".join(quote(name) for name in key)
        # In the order of the keys, so that two writers lock rows in the same order.
        self._run(
            f"INSERT INTO {target} ({names}) SELECT DISTINCT ON ({keys}) {names} FROM clew_incoming "
            f"ORDER BY {keys}, clew_order DESC ON CONFLICT ({keys}) DO {_update(key, schema)}"
        )

    def _create(self, table: str, columns: str) -> None:
        def make() -> None:
            self.connection.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATE_LOCK,))
            self._run(f"CREATE TABLE IF NOT EXISTS {quote_table(table)} {columns}")

        if not _exists(self.connection, table):
            self._patiently(make)

    def _copy(self, target: str, names: str, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        with self.connection.cursor() as cursor:
            sql = _text(f"COPY {target} ({names}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')")
            with cursor.copy(sql) as copy:
                for table in tables:
                    copy.write(csv(table, schema))

    def _run(self, sql: str) -> None:
        self.connection.execute(_text(sql))


def postgres(
    url: str,
    *,
    table: str | None = None,
    key: Sequence[str] | str | None = None,
    query: str | None = None,
    unique: str | None = None,
    rows_per_event: int = 1000,
    schema: pa.Schema | None = None,
) -> Any:
    """Name a PostgreSQL database: a source with `query=`, a sink with `table=`, else a connection to read from.

    A query with `unique=`, a unique and ordered column of it, is replayed by that column; without, its
    result is stored first. A table is appended to, or, with `key=`, rows with the same key are replaced.
    """
    import psycopg

    try:
        _parts(url)
    except psycopg.Error:
        # Neither the URL nor libpq's words about it are shown: they may hold the password.
        message = "the URL given to postgres cannot be read; write postgresql://user@host:port/database"
        raise GraphError(message, caller()) from None
    return declare(Postgres(url), table, key, query, unique, rows_per_event, schema)


def _parts(url: str) -> dict[str, Any]:
    # Imported here and where a connection is made: who has no PostgreSQL does not pay for its driver.
    from psycopg.conninfo import conninfo_to_dict

    return conninfo_to_dict(url)


def _text(sql: str) -> bytes:
    """Pass on a statement that was put together here, identifiers quoted and values bound."""
    return sql.encode("utf-8")


def _said(error: "psycopg.Error") -> str:
    """Return the server's own sentence, without the excerpt of the statement."""
    parts = (error.diag.message_primary, error.diag.message_detail)
    return " ".join(part for part in parts if part) or " ".join(str(error).split())


def _is_away(error: "psycopg.Error") -> bool:
    """Say whether the server was not reached, or was lost: not yet started, stopped, or at the end of a broken line."""
    import psycopg

    state = error.sqlstate
    return isinstance(error, psycopg.OperationalError) and (state is None or state.startswith(("08", "57P")))


def _cure(error: "psycopg.Error") -> str:
    for state, cure in (
        ("28", "check the user and the password in the URL"),
        ("3D", "check the name of the database in the URL, or create it"),
        ("42P01", "check the name of the table"),
        ("42501", "grant the user the right to do this"),
        ("42P10", "give the table a primary key or a unique index on the columns of key="),
        ("42703", "check the columns of the table against those of the records"),
        ("42601", "check the statement; a source takes a SELECT"),
        ("23", "check the records against the table's constraints, or name its key with key="),
        ("55P03", "another writer holds the lock; let it finish, then run again"),
        ("53", "make room on the server, then run again"),
    ):
        if (error.sqlstate or "").startswith(state):
            return cure
    import psycopg

    if isinstance(error, psycopg.OperationalError):
        return "check that the server runs and that the host, the port and the password in the URL are right"
    return "check the statement and the table's columns against the records"


def _exists(connection: "psycopg.Connection[Any]", table: str) -> bool:
    found = connection.execute("SELECT to_regclass(%s)", (quote_table(table),)).fetchone()
    return found is not None and found[0] is not None


def _marker(connection: "psycopg.Connection[Any]", action: WriteAction, lock: str = "") -> Marker | None:
    sql = f'SELECT "incarnation", "last" FROM {MARKERS} WHERE "run" = %s AND "operator" = %s AND "connection" = %s'
    found = connection.execute(_text(sql + lock), (action.run, action.operator, action.connection)).fetchone()
    return Marker(*found) if found else None


def _update(key: tuple[str, ...], schema: pa.Schema) -> str:
    others = [quote(name) for name in schema.names if name not in key]
    return f"UPDATE SET {', '.join(f'{name} = EXCLUDED.{name}' for name in others)}" if others else "NOTHING"
