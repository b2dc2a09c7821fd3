"""General operators that Clew brings along: what needs global state, or reads while it works."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from clew.errors import ClewError
from clew.pipeline.columns import Types
from clew.pipeline.hints import OfDataclass, check_fit
from clew.pipeline.lookups import RESOURCES, taken
from clew.pipeline.operators import Context, InputSet, Operator
from clew.pipeline.records import PerRecord
from clew.pipeline.schema import normalise
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


class Enriched(_EachEvent):
    """Asks a system about each record, once for records that ask the same, and adds what it answers."""

    def __init__(
        self,
        ask: Callable[..., str | None],
        add: Callable[..., Any] | None,
        answers: pa.Schema | None = None,
        declared: Types | None = None,
    ) -> None:
        self._ask = ask
        self._add = add
        #: The columns of every answer, where the connection declares them.
        self._answers = answers
        #: The columns of the result, where they are declared.
        self._declared = dict(declared or {})

    @property
    def records(self) -> list[type]:
        """The dataclasses that its functions take records as."""
        return [one.record for one in (self._ask, self._add) if isinstance(one, OfDataclass)]

    def generate(self, input_set: InputSet, context: Context) -> pa.Table:
        table = input_set.table()
        for record in self.records:
            check_fit(record, table.schema)
        answers: dict[str, pa.Table] = {}
        given = {**context.records, RESOURCES: context.resources}
        ask = partial(self._ask, **taken(self._ask, given))
        add = _first_row if self._add is None else partial(self._add, **taken(self._add, given))
        nothing = pa.table({}) if self._answers is None else normalise(self._answers.empty_table())
        #: Filled while records are asked about: what the answers tell of their columns.
        types = {**_types(nothing), **self._declared}

        def enrich(row: dict[str, Any]) -> Any:
            action = ask(row)
            if action is None:
                return add(row, nothing)
            if not isinstance(action, str):
                raise ClewError(
                    f"ask returned {action!r} ({type(action).__name__}), expected the text of a read action, or None "
                    "for a record that needs none; return one of these"
                )
            if action not in answers:
                answers[action] = context.read("asked", action)
                _learn(types, answers[action])
            return add(row, answers[action])

        made = PerRecord(enrich, "map", declared=types)(table)
        return made if answers or self._add is not None else self._unasked(made)

    def _unasked(self, made: pa.Table) -> pa.Table:
        """Add the columns of an answer to the records of an event in which none asked for one."""
        if self._answers is None and not self._declared:
            raise ClewError(
                "no record of it asks for anything, so the columns of the answers are not known; declare them with "
                "schema= of the connection, or all columns with schema= of enrich"
            )
        for name, kind in self._declared.items():
            if name not in made.column_names:
                made = made.append_column(name, pa.nulls(made.num_rows, kind))
        return made


def _types(table: pa.Table) -> dict[str, pa.DataType]:
    return dict(zip(table.column_names, table.schema.types))


def _learn(types: dict[str, pa.DataType], answer: pa.Table) -> None:
    """Let an answer tell the types of columns that nobody has declared; a null tells none."""
    for name, kind in _types(answer).items():
        if not pa.types.is_null(kind):
            types.setdefault(name, kind)


def _first_row(row: Mapping[str, Any], answer: pa.Table) -> Mapping[str, Any]:
    found = answer.slice(0, 1).to_pylist() or [dict.fromkeys(answer.column_names)]
    return {**row, **found[0]}
