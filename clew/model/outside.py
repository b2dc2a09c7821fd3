"""Reads what sources and sinks hold: the only module of the room that opens files of outside systems."""

import csv
import glob
import json
import os
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from clew.errors import ClewError
from clew.model.read import Unreadable, opened
from clew.model.values import Misfit, table_of
from clew.pipeline.contracts import FilesHeld, Held, RowsHeld

_EXTENSIONS = {"parquet": (".parquet",), "csv": (".csv",), "jsonl": (".jsonl", ".ndjson", ".json")}
_PAGE = 5_000
#: How much of a CSV file is parsed at once; no record may be larger.
_BLOCK = 32 << 20


def tables_held(held: Held, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read everything that a place holds, as records of a schema, some at a time."""
    if isinstance(held, FilesHeld):
        for path in files_of(held):
            yield from file_tables(path, schema, held.format)
    elif isinstance(held, RowsHeld):
        yield from _rows_held(held, schema)
    else:
        try:
            yield from held.tables(schema)
        except ClewError:
            raise
        except Exception as error:
            # Somebody's own code may fail in any way.
            raise Unreadable(f"{type(error).__name__}: {error}") from error


# Rows of a database.


def other_runs(held: RowsHeld, run: str) -> int:
    """Return how many other runs have written to this database, by the markers they left."""
    with opened(held.database) as database:
        try:
            return sum(1 for (other,) in database.rows("SELECT DISTINCT run FROM clew_writes") if other != run)
        except Unreadable:
            return 0


def _rows_held(held: RowsHeld, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read a table, or a query's result in its order."""
    names = ", ".join(_quoted(name) for name in schema.names)
    if held.table:
        source, order = ".".join(_quoted(part) for part in held.table.split(".")), ""
    else:
        source, order = f"({held.query}\n) AS q", f" ORDER BY {_quoted(held.order)}" if held.order else ""
    with opened(held.database) as database:
        rows = database.rows(f"SELECT {names} FROM {source}{order}")
        while page := list(islice(rows, _PAGE)):
            yield table_of(page, schema)


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


def files_written(held: FilesHeld, prefix: str) -> list[str]:
    """Return all files of a sink whose names begin so."""
    place = held.places[0]
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unreadable(f"{place} cannot be read: {error.strerror}") from error
    return sorted(os.path.join(place, name) for name in names if name.startswith(prefix))


def file_tables(path: str, schema: pa.Schema, format: str | None = None) -> Iterator[pa.Table]:
    """Read a file as records of the schema, some at a time."""
    ending = os.path.splitext(path)[1].lower()
    kind = format or next((name for name, endings in _EXTENSIONS.items() if ending in endings), "")
    try:
        match kind:
            case "parquet":
                yield from _parquet(path, schema)
            case "csv":
                yield from _csv(path, schema)
            case _:
                yield from _json_lines(path, schema)
    except (Misfit, ValueError, KeyError, pa.ArrowException) as error:
        raise Misfit(f"{path} does not hold {', '.join(map(str, schema))}: {error}") from error
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror or error}") from error


def _parquet(path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    with pa.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches():
            yield pa.Table.from_batches([batch]).select(schema.names).cast(schema)


def _csv(path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    for batch in _open_csv(path):
        table = pa.Table.from_batches([batch])
        yield table_of(list(zip(*(table.column(name).to_pylist() for name in schema.names))), schema)


def _open_csv(path: str) -> pa.csv.CSVStreamingReader:
    """Open a CSV file as text: how a value is read is decided in one place for all that is text."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        names = next(csv.reader(file), [])
    options = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""],
    )  # fmt: skip
    # An empty line is a record where there is one column only.
    parse = pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(names) > 1)
    read = pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK)
    return pa.csv.open_csv(path, read_options=read, parse_options=parse, convert_options=options)


def _json_lines(path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    with open(path, encoding="utf-8-sig", newline="\n") as lines:
        # A number with a point stays exact until its column's type is known.
        records = (json.loads(line, parse_float=Decimal) for line in lines if not line.isspace())
        while page := list(islice(records, _PAGE)):
            yield table_of([_fields(record, schema) for record in page], schema)


def _fields(record: dict[str, Any], schema: pa.Schema) -> Sequence[Any]:
    return [record.get(name) for name in schema.names]
