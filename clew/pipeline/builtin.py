"""General operators that Clew brings along: what needs global state."""

from collections.abc import Collection, Sequence

import pyarrow as pa

from clew.errors import ClewError
from clew.pipeline.operators import Context, InputSet, Operator
from clew.pipeline.windows import Header, Key, State


class _EachEvent(Operator):
    """Every event is an Input Set of its own."""

    def assign(self, event: Header, state: State) -> Sequence[Key]:
        return (event.number,)

    def ready(self, state: State, opened: Collection[Key]) -> Sequence[Key]:
        return tuple(opened)


class Numbered(_EachEvent):
    """Numbers records in the order in which they are taken: a counter in global state."""

    def __init__(self, column: str, start: int) -> None:
        self._column = column
        self._start = start

    def initial(self) -> State:
        return {"next": self._start}

    def assign(self, event: Header, state: State) -> Sequence[Key]:
        state["next"] += event.rows
        return super().assign(event, state)

    def generate(self, input_set: InputSet, context: Context) -> pa.Table:
        table, last = input_set.table(), context.state["next"]
        return _added(table, self._column, pa.array(range(last - table.num_rows, last), pa.int64()))


class Stamped(_EachEvent):
    """Writes down when records were taken: a clock in global state, so that a crash does not change it."""

    def __init__(self, column: str) -> None:
        self._column = column

    def initial(self) -> State:
        return {"now": 0}

    def tick(self, now: int, state: State) -> None:
        state["now"] = now

    def generate(self, input_set: InputSet, context: Context) -> pa.Table:
        table = input_set.table()
        now = pa.scalar(context.state["now"], pa.timestamp("us", "UTC"))
        return _added(table, self._column, pa.repeat(now, table.num_rows))


def _added(table: pa.Table, column: str, values: pa.Array) -> pa.Table:
    if column in table.column_names:
        raise ClewError(f"the records have a column {column} already; name another one")
    return table.append_column(column, values)
