"""What runs on an executor: everything that touches records.

`execute` takes one task, a plain value, and returns its result, a plain value. The inline engine calls it in this
process, the Spark engine on an executor. A failure of the user's code is caught here and returned as data, so that
Spark retries only what is not the user's fault and the good Input Sets of a job are kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from typing import Any, Literal

import pyarrow as pa

from clew.errors import (
    AnswerRefused,
    BodyDamaged,
    ClewError,
    HookFailed,
    OtherRead,
    SchemaChanged,
    SinkFailed,
    SourceFailed,
    StaleWriter,
    StoreFailed,
    TypeRefused,
)
from clew.ids import EventId, InputSetId, Port
from clew.pipeline.contracts import Observed, Replayable, WriteAction
from clew.pipeline.enriched import READING, Enriched, OfRecords
from clew.pipeline.graph import Generative, Graph, OperatorSpec
from clew.pipeline.lookups import Content
from clew.pipeline.operators import Event, InputSet, Operator, OperatorLogic, WindowLogic
from clew.pipeline.schema import conform, fixed, from_bytes, normalise, to_bytes, untyped
from clew.pipeline.unplaced import Unplaced
from clew.protocol.log.alg3_generate import Output, Productions
from clew.protocol.log.alg4_read import SideRead
from clew.protocol.rows import Bodies, Header, LookupRow
from clew.protocol.step import FixSchema
from clew.runtime.bodies import BodyPlace, load
from clew.runtime.codec import decode, decode_stream, encode, encode_stream
from clew.runtime.lookups import content
from clew.runtime.tracebacks import own_frames

#: Failures that are about neither the records nor the code.
_OUTSIDE = (BodyDamaged, StoreFailed, SourceFailed, SinkFailed, StaleWriter, HookFailed)

#: The schemas that ports are fixed to, as the log has them, by port name.
Schemas = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive events of one input port, by their bodies."""

    port: str
    first: int
    bodies: tuple[Bodies, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return Part, (self.port, self.first, self.bodies)

    def runs(self) -> Iterator[tuple[int, Bodies]]:
        """Yield the runs of bodies, each with the number of its first event."""
        first = self.first
        for run in self.bodies:
            yield first, run
            first += len(run)


@dataclass(frozen=True, slots=True)
class SetWork:
    """One Input Set to make an Output Set of."""

    number: InputSetId
    function: str
    key: Any
    parts: tuple[Part, ...]
    #: What it saw of the global state when it closed, where its function sees any.
    state: Any = None
    #: The records that it has, by their places in its event; None for all.
    only: tuple[int, ...] | None = None
    #: "aside": it is set aside, and makes nothing. "sift": the records that the function fails on are told as data.
    mode: Literal["", "aside", "sift"] = ""
    #: The answers that it got when it was run before (connection, what was asked, answer): it gets them again.
    answers: tuple[tuple[str, str, Bodies], ...] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        own = (self.number, self.function, self.key, self.parts, self.state, self.only, self.mode, self.answers)
        return SetWork, own


@dataclass(frozen=True, slots=True)
class GenerateTask:
    """Generate the Output Sets of some Input Sets, one after the other."""

    place: BodyPlace
    #: Those of the input ports, also where nothing was received yet, as far as they are known.
    inputs: Schemas
    outputs: Schemas
    sets: tuple[SetWork, ...]
    lookups: tuple[LookupRow, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Read some slices of a replayable source, one after the other."""

    place: BodyPlace
    snapshot: Any
    pieces: tuple[Any, ...]
    outputs: Schemas


@dataclass(frozen=True, slots=True)
class ObserveTask:
    """Perform a read action that is not replayable, and store its effect."""

    place: BodyPlace


@dataclass(frozen=True, slots=True)
class EffectTask:
    """Make events of a part of a stored effect."""

    place: BodyPlace
    effects: tuple[Bodies, ...]
    outputs: Schemas


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Perform write actions of one connection, in order; with `check`, only say which were applied."""

    root: str | None
    operator: str
    connection: str
    writes: tuple[tuple[WriteAction, tuple[tuple[bytes | None, tuple[Bodies, ...]], ...]], ...]
    check: bool = False


@dataclass(frozen=True, slots=True)
class FactsTask:
    """Compute the facts that a receiver's declaration needs now, for events made under another one."""

    root: str | None
    receiver: Port
    schema: bytes
    bodies: tuple[Bodies, ...]


Task = GenerateTask | ReadTask | ObserveTask | EffectTask | WriteTask | FactsTask


@dataclass(frozen=True, slots=True)
class Failure:
    """What stopped a task, or one of its Input Sets, as data."""

    number: InputSetId | None
    kind: str
    message: str
    frames: str
    #: Clew's own error, where it is one: it is raised as it is.
    error: ClewError | None = None
    #: The place of the record in its event, and the record, where the function takes single records.
    record: tuple[int, str] | None = None

    def told(self, attempts: int) -> dict[str, Any]:
        """Return the failure as JSON."""
        record = None if self.record is None else self.record[1]
        return {
            "kind": self.kind, "message": self.message, "frames": self.frames, "record": record, "attempts": attempts,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Events:
    """Events that a source task made, and the offset after each of its slices' last one."""

    headers: tuple[Header, ...]
    bodies: tuple[Bodies, ...]
    offset: Any
    schema: bytes | None
    #: How many pieces were read: a piece without records makes no event.
    pieces: int


@dataclass(frozen=True, slots=True)
class Written:
    """How far a write task came."""

    done: int
    applied: tuple[bool, ...] = ()
    failure: Failure | None = None


Result = tuple[Productions | Failure, ...] | Events | Bodies | Written | tuple[Any, ...] | Failure


def execute(graph: Graph, task: Task) -> Any:
    """Run one task of the pipeline `graph`."""
    match task:
        case GenerateTask():
            return _Generation(graph, task).run()
        case WriteTask():
            return _write(graph, task)
        case FactsTask():
            logic = graph.operators[task.receiver.operator].logic
            schema = from_bytes(task.schema)
            return tuple(facts_of(logic, decode(body, schema)) for body in load(task.root, task.bodies))
    try:
        match task:
            case ReadTask():
                return _read(graph, task)
            case ObserveTask():
                return _observe(graph, task)
            case EffectTask():
                tables = (decode_stream(body) for body in load(task.place.root, task.effects))
                return _events(graph, task.place, task.outputs, ((table, None) for table in tables))
    except Exception as error:
        return failure(error)


# Generating Output Sets.


@dataclass
class _Made:
    """What one Input Set produced, before its bodies are stored."""

    outputs: dict[str, list[tuple[Header, bytes]]] = field(default_factory=dict)
    writes: dict[str, list[bytes]] = field(default_factory=dict)
    reads: list[tuple[str, str, bytes]] = field(default_factory=list)
    #: Records that the function fails on: (place in the event, error).
    failed: list[tuple[int, dict[str, Any]]] = field(default_factory=list)


class _Generation:
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
                port: Output(tuple(map(len, rows)), tuple(h for row in rows for h, _ in row), _kept(next(stored)))
                for port, rows in outputs.items()
            },
            {name: Output(tuple(map(len, rows)), (), _kept(next(stored))) for name, rows in writes.items()},
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


class Encoder:
    """Turns tables into event bodies of a port's one schema, with headers that carry facts."""

    def __init__(self, graph: Graph, operator: str, fixed_schemas: Schemas) -> None:
        self._graph = graph
        self._operator = operator
        self._given = dict(fixed_schemas)
        # By port: the receivers that need facts, and what computes them.
        self._receivers: dict[str, list[tuple[str, Any]]] = {}
        self._schemas = {port: from_bytes(schema) for port, schema in fixed_schemas.items()}
        spec = graph.operators[operator]
        self._declared = frozenset(spec.schemas)
        for port, schema in spec.schemas.items():
            self._schemas.setdefault(port, fixed(schema))

    def encode(self, port: str, table: pa.Table) -> tuple[Header, bytes] | None:
        """Return header and body, or None for a table without records: it makes no event."""
        if table.num_rows == 0:
            return None
        schema = self._schemas.get(port)
        # Most tables have the port's schema already, which is in its normal form.
        if schema is None or not table.schema.equals(schema, check_metadata=True):
            table = normalise(table)
            if schema is None:
                schema = self._schemas[port] = self._typed(port, table.schema)
            table = conform(table, schema, f"{self._operator}.{port}", port in self._declared)
        body = encode(table)
        return Header(table.num_rows, len(body), self._facts(port, table)), body

    def _typed(self, port: str, schema: pa.Schema) -> pa.Schema:
        """Return the schema that a port is fixed to by its first event; raises where that does not tell all types."""
        for column in untyped(schema):
            if column.name not in self._graph.declared_untyped:
                why = f"{self._operator}.{port} has had nothing else there yet, and would be fixed to that for good"
                cure = f"declare schema= for {self._operator}, or cast it to the type that later values have"
                raise TypeRefused(column.name, str(column.type), why, cure)
        return schema

    def schema(self, port: str) -> pa.Schema | None:
        """Return the schema of a port: what the log has fixed, or was declared, or came first; None before that."""
        return self._schemas.get(port)

    def learned(self) -> tuple[FixSchema, ...]:
        """Return the schemas that the log does not have yet."""
        return tuple(
            FixSchema(Port(self._operator, port), to_bytes(schema))
            for port, schema in self._schemas.items()
            if port not in self._given
        )

    def _facts(self, port: str, table: pa.Table) -> dict[str, tuple[str, Any]]:
        if port not in self._receivers:
            found = self._graph.receivers(Port(self._operator, port))
            logics = [(str(receiver), self._graph.operators[receiver.operator].logic) for receiver in found]
            self._receivers[port] = [(receiver, logic) for receiver, logic in logics if logic.needs_facts]
        return {receiver: (logic.fingerprint, facts_of(logic, table)) for receiver, logic in self._receivers[port]}


def facts_of(logic: WindowLogic | OperatorLogic, table: pa.Table) -> Any:
    """Return what a receiver needs to know of an event, or why it cannot be told: that is the receiver's failure."""
    try:
        return logic.facts(table)
    except Exception as error:
        told = failure(error)
        reason = told.message if isinstance(error, ClewError) else f"{told.kind}: {told.message}"
        return Unplaced(told.record, reason, told.frames).facts()


def outputs_by_port(result: Any, outputs: Sequence[str], operator: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield (port, table) for whatever a generative function may return."""
    if result is None:
        return
    by_port = result if isinstance(result, Mapping) else {outputs[0] if outputs else "": result}
    for port, tables in by_port.items():
        if port not in outputs:
            raise ClewError(
                f"{operator} returned records for port {port!r}; it has {', '.join(outputs) or 'none'}: "
                "return records for those, or declare the port with outputs="
            )
        for table in [tables] if isinstance(tables, pa.Table) else tables:
            if isinstance(table, pa.RecordBatch):
                table = pa.Table.from_batches([table])
            if not isinstance(table, pa.Table):
                raise ClewError(
                    f"{operator} returned {type(table).__name__} on port {port}; return a pyarrow.Table, a list of "
                    "them, or a dict by port"
                )
            yield port, table


def _fold(operator: Operator | None, events: Sequence[Event]) -> Any:
    if operator is None or operator.fold is None:
        return None
    return reduce(operator.fold, events, None)


def _kept(bodies: Bodies) -> tuple[Bodies, ...]:
    return (bodies,) if len(bodies) else ()


# Reading sources.


def _read(graph: Graph, task: ReadTask) -> Events:
    source = graph.operators[task.place.operator].source
    assert isinstance(source, Replayable)
    read = (piece for part in task.pieces for piece in source.read(task.snapshot, part))
    return _events(graph, task.place, task.outputs, ((piece.table, piece.offset) for piece in read))


def _observe(graph: Graph, task: ObserveTask) -> Bodies:
    source = graph.operators[task.place.operator].source
    assert isinstance(source, Observed)
    return task.place.store([[encode_stream(normalise(table)) for table in source.observe()]])[0]


def _events(graph: Graph, place: BodyPlace, schemas: Schemas, tables: Iterator[tuple[pa.Table, Any]]) -> Events:
    encoder = Encoder(graph, place.operator, schemas)
    headers, bodies, offset, pieces = [], [], None, 0
    for table, at in tables:
        offset, pieces = at, pieces + 1
        encoded = encoder.encode("out", table)
        if encoded is not None:
            headers.append(encoded[0])
            bodies.append(encoded[1])
    learned = encoder.learned()
    stored = place.store([bodies])[0]
    return Events(tuple(headers), _kept(stored), offset, learned[0].schema if learned else None, pieces)


# Writing.


def _write(graph: Graph, task: WriteTask) -> Written:
    sink = graph.operators[task.operator].sinks[task.connection]
    done = 0
    try:
        if task.check:
            return Written(0, tuple(sink.applied(action) for action, _ in task.writes))
        for action, parts in task.writes:
            schema, tables = _content(task.root, parts)
            sink.write(action, tables, schema)
            done += 1
    except Exception as error:
        return Written(done, (), failure(error))
    return Written(done)


def _content(
    root: str | None, parts: Sequence[tuple[bytes | None, tuple[Bodies, ...]]]
) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """Return what a write action writes; a part without a schema holds whole streams."""
    tables = _tables(root, parts)
    first = next(tables, None)
    if first is None:
        return pa.schema([]), iter(())
    return first.schema, chain([first], tables)


def _tables(root: str | None, parts: Sequence[tuple[bytes | None, tuple[Bodies, ...]]]) -> Iterator[pa.Table]:
    for schema, runs in parts:
        for body in load(root, runs):
            yield decode_stream(body) if schema is None else decode(body, from_bytes(schema))


# Failures as data.


def failure(error: Exception, number: InputSetId | None = None) -> Failure:
    """Describe an exception by its type, its message and the user's own frames."""
    if isinstance(error, _OUTSIDE) and not isinstance(error, AnswerRefused):
        return Failure(number, type(error).__name__, str(error), "", error)
    frames = own_frames(error)
    # A ClewError without frames of the user's is about the data or the declaration: it says all there is to say.
    kept = error if isinstance(error, ClewError) and not frames else None
    found = getattr(error, "__clew_record__", None)
    record = None if found is None else (found[0], _short(repr(found[1])))
    return Failure(number, type(error).__name__, str(error), frames, kept, record)


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."
