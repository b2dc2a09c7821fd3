"""Values as outside systems hold them, brought to the types that they were written as: exact, or refused."""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from clew.errors import ClewError

Convert = Callable[[Any], Any]

_EPOCH = date(1970, 1, 1)
#: The days of 400 years.
_DAYS = 146_097
_DATED = re.compile(r"([+-]?\d{4,})(?=-\d\d-\d\d)")


class Misfit(ClewError):
    """A value cannot be one of its column's type, so nobody can have written it as one."""


def table_of(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Return rows as records of the schema."""
    columns = list(zip(*rows)) or [()] * len(schema)
    return pa.Table.from_arrays([_array(column, field) for column, field in zip(columns, schema)], schema=schema)


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    convert = _converter(field.type)
    try:
        return pa.array([None if value is None else convert(value) for value in values], field.type)
    except (TypeError, ValueError, ArithmeticError, KeyError, AttributeError, pa.ArrowException) as error:
        raise Misfit(f"column {field.name} holds a value that is no {field.type}: {error}") from error


def _converter(kind: pa.DataType) -> Convert:
    """Return how a value becomes one that Arrow takes for this type without changing it."""
    for is_kind, convert in _CONVERTERS:
        if is_kind(kind):
            return convert
    if pt.is_list(kind):
        item = _nullable(_converter(kind.value_type))
        return lambda value: [item(part) for part in value]
    if pt.is_map(kind):
        key, item = _converter(kind.key_type), _nullable(_converter(kind.item_type))
        return lambda value: [(key(name), item(part)) for name, part in value]
    if pt.is_struct(kind):
        fields = {field.name: _nullable(_converter(field.type)) for field in kind}
        return lambda value: {name: item(value.get(name)) for name, item in fields.items()}
    return _refused


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _refused(value: Any) -> Any:
    raise ValueError(repr(value))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _refused(value)


def _binary(value: Any) -> bytes:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else _refused(value)


def _integer(value: Any) -> int:
    number = int(value)
    # 1.5 is not 1, and true is not a number.
    return number if isinstance(value, str) or (number == value and not isinstance(value, bool)) else _refused(value)


def _decimal(value: Any) -> Decimal:
    # The text of a float is its shortest exact form: 1.1 is 1.1 and not 1.100000000000000088...
    return value if isinstance(value, Decimal) else Decimal(str(value))


def _boolean(value: Any) -> bool:
    if isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
    return bool(value) if value in (0, 1) else _refused(value)


def _date(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    years, text = _within(value)
    day = date.fromisoformat(text)
    return day if not years else (day - _EPOCH).days + years // 400 * _DAYS


def _within(text: str) -> tuple[int, str]:
    """Return a date with a year that Python has, and by how many years, a multiple of 400, the text's is later.

    After 400 years the calendar begins again. Arrow writes, and reads, years before 1 and after 9999 too.
    """
    found = _DATED.match(text)
    if found is None or ("0001" <= found[1] <= "9999" and len(found[1]) == 4):
        return 0, text
    year = int(found[1])
    return year - year % 400 - 2000, f"{2000 + year % 400}{text[found.end() :]}"


def _time(value: Any) -> time:
    return time.fromisoformat(value) if isinstance(value, str) else value


def _timestamp(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    years, text = _within(value)
    moment = datetime.fromisoformat(text)
    if not years:
        return moment
    since = moment - datetime(1970, 1, 1, tzinfo=moment.tzinfo and UTC)
    return (since + timedelta(days=years // 400 * _DAYS)) // timedelta(microseconds=1)


def _single(value: Any) -> float:
    """Round text once; by way of a double it would be twice."""
    return float(pa.scalar(value).cast(pa.float32()).as_py()) if isinstance(value, str) else float(value)


def _duration(value: Any) -> timedelta:
    return timedelta(microseconds=int(value)) if isinstance(value, str) else value


_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], Convert], ...] = (
    (pt.is_string, _text), (pt.is_binary, _binary), (pt.is_integer, _integer), (pt.is_float32, _single),
    (pt.is_floating, float),
    (pt.is_decimal, _decimal), (pt.is_boolean, _boolean), (pt.is_date, _date), (pt.is_time, _time),
    (pt.is_timestamp, _timestamp), (pt.is_duration, _duration), (pt.is_null, _refused),
)  # fmt: skip
