"""Functions of pandas frames: records become a frame and a frame becomes records, without loss."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from clew.errors import ClewError
from clew.pipeline.columns import Types, nanoseconds, typed


@dataclass(frozen=True)
class OnPandas:
    """Runs a function of pandas DataFrames on Arrow tables."""

    function: Callable[..., Any]
    #: The types that were declared, by output port.
    declared: Mapping[str, Types] = field(default_factory=dict)
    #: Where a result goes that does not name its port.
    port: str = "out"
    #: In which form it takes lookups.
    lookup_form: ClassVar[str] = "pandas"

    def __call__(self, *tables: pa.Table, **given: Any) -> Any:
        result = self.function(*map(to_pandas, tables), **given)
        known = Known.of(tables)
        if isinstance(result, Mapping):
            return {port: _all(frames, self._known(known, port)) for port, frames in result.items()}
        return _all(result, self._known(known, self.port))

    def _known(self, known: "Known", port: str) -> "Known":
        return Known({**known.types, **self.declared.get(port, {})}, known.nan)


@dataclass(frozen=True)
class Known:
    """What is known of the columns of a result before it is looked at."""

    types: Types
    #: Columns that hold NaN in the input: there it is a value. Elsewhere it is what pandas means by it: null.
    nan: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tables: Sequence[pa.Table]) -> "Known":
        """Return what the inputs tell: the types of columns that are of one type wherever they occur."""
        fields = [one for table in tables for one in table.schema]
        types = {one.name: one.type for one in fields}
        split = {one.name for one in fields if one.type != types[one.name]}
        nan = {one for table in tables for one in table.column_names if _has_nan(table[one])}
        return cls({name: kind for name, kind in types.items() if name not in split}, frozenset(nan))


def _has_nan(column: pa.ChunkedArray) -> bool:
    return bool(pt.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py())


def to_pandas(table: pa.Table) -> Any:
    """Return records as a pandas DataFrame, without loss.

    Numbers and booleans with nulls are pandas' nullable ones; lists, structs and maps are Python's lists and dicts.
    """
    import pandas as pd

    columns = {name: _series(column) for name, column in zip(table.column_names, table.columns)}
    return pd.DataFrame(columns, columns=table.column_names)


def _series(column: pa.ChunkedArray) -> Any:
    import pandas as pd

    if pt.is_nested(column.type):
        # In arrays of NumPy's a null would be a NaN, and a time would lose its zone.
        return pd.Series(column.to_pylist(), dtype=object)
    nullable = {
        pa.int8(): pd.Int8Dtype(), pa.int16(): pd.Int16Dtype(), pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype(), pa.float32(): pd.Float32Dtype(),
        pa.float64(): pd.Float64Dtype(),
    }  # fmt: skip
    return column.to_pandas(types_mapper=nullable.get if column.null_count else None)


def _all(result: Any, known: Known) -> Any:
    if isinstance(result, list | tuple):
        return [from_pandas(frame, known) for frame in result]
    return None if result is None else from_pandas(result, known)


def from_pandas(frame: Any, known: Known | None = None) -> pa.Table:
    """Return a pandas DataFrame as records; columns of a result have the types that are known of them."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise ClewError(f"the function returned {type(frame).__name__}; return a pandas DataFrame, or a dict by port")
    if any(name is not None for name in frame.index.names):
        # What was grouped by stands in the index; nobody means to lose it.
        frame = frame.reset_index()
    if known is None:
        table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    else:
        names = [str(name) for name in frame.columns]
        columns = [_column(name, frame.iloc[:, at], known) for at, name in enumerate(names)]
        table = pa.Table.from_arrays(columns, names)
    columns = [_in_microseconds(name, column) for name, column in zip(table.column_names, table.columns)]
    return pa.Table.from_arrays(columns, table.column_names) if columns else table


def _column(name: str, series: Any, known: Known) -> pa.Array | pa.ChunkedArray:
    kind = known.types.get(name)
    try:
        if series.dtype == object:
            return typed(name, [None if _is_missing(value) else value for value in series], kind)
        return _restored(pa.array(series, from_pandas=name not in known.nan), kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ClewError(
            f"column {name} of the frame, {series.dtype}, has no one Arrow type ({error}); give all its values one type"
        ) from error


def _is_missing(value: Any) -> bool:
    import pandas as pd

    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value)


def _restored(column: pa.Array | pa.ChunkedArray, kind: pa.DataType | None) -> pa.Array | pa.ChunkedArray:
    """Return a column of numbers as the known type, where that holds them exactly; pandas makes most of them wider."""
    found = column.type
    if kind is None or found == kind:
        return column
    wider = (pt.is_integer(kind) and pt.is_integer(found)) or (
        pt.is_floating(kind) and (pt.is_integer(found) or pt.is_floating(found))
    )
    if not wider:
        return column
    try:
        cast = column.cast(kind)
    except pa.ArrowInvalid:
        return column
    return cast if _is_same(column, cast.cast(found)) else column


def _is_same(one: pa.Array | pa.ChunkedArray, other: pa.Array | pa.ChunkedArray) -> bool:
    same = pc.equal(one, other)
    if pt.is_floating(one.type):
        same = pc.or_(same, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    return bool(pc.all(same, min_count=0).as_py())


def _in_microseconds(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return pandas' nanoseconds as microseconds; raises ClewError for those that would be cut off."""
    kind = column.type
    if not (pt.is_timestamp(kind) or pt.is_duration(kind)) or kind.unit != "ns":
        return column
    try:
        return column.cast(pa.timestamp("us", kind.tz) if pt.is_timestamp(kind) else pa.duration("us"))
    except pa.ArrowInvalid as error:
        raise nanoseconds(name) from error
