"""Time in records: durations as people write them, and the column that says when something happened."""

import re
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import GraphError, TypeRefused

#: A stretch of time ('10 minutes', a timedelta), or of whole numbers where these are the time.
Duration = str | int | timedelta

_UNITS = {"microsecond": 1, "millisecond": 1_000, "second": 1_000_000, "minute": 60_000_000,
          "hour": 3_600_000_000, "day": 86_400_000_000, "week": 604_800_000_000}  # fmt: skip


def microseconds(size: Duration) -> int:
    """Return a duration in microseconds; a whole number stays what it is."""
    if isinstance(size, timedelta):
        return size // timedelta(microseconds=1)
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]+?)s?\s*", size)
    if not match or match[2] not in _UNITS:
        raise GraphError(f"{size!r} is not a duration; write it as '10 minutes' or '1 hour'")
    return int(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class TimeColumn:
    """The column that a window of time places records by."""

    name: str
    #: The window as the user wrote it, for what it says of a wrong column.
    window: str
    #: Whether the window's size is a whole number, so that the column must hold whole numbers too.
    whole: bool

    def numbers(self, table: pa.Table) -> pa.ChunkedArray:
        """Return the time of each record: microseconds since the epoch, or the whole number that it is."""
        kind = self.kind(table.schema)
        column = table.column(self.name)
        if column.null_count:
            raise self._without_time(table, kind)
        if not pa.types.is_integer(kind):
            column = column.cast(pa.timestamp("us", kind.tz if pa.types.is_timestamp(kind) else None))
        return column.cast(pa.int64())

    def _without_time(self, table: pa.Table, kind: pa.DataType) -> TypeRefused:
        refused = TypeRefused(
            self.name, str(kind), f"it has records without a time, but {self.window} must place every record",
            "filter them out before this operator",
        )  # fmt: skip
        place = pc.index(pc.is_null(table.column(self.name)), True).as_py()
        # Who reports the failure names the record.
        refused.__clew_record__ = (place, table.slice(place, 1).to_pylist()[0])  # type: ignore[attr-defined]
        return refused

    def kind(self, schema: pa.Schema) -> pa.DataType:
        """Return the type of the column, where it is one that the window can place."""
        if self.name not in schema.names:
            names = ", ".join(schema.names)
            raise GraphError(f"{self.window}(on={self.name!r}) finds no such column; the records have {names}")
        kind = schema.field(self.name).type
        whole = pa.types.is_integer(kind)
        if not (whole or pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
            why, cure = f"{self.window} needs a timestamp, a date or a whole number", "cast it before this operator"
            raise TypeRefused(self.name, str(kind), why, cure)
        if whole != self.whole:
            # Taken as they are, '1 hour' of whole numbers or 10 of a time would mean microseconds.
            size = "a whole number" if whole else "a duration such as '1 hour'"
            raise TypeRefused(
                self.name, str(kind), f"the size of {self.window} is of another kind", f"give it {size} as its size"
            )
        return kind

    def bound(self, schema: pa.Schema) -> pa.DataType:
        """Return the type of `window_start` and `window_end`, which must be new columns."""
        kind = self.kind(schema)
        for name in ("window_start", "window_end"):
            if name in schema.names:
                raise TypeRefused(
                    name, str(schema.field(name).type), f"{self.window} adds a column of this name",
                    "rename it before this operator",
                )  # fmt: skip
        if pa.types.is_integer(kind):
            return pa.int64()
        return pa.timestamp("us", kind.tz if pa.types.is_timestamp(kind) else None)

    def bounded(self, table: pa.Table, start: int, end: int) -> pa.Table:
        """Return the records with the bounds of their window."""
        kind = self.bound(table.schema)
        for name, value in (("window_start", start), ("window_end", end)):
            table = table.append_column(name, pa.repeat(pa.scalar(value, pa.int64()).cast(kind), table.num_rows))
        return table

    def extend(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema that `bounded` gives."""
        kind = self.bound(schema)
        return schema.append(pa.field("window_start", kind)).append(pa.field("window_end", kind))


def floor(numbers: pa.ChunkedArray, step: int) -> pa.ChunkedArray:
    """Round down to multiples of `step`."""
    # Divide rounds towards zero; times before the epoch need floor.
    remainder = pc.subtract(numbers, pc.multiply(pc.divide(numbers, step), step))
    remainder = pc.if_else(pc.less(remainder, 0), pc.add(remainder, step), remainder)
    return pc.subtract(numbers, remainder)
