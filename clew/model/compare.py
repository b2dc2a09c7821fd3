"""When are two records the same: values by the type of their column, floats within 1e-9 of each other."""

import hashlib
import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from itertools import zip_longest
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

Row = tuple[Any, ...]

#: Floats within this of each other, relative to the larger, are the same number.
TOLERANCE = 1e-9

# The usual context would cut a decimal to 28 digits.
_EXACT = Context(prec=100)


def rows_of(table: pa.Table) -> list[Row]:
    """Return the records of a table as values that compare equal when the records do, save for floats."""
    columns = [_values(column) for column in table.columns]
    return list(zip(*columns)) if columns else [()] * table.num_rows


def _values(column: pa.ChunkedArray) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        values = [_value(scalar) for scalar in column]
    return values if _is_plain(column.type) else [_plain(value) for value in values]


def _value(scalar: pa.Scalar) -> Any:
    """Return a value as Python has it; a date or time before its year 1, or after its year 9999, as text."""
    if isinstance(scalar, pa.MapScalar | pa.ListScalar | pa.StructScalar) and scalar.is_valid:
        if isinstance(scalar, pa.MapScalar):
            return [(_value(entry["key"]), _value(entry["value"])) for entry in scalar.values]
        if isinstance(scalar, pa.ListScalar):
            return [_value(part) for part in scalar.values]
        return {name: _value(part) for name, part in scalar.items()}
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return str(scalar.cast(pa.string()))


def _is_plain(kind: pa.DataType) -> bool:
    """Say whether equal values of a type are equal Python objects as they are."""
    return bool(
        pt.is_integer(kind) or pt.is_string(kind) or pt.is_floating(kind) or pt.is_boolean(kind) or pt.is_binary(kind)
    )


def _plain(value: Any) -> Any:
    match value:
        case Decimal():
            # 1.50 and 1.5 are one number in a database and two texts in a file.
            return value.normalize(_EXACT)
        case datetime():
            return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
        case date() | time() | timedelta():
            return str(value)
        case list() | tuple():
            return tuple(_plain(part) for part in value)
        case dict():
            return tuple((name, _plain(part)) for name, part in value.items())
    return value


def same(one: Any, other: Any) -> bool:
    """Say whether two values, or records, are the same."""
    if isinstance(one, float) and isinstance(other, float):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=0.0)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    return type(one) is type(other) and bool(one == other)


def same_rows(one: Sequence[Row], other: Sequence[Row]) -> bool:
    """Say whether two sequences of records are the same, in order."""
    return one == other or (len(one) == len(other) and all(same(a, b) for a, b in zip(one, other)))


def numbers_of(table: pa.Table) -> "array[int]":
    """Return a number of 64 bits for each record, the same for the same record; floats count to twelve digits."""
    columns = [_texts(column) for column in table.combine_chunks().columns]
    rows: Iterable[Row] = zip(*columns) if columns else [()] * table.num_rows
    return array("Q", [number_of(row) for row in rows])


def number_of(value: Any) -> int:
    """Return a number of 64 bits for a value that holds no floats."""
    text = repr(value).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _texts(column: pa.ChunkedArray) -> list[Any]:
    values = _values(column)
    return values if _is_plain(column.type) and not pt.is_floating(column.type) else [_rounded(v) for v in values]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        # Zero has two signs, and is one number: databases find either by the other.
        return f"{value + 0.0:.11e}"
    if isinstance(value, tuple):
        return tuple(_rounded(part) for part in value)
    return value


def unmatched(expected: Iterable[Row], found: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Return the records of two multisets that have no counterpart in the other: missing ones, and extra ones."""
    missing, extra = Counter(expected), Counter(found)
    common = missing & extra
    return _without_close(list((missing - common).elements()), list((extra - common).elements()))


def _without_close(missing: list[Row], extra: list[Row]) -> tuple[list[Row], list[Row]]:
    """Pair what differs by the rounding of floats only: equal in all else, the floats in order."""
    groups: dict[Row, list[tuple[list[float], Row]]] = {}
    for row in extra:
        exact, floats = _split(row)
        groups.setdefault(exact, []).append((floats, row))
    for group in groups.values():
        group.sort(key=lambda item: item[0])
    unpaired = [row for row in missing if not _paired(row, groups)]
    return unpaired, [row for group in groups.values() for _, row in group]


def _paired(row: Row, groups: dict[Row, list[tuple[list[float], Row]]]) -> bool:
    """Take a record that is the same out of its group, if there is one."""
    exact, floats = _split(row)
    group = groups.get(exact, [])
    if not floats or not group:
        return False
    near = floats[0]
    around = 2 * TOLERANCE * abs(near) if math.isfinite(near) else 0.0
    at = bisect_left(group, [near - around], key=lambda item: item[0])
    while at < len(group) and group[at][0][0] <= near + around:
        if same(group[at][1], row):
            del group[at]
            return True
        at += 1
    return False


def _split(value: Row) -> tuple[Row, list[float]]:
    """Split a record into what must be equal, and its floats; those that are no number stand last."""
    floats: list[float] = []

    def exact(part: Any) -> Any:
        if isinstance(part, float):
            floats.append(math.inf if math.isnan(part) else part)
            return float
        return tuple(exact(inner) for inner in part) if isinstance(part, tuple) else part

    return exact(value), floats


def bucket_of(row: Row, names: Sequence[str], key: Sequence[str], buckets: int) -> int:
    """Return the bucket of a record: the same for records that are the same, or that replace each other by a key."""
    if buckets == 1:
        return 0
    told = tuple(_rounded(row[names.index(name)]) for name in key) if key else repr(_split(row)[0])
    return number_of(told) % buckets


def fold(rows: Iterable[Row], names: Sequence[str], key: Sequence[str]) -> Iterator[Row]:
    """Return what upserts leave: of the records with one key, the last."""
    places = [names.index(name) for name in key]
    last: dict[Row, Row] = {}
    for row in rows:
        last[tuple(row[place] for place in places)] = row
    return iter(last.values())


def shown(rows: Sequence[Row], names: Sequence[str] = (), most: int = 3) -> str:
    """Return some records for a person to read."""
    told = [", ".join(_told(value, name) for value, name in zip_longest(row, names)) for row in rows[:most]]
    more = f" and {len(rows) - most} more" if len(rows) > most else ""
    return ("; ".join(told) or "no record") + more


def shown_apart(one: Sequence[Row], other: Sequence[Row], names: Sequence[str] = ()) -> tuple[str, str]:
    """Return some records of two sequences, from the first on in which they differ."""
    at = next((i for i, pair in enumerate(zip(one, other)) if not same(*pair)), min(len(one), len(other)))
    before = f"from record {at + 1} on: " if at else ""
    return before + shown(one[at:], names), before + shown(other[at:], names)


def _told(value: Any, name: str | None) -> str:
    text = format(value, "f") if isinstance(value, Decimal) else repr(value)
    return f"{name} {text}" if name else text
