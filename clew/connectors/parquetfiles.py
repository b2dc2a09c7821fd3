"""Parquet files, read by ranges of rows."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from clew.connectors.cures import DECLARED_ANEW
from clew.connectors.listing import Entry
from clew.connectors.textfiles import Columns
from clew.errors import SourceFailed


def footer(entry: Entry) -> tuple[Entry, pa.Schema]:
    """Read a file's footer: return the entry with its row counts, and the file's schema."""
    try:
        with _opened(entry) as file:
            metadata = file.metadata
            groups = tuple(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
            return replace(entry, groups=groups), file.schema_arrow.remove_metadata()
    except (OSError, pa.ArrowException) as error:
        raise SourceFailed(
            entry.path, f"it is no whole Parquet file ({error})", "write it again, or remove it, and start a new run"
        ) from None


def read(entry: Entry, columns: Columns, row: int, rows: int) -> Iterator[pa.Table]:
    """Yield a file's records from `row` on, `rows` at a time; never more than the listing saw."""
    entry.check()
    first, skip = _group_of(entry, row)
    try:
        with _opened(entry) as file:
            _check_columns(entry, file.schema_arrow, columns)
            batches = file.iter_batches(
                batch_size=min(max(rows, 4096), 65536), row_groups=list(range(first, len(entry.groups))),
                columns=columns.schema.names, use_threads=False,
            )  # fmt: skip
            for table in _regrouped(batches, skip, rows):
                yield table.select(columns.schema.names).cast(columns.schema)
                row += table.num_rows
    except (OSError, pa.ArrowException) as error:
        raise SourceFailed(
            entry.path, f"row {row + 1} or one soon after it cannot be read ({error})",
            f"write the file again and start a new run, or declare what the columns hold {DECLARED_ANEW}",
        ) from None  # fmt: skip
    entry.check()


def _opened(entry: Entry) -> Any:
    # Imported here: it brings file systems along, which are large, and who only declares reads no file.
    import pyarrow.parquet as pq

    return pq.ParquetFile(entry.path)


def skipped(entry: Entry, row: int) -> int:
    """Return how many rows must be decoded in vain to read from `row` on: those before it in its row group."""
    return _group_of(entry, row)[1]


def _group_of(entry: Entry, row: int) -> tuple[int, int]:
    """Return the row group that holds a row, and the row's place in it."""
    for index, count in enumerate(entry.groups):
        if row < count:
            return index, row
        row -= count
    return len(entry.groups), 0


def _regrouped(batches: Iterable[pa.RecordBatch], skip: int, rows: int) -> Iterator[pa.Table]:
    """Yield tables of exactly `rows` rows, the last one excepted, after leaving out the first `skip`."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        dropped = min(skip, batch.num_rows)
        skip -= dropped
        batch = batch.slice(dropped)
        while count + batch.num_rows >= rows:
            room = rows - count
            yield pa.Table.from_batches([*held, batch.slice(0, room)])
            held, count, batch = [], 0, batch.slice(room)
        if batch.num_rows:
            held.append(batch)
            count += batch.num_rows
    if held:
        yield pa.Table.from_batches(held)


def _check_columns(entry: Entry, found: pa.Schema, columns: Columns) -> None:
    missing = [name for name in columns.schema.names if name not in found.names]
    extra = [] if columns.declared else [name for name in found.names if name not in columns.schema.names]
    if missing or extra:
        raise SourceFailed(
            entry.path, f"it has the columns {', '.join(found.names)}, expected {', '.join(columns.schema.names)}",
            f"give all files the same columns, or declare those to read {DECLARED_ANEW}",
        )  # fmt: skip
