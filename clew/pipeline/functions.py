"""Functions that Clew brings along or wraps: SQL, unions, joins, aggregates."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from clew.errors import ClewError, GraphError
from clew.pipeline.location import caller
from clew.pipeline.times import BOUNDS

How = Literal["inner", "left", "full"]


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

    def passes(self, port: str, inputs: Sequence[str]) -> Sequence[str]:
        """Return the inputs whose records leave by a port as they came."""
        return inputs


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
        # Arrow's own order of groups, and the last digits of its floats, depend on how the records are cut into chunks.
        # Who computes this again may have other chunks: so they become one, and groups come as their first records do.
        given = table.combine_chunks()
        computed = [name for name, (_, how) in self.columns.items() if how not in _BY_PLACE]
        asked = [*map(self._asked, computed), (_PLACE, "min"), (_PLACE, "max")]
        placed = self._widened(given, computed).append_column(_PLACE, _places(table.num_rows))
        made = placed.group_by(keys, use_threads=False).aggregate(asked)
        made = made.rename_columns([*keys, *map(_own, computed), *_BY_PLACE.values()]).sort_by(_BY_PLACE["first"])
        columns = [*(made[name] for name in keys), *(self._column(name, made, given) for name in self.columns)]
        return pa.Table.from_arrays(columns, [*keys, *self.columns])

    def _asked(self, name: str) -> tuple[Any, str, Any]:
        """Return what Arrow is asked for so that it computes what the word means in Spark."""
        how = self.columns[name][1]
        return [] if how == "count_all" else _own(name), how, _OPTIONS.get(how)

    def _widened(self, table: pa.Table, computed: Sequence[str]) -> pa.Table:
        """Add what is aggregated: decimals that a mean is asked of have the digits that it needs."""
        for name in computed:
            column, how = self.columns[name]
            if how != "count_all":
                kind = _mean_of(table, column) if how == "mean" else None
                wide = table[column] if kind is None else table[column].cast(pa.decimal128(38, kind.scale))
                table = table.append_column(_own(name), wide)
        return table

    def _column(self, name: str, made: pa.Table, given: pa.Table) -> pa.ChunkedArray:
        """Return a column of the result; a record that is the first or last of its group may have null there."""
        column, how = self.columns[name]
        if how in _BY_PLACE:
            return given[column].take(made[_BY_PLACE[how]])
        kind = _mean_of(given, column) if how == "mean" else None
        return made[_own(name)] if kind is None else made[_own(name)].cast(kind)

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


def _mean_of(table: pa.Table, column: str) -> pa.DataType | None:
    """Return the type that Spark gives a mean of decimals: with four digits more than they have."""
    kind = table.schema.field(column).type
    return pa.decimal128(min(kind.precision + 4, 38), min(kind.scale + 4, 38)) if pt.is_decimal(kind) else None


#: Spark's are those of a sample, Arrow's those of the population.
_OPTIONS = {"stddev": pc.VarianceOptions(ddof=1), "variance": pc.VarianceOptions(ddof=1)}

#: What is the value of one record of a group, and the column with that record's place. Arrow would pass over nulls.
_BY_PLACE = {"first": "_clew_place_first", "last": "_clew_place_last"}


def _own(name: str) -> str:
    """Name a column while it is computed: whatever people call theirs, it is another one."""
    return f"_clew_made_{name}"


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
