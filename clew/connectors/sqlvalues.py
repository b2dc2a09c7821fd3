"""Values of a database as Arrow columns: exact, or refused by name."""

import math
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from clew.pipeline.contracts import Json

#: Numbers without a declared precision: what fits into these digits is exact, the rest is refused.
UNCONSTRAINED = pa.decimal128(38, 9)

_TOO_FINE = re.compile(r"\.\d{6}\d*[1-9]")


class ValueRefused(ValueError):
    """A value does not fit its column's type."""

    def __init__(self, column: str, value: object, kind: pa.DataType) -> None:
        super().__init__(f"column {column} holds {value!r}, which is no exact {kind}")


def to_table(names: Sequence[str], rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Make a table of rows; `names` are the rows' columns, `schema` says which to take and as what."""
    arrays = []
    for field in schema:
        index = names.index(field.name)
        arrays.append(_column(field.name, [row[index] for row in rows], field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def infer(values: Sequence[Any]) -> pa.DataType:
    """Choose a type for a column that declares none, from the types of its first values."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int}:
        return pa.int64()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    return pa.binary() if kinds == {bytes} else pa.string()


def encode_key(value: Any) -> Json:
    """Write a key so that JSON keeps its type: the offset of a keyset."""
    if isinstance(value, bool) or value is None:
        raise ValueError(f"{value!r} cannot be a key")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value!r} has no place in an order")
    if isinstance(value, int | str | float):
        return [type(value).__name__, value]
    if isinstance(value, Decimal) and value.is_finite():
        return ["decimal", str(value)]
    if isinstance(value, datetime | date):
        return [type(value).__name__, value.isoformat()]
    raise ValueError(f"{value!r} of type {type(value).__name__} cannot be a key")


def decode_key(key: Json) -> Any:
    """Read a key that `encode_key` wrote."""
    kind, value = key
    read: dict[str, Callable[[Any], Any]] = {
        "decimal": Decimal, "datetime": datetime.fromisoformat, "date": date.fromisoformat, "float": float,
    }  # fmt: skip
    return read[kind](value) if kind in read else value


def _column(name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    convert = converter(kind)
    try:
        return pa.array([None if value is None else convert(value) for value in values], kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, InvalidOperation):
        raise ValueRefused(name, _first_refused(values, kind), kind) from None


def _first_refused(values: list[Any], kind: pa.DataType) -> object:
    convert = converter(kind)
    for value in values:
        try:
            pa.array([None if value is None else convert(value)], kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError, InvalidOperation):
            return value
    return values


def converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return how a value becomes one that Arrow takes for `kind` without changing it."""
    types = pa.types
    if types.is_timestamp(kind):
        return lambda value: _timestamp(value, zoned=kind.tz is not None)
    for matches, convert in (
        (types.is_integer, _integer),
        (types.is_floating, _float),
        (types.is_decimal, _decimal),
        (types.is_boolean, _boolean),
        (types.is_date, _date),
    ):
        if matches(kind):
            return convert
    wanted = bytes if types.is_binary(kind) or types.is_large_binary(kind) else str
    return lambda value: _exactly(value, wanted) if types.is_string(kind) or wanted is bytes else value


def _exactly(value: Any, wanted: type) -> Any:
    if not isinstance(value, wanted):
        raise TypeError(type(value).__name__)
    return value


def _integer(value: Any) -> int:
    # Arrow would cut 1.5 to 1.
    if isinstance(value, float | Decimal) and value == int(value):
        return int(value)
    return int(_exactly(value, int))


def _float(value: Any) -> float:
    if isinstance(value, int | float):
        return value
    raise TypeError(type(value).__name__)


def _decimal(value: Any) -> Decimal:
    # The text of a float is its shortest exact form: 1.1 is 1.1 and not 1.100000000000000088...
    return value if isinstance(value, Decimal) else Decimal(repr(value) if isinstance(value, float) else value)


def _boolean(value: Any) -> bool:
    if value in (0, 1) and isinstance(value, int):
        return bool(value)
    raise TypeError(type(value).__name__)


def _date(value: Any) -> date:
    return value if isinstance(value, date) else date.fromisoformat(value)


def _timestamp(value: Any, *, zoned: bool) -> datetime:
    if isinstance(value, str):
        if _TOO_FINE.search(value):
            raise ValueError("finer than a microsecond")
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime) or (value.tzinfo is not None) is not zoned:
        raise ValueError("a time zone is there and not expected, or expected and not there")
    return value
