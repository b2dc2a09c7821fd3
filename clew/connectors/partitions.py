"""Records by the values of their partition columns, and the names that Hive and Spark give to these."""

import os
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.types as pt

from clew.connectors.cures import DECLARED_ANEW, before_the_sink

#: The name of a partition whose value is null.
NULL = "__HIVE_DEFAULT_PARTITION__"

#: How many partitions one write may have: each is a file, synced by itself.
MOST = 1000

#: How long a name in a directory may be, in bytes, on the file systems in use.
_LONGEST = 255

#: What Spark escapes (ExternalCatalogUtils.escapePathName): with anything else it would look for another name.
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | frozenset(map(chr, range(1, 0x20)))

#: Makes the error to raise, from what happened and its cure.
Failed = Callable[[str, str], Exception]


def refuse_columns(schema: pa.Schema, columns: Sequence[str], failed: Failed) -> None:
    """Raise unless records of this schema can be partitioned by these columns."""
    missing = [name for name in columns if name not in schema.names]
    if missing:
        what = f"the records have no column {', '.join(missing)}, which partition_by= names"
        raise failed(what, f"name columns that are there: {', '.join(schema.names)}")
    if len(columns) == len(schema):
        raise failed("partition_by= names all columns, expected one that is left for the files", "leave one out")
    for name in columns:
        if not _has_names(schema.field(name).type):
            raise failed(
                f"partition column {name} has type {schema.field(name).type}, expected text, a whole number, a boolean "
                "or a date, whose values have one name each", before_the_sink("make it one of these"),
            )  # fmt: skip
        if name.startswith((".", "_")) or "\0" in name:
            what = f"partition column {name!r} makes directories that readers pass over or that cannot be"
            raise failed(what, "rename it, so that it begins with a letter")


def _has_names(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_date(kind))


def split(table: pa.Table, columns: Sequence[str], failed: Failed) -> dict[str, pa.Table]:
    """Return the records of each partition by its directory, in their order, without the partition columns."""
    parts = {}
    for values, rows in _groups(table, columns, failed):
        directory = "/".join(_name(column, value, failed) for column, value in zip(columns, values))
        parts[directory] = table.drop_columns(list(columns)).take(rows)
    return dict(sorted(parts.items()))


def without(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return what of a schema stands in the files."""
    return pa.schema([field for field in schema if field.name not in columns])


def completed(table: pa.Table, path: str, columns: Sequence[str], schema: pa.Schema, failed: Failed) -> pa.Table:
    """Return the records of a file as those of the schema: with the values that its directories are named of."""
    for name, text in _values(path, columns, failed).items():
        if name in schema.names:
            value = _typed(name, text, schema.field(name).type, failed)
            table = table.append_column(schema.field(name), pa.repeat(value, table.num_rows))
    return table.select(schema.names)


def _values(path: str, columns: Sequence[str], failed: Failed) -> dict[str, str | None]:
    parts = [directory.partition("=") for directory in os.path.dirname(path).split(os.sep)[-len(columns) :]]
    if [unquote(name) for name, _, _ in parts] != list(columns):
        expected = "/".join(f"{name}=..." for name in columns)
        raise failed(f"the file is not in a directory {expected}", "name the columns as the directories do, in order")
    return {unquote(name): None if text == NULL else unquote(text) for name, _, text in parts}


def _typed(name: str, text: str | None, kind: pa.DataType, failed: Failed) -> pa.Scalar:
    try:
        return pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowException:
        what = f"its directory says {name} {text!r}, which is no {kind}"
        raise failed(what, f"declare what the column holds {DECLARED_ANEW}") from None


def refuse_empty_text(table: pa.Table, columns: Sequence[str], failed: Failed) -> None:
    """Raise when a partition column holds an empty text: it has no name of its own, and would come back as null."""
    for column in columns:
        if pt.is_string(table.schema.field(column).type) and "" in table[column].unique().to_pylist():
            raise failed(
                f"partition column {column} holds an empty text, which would be read back as null",
                before_the_sink("give it another value"),
            )  # fmt: skip


def _groups(table: pa.Table, columns: Sequence[str], failed: Failed) -> list[tuple[tuple[Any, ...], pa.Array]]:
    # By position, because a column may have the name that is given to the rows.
    keys = table.select(list(columns)).rename_columns([str(index) for index in range(len(columns))])
    numbered = keys.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    # In one thread the rows of a group keep their order.
    groups = pa.TableGroupBy(numbered, keys.column_names, use_threads=False).aggregate([("row", "list")])
    if groups.num_rows > MOST:
        raise failed(
            f"the write has {groups.num_rows} partitions by {', '.join(columns)}, expected at most {MOST}",
            "partition by columns with fewer values, or make the windows smaller",
        )  # fmt: skip
    rows = groups["row_list"].combine_chunks()
    values = zip(*(groups[name].to_pylist() for name in keys.column_names))
    return [(value, rows[index].values) for index, value in enumerate(values)]


def _name(column: str, value: Any, failed: Failed) -> str:
    """Return the name of a partition's directory, `column=value`."""
    name = f"{_escape(column)}={NULL if value is None else _escape(_text(value))}"
    wrong = {
        "an empty text, which would be read back as null": value == "",
        f"the text {NULL}, which stands for null": value == NULL,
        "a text with a NUL, which cannot be in a name": isinstance(value, str) and "\0" in value,
        f"a text of which the name would have more than {_LONGEST} bytes": len(name.encode()) > _LONGEST,
    }
    for what, applies in wrong.items():
        if applies:
            raise failed(f"partition column {column} holds {what}", before_the_sink("give it another value"))
    return name


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else str(value)


def _escape(text: str) -> str:
    return "".join(f"%{ord(sign):02X}" if sign in _ESCAPED else sign for sign in text)
