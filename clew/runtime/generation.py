"""Generating Output Sets: the user's functions on their Input Sets, and what they may read and write meanwhile."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import pyarrow as pa

from clew.errors import (
    BodyDamaged,
    ClewError,
    HookFailed,
    OtherRead,
    SchemaChanged,
    StoreFailed,
)
from clew.ids import EventId, InputSetId
from clew.pipeline.enriched import READING, Enriched, OfRecords
from clew.pipeline.graph import Generative, Graph, OperatorSpec
from clew.pipeline.lookups import Content
from clew.pipeline.operators import Event, InputSet, Operator
from clew.pipeline.schema import from_bytes, normalise
from clew.protocol.log.alg3_generate import Output, Productions
from clew.protocol.log.alg4_read import SideRead
from clew.protocol.rows import Bodies, Header
from clew.runtime.bodies import load
from clew.runtime.codec import decode, decode_stream, encode_stream
from clew.runtime.encoding import Encoder, outputs_by_port
from clew.runtime.lookups import content
from clew.runtime.task import Failure, GenerateTask, SetWork, failure


@dataclass
class _Made:
    """What one Input Set produced, before its bodies are stored."""

    outputs: dict[str, list[tuple[Header, bytes]]] = field(default_factory=dict)
    writes: dict[str, list[bytes]] = field(default_factory=dict)
    reads: list[tuple[str, str, bytes]] = field(default_factory=list)
    #: Records that the function fails on: (place in the event, error).
    failed: list[tuple[int, dict[str, Any]]] = field(default_factory=list)


class Generation:
    """Runs the generative functions of one operator over some Input Sets."""

    def __init__(self, graph: Graph, task: GenerateTask) -> None:
        self._graph = graph
        self._task = task
        self._spec = graph.operators[task.place.operator]
        self._inputs = {port: from_bytes(schema) for port, schema in task.inputs.items()}
        self._encoder = Encoder(graph, self._spec.name, task.outputs)
        self._lookups = contents(self._spec, task)

    def run(self) -> tuple[Productions | Failure, ...]:
        """Return productions and failures in the order of the Input Sets."""
        results: list[Productions | Failure] = []
        stretch: list[tuple[InputSetId, _Made]] = []
        for work in self._task.sets:
            try:
                made = self._generate(work)
            except (BodyDamaged, StoreFailed):
                raise
            except Exception as error:
                if stretch:
                    results.append(self._store(stretch))
                    stretch = []
                results.append(failure(error, work.number))
            else:
                stretch.append((work.number, made))
        if stretch:
            results.append(self._store(stretch))
        return tuple(results)

    def _generate(self, work: SetWork) -> _Made:
        made = _Made()
        function = self._spec.function(work.function)
        events = self._events(work)
        # Before the function has any record: what the hook does wrong is no record's fault.
        resources = resources_of(self._spec, function)
        arguments = function.arguments(self._lookups, resources)
        reading = _Reading(self._spec, work, made)
        if function.style == "general":
            context = _TaskContext(self._spec, work, made, self._lookups, resources, reading)
            folded = _fold(self._spec.general, events)
            result = function.run(InputSet(work.number, work.key, events, self._inputs, folded), context)
        elif isinstance(function.run, OfRecords):
            schema = self._encoder.schema(function.outputs[0])
            if isinstance(function.run, Enriched):
                arguments = {**arguments, READING: reading}
            result = self._per_record(function.run, schema, self._tables(events, work), work, made, arguments)
        else:
            result = function.run(*self._tables(events, work), **arguments)
        for port, table in outputs_by_port(result, function.outputs, self._spec.name):
            try:
                encoded = self._encoder.encode(port, table)
            except SchemaChanged as changed:
                raise self._before(changed, events) if self._spec.built_in else changed from None
            if encoded is not None:
                made.outputs.setdefault(port, []).append(encoded)
        return made

    def _before(self, changed: SchemaChanged, events: Sequence[Event]) -> SchemaChanged:
        """Say where a column can be cast when the operator calls nothing of the user's: before it."""
        senders = {str(event.id.port) for event in events}
        place = f"between {senders.pop()} and {self._spec.name}" if len(senders) == 1 else f"before {self._spec.name}"
        return replace(changed, cure=f"cast it {place}, with map or sql")

    def _per_record(
        self,
        run: OfRecords,
        schema: pa.Schema | None,
        tables: Iterator[pa.Table],
        work: SetWork,
        made: _Made,
        arguments: Mapping[str, Any],
    ) -> pa.Table | dict[str, pa.Table]:
        """Run a function of single records; to sift, keep those that it fails on apart."""
        (table,) = tables
        if work.mode != "sift":
            return run.over(table, arguments, schema)
        result, failures = run.sift(table, arguments, schema)
        for error in failures:
            told = failure(error, work.number)
            assert told.record is not None
            place = told.record[0] if work.only is None else work.only[told.record[0]]
            made.failed.append((place, told.told(1)))
        return result

    def _events(self, work: SetWork) -> tuple[Event, ...]:
        events = []
        for part in work.parts:
            sender = self._spec.inputs[part.port]
            schema = self._inputs[part.port]
            for index, body in enumerate(load(self._task.place.root, part.bodies)):
                events.append(Event(EventId(sender, part.first + index), part.port, decode(body, schema)))
        return tuple(events)

    def _tables(self, events: Sequence[Event], work: SetWork) -> Iterator[pa.Table]:
        """Yield each port's records, cut to what belongs to the Input Set."""
        window = self._spec.function(work.function).window
        for port in self._spec.inputs:
            schema = self._inputs.get(port)
            if schema is None:
                # Nothing was ever received there, and its columns are not known.
                yield pa.table({})
                continue
            own = [(event.id.number, event.table) for event in events if event.port == port]
            selected = window.select(own or [(0, schema.empty_table())], work.key, work.state)
            yield selected if work.only is None else selected.take(pa.array(work.only, pa.int64()))

    def _store(self, stretch: Sequence[tuple[InputSetId, _Made]]) -> Productions:
        """Store the bodies of consecutive Input Sets, all in one file, and return their productions."""
        outputs = {port: [made.outputs.get(port, []) for _, made in stretch] for port in self._spec.outputs}
        writes = {name: [made.writes.get(name, []) for _, made in stretch] for name in self._spec.sinks}
        reads = [(number, *read) for number, made in stretch for read in made.reads]
        stored = iter(
            self._task.place.store(
                [[body for row in rows for _, body in row] for rows in outputs.values()]
                + [[body for row in rows for body in row] for rows in writes.values()]
                + [[read[3]] for read in reads]
            )
        )
        return Productions(
            tuple(number for number, _ in stretch),
            {
                port: Output(tuple(map(len, rows)), tuple(h for row in rows for h, _ in row), kept(next(stored)))
                for port, rows in outputs.items()
            },
            {name: Output(tuple(map(len, rows)), (), kept(next(stored))) for name, rows in writes.items()},
            tuple(SideRead(number, conn, action, next(stored)) for number, conn, action, _ in reads),
            self._encoder.learned(),
            tuple((number, *failed) for number, made in stretch for failed in made.failed),
        )


def contents(spec: OperatorSpec, task: GenerateTask) -> dict[str, Content]:
    """Return what the run has kept of the operator's lookups."""
    keys = {name: lookup.key for name, lookup in spec.lookups.items()}
    return {row.name: content(task.place.root, row, keys[row.name]) for row in task.lookups if row.name in keys}


def resources_of(spec: OperatorSpec, function: Generative) -> Any:
    """Return what the function's setup hook makes; raises HookFailed when that raises."""
    if function.besides.setup is None:
        return None
    try:
        return function.besides.setup.value()
    except Exception as error:
        told = failure(error)
        raise HookFailed(spec.name, told.kind, told.message, told.frames) from error


class _Reading:
    """Reads for one Input Set: from outside, or, where it is run again, from the log."""

    def __init__(self, spec: OperatorSpec, work: SetWork, made: _Made) -> None:
        self._spec = spec
        self._made = made
        self._answers = None if work.answers is None else list(work.answers)

    def ask(self, connection: str, action: str) -> pa.Table:
        system = _connection(self._spec, self._spec.reads, connection, "reads")
        return normalise(system.read(action) if self._answers is None else self._answer(connection, action))

    def keep(self, connection: str, action: str, answer: pa.Table) -> None:
        self._made.reads.append((connection, action, encode_stream(answer)))

    def _answer(self, connection: str, action: str) -> pa.Table:
        """Return what the log has as the answer to the next read."""
        assert self._answers is not None
        # Read actions are numbered by connection, so only those of one are known to be in order.
        left = [one for one in self._answers if one[0] == connection]
        if not left or left[0][1] != action:
            known = repr(left[0][1]) if left else "nothing more"
            raise OtherRead(self._spec.name, f"{action!r} of {connection}", known)
        self._answers.remove(left[0])
        return decode_stream(next(load(None, (left[0][2],))))


def _connection(spec: OperatorSpec, connections: Mapping[str, Any], name: str, role: str) -> Any:
    """Return a connection that an operator names."""
    if name not in connections:
        known = ", ".join(connections) or "none"
        raise ClewError(f"{spec.name} has no connection {name!r}; declare it in {role}= (it has {known})")
    return connections[name]


class _TaskContext:
    """What a general operator's `generate` may use."""

    def __init__(
        self,
        spec: OperatorSpec,
        work: SetWork,
        made: _Made,
        lookups: Mapping[str, Content],
        resources: Any,
        reading: _Reading,
    ) -> None:
        self.state = work.state or {}
        self.lookups = {name: one.table for name, one in lookups.items()}
        self.resources = resources
        self._contents = lookups
        self._spec = spec
        self._made = made
        self._reading = reading

    @property
    def records(self) -> Mapping[str, Any]:
        return {name: one.records for name, one in self._contents.items()}

    def read(self, connection: str, action: str) -> pa.Table:
        answer = self._reading.ask(connection, action)
        self._reading.keep(connection, action, answer)
        return answer

    def write(self, connection: str, table: pa.Table) -> None:
        _connection(self._spec, self._spec.sinks, connection, "writes")
        self._made.writes.setdefault(connection, []).append(encode_stream(normalise(table)))


def _fold(operator: Operator | None, events: Sequence[Event]) -> Any:
    if operator is None or operator.fold is None:
        return None
    return reduce(operator.fold, events, None)


def kept(bodies: Bodies) -> tuple[Bodies, ...]:
    """Return stored bodies as a run has them; where there are none it has none."""
    return (bodies,) if len(bodies) else ()
