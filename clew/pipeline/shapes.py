"""How records that a function returned become a table of their port's schema, and which of them cannot."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from clew.errors import ClewError, RecordRefused
from clew.pipeline.columns import Types, check_whole, is_of, lasting, typed
from clew.pipeline.hints import apart
from clew.pipeline.schema import fits, normalise

Row = Mapping[str, Any]

#: Nothing is known of any column.
NO_TYPES: Types = MappingProxyType({})

#: How Arrow, Python and Clew say that values are not of a type.
_NOT_SO = (ClewError, pa.ArrowException, ValueError, TypeError, OverflowError)
_WHOLE = frozenset({pa.lib.Type_INT8, pa.lib.Type_INT16, pa.lib.Type_INT32, pa.lib.Type_INT64})


def table_of(rows: Sequence[Row], types: Types | None = None) -> pa.Table:
    """Make a table of records, which may lack columns that others have.

    Records of an event have the types that are known of their columns, and new columns types that the next event's have
    too. Without `types` they are all the records that there are, and their values tell.
    """
    names = _names(rows)
    for name in names:
        if not isinstance(name, str):
            # Arrow would take its text for the name.
            raise TypeError(f"{name!r} cannot name a column; use text")
    columns = {name: [row.get(name) for row in rows] for name in names}
    if types is None:
        return pa.table({name: pa.array(values) for name, values in columns.items()})
    return pa.table({name: typed(name, values, types.get(name)) for name, values in columns.items()})


def shaped(
    rows: Sequence[Row], places: Sequence[int], schema: pa.Schema | None, types: Types = NO_TYPES
) -> tuple[pa.Table, dict[int, RecordRefused]]:
    """Return records as a table of the port's schema, without those that it cannot carry, and why it cannot.

    `places` tells of each row which record it was made of; where one row is refused, so are all of its record. Without
    a schema the types that are known of columns count, and of new ones those that most of the records have.
    """
    with contextlib.suppress(*_NOT_SO):
        return _together(rows, schema, types), {}
    # Nothing is looked at record by record unless something is wrong, or there are dataclasses in it.
    rows = [apart(row) for row in rows]
    try:
        return _together(rows, schema, types), {}
    except _NOT_SO:
        return _apart(rows, places, _likely(rows, types) if schema is None else schema)


def _together(rows: Sequence[Row], schema: pa.Schema | None, types: Types) -> pa.Table:
    if schema is None:
        return normalise(table_of(rows, types))
    for name in _names(rows):
        _check_known(name, schema)
    columns = [_column([row.get(field.name) for row in rows], field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _apart(rows: Sequence[Row], places: Sequence[int], schema: pa.Schema) -> tuple[pa.Table, dict[int, RecordRefused]]:
    refused: dict[int, RecordRefused] = {}
    good: list[tuple[int, pa.Table]] = []
    for place, row in zip(places, rows):
        try:
            good.append((place, _alone(row, schema)))
        except RecordRefused as error:
            refused.setdefault(place, error)
    kept = [table for place, table in good if place not in refused]
    return pa.concat_tables([schema.empty_table(), *kept]), refused


def _alone(row: Row, schema: pa.Schema) -> pa.Table:
    """Return one record as a table; raises RecordRefused."""
    for name in row:
        _check_known(name, schema)
    columns = []
    for field in schema:
        try:
            columns.append(_column([row.get(field.name)], field))
        except _NOT_SO:
            value = row[field.name]
            raise RecordRefused(f"{_short(value)} in column {field.name}", _expected(value, field.type)) from None
    return pa.Table.from_arrays(columns, schema=schema)


def _expected(value: Any, kind: pa.DataType) -> str:
    if pt.is_null(kind):
        # No record tells a type, this one neither.
        try:
            _normal(pa.array([value]))
        except _NOT_SO as error:
            return f"a value that there is a type for ({error})"
    return f"{kind} there"


def _check_known(name: Any, schema: pa.Schema) -> None:
    if not isinstance(name, str):
        raise RecordRefused(f"a column {_short(name)}", f"a name that is text, as in {str(name)!r}")
    if not name:
        raise RecordRefused("a column ''", "a name to find it by; give it one")
    if name not in schema.names:
        raise RecordRefused(f"a column {name!r}", f"only {', '.join(schema.names)}")


def _column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return values as a column; a column that a record lacks is null there.

    Their own type decides, as it does for tables. Where it is another one, the values may still be of the column's:
    whole numbers among floats, or in fewer bits, or structs that lack a field. Then each must come back as it was.
    """
    check_whole(field.name, values)
    try:
        found = pa.array(values)
        if found.type == field.type:
            return found
        normal = _normal(found)
        if fits(normal.type, field.type):
            return normal.cast(field.type)
    except _NOT_SO:
        # They have no type in common.
        pass
    typed = pa.array(values, field.type)
    for value, kept in zip(values, typed.to_pylist()):
        if not _same(value, kept):
            raise TypeError(f"{value!r} is no {field.type}")
    return typed


def _same(value: Any, kept: Any) -> bool:
    if isinstance(value, Mapping) and isinstance(kept, dict):
        return kept.keys() >= value.keys() and all(_same(value.get(name), one) for name, one in kept.items())
    if isinstance(value, list | tuple) and isinstance(kept, list):
        return len(value) == len(kept) and all(map(_same, value, kept))
    if type(kept) is not type(value) and (type(value), type(kept)) != (int, float):
        return False
    # What is not equal to itself is no number.
    return bool(kept == value or (kept != kept and value != value))


def _normal(values: pa.Array) -> pa.Array:
    return normalise(pa.table({"values": values})).column(0).combine_chunks()


def _likely(rows: Sequence[Row], types: Types) -> pa.Schema:
    """Return the schema that most of the records have, column by column."""
    names = [name for name in _names(rows) if isinstance(name, str) and name]
    return pa.schema([(name, _kind([row.get(name) for row in rows], types.get(name))) for name in names])


def _kind(values: Sequence[Any], known: pa.DataType | None) -> pa.DataType:
    """Return the type that is known, unless most values are of another."""
    if known is not None and 2 * sum(is_of(value, known) for value in values) >= len(values):
        return known
    return lasting(_commonest(values))


def _commonest(values: Iterable[Any]) -> pa.DataType:
    alike: dict[int, list[Any]] = {}
    for value in values:
        try:
            kind = _normal(pa.array([value])).type.id
        except _NOT_SO:
            continue
        # Whole numbers and floats have a type in common.
        alike.setdefault(pa.lib.Type_DOUBLE if kind in _WHOLE else kind, []).append(value)
    alike.pop(pa.lib.Type_NA, None)
    most = max(alike.values(), key=len, default=[None])
    try:
        return _normal(pa.array(most)).type
    except _NOT_SO:
        return _normal(pa.array(most[:1])).type


def _names(rows: Iterable[Row]) -> Iterable[str]:
    return dict.fromkeys(name for row in rows for name in row)


def _short(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else f'{text[:77]}...'} ({type(value).__name__})"
