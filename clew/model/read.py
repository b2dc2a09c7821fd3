"""Reads databases, and bodies in files, for the judge: by itself, and without changing anything.

`Log` is the log of a run in a database.

It knows the tables of a log from their description in docs/protocol.md, and shares no code with the store that wrote
them.
"""

import base64
import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, Protocol
from urllib.parse import quote as percent

import pyarrow as pa
import pyarrow.ipc as ipc

from clew.errors import ClewError, NewerLog, SetupFailed, WrongLog
from clew.ids import WRITES, EventId, Port, writes_port
from clew.model.certificate import Answer, Body, Changed, EventWrong, Kept, Logged, Sent, SetAside, Taken

#: The version of the tables that this module knows.
VERSION = 6

#: The function that the label of an event names which no window could place.
UNPLACED = "not placed"

_PAGE = 2_000
_META = "SELECT value FROM meta WHERE key = ?"


class Unreadable(ClewError):
    """An outside system, which is to be judged, cannot be read."""


class LogUnreadable(ClewError):
    """The log cannot be read, so that nothing can be judged."""


class Database(Protocol):
    """A database opened for reading."""

    def rows(self, sql: str, *values: Any) -> Iterator[Sequence[Any]]:
        """Run a query with `?` for its values, and go through its rows as they come."""


class _Sqlite:
    def __init__(self, connection: sqlite3.Connection, failed: type[ClewError]) -> None:
        self._connection = connection
        self._failed = failed

    def rows(self, sql: str, *values: Any) -> Iterator[Sequence[Any]]:
        try:
            # One by one: `yield from` would close the cursor when nobody asks any more, maybe after its database.
            for row in self._connection.execute(sql, values):  # noqa: UP028
                yield row
        except sqlite3.Error as error:
            raise self._failed(str(error)) from error


class _Postgres:
    def __init__(self, connection: Any, failed: type[ClewError]) -> None:
        self._connection = connection
        self._failed = failed
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
            raise self._failed(" ".join(str(error).split())) from error


@contextmanager
def opened(url: str, schema: str = "", failed: type[ClewError] = Unreadable) -> Iterator[Database]:
    """Open a database for reading; what is read is one state of it, whoever writes meanwhile.

    Raises `failed` where it cannot be opened, or read.
    """
    if url.startswith("sqlite:///"):
        with closing(_sqlite(os.path.abspath(url.removeprefix("sqlite:///")), failed)) as connection:
            yield _Sqlite(connection, failed)
        return
    with closing(_postgres(url, schema, failed)) as connection:
        yield _Postgres(connection, failed)


def _sqlite(path: str, failed: type[ClewError]) -> sqlite3.Connection:
    if not os.path.isfile(path):
        raise failed(f"there is no database {path}")
    try:
        connection = sqlite3.connect(f"file:{percent(path)}?mode=ro", uri=True, timeout=60)
        # Text that is none is found by whoever makes something of it.
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        connection.execute("BEGIN")
    except sqlite3.Error as error:
        raise failed(f"{path}: {error}") from error
    return connection


def _postgres(url: str, schema: str, failed: type[ClewError]) -> Any:
    # Commands that read no PostgreSQL need not pay for its driver.
    import psycopg
    from psycopg import sql
    from psycopg.types.string import TextLoader

    try:
        connection = psycopg.connect(url, connect_timeout=10)
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        # Between two of its pages the judge may be at work for long.
        connection.execute("SET timezone TO 'UTC'; SET idle_in_transaction_session_timeout TO 0")
        if schema:
            connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
    except psycopg.Error as error:
        raise failed(_without_password(url, " ".join(str(error).split()))) from None
    # What is text in a log of Arrow records must not become an object of Python's.
    for name in ("uuid", "json", "jsonb"):
        connection.adapters.register_loader(name, TextLoader)
    return connection


def _without_password(url: str, text: str) -> str:
    from psycopg.conninfo import conninfo_to_dict

    try:
        password = conninfo_to_dict(url).get("password")
    except Exception:
        # A URL that cannot be read is repeated in the message, and nobody knows what in it is secret.
        return "its URL cannot be read"
    return text.replace(str(password), "***") if password else text


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive bodies, as one row of a table holds them."""

    lengths: Sequence[int]
    checksums: Sequence[int]
    starts: Sequence[int]
    file: str | None
    start: int
    data: bytes | None

    @classmethod
    def of(cls, columns: Sequence[Any]) -> "_Run":
        lengths, checksums, file, start, data = columns
        sizes = json.loads(lengths) if lengths is not None else []
        sums = json.loads(checksums) if sizes else []
        if len(sums) != len(sizes):
            raise ValueError(f"{len(sizes)} lengths and {len(sums)} checksums")
        kept = None if data is None else bytes(data)
        return cls(sizes, sums, [0, *accumulate(sizes)], file, start or 0, kept)

    def bodies(self, first: int = 0, stop: int | None = None) -> list[Body]:
        return [self._body(index) for index in range(first, min(stop or len(self.lengths), len(self.lengths)))]

    def _body(self, index: int) -> Body:
        at, length = self.starts[index], self.lengths[index]
        part = None if self.data is None else self.data[at : at + length]
        return Body(length, self.checksums[index], part, self.file, self.start + at)


@contextmanager
def _reading(table: str, of: object) -> Iterator[None]:
    """Say what cannot be read where a row of the log is not what its table's rows are."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, pa.ArrowException) as error:
        what = f"table {table} of the log holds what cannot be read, of {of}: {type(error).__name__}: {error}"
        raise EventWrong("", what) from error


class Log:
    """The log of a run, as its tables hold it (a `Certificate`)."""

    def __init__(self, database: Database, root: str | None) -> None:
        self._database = database
        self._schemas: dict[Port, pa.Schema | None] = {}
        #: The last run of bodies that was read of each port: those around it are asked for next.
        self._last: dict[Port, tuple[int, _Run]] = {}
        self.root = root
        self.run = self._meta("run_id")
        self.pipeline = self._meta("pipeline")
        version = self._meta("schema_version")
        if not version.isdecimal():
            raise LogUnreadable(f"its schema version is {version!r}, expected a number")
        self.version = int(version)

    def _meta(self, key: str) -> str:
        for (value,) in self._database.rows(_META, key):
            return str(value)
        raise LogUnreadable(f"its table meta has no {key}")

    def statuses(self) -> dict[str, str]:
        return {str(name): str(status) for name, status in self._database.rows("SELECT name, status FROM operator")}

    def changed(self, operator: str) -> Changed:
        for (text,) in self._database.rows(_META, f"version:{operator}"):
            with _reading("meta", operator):
                return changed_of(json.loads(text))
        return Changed()

    def uncaptured(self, operator: str) -> bool:
        # A log from before this was written has all lineage.
        with _reading("meta", "uncaptured"):
            return operator in (self._told("uncaptured") or ())

    def captured_writes(self, connection: Port) -> bool:
        port = Port(connection.operator, writes_port(connection.name))
        if self.uncaptured(str(port)):
            return False
        with _reading("meta", "captures"):
            inputs, outputs, _ = (self._told("captures") or {}).get(port.operator, ((), (), False))
            # Nothing is recorded of Input Sets that have no event of such an input.
            taken = {receiver.name for receiver in self.links() if receiver.operator == port.operator}
            return port.name in outputs and taken.issubset(inputs)

    def _told(self, key: str) -> Any:
        """Return what the log says of itself under a key, None where it says nothing."""
        return next((json.loads(text) for (text,) in self._database.rows(_META, key)), None)

    def untold(self, port: Port) -> int:
        table, named, first, last = "sent", "port", "first", "first + count - 1"
        if port.name.startswith(WRITES):
            table, named, first, last = "write_action", "connection", "number", "number"
        own = f"FROM {table} WHERE operator = ? AND {named} = ?"
        # What says when it was logged was logged with its lineage.
        told = f"(SELECT min({first}) - 1 {own} AND at IS NOT NULL)" if self.version >= 3 else "NULL"
        sql = f"SELECT coalesce({told}, (SELECT max({last}) {own}), 0)"
        values = (port.operator, port.name.removeprefix(WRITES)) * (sql.count("?") // 2)
        with _reading(table, port.told):
            return max(int(number) for (number,) in self._database.rows(sql, *values))

    def links(self) -> dict[Port, Port]:
        rows = self._database.rows("SELECT rec_operator, rec_port, operator, port FROM link")
        return {Port(rec, rec_port): Port(sender, port) for rec, rec_port, sender, port in rows}

    def schema(self, port: Port) -> pa.Schema | None:
        if port not in self._schemas:
            self._schemas[port] = self._schema(port)
        return self._schemas[port]

    def _schema(self, port: Port) -> pa.Schema | None:
        sql = "SELECT schema FROM port_schema WHERE operator = ? AND port = ?"
        for (data,) in self._database.rows(sql, port.operator, port.name):
            with _reading("port_schema", port):
                return pa.ipc.read_schema(pa.py_buffer(bytes(data)))
        return None

    def collected(self, port: Port) -> int:
        sql = "SELECT upto FROM collected WHERE operator = ? AND port = ?"
        with _reading("collected", port):
            return max((int(upto) for (upto,) in self._database.rows(sql, port.operator, port.name)), default=0)

    def collected_writes(self, connection: Port) -> int:
        return self.collected(Port(connection.operator, writes_port(connection.name)))

    def sent(self, port: Port) -> Iterator[Sent]:
        sql = "SELECT first, headers FROM sent WHERE operator = ? AND port = ? ORDER BY first"
        for first, headers in self._database.rows(sql, port.operator, port.name):
            with _reading("sent", port):
                flat = json.loads(headers)
                # The end of a stream has its count of records complemented.
                pairs = enumerate(zip(flat[::2], flat[1::2]), first)
                sent = [Sent(number, max(rows, 0), size, rows < 0) for number, (rows, size) in pairs]
            yield from sent

    def taken(self, receiver: Port) -> Iterator[Taken]:
        sql = (
            "SELECT first, part, count, seq, input_set, size, skip FROM ack WHERE operator = ? AND port = ? "
            "ORDER BY first, part"
        )
        rows = self._database.rows(sql, receiver.operator, receiver.name)
        for _, run in groupby(rows, key=lambda row: row[0]):
            # One by one: a row may tell of more than was ever sent, which whoever asks finds out first.
            with _reading("ack", receiver):
                yield from _taken(list(run))

    def lineage(self, port: Port) -> Iterator[tuple[int, int]]:
        tables = ["lineage", "ordered_lineage"] if self.version >= 5 else ["lineage"]
        found = [f"SELECT first, input_set, counts FROM {table} WHERE operator = ? AND port = ?" for table in tables]
        sql = f"{' UNION ALL '.join(found)} ORDER BY first, input_set"
        for first, input_set, counts in self._database.rows(sql, *[port.operator, port.name] * len(tables)):
            with _reading("lineage", port):
                first, input_set = int(first), int(input_set)
                runs = [(range(made), range(repeat)) for made, repeat in json.loads(counts)]
            for events, repeated in runs:
                for _ in repeated:
                    for _ in events:
                        yield first, input_set
                        first += 1
                    input_set += 1

    def done_sets(self, operator: str) -> Iterator[tuple[int, int]]:
        sql = "SELECT first, count FROM done WHERE operator = ? ORDER BY first"
        for first, count in self._database.rows(sql, operator):
            with _reading("done", operator):
                done = int(first), int(count)
            yield done

    def states(self, operator: str) -> Iterator[tuple[int, Any]]:
        sql = "SELECT input_set, state FROM state_event WHERE operator = ? ORDER BY state_id"
        for number, text in self._database.rows(sql, operator):
            with _reading("state_event", operator):
                state = int(number), json.loads(text)
            yield state

    def decisions(self, operator: str) -> Iterator[tuple[int, Any]]:
        if self.version < 2:
            return
        sql = "SELECT seq, decision FROM decision WHERE operator = ? ORDER BY seq"
        for seq, decision in self._database.rows(sql, operator):
            with _reading("decision", operator):
                decided = int(seq), json.loads(decision)
            yield decided

    def rejoined(self, receiver: Port) -> Iterator[tuple[int, int]]:
        if self.version < 2:
            return
        sql = "SELECT first, count, input_set FROM rejoined WHERE operator = ? AND port = ?"
        for first, count, input_set in self._database.rows(sql, *receiver):
            with _reading("rejoined", receiver):
                joined, numbers = int(input_set), range(first, first + count)
            yield from ((number, joined) for number in numbers)

    def asides(self, operator: str) -> Iterator[SetAside]:
        if self.version < 2:
            return
        columns = "number, input_set, records, status, label, error, retried_as"
        sql = f"SELECT {columns} FROM aside WHERE operator = ? ORDER BY number"
        for number, input_set, records, status, label, error, again in self._database.rows(sql, operator):
            with _reading("aside", operator):
                places = None if records is None else tuple(map(int, json.loads(records)))
                placed = json.loads(label)[0] != UNPLACED
                retried_as = int(again) if status == "retried" else None
                dropped, failed = status == "dropped", has_failed(json.loads(error))
                aside = SetAside(int(number), int(input_set), places, retried_as, placed, dropped, failed)
            yield aside

    def late(self, operator: str) -> dict[str, int]:
        for (text,) in self._database.rows("SELECT state FROM latest_state WHERE operator = ?", operator):
            with _reading("latest_state", operator):
                return late_of(json.loads(text))
        return {}

    def bodies(self, port: Port, first: int, count: int) -> Sequence[Body]:
        found: list[Body] = []
        for start, run in self._runs(port, first, first + count):
            if max(first, start) != first + len(found):
                raise EventWrong(str(EventId(port, first + len(found))), "the log has no body of it")
            found += run.bodies(max(first - start, 0), first + count - start)
        return found

    def _runs(self, port: Port, first: int, stop: int) -> Iterator[tuple[int, _Run]]:
        """Yield the runs that hold these events, each with the number of its first one."""
        start, run = self._last.get(port, (stop, None))
        if run is not None and start <= first and start + len(run.lengths) >= stop:
            yield start, run
            return
        # The run that begins last, of those that begin before the first event, may hold it.
        sql = (
            "SELECT first, lengths, checksums, file, start, data FROM body WHERE operator = ? AND port = ? "
            "AND first < ? AND first >= (SELECT coalesce(max(first), 0) FROM body "
            "WHERE operator = ? AND port = ? AND first <= ?) ORDER BY first"
        )
        for start, *columns in self._database.rows(sql, *port, stop, *port, first):
            with _reading("body", port):
                self._last[port] = int(start), _Run.of(columns)
            yield self._last[port]

    def writes(self, connection: Port) -> Iterator[Logged]:
        where = "WHERE operator = ? AND connection = ?"
        done = self._done_writes(connection)
        first = stop = 0
        bodies = self._write_bodies(connection)
        own = next(bodies, None)
        for written, events in self._database.rows(
            f"SELECT number, events FROM write_action {where} ORDER BY number", *connection
        ):
            with _reading("write_action", connection):
                number = int(written)
                named = tuple((Port(op, port), start, count) for op, port, start, count in json.loads(events))
            while stop <= number and (interval := next(done, None)) is not None:
                first, stop = interval
            while own is not None and own[0] < number:
                own = next(bodies, None)
            parts = own[1] if own is not None and own[0] == number else ()
            yield Logged(number, first <= number < stop, named, parts)

    def _done_writes(self, connection: Port) -> Iterator[tuple[int, int]]:
        """Yield (first, one after the last) of the write actions that are done, in order."""
        sql = "SELECT first, count FROM done_write WHERE operator = ? AND connection = ? ORDER BY first"
        for first, count in self._database.rows(sql, *connection):
            with _reading("done_write", connection):
                interval = int(first), int(first) + int(count)
            yield interval

    def _write_bodies(self, connection: Port) -> Iterator[tuple[int, tuple[Body, ...]]]:
        sql = (
            "SELECT number, lengths, checksums, file, start, data FROM write_body "
            "WHERE operator = ? AND connection = ? ORDER BY number, part"
        )
        for number, rows in groupby(self._database.rows(sql, *connection), key=lambda row: row[0]):
            with _reading("write_body", connection):
                own = int(number), tuple(body for _, *columns in rows for body in _Run.of(columns).bodies())
            yield own

    def answers(self, operator: str) -> Iterator[Answer]:
        sql = (
            "SELECT connection, action, input_set, lengths, checksums, file, start, data FROM read_event "
            "WHERE operator = ? AND input_set IS NOT NULL ORDER BY connection, action"
        )
        for connection, action, input_set, *columns in self._database.rows(sql, operator):
            with _reading("read_event", Port(operator, connection)):
                found = [Answer(connection, action, input_set, body) for body in _Run.of(columns).bodies()]
            yield from found

    def asked(self, operator: str) -> dict[str, int]:
        for (text,) in self._database.rows("SELECT context FROM latest_state WHERE operator = ?", operator):
            with _reading("latest_state", operator):
                return asked_of(json.loads(text))
        return {}

    def lookups(self, operator: str) -> dict[str, Kept]:
        own = f"lookup:{operator}."
        found = {}
        for key, value in self._database.rows("SELECT key, value FROM meta"):
            if key.startswith(own):
                with _reading("meta", key):
                    kept = json.loads(value)
                    data = None if kept["data"] is None else base64.b64decode(kept["data"])
                    found[key.removeprefix(own)] = Kept(kept["sha256"], data)
        return found

    def size(self) -> int:
        """Return how many events the log holds."""
        return sum(int(count or 0) for (count,) in self._database.rows("SELECT sum(count) FROM sent"))

    def actions(self, source: str) -> Iterator[tuple[int, bool]]:
        sql = "SELECT action, complete FROM action WHERE operator = ? ORDER BY action"
        return ((action, bool(complete)) for action, complete in self._database.rows(sql, source))

    def pending(self, source: str) -> bool:
        sql = "SELECT 1 FROM read_event WHERE operator = ? AND input_set IS NULL AND lengths IS NOT NULL"
        return any(True for _ in self._database.rows(sql, source))


def has_failed(error: Any) -> bool:
    """Say whether the function failed where something was set aside with this error."""
    return error["kind"] not in ("TurnTimedOut", "EngineFailed")


def changed_of(version: Any) -> Changed:
    """Return what the version of an operator says of its changes."""
    return Changed(version["parts"]["code"], int(version["mixed"]), tuple(version["changes"]))


def late_of(state: Any) -> dict[str, int]:
    """Return what the global state of an operator with windows has counted as late, by function."""
    return {name: own["late"] for name, own in state.items() if isinstance(own, dict) and "late" in own}


def asked_of(context: Any) -> dict[str, int]:
    """Return what the context of an operator says of its side-effect reads: the number of the last, by connection."""
    return {connection: int(last) for connection, last in context["actions"].items()}


def _taken(run: Sequence[Sequence[Any]]) -> Iterator[Taken]:
    """Expand the rows of one run: several, where its events belong to several Input Sets each."""
    first, _, count, seq, *_ = run[0]
    for index in range(count):
        sets = [input_set + (skip + index) // size if size else input_set for *_, input_set, size, skip in run]
        yield Taken(seq + index, first + index, tuple(number for number in sets if number))


def bytes_of(body: Body, root: str | None, event: str = "") -> bytes:
    """Return the bytes of a body, which must be those that were logged."""
    data = body.data
    if data is None:
        try:
            with open(os.path.join(root or "", body.file or ""), "rb") as file:
                file.seek(body.offset)
                data = file.read(body.length)
        except OSError as error:
            raise EventWrong(event, f"its body file {body.file} cannot be read: {error.strerror}") from error
    found = zlib.crc32(data)
    if len(data) != body.length or found != body.checksum:
        raise EventWrong(
            event, f"its body in {body.file or 'the log'} is damaged",
            expected=f"{body.length} bytes of checksum {body.checksum:08x}",
            found=f"{len(data)} bytes of checksum {found:08x}",
        )  # fmt: skip
    return data


def kept_records(kept: Kept, root: str | None, name: str) -> pa.Table:
    """Return the content of a lookup, which must be what the run has kept."""
    place = f"{kept.digest}.arrow"
    try:
        data = kept.data
        if data is None:
            with open(os.path.join(root or "", ".lookups", place), "rb") as file:
                data = file.read()
    except OSError as error:
        raise EventWrong("", f"the kept content of lookup {name} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != kept.digest:
        raise EventWrong("", f"the kept content of lookup {name} in {place} is damaged")
    with ipc.open_stream(pa.py_buffer(data)) as stream:
        return stream.read_all()


def records(body: Body, root: str | None, schema: pa.Schema | None, event: str = "") -> pa.Table:
    """Return the records of a body: of a port's schema, or with a schema of its own."""
    data = pa.py_buffer(bytes_of(body, root, event))
    try:
        if schema is None:
            with ipc.open_stream(data) as stream:
                return stream.read_all()
        return pa.Table.from_batches([ipc.read_record_batch(data, schema)])
    except (pa.ArrowException, OSError) as error:
        raise EventWrong(event, f"its body holds no records of its schema: {error}") from error


@contextmanager
def opened_log(url: str, pipeline: str, root: str | None) -> Iterator[Log]:
    """Open the log of a pipeline's run."""
    cure = "name the log of a run with --log, as `clew run` does"
    if not url.startswith(("sqlite:///", "postgresql:", "postgres:")):
        raise SetupFailed(f"{url!r} is no log that can be read", cure)
    try:
        with opened(url, f"clew_{pipeline}", LogUnreadable) as database:
            log = Log(database, root)
            if log.version > VERSION:
                raise NewerLog(log.version, VERSION, f"of pipeline {pipeline}")
            if log.pipeline != pipeline:
                raise WrongLog(f"this log is of pipeline {log.pipeline}, not {pipeline}; use another --log")
            cure = "if it is damaged, restore it from a copy, or run the pipeline again with another --log"
            yield log
    except LogUnreadable as error:
        raise SetupFailed(f"the log cannot be read: {error}", cure) from error
