"""When two values are one key: as Spark compares them, in groups and in joins."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


def equated(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values of which those that Spark takes for equal are the same: -0.0 becomes 0.0, and all NaN become one.

    Arrow tells floats apart by their bits where it groups, joins and looks up.
    """
    if not pt.is_float32(values.type) and not pt.is_float64(values.type):
        return values
    nan = pa.scalar(float("nan"), values.type)
    return pc.if_else(pc.is_nan(values), nan, pc.add(values, pa.scalar(0.0, values.type)))


def is_comparable(kind: pa.DataType) -> bool:
    """Say whether Arrow can tell values of a type apart."""
    return not pt.is_nested(kind)


def comparable(value: Any) -> Any:
    """Return what is equal for values that are the same, down to the innermost; Python takes no NaN for another."""
    if isinstance(value, Mapping):
        return tuple((key, comparable(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(comparable, value))
    return "NaN" if isinstance(value, float) and value != value else value


def same_records(one: pa.Table, other: pa.Table) -> bool:
    """Say whether two tables have the same records in the same order; a NaN is like another, which Arrow denies."""
    if one.schema != other.schema or one.num_rows != other.num_rows:
        return False
    pairs = zip(one.columns, other.columns)
    return all(a.equals(b) or comparable(a.to_pylist()) == comparable(b.to_pylist()) for a, b in pairs)
