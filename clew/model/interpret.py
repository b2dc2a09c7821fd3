"""The failure-free model of a pipeline: a plain interpreter that gives an operator's function its Input Set.

It knows nothing of turns, logs or failures. What a function may look at comes in; what it makes comes out.
"""

import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc

from clew.errors import ClewError
from clew.ids import EventId
from clew.model.certificate import Body
from clew.model.windows import of_window
from clew.pipeline.graph import Generative, OperatorSpec
from clew.pipeline.operators import Event, InputSet
from clew.pipeline.schema import conform, fixed, normalise

#: Calls a function of Spark DataFrames with Arrow tables; only a caller that has Spark has one.
Frames = Callable[[Callable[..., Any], Sequence[pa.Table]], Any]


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


@dataclass
class Made:
    """What the function made of it: events by output port, write actions by connection."""

    outputs: dict[str, list[pa.Table]] = field(default_factory=dict)
    writes: dict[str, list[pa.Table]] = field(default_factory=dict)


def interpret(given: Given, frames: Frames | None = None) -> Made:
    """Run the function once, as in a run without failures."""
    function = given.spec.function(given.function)
    context = _Context(given)
    match function.style:
        case "general":
            result = function.run(_input_set(given), context)
        case "arrow":
            result = function.run(*_tables(given, function))
        case "dataframe":
            if frames is None:
                raise ClewError(f"{given.spec.name} takes Spark DataFrames, and there is no Spark here")
            result = frames(function.run, list(_tables(given, function)))
    for port, table in _by_port(result, function):
        if table.num_rows:
            context.made.outputs.setdefault(port, []).append(normalise(table))
    return context.made


class _Context:
    """What a general operator's function may use; reads are answered as they were."""

    def __init__(self, given: Given) -> None:
        self.state = given.state or {}
        self.made = Made()
        self._answers = {name: iter(tables) for name, tables in given.answers.items()}

    def read(self, connection: str, action: str) -> pa.Table:
        answer = next(self._answers.get(connection, iter(())), None)
        if answer is None:
            raise ClewError(f"it reads {connection} more often than the log says: {action}")
        return answer

    def write(self, connection: str, table: pa.Table) -> None:
        self.made.writes.setdefault(connection, []).append(normalise(table))


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
        tables = [table for name, _, table in given.events if name == port]
        whole = pa.concat_tables(tables or [given.schemas[port].empty_table()])
        yield of_window(function.window, whole, given.key)


def _by_port(result: Any, function: Generative) -> Iterator[tuple[str, pa.Table]]:
    if result is None:
        return
    by_port = result if isinstance(result, Mapping) else {function.outputs[0] if function.outputs else "": result}
    for port, tables in by_port.items():
        for table in [tables] if isinstance(tables, pa.Table | pa.RecordBatch) else tables:
            yield port, pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table


def as_sent(table: pa.Table, schema: pa.Schema, port: str) -> pa.Table:
    """Return records as a port of this schema would send them."""
    return conform(table, fixed(schema), port)


class BodyWrong(ClewError):
    """A body is missing, or is not what was logged."""


def bytes_of(body: Body, root: str | None) -> bytes:
    """Return the bytes of a body, which must be those that were logged."""
    data = body.data
    if data is None:
        try:
            with open(os.path.join(root or "", body.file or ""), "rb") as file:
                file.seek(body.offset)
                data = file.read(body.length)
        except OSError as error:
            raise BodyWrong(f"the body file {body.file} cannot be read: {error.strerror}") from error
    if len(data) != body.length or zlib.crc32(data) != body.checksum:
        raise BodyWrong(f"a body of {body.length} bytes in {body.file or 'the log'} is damaged")
    return data


def records(body: Body, root: str | None, schema: pa.Schema | None) -> pa.Table:
    """Return the records of a body: of a port's schema, or with a schema of its own."""
    data = pa.py_buffer(bytes_of(body, root))
    if schema is None:
        with ipc.open_stream(data) as stream:
            return stream.read_all()
    return pa.Table.from_batches([ipc.read_record_batch(data, schema)])
