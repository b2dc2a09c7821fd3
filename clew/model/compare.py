"""When are two records the same: values by the type of their column, floats within 1e-9 of each other."""

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

Row = tuple[Any, ...]

#: Floats within this of each other, relative to the larger, are the same number.
TOLERANCE = 1e-9


def rows_of(table: pa.Table) -> list[Row]:
    """Return the records of a table as values that compare equal when the records do, save for floats."""
    columns = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
    return list(zip(*columns)) if columns else [()] * table.num_rows


def _plain(value: Any) -> Any:
    match value:
        case Decimal():
            # 1.50 and 1.5 are one number in a database and two texts in a file.
            return value.normalize() if value.is_finite() else str(value)
        case datetime():
            return value.timestamp() if value.tzinfo else value.isoformat()
        case date() | timedelta():
            return str(value)
        case list() | tuple():
            return tuple(_plain(part) for part in value)
        case dict():
            return tuple((name, _plain(part)) for name, part in sorted(value.items()))
    return value


def same(one: Any, other: Any) -> bool:
    """Say whether two values, or records, are the same."""
    if isinstance(one, float) and isinstance(other, float):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=0.0) or one == other
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    return type(one) is type(other) and bool(one == other)


def same_rows(one: Sequence[Row], other: Sequence[Row]) -> bool:
    """Say whether two sequences of records are the same, in order."""
    return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))


def hashes(rows: Iterable[Row]) -> "array[int]":
    """Return a number of 64 bits for each record, the same for the same record; floats count to twelve digits."""
    return array("Q", [int.from_bytes(hashlib.blake2b(_text(row), digest_size=8).digest(), "big") for row in rows])


def _text(row: Row) -> bytes:
    return repr(tuple(_rounded(value) for value in row)).encode("utf-8", "surrogatepass")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.11e}"
    if isinstance(value, tuple):
        return tuple(_rounded(part) for part in value)
    return value


def unmatched(expected: Iterable[Row], found: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Return the records of two multisets that have no counterpart in the other: missing ones, and extra ones."""
    missing, extra = Counter(expected), Counter(found)
    common = missing & extra
    left = sorted((missing - common).elements(), key=repr), sorted((extra - common).elements(), key=repr)
    return _without_close(*left)


def _without_close(missing: list[Row], extra: list[Row]) -> tuple[list[Row], list[Row]]:
    """Pair what differs by the rounding of floats only; sorted, such records are near each other."""
    unpaired: list[Row] = []
    for row in missing:
        near = next((index for index, other in enumerate(extra) if same(row, other)), None)
        if near is None:
            unpaired.append(row)
        else:
            extra.pop(near)
    return unpaired, extra


def fold(rows: Iterable[Row], names: Sequence[str], key: Sequence[str]) -> Iterator[Row]:
    """Return what upserts leave: of the records with one key, the last."""
    places = [names.index(name) for name in key]
    last: dict[Row, Row] = {}
    for row in rows:
        last[tuple(row[place] for place in places)] = row
    return iter(last.values())


def shown(rows: Sequence[Row], names: Sequence[str] = (), most: int = 3) -> str:
    """Return some records for a person to read."""
    told = [str(dict(zip(names, row))) if names else str(row) for row in rows[:most]]
    more = f" and {len(rows) - most} more" if len(rows) > most else ""
    return (", ".join(told) or "no records") + more
