"""Arrow rows as PostgreSQL takes them: a table's declaration, and CSV for COPY."""

import io
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv

from clew.connectors.cures import before_the_sink
from clew.connectors.dialect import Failed, quote


def columns(schema: pa.Schema, key: tuple[str, ...], failed: Failed) -> str:
    """Declare the columns of a table, so that its values are kept exactly."""
    parts = [f"{quote(column.name)} {_declaration(column, failed)}" for column in schema]
    if key:
        parts.append(f"PRIMARY KEY ({', '.join(quote(name) for name in key)})")
    return f"({', '.join(parts)})"


def _declaration(column: pa.Field, failed: Failed) -> str:
    types, kind = pa.types, column.type
    if types.is_decimal128(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if types.is_timestamp(kind) and kind.unit != "ns":
        return "timestamp" if kind.tz is None else "timestamptz"
    declared = {
        pa.int8(): "smallint", pa.int16(): "smallint", pa.uint8(): "smallint", pa.int32(): "integer",
        pa.uint16(): "integer", pa.int64(): "bigint", pa.uint32(): "bigint", pa.float32(): "real",
        pa.float64(): "double precision", pa.bool_(): "boolean", pa.date32(): "date", pa.string(): "text",
        pa.large_string(): "text", pa.binary(): "bytea", pa.large_binary(): "bytea",
    }.get(kind)  # fmt: skip
    if declared is None:
        raise failed(
            f"column {column.name} has type {kind}, which PostgreSQL has no exact place for",
            before_the_sink("make it a plain column, or text (JSON),"),
        )
    return declared


def ordered(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Number the rows, so that the last one with a key can be told."""
    start = 0
    for table in tables:
        end = start + table.num_rows
        yield table.append_column("clew_order", pa.array(range(start, end), pa.int64()))
        start = end


def csv(table: pa.Table, schema: pa.Schema) -> bytes:
    """Write rows as CSV for COPY: an empty value is null, and all text stands in quotes."""
    out = io.BytesIO()
    arrays = [_written(table[column.name], column.type) for column in schema]
    options = pa.csv.WriteOptions(include_header=False, delimiter=",", quoting_style="needed")
    pa.csv.write_csv(pa.Table.from_arrays(arrays, names=schema.names), out, write_options=options)
    return out.getvalue()


def _written(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_decimal(kind):
        return column.cast(pa.string())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return column.cast(pa.timestamp(kind.unit, "UTC"))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        hexed = [None if value is None else "\\x" + value.hex() for value in column.to_pylist()]
        return pa.chunked_array([pa.array(hexed, pa.string())])
    return column
