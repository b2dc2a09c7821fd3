"""Functions that Clew brings along or wraps: SQL, unions, joins, aggregates."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from clew.errors import ClewError, GraphError
from clew.pipeline.aggregates import Asked, Plan, grouped
from clew.pipeline.equality import equated, is_comparable
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
        keys = [*dict.fromkeys([*(name for name in BOUNDS if name in table.column_names), *self.by])]
        self._check(table, keys)
        # The last digits of Arrow's floats depend on how the records are cut into chunks, and who computes this again
        # may have other chunks: so they become one.
        given = table.combine_chunks()
        places = _places(table)
        plans = [self._plan(name, given, places, bool(keys)) for name in self.columns]
        columns = grouped([equated(given[name]) for name in keys], plans, places)
        return pa.Table.from_arrays(columns, [*keys, *self.columns])

    def _plan(self, name: str, given: pa.Table, places: pa.Array, keyed: bool) -> Plan:
        column, how = self.columns[name]
        if how == "count_all":
            return Plan([(None, how)])
        return Asked(self.operator, column, self.of, how, given[column], places, keyed).plan()

    def _check(self, table: pa.Table, keys: Sequence[str]) -> None:
        aggregated = [column for column, how in self.columns.values() if how != "count_all"]
        for what, columns in (("group by", self.by), ("aggregate", aggregated)):
            for column in columns:
                if column not in table.column_names:
                    have = ", ".join(table.column_names)
                    raise ClewError(
                        f"operator {self.operator} is to {what} column {column}, which {self.of} does not have; name "
                        f"one of its columns in aggregate(...): {have}"
                    )
        for key in keys:
            kind = table.schema.field(key).type
            if not is_comparable(kind):
                raise ClewError(
                    f"operator {self.operator} is to group by column {key} of {self.of}, which is {kind}; values of "
                    "this type are not compared: put the part of it that counts into a column of its own before this "
                    "operator"
                )
            if key in self.columns:
                raise ClewError(
                    f"operator {self.operator} is to compute column {key}, by which its records are grouped already; "
                    "give the new column another name in aggregate(...)"
                )


def _places(table: pa.Table) -> pa.Array:
    return pa.arange(0, table.num_rows)


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
        self.check(left, right)
        pairs = self._pairs(left, right)
        return pa.table({**self._left(left, right, pairs), **self._right(left, right, pairs)})

    def check(self, left: pa.Table, right: pa.Table) -> None:
        """Raise ClewError where tables of these columns cannot be joined."""
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
        bounds = [name for name in BOUNDS if name in left.column_names and name in right.column_names]
        for column in dict.fromkeys([*self.on, *bounds]):
            kinds = (left.schema.field(column).type, right.schema.field(column).type)
            if kinds[0] != kinds[1]:
                raise ClewError(
                    f"column {column} is {kinds[0]} in {self.names[0]} and {kinds[1]} in {self.names[1]}; a join needs "
                    "one type: cast one of them before"
                )
            if pt.is_null(kinds[0]) or not is_comparable(kinds[0]):
                raise ClewError(
                    f"column {column} is {kinds[0]} in {self.names[0]} and {self.names[1]}, and values of this type "
                    "are not compared; join on text, numbers, booleans or times: make a column of these before"
                )

        self._check_names(left.column_names, right.column_names)

    def _check_names(self, left: Sequence[str], right: Sequence[str]) -> None:
        """Refuse a name that two columns would have: one of them would be lost."""
        taken = set(left)
        for name, made in self.renamed(left, right).items():
            if made in taken:
                raise ClewError(
                    f"a join of {self.names[0]} and {self.names[1]} would have two columns {made}, one of them column "
                    f"{name} of {self.names[1]}; give another suffix than suffix={self.suffix!r}, or rename one before"
                )
            taken.add(made)

    def renamed(self, left: Sequence[str], right: Sequence[str]) -> dict[str, str]:
        """Return what the columns of the other input are called in the result, but for those that both share.

        Both share what is joined on, and the bounds of their window.
        """
        own = [name for name in right if name not in self.on and not (name in BOUNDS and name in left)]
        return {name: f"{name}{self.suffix}" if name in left else name for name in own}

    def _pairs(self, left: pa.Table, right: pa.Table) -> pa.Table:
        """Return which records belong together, by their places: only keys go through the join."""
        kind = {"inner": "inner", "left": "left outer", "full": "full outer"}[self.how]
        # Keys are known by their numbers here, so that they do not clash with places, whatever people call them.
        keys = {str(number): name for number, name in enumerate(self.on)}
        sides = [
            pa.table({**{number: equated(table[name]) for number, name in keys.items()}, place: _places(table)})
            for table, place in ((left, "left"), (right, "right"))
        ]
        joined = sides[0].join(sides[1], list(keys), join_type=kind, use_threads=False)
        return joined.select(["left", "right"]).sort_by([("left", "ascending"), ("right", "ascending")])

    def _left(self, left: pa.Table, right: pa.Table, pairs: pa.Table) -> dict[str, pa.ChunkedArray]:
        columns = {name: left[name].take(pairs["left"]) for name in left.column_names}
        # The keys, and the window's bounds, of records that only the other side has.
        shared = [name for name in (*self.on, *BOUNDS) if name in columns and name in right.column_names]
        others = {name: right[name].take(pairs["right"]) for name in shared}
        self._check_bounds(columns, others)
        return {**columns, **{name: pc.coalesce(columns[name], others[name]) for name in shared}}

    def _check_bounds(self, left: Mapping[str, pa.ChunkedArray], right: Mapping[str, pa.ChunkedArray]) -> None:
        """Refuse bounds that come from other windows than that of the join, and differ: one would be lost."""
        for name in BOUNDS:
            if name in right and name not in self.on and pc.any(pc.not_equal(left[name], right[name])).as_py():
                raise ClewError(
                    f"records of {self.names[0]} and {self.names[1]} that are joined differ in {name}, of which a join "
                    f"keeps one; join on {name} too, or rename it in one of them before"
                )

    def _right(self, left: pa.Table, right: pa.Table, pairs: pa.Table) -> dict[str, pa.ChunkedArray]:
        renamed = self.renamed(left.column_names, right.column_names)
        return {made: right[name].take(pairs["right"]) for name, made in renamed.items()}


def aggregations(columns: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Read what columns an aggregation makes: `total=("amount", "sum")`, `rows="count"`."""
    made: dict[str, tuple[str, str]] = {}
    for name, asked in columns.items():
        if isinstance(asked, str) and asked == "count":
            made[name] = ("", "count_all")
            continue
        known = isinstance(asked, Sequence) and len(asked) == 2 and all(isinstance(one, str) for one in asked)
        if not known or isinstance(asked, str) or asked[1] not in AGGREGATIONS:
            raise GraphError(
                f"{name}={asked!r} is no aggregation; write it as {name}=(column, how), with how one of "
                f'{", ".join(AGGREGATIONS)}, or as {name}="count"',
                caller(),
            )
        made[name] = (asked[0], AGGREGATIONS[asked[1]])
    return made
