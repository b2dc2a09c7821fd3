"""Functions that Clew brings along or wraps: pandas, SQL, unions, joins, aggregates."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import ClewError, GraphError
from clew.pipeline.location import caller
from clew.pipeline.records import split

How = Literal["inner", "left", "full"]
#: Columns of the bounds of a window, where records have them.
BOUNDS = ("window_start", "window_end")


@dataclass(frozen=True)
class OnPandas:
    """Runs a function of pandas DataFrames on Arrow tables."""

    function: Callable[..., Any]
    #: In which form it takes lookups.
    lookup_form: ClassVar[str] = "pandas"

    def __call__(self, *tables: pa.Table, **given: Any) -> Any:
        result = self.function(*map(to_pandas, tables), **given)
        if isinstance(result, Mapping):
            return {port: _all_from_pandas(frames) for port, frames in result.items()}
        return _all_from_pandas(result)


def to_pandas(table: pa.Table) -> Any:
    """Return records as a pandas DataFrame, without loss: whole numbers and booleans with nulls stay what they are."""
    import pandas as pd

    nullable = {
        pa.int8(): pd.Int8Dtype(), pa.int16(): pd.Int16Dtype(), pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype(),
    }  # fmt: skip
    columns = {
        name: column.to_pandas(types_mapper=nullable.get if column.null_count else None)
        for name, column in zip(table.column_names, table.columns)
    }
    return pd.DataFrame(columns, columns=table.column_names)


def _all_from_pandas(result: Any) -> Any:
    if isinstance(result, list | tuple):
        return [from_pandas(frame) for frame in result]
    return None if result is None else from_pandas(result)


def from_pandas(frame: Any) -> pa.Table:
    """Return a pandas DataFrame as records."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise ClewError(f"the function returned {type(frame).__name__}; return a pandas DataFrame, or a dict by port")
    if any(name is not None for name in frame.index.names):
        # What was grouped by stands in the index; nobody means to lose it.
        frame = frame.reset_index()
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    return table.cast(pa.schema([one.with_type(_microseconds(one.type)) for one in table.schema]))


def _microseconds(kind: pa.DataType) -> pa.DataType:
    """Return the type that pandas' nanoseconds are kept in; the cast refuses those that would be cut off."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    return kind


#: Views are named in one place for all threads of a session; the plan that SQL became no longer looks at them.
_NAMING = threading.Lock()


@dataclass(frozen=True)
class Sql:
    """A query over DataFrames, which it knows by name, as it knows lookups."""

    text: str
    names: tuple[str, ...]

    def __call__(self, *frames: Any, **lookups: Any) -> Any:
        with _NAMING:
            for name, frame in (*zip(self.names, frames), *lookups.items()):
                frame.createOrReplaceTempView(name)
            return frames[0].sparkSession.sql(self.text)


@dataclass(frozen=True)
class Union:
    """Passes each event on, whatever input it came on."""

    def __call__(self, *tables: pa.Table) -> pa.Table | None:
        return next((table for table in tables if table.num_rows), None)


@dataclass(frozen=True)
class Branch:
    """Sends each record to the first port whose predicate holds; what no port takes goes to `rest`, or nowhere."""

    predicates: Mapping[str, Any]
    rest: str | None
    lookup_form: ClassVar[str] = "records"

    def __call__(self, table: pa.Table, **given: Any) -> dict[str, pa.Table]:
        return dict(split(table, self.predicates, self.rest, given))


@dataclass(frozen=True)
class Aggregate:
    """Groups the records of a window, and computes columns of each group."""

    by: tuple[str, ...]
    #: New column -> (column, Arrow's name of the aggregation).
    columns: Mapping[str, tuple[str, str]]
    #: Whose records they are, for messages.
    of: str = "the stream"
    operator: str = "aggregate"

    def __call__(self, table: pa.Table) -> pa.Table:
        self._check(table)
        keys = [*(name for name in BOUNDS if name in table.column_names), *self.by]
        asked = [([] if how == "count_all" else column, how) for column, how in self.columns.values()]
        # Arrow's own order of groups, and the last digits of its floats, depend on how the records are cut into chunks.
        # Who computes this again may have other chunks: so they become one, and groups come as their first records do.
        placed = table.combine_chunks().append_column(_PLACE, _places(table.num_rows))
        made = placed.group_by(keys, use_threads=False).aggregate([*asked, (_PLACE, "min")])
        made = made.rename_columns([*keys, *self.columns, _PLACE])
        return made.sort_by(_PLACE).drop_columns([_PLACE])

    def _check(self, table: pa.Table) -> None:
        aggregated = [column for column, how in self.columns.values() if how != "count_all"]
        for what, columns in (("group by", self.by), ("aggregate", aggregated)):
            for column in columns:
                if column not in table.column_names:
                    have = ", ".join(table.column_names)
                    raise ClewError(
                        f"operator {self.operator} is to {what} column {column}, which {self.of} does not have; name "
                        f"one of its columns in aggregate(...): {have}"
                    )


#: The column by which groups keep the order of their first records.
_PLACE = "_clew_place"


def _places(rows: int) -> pa.Array:
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), rows)), 1)


#: Words that people use, and Arrow's names.
AGGREGATIONS = {
    "sum": "sum", "mean": "mean", "avg": "mean", "min": "min", "max": "max", "count": "count",
    "count_distinct": "count_distinct", "first": "first", "last": "last", "list": "list", "any": "any", "all": "all",
    "stddev": "stddev", "variance": "variance",
}  # fmt: skip


@dataclass(frozen=True)
class Join:
    """Joins the records of two inputs that are in one window, by columns that are equal; a null equals nothing."""

    on: tuple[str, ...]
    how: How
    suffix: str
    names: tuple[str, str] = field(default=("left", "right"))

    def __call__(self, left: pa.Table, right: pa.Table) -> pa.Table | None:
        if self.how == "inner" and not (left.num_rows and right.num_rows):
            return None
        self._check(left, right)
        pairs = self._pairs(left, right)
        return pa.table({**self._left(left, right, pairs), **self._right(left, right, pairs)})

    def _check(self, left: pa.Table, right: pa.Table) -> None:
        for name, table in zip(self.names, (left, right)):
            if not table.num_columns:
                raise ClewError(
                    f"nothing has come from {name} yet, so its columns are not known, and a {self.how} join needs "
                    "them; declare its schema="
                )
            for column in self.on:
                if column not in table.column_names:
                    have = ", ".join(table.column_names)
                    raise ClewError(f"{name} has no column {column} to join on; it has {have}")
        for column in self.on:
            kinds = (left.schema.field(column).type, right.schema.field(column).type)
            if kinds[0] != kinds[1]:
                raise ClewError(
                    f"column {column} is {kinds[0]} in {self.names[0]} and {kinds[1]} in {self.names[1]}; a join needs "
                    "one type: cast one of them before"
                )

    def _pairs(self, left: pa.Table, right: pa.Table) -> pa.Table:
        """Return which records belong together, by their places: only keys go through the join, of whatever type."""
        kind = {"inner": "inner", "left": "left outer", "full": "full outer"}[self.how]
        sides = [
            table.select(self.on).append_column(place, pa.array(range(table.num_rows), pa.int64()))
            for table, place in ((left, "_left"), (right, "_right"))
        ]
        joined = sides[0].join(sides[1], list(self.on), join_type=kind, use_threads=False)
        return joined.select(["_left", "_right"]).sort_by([("_left", "ascending"), ("_right", "ascending")])

    def _left(self, left: pa.Table, right: pa.Table, pairs: pa.Table) -> dict[str, pa.ChunkedArray]:
        columns = {name: left[name].take(pairs["_left"]) for name in left.column_names}
        # The keys, and the window's bounds, of records that only the other side has.
        shared = [name for name in (*self.on, *BOUNDS) if name in columns and name in right.column_names]
        return {
            **columns,
            **{name: pc.coalesce(columns[name], right[name].take(pairs["_right"])) for name in shared},
        }

    def _right(self, left: pa.Table, right: pa.Table, pairs: pa.Table) -> dict[str, pa.ChunkedArray]:
        own = [name for name in right.column_names if name not in (*self.on, *BOUNDS)]
        taken = {name: right[name].take(pairs["_right"]) for name in own}
        return {f"{name}{self.suffix}" if name in left.column_names else name: one for name, one in taken.items()}


def aggregations(columns: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Read what columns an aggregation makes: `total=("amount", "sum")`, `rows="count"`."""
    made: dict[str, tuple[str, str]] = {}
    for name, asked in columns.items():
        if asked == "count":
            made[name] = ("", "count_all")
            continue
        known = isinstance(asked, Sequence) and not isinstance(asked, str) and len(asked) == 2
        if not known or asked[1] not in AGGREGATIONS:
            raise GraphError(
                f"{name}={asked!r} is no aggregation; write it as {name}=(column, how), with how one of "
                f'{", ".join(AGGREGATIONS)}, or as {name}="count"',
                caller(),
            )
        made[name] = (asked[0], AGGREGATIONS[asked[1]])
    return made
