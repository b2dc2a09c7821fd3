"""One schema per port: what passes through Spark and the log without loss, and what is refused.

The normal form holds only types that Arrow, Spark and Arrow again carry unchanged. A type that can
be brought to it without loss is; any other is refused with its column and a cure, because Spark
would cut or shift its values in silence.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
import pyarrow.types as pt

from clew.errors import SchemaChanged, TypeRefused

#: What differs between two schemas: column, found, expected.
Difference: TypeAlias = tuple[str, str, str]

_MICROS = pa.timestamp("us")
_UTC = pa.timestamp("us", "UTC")


def normalise(table: pa.Table) -> pa.Table:
    """Return the same records in the normal form; raises TypeRefused where that would lose something."""
    schema = table.schema
    target = fixed(schema)
    if schema.equals(target, check_metadata=True):
        return table
    columns = [_convert(column, field) for column, field in zip(table.columns, target)]
    # The row count is all that a table without columns holds.
    return pa.Table.from_arrays(columns, schema=target) if columns else table.replace_schema_metadata(None)


@lru_cache(maxsize=1024)
def fixed(schema: pa.Schema) -> pa.Schema:
    """Return the normal form of a schema; raises TypeRefused.

    Every field of it is nullable and has no metadata: Spark keeps neither faithfully.
    """
    # Arrow calls schemas equal that differ in metadata only. They have one normal form, so the cache may too.
    _check_names(schema, "")
    return pa.schema([pa.field(field.name, _target(field.type, field.name)) for field in schema])


def conform(table: pa.Table, schema: pa.Schema, port: str, declared: bool = False) -> pa.Table:
    """Bring a normalised table to the schema that `port` is fixed to, as `declared` or not; raises SchemaChanged.

    Columns are matched by name. Types decide, not values: a column is cast only where every value
    of its type fits the expected one, so that a port does not fail on some later day's data.
    """
    if table.schema.equals(schema, check_metadata=True):
        return table
    for column, found, expected in _differences(table.schema, schema):
        raise SchemaChanged(port, column, found, expected, declared)
    return table.select(schema.names).cast(schema)


def apart(one: pa.Schema, other: pa.Schema) -> tuple[str, str, str] | None:
    """Return the first column in which two schemas differ, with its type in each; their order does not count."""
    for name in dict.fromkeys((*one.names, *other.names)):
        kinds = [str(schema.field(name).type) if name in schema.names else "none" for schema in (one, other)]
        if kinds[0] != kinds[1]:
            return name, kinds[0], kinds[1]
    return None


def untyped(schema: pa.Schema) -> list[pa.Field]:
    """Return the columns that hold nothing but nulls so far, or have such a part, so that their type is not known."""
    return [field for field in schema if any(map(pt.is_null, _parts(field.type)))]


def fits(found: pa.DataType, expected: pa.DataType) -> bool:
    """Say whether every value of one type, in its normal form, is a value of another."""
    return next(_type_differences("", found, expected), None) is None


def to_bytes(schema: pa.Schema) -> bytes:
    """Serialise a schema as the log keeps it: an Arrow IPC message."""
    data: bytes = schema.serialize().to_pybytes()
    return data


@lru_cache(maxsize=1024)
def from_bytes(data: bytes) -> pa.Schema:
    """Read what `to_bytes` wrote; the same bytes give the same object, so comparing schemas is cheap."""
    return ipc.read_schema(pa.py_buffer(data))


def _check_names(fields: Iterable[pa.Field], path: str) -> None:
    seen: set[str] = set()
    for field in fields:
        if not field.name:
            raise TypeRefused(_dotted(path, "''"), str(field.type), "it has no name to be found by", "give it a name")
        if field.name in seen:
            raise TypeRefused(
                _dotted(path, field.name), str(field.type), "another column has the same name", "rename one of them"
            )
        seen.add(field.name)


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _target(kind: pa.DataType, path: str) -> pa.DataType:
    """Return the normal form of a type; raises TypeRefused."""
    if kind.id in _KEPT:
        return kind
    if kind.id in _WIDENED:
        return _WIDENED[kind.id]
    rule = _RULES.get(kind.id)
    if rule is not None:
        return rule(kind, path)
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name not in _OF_PANDAS:
        return _target(kind.storage_type, path)
    raise _refused(kind, path)


def _refused(kind: pa.DataType, path: str) -> TypeRefused:
    why, cure = _REFUSED.get(kind.id, ("Spark has no such type", "cast it to a type that Spark has, or drop it"))
    if isinstance(kind, pa.BaseExtensionType):
        why, cure = _OF_PANDAS[kind.extension_name]
    return TypeRefused(path, str(kind), why, cure)


def _timestamp(kind: pa.DataType, path: str) -> pa.DataType:
    if kind.unit == "ns":
        zone = f", {kind.tz!r}" if kind.tz else ""
        raise TypeRefused(
            path, str(kind), "Spark keeps microseconds and would cut the rest",
            f"cast it to pa.timestamp('us'{zone}), with safe=False if the nanoseconds may go",
        )  # fmt: skip
    return _MICROS if kind.tz is None else _UTC


def _duration(kind: pa.DataType, path: str) -> pa.DataType:
    if kind.unit == "ns":
        raise TypeRefused(
            path, str(kind), "Spark keeps microseconds and would cut the rest",
            "cast it to pa.duration('us'), with safe=False if the nanoseconds may go",
        )  # fmt: skip
    return pa.duration("us")


def _decimal(kind: pa.DataType, path: str) -> pa.DataType:
    if not 0 <= kind.scale <= kind.precision:
        digits = min(38, max(kind.precision, kind.scale, kind.precision - kind.scale))
        raise TypeRefused(
            path, str(kind), "Spark allows a scale from 0 to the precision only",
            f"cast it to pa.decimal128({digits}, {max(kind.scale, 0)})",
        )  # fmt: skip
    return pa.decimal128(kind.precision, kind.scale)


def _list(kind: pa.DataType, path: str) -> pa.DataType:
    return pa.list_(_target(kind.value_type, _dotted(path, "item")))


def _struct(kind: pa.DataType, path: str) -> pa.DataType:
    if kind.num_fields == 0:
        raise TypeRefused(path, str(kind), "Parquet cannot hold a struct without fields", "drop it, or give it a field")
    fields = [kind.field(i) for i in range(kind.num_fields)]
    _check_names(fields, path)
    return pa.struct([pa.field(field.name, _target(field.type, _dotted(path, field.name))) for field in fields])


def _map(kind: pa.DataType, path: str) -> pa.DataType:
    return pa.map_(_target(kind.key_type, _dotted(path, "key")), _target(kind.item_type, _dotted(path, "value")))


def _encoded(kind: pa.DataType, path: str) -> pa.DataType:
    """Dictionary and run-end encodings are another spelling of their values."""
    return _target(kind.value_type, path)


_LIB = pa.lib

_KEPT = frozenset(
    {
        # Spark's void survives createDataFrame and mapInArrow, nested too.
        _LIB.Type_NA, _LIB.Type_BOOL, _LIB.Type_INT8, _LIB.Type_INT16, _LIB.Type_INT32, _LIB.Type_INT64,
        _LIB.Type_FLOAT, _LIB.Type_DOUBLE, _LIB.Type_STRING, _LIB.Type_BINARY, _LIB.Type_DATE32,
    }
)  # fmt: skip

_WIDENED = {
    _LIB.Type_UINT8: pa.int16(),
    _LIB.Type_UINT16: pa.int32(),
    _LIB.Type_UINT32: pa.int64(),
    _LIB.Type_LARGE_STRING: pa.string(),
    _LIB.Type_STRING_VIEW: pa.string(),
    _LIB.Type_LARGE_BINARY: pa.binary(),
    _LIB.Type_BINARY_VIEW: pa.binary(),
    _LIB.Type_FIXED_SIZE_BINARY: pa.binary(),
    _LIB.Type_DATE64: pa.date32(),
    # Spark's TIME has six digits, but it speaks of them to Arrow in nanoseconds. So time64[ns] must be
    # let in, and the cast checks that it holds whole microseconds. (Spark 4.3 carries TIME through Arrow
    # as it is; to group by it or read it from Parquet it wants spark.sql.timeType.enabled.)
    _LIB.Type_TIME32: pa.time64("us"),
    _LIB.Type_TIME64: pa.time64("us"),
}

_RULES: dict[int, Callable[[pa.DataType, str], pa.DataType]] = {
    _LIB.Type_TIMESTAMP: _timestamp,
    _LIB.Type_DURATION: _duration,
    _LIB.Type_DECIMAL32: _decimal,
    _LIB.Type_DECIMAL64: _decimal,
    _LIB.Type_DECIMAL128: _decimal,
    _LIB.Type_LIST: _list,
    _LIB.Type_LARGE_LIST: _list,
    _LIB.Type_FIXED_SIZE_LIST: _list,
    _LIB.Type_LIST_VIEW: _list,
    _LIB.Type_LARGE_LIST_VIEW: _list,
    _LIB.Type_STRUCT: _struct,
    _LIB.Type_MAP: _map,
    _LIB.Type_DICTIONARY: _encoded,
    _LIB.Type_RUN_END_ENCODED: _encoded,
}

_REFUSED = {
    _LIB.Type_UINT64: (
        "Spark has no unsigned numbers and would turn large ones negative",
        "cast it to pa.int64(), or to pa.decimal128(20, 0) if values reach 2**63",
    ),
    _LIB.Type_HALF_FLOAT: ("Spark has no half precision", "cast it to pa.float32()"),
    _LIB.Type_DECIMAL256: ("Spark keeps 38 digits", "cast it to pa.decimal128(38, scale), or to pa.string()"),
    _LIB.Type_INTERVAL_MONTH_DAY_NANO: (
        "Spark has no interval of months, days and nanoseconds together",
        "keep its parts as columns of whole numbers, or cast it to pa.duration('us')",
    ),
    _LIB.Type_DENSE_UNION: ("Spark has no unions", "give each alternative a column of its own"),
    _LIB.Type_SPARSE_UNION: ("Spark has no unions", "give each alternative a column of its own"),
}


#: Types of pandas whose values mean nothing without it.
_OF_PANDAS = {
    "pandas.period": (
        "a period would become the number of periods since 1970",
        "make it a time with .dt.to_timestamp(), or text with .astype(str)",
    ),
    "pandas.interval": (
        "an interval would forget which of its ends belong to it",
        "keep its ends as two columns, or make it text with .astype(str)",
    ),
}


def _convert(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type.equals(field.type, check_metadata=True):
        return column
    try:
        return _cast(column, field.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as wrong:
        raise TypeRefused(
            field.name, str(column.type), f"some of its values cannot be kept as {field.type} ({wrong})",
            f"cast it to {field.type} in a way of your own before",
        ) from wrong  # fmt: skip


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pt.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if any(_is_view(part) for part in _parts(column.type)):
        return _by_value(column, kind)
    try:
        return column.cast(kind)
    except pa.ArrowNotImplementedError:
        # Arrow has no cast for some nested types, which are the same value by value.
        return _by_value(column, kind)


def _by_value(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Rebuild a column from Python objects: slow, for types that Arrow's cast does not reach or gets wrong."""
    if any(pt.is_time64(part) and part.unit == "ns" for part in _parts(column.type)):
        # A Python time has microseconds, so the cut would not be seen here.
        raise ValueError("nanoseconds inside an encoded type cannot be checked")
    return pa.chunked_array([pa.array(chunk.to_pylist(), kind) for chunk in column.chunks], kind)


def _is_view(kind: pa.DataType) -> bool:
    """Whether it is a list view, whose cast to a list loses items of sliced and unordered views (pyarrow 26.0.1)."""
    return bool(pt.is_list_view(kind) or pt.is_large_list_view(kind))


def _parts(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type and all the types inside it."""
    yield kind
    if isinstance(kind, pa.BaseExtensionType):
        yield from _parts(kind.storage_type)
    elif pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        yield from _parts(kind.value_type)
    else:
        for i in range(kind.num_fields):
            yield from _parts(kind.field(i).type)


def _differences(found: pa.Schema, expected: pa.Schema) -> Iterator[Difference]:
    missing = [name for name in expected.names if name not in found.names]
    extra = [name for name in found.names if name not in expected.names]
    if missing:
        instead = f" (it has {', '.join(extra)} instead)" if extra else ""
        yield ", ".join(missing), f"missing{instead}", _types(expected, missing)
    elif extra:
        yield ", ".join(extra), _types(found, extra), "a schema without it"
    for field in expected:
        if field.name in found.names:
            yield from _type_differences(field.name, found.field(field.name).type, field.type)


def _types(schema: pa.Schema, names: Iterable[str]) -> str:
    return ", ".join(str(schema.field(name).type) for name in names)


def _type_differences(path: str, found: pa.DataType, expected: pa.DataType) -> Iterator[Difference]:
    """Yield where values of `found` may not fit `expected`."""
    if found == expected or pt.is_null(found):
        return
    if pt.is_list(found) and pt.is_list(expected):
        yield from _type_differences(_dotted(path, "item"), found.value_type, expected.value_type)
    elif pt.is_map(found) and pt.is_map(expected):
        yield from _type_differences(_dotted(path, "key"), found.key_type, expected.key_type)
        yield from _type_differences(_dotted(path, "value"), found.item_type, expected.item_type)
    elif pt.is_struct(found) and pt.is_struct(expected):
        for name, was, should in _differences(pa.schema(list(found)), pa.schema(list(expected))):
            yield _dotted(path, name), was, should
    elif not _widens(found, expected):
        yield path, str(found), str(expected)


#: Decimal digits, and binary digits, that a whole number may need.
_DIGITS = {pa.int8(): (3, 7), pa.int16(): (5, 15), pa.int32(): (10, 31), pa.int64(): (19, 63)}
_MANTISSA = {pa.float32(): 24, pa.float64(): 53}


def _widens(found: pa.DataType, expected: pa.DataType) -> bool:
    """Whether every value of the flat type `found` is a value of `expected`."""
    if found in _DIGITS:
        digits, bits = _DIGITS[found]
        if expected in _DIGITS:
            return bits <= _DIGITS[expected][1]
        if pt.is_decimal128(expected):
            return bool(digits <= expected.precision - expected.scale)
        return bits <= _MANTISSA.get(expected, 0)
    if found in _MANTISSA:
        return _MANTISSA[found] <= _MANTISSA.get(expected, 0)
    if pt.is_decimal128(found) and pt.is_decimal128(expected):
        whole = found.precision - found.scale <= expected.precision - expected.scale
        return bool(whole and found.scale <= expected.scale)
    return False
