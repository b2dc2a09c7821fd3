"""The failure-free model of a pipeline: a plain interpreter that gives an operator's function its Input Set.

It knows nothing of turns, logs or failures. What a function may look at comes in; what it makes comes out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import ClewError
from clew.ids import EventId
from clew.model.certificate import RAISED
from clew.model.declared import of_window
from clew.model.windows import Records
from clew.pipeline.enriched import READING, Enriched, OfRecords
from clew.pipeline.graph import Generative, OperatorSpec
from clew.pipeline.lookups import Content
from clew.pipeline.operators import Event, InputSet
from clew.pipeline.schema import conform, fixed, normalise

#: Calls a function of Spark DataFrames with Arrow tables, and returns its result with Arrow tables for DataFrames;
#: only a caller that has Spark has one.
Frames = Callable[[Callable[..., Any], Sequence[pa.Table]], Any]


class NoResources(ClewError):
    """The setup hook of a function fails, which is no mistake of what is computed."""


#: The column that a row-local function of DataFrames finds beside its own: the Input Set of each record.
TAG = "_clew_input_set"


@dataclass(frozen=True)
class Given:
    """An Input Set as its function sees it."""

    spec: OperatorSpec
    function: str
    key: Any
    input_set: int
    #: The events in the order in which they were taken: (input port, number, records).
    events: Sequence[tuple[str, int, pa.Table]]
    #: The schemas of the input ports that ever had an event.
    schemas: Mapping[str, pa.Schema]
    state: Any = None
    #: What side-effect reads found, in order, by connection.
    answers: Mapping[str, Sequence[pa.Table]] = field(default_factory=dict)
    #: Which records of its events it has, where the key does not tell.
    records: Records | None = None
    #: What the run has kept of the lookups.
    lookups: Mapping[str, Content] = field(default_factory=dict)
    #: The schemas of the output ports that ever had an event.
    outputs: Mapping[str, pa.Schema] = field(default_factory=dict)


@dataclass
class Made:
    """What the function made of it: events by output port, write actions by connection."""

    outputs: dict[str, list[pa.Table]] = field(default_factory=dict)
    writes: dict[str, list[pa.Table]] = field(default_factory=dict)

    def add(self, port: str, table: pa.Table) -> None:
        if table.num_rows:
            self.outputs.setdefault(port, []).append(table)


def interpret(given: Given, frames: Frames | None = None) -> Made:
    """Run the function once, as in a run without failures."""
    function = given.spec.function(given.function)
    if function.row_local:
        (made,) = interpret_rows([given], frames)
        return made
    context = _Context(given)
    match function.style:
        case "general":
            result = function.run(_input_set(given), context)
            context.check()
        case "arrow":
            result = _run(given, function, context)
            context.check()
        case "dataframe":
            result = _framed(frames, given, function, list(_tables(given, function)))
    for port, table in _by_port(result, function):
        context.made.add(port, table)
    return context.made


def _run(given: Given, function: Generative, context: "_Context") -> Any:
    arguments = function.arguments(given.lookups, _resources(function))
    if isinstance(function.run, Enriched):
        arguments = {**arguments, READING: context}
    if isinstance(function.run, OfRecords):
        (table,) = _tables(given, function)
        return function.run.over(table, arguments, given.outputs.get(function.outputs[0]))
    return function.run(*_tables(given, function), **arguments)


def interpret_rows(givens: Sequence[Given], frames: Frames | None) -> list[Made]:
    """Run a row-local function of DataFrames once for several Input Sets, whose records it keeps apart by their tag."""
    function = givens[0].spec.function(givens[0].function)
    tagged = [[_tagged(table, given.input_set) for table in _tables(given, function)] for given in givens]
    inputs = [pa.concat_tables(tables) for tables in zip(*tagged)]
    made = {given.input_set: Made() for given in givens}
    for port, table in _by_port(_framed(frames, givens[0], function, inputs), function):
        for number, one in made.items():
            one.add(port, table.filter(pc.equal(table[TAG], number)).drop_columns([TAG]))
    return list(made.values())


def _tagged(table: pa.Table, number: int) -> pa.Table:
    return table.append_column(TAG, pa.array([number] * table.num_rows, pa.int64()))


def _framed(frames: Frames | None, given: Given, function: Generative, inputs: Sequence[pa.Table]) -> Any:
    """Call a function of DataFrames; lookups become DataFrames as its inputs do."""
    names = list(function.besides.lookups)
    resources = _resources(function)

    def run(*all_frames: Any) -> Any:
        lookups = dict(zip(names, all_frames[len(inputs) :]))
        return function.run(*all_frames[: len(inputs)], **function.besides.arguments(lookups, resources))

    # The checker leaves operators of DataFrames alone where there is no Spark.
    assert frames is not None, f"{given.spec.name} takes Spark DataFrames, and there is no Spark here"
    return frames(run, [*inputs, *(given.lookups[name].table for name in names)])


def _resources(function: Generative) -> Any:
    if function.besides.setup is None:
        return None
    try:
        return function.besides.setup.value()
    except RAISED as error:
        raise NoResources(f"{type(error).__name__}: {error}") from error


class _Context:
    """What a general operator's function may use; reads are answered as they were."""

    def __init__(self, given: Given) -> None:
        self.state = given.state or {}
        self.lookups = {name: one.table for name, one in given.lookups.items()}
        self.resources = _resources(given.spec.function(given.function))
        self.made = Made()
        self._lookups = given.lookups
        self._answers = {name: iter(tables) for name, tables in given.answers.items()}

    @property
    def records(self) -> Mapping[str, Any]:
        return {name: one.records for name, one in self._lookups.items()}

    def read(self, connection: str, action: str) -> pa.Table:
        answer = next(self._answers.get(connection, iter(())), None)
        if answer is None:
            raise ClewError(f"it reads {connection} more often than the log says: {action}")
        return answer

    def ask(self, connection: str, action: str) -> pa.Table:
        return self.read(connection, action)

    def keep(self, connection: str, action: str, answer: pa.Table) -> None:
        """It is in the log already."""

    def write(self, connection: str, table: pa.Table) -> None:
        self.made.writes.setdefault(connection, []).append(normalise(table))

    def check(self) -> None:
        """Refuse answers that nobody asked for."""
        for connection, answers in self._answers.items():
            if next(answers, None) is not None:
                raise ClewError(f"it reads {connection} less often than the log says")


def _input_set(given: Given) -> InputSet:
    events = tuple(Event(EventId(given.spec.inputs[port], number), port, table) for port, number, table in given.events)
    fold = given.spec.general.fold if given.spec.general else None
    folded = reduce(fold, events, None) if fold is not None else None
    return InputSet(given.input_set, given.key, events, given.schemas, folded)


def _tables(given: Given, function: Generative) -> Iterator[pa.Table]:
    for port in given.spec.inputs:
        if port not in given.schemas:
            yield pa.table({})
            continue
        own = [event for event in given.events if event[0] == port]
        yield of_window(function.window, own, given.schemas[port], given.key, given.records, given.state)


def _by_port(result: Any, function: Generative) -> Iterator[tuple[str, pa.Table]]:
    if result is None:
        return
    by_port = result if isinstance(result, Mapping) else {function.outputs[0] if function.outputs else "": result}
    for port, tables in by_port.items():
        for table in [tables] if isinstance(tables, pa.Table | pa.RecordBatch) else tables:
            yield port, pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table


def as_sent(table: pa.Table, schema: pa.Schema | None, port: str) -> pa.Table:
    """Return records as a port would send them: of its schema, where it has one."""
    if schema is not None and table.schema.equals(schema, check_metadata=True):
        return table
    normal = normalise(table)
    return normal if schema is None else conform(normal, fixed(schema), port)
