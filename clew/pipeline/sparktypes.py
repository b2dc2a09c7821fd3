"""Spark's own schemas where pyspark is not: as much of them as it takes to make them Arrow's.

A declaration takes Arrow's schemas only, so who has one of Spark's says `schema=to_arrow_schema(...)`, and that must
give the same where pyspark is absent (`pipeline/absent.py`). Names, arguments and results are pyspark's.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from clew.pipeline.absent import Absent, SparkAbsent

_TYPES = "pyspark.sql.types"

#: By the names of classes, which are also how a type is written as text, with "Type" and in small letters.
_FLAT = {
    "nulltype": pa.null(), "voidtype": pa.null(), "booleantype": pa.bool_(), "bytetype": pa.int8(),
    "shorttype": pa.int16(), "integertype": pa.int32(), "longtype": pa.int64(), "floattype": pa.float32(),
    "doubletype": pa.float64(), "stringtype": pa.string(),
    "binarytype": pa.binary(), "datetype": pa.date32(), "timetype": pa.time64("ns"),
    "timestampntztype": pa.timestamp("us"), "timestamp_ntztype": pa.timestamp("us"),
    "daytimeintervaltype": pa.duration("us"),
}  # fmt: skip


class DecimalType(Absent):
    """Whole numbers of so many digits, so many of them behind the point."""

    __module__ = _TYPES

    def __init__(self, precision: int = 10, scale: int = 0) -> None:
        self.precision, self.scale = precision, scale


class ArrayType(Absent):
    """Lists of values of one type."""

    __module__ = _TYPES

    def __init__(self, elementType: Any, containsNull: bool = True) -> None:
        self.elementType, self.containsNull = elementType, containsNull


class MapType(Absent):
    """Values of one type by keys of one type."""

    __module__ = _TYPES

    def __init__(self, keyType: Any, valueType: Any, valueContainsNull: bool = True) -> None:
        self.keyType, self.valueType, self.valueContainsNull = keyType, valueType, valueContainsNull


class StructField(Absent):
    """A column."""

    __module__ = _TYPES

    def __init__(
        self,
        name: str,
        dataType: Any,
        nullable: bool = True,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.dataType, self.nullable, self.metadata = name, dataType, nullable, metadata or {}


class StructType(Absent):
    """Columns, in their order."""

    __module__ = _TYPES

    def __init__(self, fields: Iterable[StructField] | None = None) -> None:
        self.fields = list(fields or ())

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.fields]

    def fieldNames(self) -> list[str]:
        return self.names

    def add(
        self, field: Any, data_type: Any = None, nullable: bool = True, metadata: Mapping[str, Any] | None = None
    ) -> "StructType":
        self.fields.append(
            field if isinstance(field, StructField) else StructField(field, data_type, nullable, metadata)
        )
        return self

    def __iter__(self) -> Iterator[StructField]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __bool__(self) -> bool:
        return bool(self.fields)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.fields[self.names.index(key)]
        return StructType(self.fields[key]) if isinstance(key, slice) else self.fields[key]


def to_arrow_schema(schema: Any, *, timezone: str | None = None, **asked: bool) -> pa.Schema:
    """Return Spark's schema as Arrow's."""
    return pa.schema(list(to_arrow_type(schema, timezone=timezone, **asked)))


def to_arrow_type(dt: Any, *, timezone: str | None = None, **asked: bool) -> pa.DataType:
    """Return Spark's type as Arrow's."""
    if asked:
        raise SparkAbsent(f"an Arrow type with {', '.join(asked)}")
    match dt:
        case DecimalType():
            return pa.decimal128(dt.precision, dt.scale)
        case ArrayType():
            return pa.list_(_field("element", dt.elementType, dt.containsNull, timezone))
        case MapType():
            value = _field("value", dt.valueType, dt.valueContainsNull, timezone)
            return pa.map_(_field("key", dt.keyType, False, timezone), value)
        case StructType():
            return pa.struct([_field(one.name, one.dataType, one.nullable, timezone, one.metadata) for one in dt])
    name = f"{dt}type" if isinstance(dt, str) else type(dt).__name__.lower()
    if name == "timestamptype":
        assert timezone is not None
        return pa.timestamp("us", timezone)
    if name not in _FLAT:
        raise SparkAbsent(f"what {dt!r} is in Arrow")
    return _FLAT[name]


def _field(
    name: str, kind: Any, nullable: bool, timezone: str | None, metadata: Mapping[str, Any] | None = None
) -> pa.Field:
    told = {b"SPARK::metadata::json": json.dumps(metadata).encode()} if metadata else None
    return pa.field(name, to_arrow_type(kind, timezone=timezone), nullable, told)


for _function in (to_arrow_schema, to_arrow_type):
    _function.__module__ = "pyspark.sql.pandas.types"
