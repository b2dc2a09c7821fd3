"""Columns of Python values: the type that each gets, so that the next event's column gets the same one."""

import contextlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from clew.errors import ClewError, TypeRefused
from clew.pipeline.schema import fixed

#: Column -> the type that it has in the input, or was declared to have in the output.
Types = Mapping[str, pa.DataType]

#: What `schema=` may be: that of the first output port, or schemas by port.
Declared: TypeAlias = pa.Schema | Mapping[str, pa.Schema] | None

#: What the decimals of a new column are kept as, whatever their digits. It is the type that Spark gives such decimals.
NEW_DECIMAL = pa.decimal128(38, 18)

_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)


def typed(name: str, values: Sequence[Any], known: pa.DataType | None) -> pa.Array:
    """Return values as a column: of the known type where they all are of it, else of the type that they tell.

    Kinds decide, as far as they can: a whole float is no integer, and a decimal needs the digits that it is written
    with. What a function computes has then the same type in every event, and not the one that its values happen to fit.
    """
    check_whole(name, values)
    try:
        told = pa.array(values)
    except _MISFITS:
        kept = _kept(values, known)
        if kept is None:
            raise
        return kept
    if told.type == known:
        return told
    kept = _kept(values, known)
    return _lasting(name, values, told) if kept is None else kept


def check_whole(name: str, values: Sequence[Any]) -> None:
    """Raise ClewError for times of pandas' with nanoseconds, which Arrow would cut off."""
    first = next((value for value in values if value is not None), None)
    if isinstance(first, datetime | timedelta) and any(map(_has_nanoseconds, values)):
        raise nanoseconds(name)


def nanoseconds(name: str) -> ClewError:
    """Return the error for a column of times that microseconds cannot tell."""
    return ClewError(
        f"column {name} has times with nanoseconds, expected whole microseconds, which are kept; round them, as with "
        '.dt.floor("us") of pandas, or keep them as whole numbers with .astype("int64")'
    )


def _has_nanoseconds(value: Any) -> bool:
    # A missing time of pandas' has NaN there.
    return bool(getattr(value, "nanosecond", 0) > 0 or getattr(value, "nanoseconds", 0) > 0)


def _kept(values: Sequence[Any], known: pa.DataType | None) -> pa.Array | None:
    if known is None or not all(is_of(value, known) for value in values):
        return None
    try:
        return pa.array(values, known)
    except _MISFITS:
        # A number that is too large for it.
        return None


def _lasting(name: str, values: Sequence[Any], told: pa.Array) -> pa.Array:
    """Return a new column with a type that does not depend on how many digits its decimals have today."""
    kind = lasting(told.type)
    if kind == told.type:
        return told
    try:
        return pa.array(values, kind)
    except _MISFITS:
        raise ClewError(
            f"column {name} holds decimals with more digits than {NEW_DECIMAL} has, which decimals of new columns are "
            "kept as; quantize them, or declare their type with schema= on the operator"
        ) from None


def lasting(kind: pa.DataType) -> pa.DataType:
    """Return the type that a new column keeps, whatever digits its decimals have today."""
    if pt.is_decimal(kind):
        return NEW_DECIMAL
    if pt.is_list(kind):
        return pa.list_(lasting(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([field.with_type(lasting(field.type)) for field in kind])
    return kind


def is_of(value: Any, kind: pa.DataType) -> bool:
    """Say whether a Python value is of the kind that a type holds; whether it is too large, Arrow says."""
    if value is None:
        return True
    if pt.is_list(kind):
        return isinstance(items := _plain(value), list | tuple) and all(is_of(item, kind.value_type) for item in items)
    if pt.is_struct(kind):
        # Arrow would leave a field out that the type has not.
        fields = {field.name: field.type for field in kind}
        return isinstance(value, Mapping) and all(n in fields and is_of(v, fields[n]) for n, v in value.items())
    if pt.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return isinstance(value, Mapping | list | tuple) and all(_is_pair(pair, kind) for pair in pairs)
    return any(holds(kind) and fits(value, kind) for holds, fits in _FLAT)


def _plain(items: Any) -> Any:
    """Return an array of NumPy's as a list."""
    return items.tolist() if hasattr(items, "tolist") else items


def _is_pair(pair: Any, kind: pa.DataType) -> bool:
    return (
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and is_of(pair[0], kind.key_type)
        and is_of(pair[1], kind.item_type)
    )


def _is_whole(value: Any, kind: pa.DataType) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_float(value: Any, kind: pa.DataType) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    return not pt.is_float32(kind) or value != value or array("f", [float(value)])[0] == value


def _is_decimal(value: Any, kind: pa.DataType) -> bool:
    if not isinstance(value, Decimal):
        return _is_whole(value, kind)
    digits = value.as_tuple().exponent
    return isinstance(digits, int) and -digits <= kind.scale


def _is_timestamp(value: Any, kind: pa.DataType) -> bool:
    # A timestamp of pandas' may have nanoseconds, which Arrow would cut off.
    return isinstance(value, datetime) and not _has_nanoseconds(value) and (value.tzinfo is None) == (kind.tz is None)


def _is_date(value: Any, kind: pa.DataType) -> bool:
    return isinstance(value, date) and not isinstance(value, datetime)


def _a(*kinds: type) -> Callable[[Any, pa.DataType], bool]:
    return lambda value, kind: isinstance(value, kinds)


_FLAT: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], bool]], ...] = (
    (pt.is_integer, _is_whole),
    (pt.is_floating, _is_float),
    (pt.is_decimal, _is_decimal),
    (pt.is_string, _a(str)),
    (pt.is_binary, _a(bytes)),
    (pt.is_boolean, _a(bool)),
    (pt.is_timestamp, _is_timestamp),
    (pt.is_date, _is_date),
    (pt.is_time, _a(time)),
    (pt.is_duration, _a(timedelta)),
)


def types_of(schema: Declared, sent: tuple[str, ...]) -> dict[str, Types]:
    """Return the types that were declared, by port; a schema that cannot be kept is refused where it is declared."""
    types: dict[str, Types] = {}
    for port, one in by_port(schema, sent).items():
        with contextlib.suppress(TypeRefused):
            types[port] = dict(zip(one.names, fixed(one).types))
    return types


def by_port(schema: Declared, sent: tuple[str, ...]) -> Mapping[str, pa.Schema]:
    """Return schemas by output port, however they were given; what is none is refused where it is declared."""
    given = {(sent or ("out",))[0]: schema} if isinstance(schema, pa.Schema) else schema
    if not isinstance(given, Mapping):
        return {}
    return {port: one for port, one in given.items() if isinstance(one, pa.Schema)}
