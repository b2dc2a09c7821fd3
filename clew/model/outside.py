"""Reads what sources and sinks hold: the only module of the room that opens files of outside systems."""

import csv
import glob
import json
import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from itertools import islice
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from clew.errors import ClewError
from clew.model.certificate import RAISED
from clew.model.read import Unreadable, opened
from clew.model.values import Misfit, table_of
from clew.pipeline.contracts import FilesHeld, Held, RowsHeld

_EXTENSIONS = {"parquet": (".parquet",), "csv": (".csv",), "jsonl": (".jsonl", ".ndjson", ".json")}
_PAGE = 5_000
#: How much of a CSV file is parsed at once; no record may be larger.
_BLOCK = 32 << 20
#: How Hive and Spark call the directory of the records that have no value.
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def tables_held(held: Held, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read everything that a place holds, as records of a schema, some at a time."""
    if isinstance(held, FilesHeld):
        for path in files_of(held):
            yield from (
                partition_tables(path, held, schema) if held.partition_by else file_tables(path, schema, held.format)
            )
    elif isinstance(held, RowsHeld):
        yield from _rows_held(held, schema)
    else:
        try:
            yield from held.tables(schema)
        except ClewError:
            raise
        except RAISED as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from error


def counts_held(held: Held, schema: pa.Schema) -> Iterator[int]:
    """Yield how many records a place holds, some at a time, whatever their columns are.

    A system of a user's own is asked for records of the schema.
    """
    if isinstance(held, FilesHeld):
        yield from (_count_in(path, held.format) for path in files_of(held))
    elif isinstance(held, RowsHeld):
        with opened(held.database) as database:
            yield from (count for (count,) in database.rows(f"SELECT count(*) FROM {_from(held)}"))
    else:
        yield from (table.num_rows for table in tables_held(held, schema))


# Rows of a database.


def other_runs(held: RowsHeld, run: str) -> int:
    """Return how many other runs have written to this table, by the markers they left; some do not say where to."""
    same, table = "to_regclass(target) = to_regclass(?)", _table_of(held)
    if _is_sqlite(held):
        same, table = "replace(lower(target), '\"main\".', '') = ?", _quoted(_folded(held.table))
    mine = f"SELECT DISTINCT run FROM clew_writes WHERE target IS NULL OR {same}"
    for sql, values in ((mine, (table,)), ("SELECT DISTINCT run FROM clew_writes", ())):
        # A connection each: one that has failed answers no more.
        with suppress(Unreadable), opened(held.database) as database:
            return sum(1 for (other,) in database.rows(sql, *values) if other != run)
    return 0


def place_of(held: RowsHeld) -> Hashable:
    """Return what two connections to one table have in common, however they name it."""
    if not _is_sqlite(held):
        return _place_on_server(held)
    path = held.database.removeprefix("sqlite:///")
    with suppress(OSError):
        found = os.stat(path)
        return found.st_dev, found.st_ino, _folded(held.table)
    return os.path.realpath(path), _folded(held.table)


def _place_on_server(held: RowsHeld) -> Hashable:
    """Ask a server what a table is: it is reached by several addresses, and its search path completes a name."""
    sql = "SELECT (SELECT system_identifier FROM pg_control_system()), current_database(), to_regclass(?)::oid::bigint"
    with suppress(Unreadable), opened(held.database) as database:
        server, base, table = next(iter(database.rows(sql, _table_of(held))))
        return server, base, _table_of(held) if table is None else table
    # Who reads the table will say what is the matter.
    return held.database, held.table


def is_missing(held: RowsHeld | FilesHeld) -> bool:
    """Say whether a table is certainly not there: its database answers and has none, or is a file that is gone.

    Of files: whether there is no directory.
    """
    if isinstance(held, FilesHeld):
        return not os.path.isdir(held.places[0])
    if not held.table:
        return False
    if not _is_sqlite(held):
        sql = "SELECT 1 WHERE to_regclass(?) IS NOT NULL"
    elif not os.path.exists(held.database.removeprefix("sqlite:///")):
        return True
    else:
        sql = "SELECT 1 FROM sqlite_master WHERE lower(name) = lower(?)"
    with opened(held.database) as database:
        name = held.table.rpartition(".")[2] if _is_sqlite(held) else _table_of(held)
        return not any(True for _ in database.rows(sql, name))


def _is_sqlite(held: RowsHeld) -> bool:
    return held.database.startswith("sqlite:///")


def _folded(name: str) -> str:
    """Return a name as SQLite takes it, which takes no notice of the case of its letters, as far as they are ASCII."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name).removeprefix("main.")


def _table_of(held: RowsHeld) -> str:
    """Return a table as statements name it."""
    return ".".join(_quoted(part) for part in (held.table or "").split("."))


def _rows_held(held: RowsHeld, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read a table, or a query's result in its order."""
    names = ", ".join(_quoted(name) for name in schema.names)
    order = f" ORDER BY {_quoted(held.order)}" if held.order and not held.table else ""
    with opened(held.database) as database:
        rows = database.rows(f"SELECT {names} FROM {_from(held)}{order}")
        while page := list(islice(rows, _PAGE)):
            yield table_of(page, schema)


def _from(held: RowsHeld) -> str:
    return _table_of(held) if held.table else f"({held.query}\n) AS q"


def _quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


# Files.


def files_of(held: FilesHeld) -> list[str]:
    """Return the files of a source: in the order of its places, and of their names within each, each once."""
    paths = [path for place in held.places for path in sorted(_paths(place, held.as_they_came))]
    return [path for path in dict.fromkeys(paths) if not held.without or not path.endswith(held.without)]


def _paths(place: str, maybe_none: bool) -> list[str]:
    """Return the files of one place; in a directory, names that begin with a dot or an underscore are no data."""
    if os.path.isfile(place):
        return [place]
    if os.path.isdir(place):
        found = [os.path.join(place, name) for name in os.listdir(place)]
    else:
        found = glob.glob(place, recursive=True)
    paths = [path for path in found if os.path.isfile(path) and not os.path.basename(path).startswith((".", "_"))]
    if not paths and not maybe_none:
        raise Unreadable(f"there is no file at {place}")
    return paths


def file_written(held: FilesHeld, name: str) -> str:
    """Return the path that a write action's file has."""
    return os.path.join(held.places[0], name + _EXTENSIONS[held.format or "parquet"][0])


def is_file(path: str) -> bool:
    """Say whether there is a file."""
    return os.path.exists(path)


def files_written(held: FilesHeld) -> list[str]:
    """Return all files of a sink, also in the directories of its partitions."""
    place = held.places[0]
    try:
        names = _tree(place) if held.partition_by else os.listdir(place)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unreadable(f"{place} cannot be read: {error.strerror}") from error
    return sorted(os.path.join(place, name) for name in names)


def _tree(place: str) -> Iterator[str]:
    """Yield the files of a partitioned sink; directories that begin with a dot or an underscore hold no data."""

    def fail(error: OSError) -> None:
        raise error

    for directory, below, names in os.walk(place, onerror=fail):
        below[:] = [name for name in below if not name.startswith((".", "_"))]
        yield from (os.path.relpath(os.path.join(directory, name), place) for name in names)


def partition_tables(path: str, held: FilesHeld, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read a file of a partitioned table as records of the schema; the names of its directories say the rest."""
    known = _partition(path, held, schema)
    inside = pa.schema([field for field in schema if field.name not in held.partition_by])
    for table in file_tables(path, inside, held.format):
        for name in known.column_names:
            table = table.append_column(schema.field(name), pa.repeat(known[name][0], table.num_rows))
        yield table.select(schema.names)


def _partition(path: str, held: FilesHeld, schema: pa.Schema) -> pa.Table:
    """Return the values that the last directories of a path are named of, as one record."""
    directories = os.path.dirname(path).split(os.sep)[-len(held.partition_by) :]
    parts = [directory.partition("=") for directory in directories]
    if tuple(unquote(column) for column, _, _ in parts) != held.partition_by:
        raise Misfit(f"{path} is not in a directory of {', '.join(held.partition_by)}")
    try:
        values = [None if value == _NULL_PARTITION else unquote(value, errors="strict") for _, _, value in parts]
        named = [(schema.field(name), value) for name, value in zip(held.partition_by, values) if name in schema.names]
        return table_of([[value for _, value in named]], pa.schema([field for field, _ in named]))
    except (Misfit, ValueError) as error:
        raise Misfit(f"the directories of {path} have no values of {', '.join(held.partition_by)}: {error}") from error


def file_tables(path: str, schema: pa.Schema, format: str | None = None) -> Iterator[pa.Table]:
    """Read a file as records of the schema, some at a time."""
    with _explained(path, ", ".join(map(str, schema))):
        match _kind(path, format):
            case "parquet":
                yield from _parquet(path, schema)
            case "csv":
                yield from _csv(path, schema)
            case _:
                yield from _json_lines(path, schema)


def _count_in(path: str, format: str | None) -> int:
    """Return how many records a file has."""
    with _explained(path, "records"):
        match _kind(path, format):
            case "parquet":
                return int(pa.parquet.read_metadata(path).num_rows)
            case "csv":
                return sum(batch.num_rows for batch in _open_csv(path)) if os.path.getsize(path) else 0
            case _:
                with open(path, encoding="utf-8-sig", newline="\n") as lines:
                    return sum(not line.isspace() for line in lines)


def _kind(path: str, format: str | None) -> str:
    ending = os.path.splitext(path)[1].lower()
    return format or next((name for name, endings in _EXTENSIONS.items() if ending in endings), "")


@contextmanager
def _explained(path: str, what: str) -> Iterator[None]:
    """Say what is wrong with a file that cannot be read as what it is to hold."""
    try:
        yield
    except (Misfit, ValueError, KeyError, pa.ArrowException) as error:
        raise Misfit(f"{path} does not hold {what}: {error}") from error
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror or error}") from error


def _parquet(path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    with pa.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches():
            yield pa.Table.from_batches([batch]).select(schema.names).cast(schema)


def _csv(path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    for batch in _open_csv(path, [field.name for field in schema if pa.types.is_binary(field.type)]):
        table = pa.Table.from_batches([batch])
        yield table_of(list(zip(*(table.column(name).to_pylist() for name in schema.names))), schema)


def _open_csv(path: str, binary: Sequence[str] = ()) -> pa.csv.CSVStreamingReader:
    """Open a CSV file as text: how a value is read is decided in one place for all that is text."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        # Empty lines may come before the names.
        blank, names = next(((at, row) for at, row in enumerate(csv.reader(file)) if row), (0, []))
    options = pa.csv.ConvertOptions(
        column_types={name: pa.binary() if name in binary else pa.string() for name in names},
        strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""],
    )  # fmt: skip
    # An empty line is a record where there is one column only.
    parse = pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(names) > 1)
    read = pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK, skip_rows=blank)
    return pa.csv.open_csv(path, read_options=read, parse_options=parse, convert_options=options)


def _json_lines(path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    with open(path, encoding="utf-8-sig", newline="\n") as lines:
        # A number with a point stays exact until its column's type is known.
        records = (json.loads(line, parse_float=Decimal) for line in lines if not line.isspace())
        while page := list(islice(records, _PAGE)):
            yield table_of([_fields(record, schema) for record in page], schema)


def _fields(record: dict[str, Any], schema: pa.Schema) -> Sequence[Any]:
    return [record.get(name) for name in schema.names]
