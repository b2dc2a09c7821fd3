"""Time in records: durations as people write them, and the column that says when something happened."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import GraphError, TypeRefused

#: A stretch of time ('10 minutes', a timedelta), or of whole numbers where these are the time.
Duration = str | int | timedelta

_UNITS = {"microsecond": 1, "millisecond": 1_000, "second": 1_000_000, "minute": 60_000_000,
          "hour": 3_600_000_000, "day": 86_400_000_000, "week": 604_800_000_000}  # fmt: skip
#: What they are called too. A single m may be a minute, a month or a thousandth, so it is none.
_SHORT = {"us": "microsecond", "ms": "millisecond", "s": "second", "sec": "second", "min": "minute", "h": "hour",
          "hr": "hour", "d": "day", "w": "week"}  # fmt: skip

#: What a 64-bit whole number holds.
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1

#: The columns in which a function finds the bounds of its window.
BOUNDS = ("window_start", "window_end")


def microseconds(size: Duration) -> int:
    """Return a duration in microseconds; a whole number stays what it is."""
    if isinstance(size, timedelta):
        return size // timedelta(microseconds=1)
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", size.lower()) if isinstance(size, str) else None
    unit = _unit(match[2]) if match else None
    if match is None or unit is None:
        raise GraphError(
            f"{size!r} is not a duration; write it as '10 minutes' or '1.5 hours': in {'s, '.join(_UNITS)}s, or short "
            f"as {', '.join(_SHORT)}; or give a timedelta"
        )
    found = Fraction(match[1]) * unit
    if found.denominator != 1:
        raise GraphError(f"{size!r} is no whole number of microseconds, which is as fine as time gets; round it")
    return int(found)


def _unit(word: str) -> int | None:
    # The short ones have no plural, but for these that people write.
    for name in (word, word.removesuffix("s")):
        if name in _UNITS or (name in _SHORT and (name == word or name in ("sec", "min", "hr"))):
            return _UNITS[_SHORT.get(name, name)]
    return None


@dataclass(frozen=True)
class TimeColumn:
    """The column that a window of time places records by."""

    name: str
    #: The window as the user wrote it, for what it says of a wrong column.
    window: str
    #: Whether the window's size is a whole number, so that the column must hold whole numbers too.
    whole: bool
    #: How far the bounds of a record's window may lie from its time.
    reach: int = 0

    def numbers(self, table: pa.Table) -> pa.ChunkedArray:
        """Return the time of each record: microseconds since the epoch, or the whole number that it is."""
        kind = self.kind(table.schema)
        column = table.column(self.name)
        if column.null_count:
            raise self._without_time(table, kind)
        try:
            if not pa.types.is_integer(kind):
                column = column.cast(pa.timestamp("us", kind.tz if pa.types.is_timestamp(kind) else None))
            numbers = column.cast(pa.int64())
        except pa.ArrowInvalid:
            raise TypeRefused(self.name, str(kind), *self._too_far()) from None
        self._check_reach(numbers, table, kind)
        return numbers

    def _check_reach(self, numbers: pa.ChunkedArray, table: pa.Table, kind: pa.DataType) -> None:
        """Refuse times next to the ends of what 64 bits hold: a bound of their windows would lie beyond."""
        least, greatest = pc.min_max(numbers).as_py().values()
        if least is not None and (least < _LEAST + self.reach or greatest > _GREATEST - self.reach):
            far = pc.or_(pc.less(numbers, _LEAST + self.reach), pc.greater(numbers, _GREATEST - self.reach))
            refused = TypeRefused(self.name, str(kind), *self._too_far())
            raise _blaming(refused, table, pc.index(far, True).as_py())

    def _too_far(self) -> tuple[str, str]:
        why = f"it has a time so far away that the bounds of its {self.window} window would not fit into 64 bits"
        return why, "filter it out before this operator"

    def _without_time(self, table: pa.Table, kind: pa.DataType) -> TypeRefused:
        refused = TypeRefused(
            self.name, str(kind), f"it has records without a time, but {self.window} must place every record",
            "filter them out before this operator",
        )  # fmt: skip
        return _blaming(refused, table, pc.index(pc.is_null(table.column(self.name)), True).as_py())

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
        """Return the type of `window_start` and `window_end`."""
        kind = self.kind(schema)
        if pa.types.is_integer(kind):
            return pa.int64()
        return pa.timestamp("us", kind.tz if pa.types.is_timestamp(kind) else None)

    def bounded(self, table: pa.Table, start: int, end: int) -> pa.Table:
        """Return the records with the bounds of their window.

        The columns of these names that records have already, where they come from another window, are found as
        `inner_window_start` and `inner_window_end`.
        """
        kind = self.bound(table.schema)
        table = table.rename_columns(_made_inner(table.column_names))
        for name, value in zip(BOUNDS, (start, end)):
            table = table.append_column(name, pa.repeat(pa.scalar(value, pa.int64()).cast(kind), table.num_rows))
        return table

    def extend(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema that `bounded` gives."""
        kind = self.bound(schema)
        fields = [field.with_name(name) for field, name in zip(schema, _made_inner(schema.names))]
        return pa.schema([*fields, *(pa.field(name, kind) for name in BOUNDS)])


def _made_inner(names: Sequence[str]) -> list[str]:
    """Return names of columns so that those of bounds are free: each level of windows adds one `inner_`."""
    moved: dict[str, str] = {}
    for name in BOUNDS:
        while name in names:
            moved[name] = f"inner_{name}"
            name = moved[name]
    return [moved.get(name, name) for name in names]


def _blaming(refused: TypeRefused, table: pa.Table, place: int) -> TypeRefused:
    """Return a refusal with the record that is to blame: who reports it names the record."""
    record = {name: _shown(column, place) for name, column in zip(table.column_names, table.columns)}
    refused.__clew_record__ = (place, record)  # type: ignore[attr-defined]
    return refused


def _shown(column: pa.ChunkedArray, place: int) -> Any:
    try:
        return column[place].as_py()
    except OverflowError:
        # Python has no years after 9999.
        return column.slice(place, 1).cast(pa.int64())[0].as_py()


def floor(numbers: pa.ChunkedArray, step: int) -> pa.ChunkedArray:
    """Round down to multiples of `step`."""
    # Divide rounds towards zero; times before the epoch need floor.
    remainder = pc.subtract(numbers, pc.multiply(pc.divide(numbers, step), step))
    remainder = pc.if_else(pc.less(remainder, 0), pc.add(remainder, step), remainder)
    return pc.subtract(numbers, remainder)
