"""When two values are one key: as Spark compares them, in groups and in joins."""

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
