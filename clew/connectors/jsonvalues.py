"""Records as JSON and back: exact, or refused by column.

A decimal is text, because most readers would make a float of a number; dates and times are ISO text; a map is a list
of pairs. Bytes, durations, NaN and infinities have no form.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from clew.connectors.sqlvalues import ValueRefused, converter

Convert = Callable[[Any], Any]


def encoded(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[str]:
    """Yield each record as a JSON object; raises ValueError for what has no form."""
    for table in tables:
        for batch in table.cast(schema).to_batches(max_chunksize=1024):
            yield from map(_object, _in_python(batch))


def decoded(content: bytes, *, lines: bool, schema: pa.Schema | None) -> pa.Table:
    """Make a table of an object, a list of objects or, with `lines`, one object per line.

    Without a schema the types are those of the values; a field that is missing is null. Raises ValueError.
    """
    records = _records(content, lines=lines, exact=schema is not None)
    if schema is None:
        names = dict.fromkeys(name for record in records for name in record)
        return pa.table({name: _inferred(name, [record.get(name) for record in records]) for name in names})
    arrays = [_column(field, [record.get(field.name) for record in records]) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _in_python(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = batch.to_pylist()
        return found
    except OverflowError:
        for name, column in zip(batch.schema.names, batch.columns):
            try:
                column.to_pylist()
            except OverflowError:
                raise ValueError(f"column {name} has a time outside of the years 1 to 9999") from None
        raise


def _object(record: Mapping[str, Any]) -> str:
    try:
        return _text(record)
    except (TypeError, ValueError):
        for name, value in record.items():
            try:
                _text(value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"column {name}: {error}") from None
        raise


def _text(value: Any) -> str:
    return json.dumps(value, default=_plain, allow_nan=False, ensure_ascii=False)


def _plain(value: object) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _records(content: bytes, *, lines: bool, exact: bool) -> list[dict[str, Any]]:
    texts = [line for line in content.splitlines() if line.strip()] if lines else [content]
    # A number with a point stays exact until its column's type is known.
    number = Decimal if exact else None
    values = [json.loads(text, parse_float=number, parse_constant=_no_number) for text in texts]
    found = values[0] if not lines and isinstance(values[0], list) else values
    for value in found:
        if not isinstance(value, dict):
            raise ValueError(f"it holds {type(value).__name__} where a record was expected, which is a JSON object")
    return list(found)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _inferred(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"column {name} has no one type ({error})") from None


def _column(field: pa.Field, values: list[Any]) -> pa.Array:
    try:
        return _array(values, field.type)
    except _MISFITS:
        raise ValueRefused(field.name, _first_misfit(values, field.type), field.type) from None


def _first_misfit(values: list[Any], kind: pa.DataType) -> Any:
    for value in values:
        try:
            _array([value], kind)
        except _MISFITS:
            return value
    return values


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    convert = _nullable(_converter(kind))
    return pa.array([convert(value) for value in values], kind)


_MISFITS = (pa.ArrowException, ValueError, TypeError, AttributeError, OverflowError, InvalidOperation)


def _converter(kind: pa.DataType) -> Convert:
    """Return how a JSON value becomes one that Arrow takes for `kind` without changing it."""
    if pt.is_list(kind) or pt.is_large_list(kind):
        item = _nullable(_converter(kind.value_type))
        return lambda value: [item(part) for part in _a(list, value)]
    if pt.is_struct(kind):
        fields = {field.name: _nullable(_converter(field.type)) for field in kind}
        return lambda value: {name: convert(_a(dict, value).get(name)) for name, convert in fields.items()}
    if pt.is_map(kind):
        key, value_of = _converter(kind.key_type), _nullable(_converter(kind.item_type))
        return lambda value: [(key(name), value_of(part)) for name, part in value]
    if pt.is_floating(kind):
        return lambda value: float(_a((int, Decimal), value))
    if pt.is_time(kind):
        return time.fromisoformat
    flat: Convert = converter(kind)
    return flat


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _a(wanted: type | tuple[type, ...], value: Any) -> Any:
    # Arrow and Python would take text for a list of letters, and true for a number.
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise TypeError(type(value).__name__)
    return value
