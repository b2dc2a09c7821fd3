"""Wires what is asked of a run afterwards: where an event came from, where it went, and how it was made."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from clew.errors import (
    AnswersNotKept,
    CameTooLate,
    FormedOtherwise,
    NoInputSet,
    NoSuchRecord,
    NotAnOperator,
    NotCaptured,
    NotMadeBy,
    OtherRead,
    SetDropped,
    SetExpired,
    SetOpen,
    SetupFailed,
)
from clew.ids import Capture, EventId, InputSetId, Port, writes_port
from clew.lineage.moment import of_one_moment, undisturbed
from clew.lineage.steps import Connections, Step, steps_back, steps_forward
from clew.lineage.trace import Trace, backward, check, forward
from clew.model.compare import rows_of, same_rows, shown_apart
from clew.pipeline.enriched import Enriched
from clew.pipeline.graph import Generative, Graph, OperatorSpec
from clew.pipeline.hints import OfDataclass
from clew.pipeline.onpandas import OnPandas
from clew.pipeline.records import Branch, PerRecord
from clew.pipeline.unplaced import UNPLACED
from clew.place import Log
from clew.protocol.rows import DROPPED, AsideStatus
from clew.provenance.records import RecordTrace, own_reads, records_back, records_forward
from clew.run import engine_for
from clew.runtime.asked import asked_of_records
from clew.runtime.contributions import Notes, contributions
from clew.runtime.engine import Engine
from clew.runtime.late import too_late
from clew.runtime.past import Past, has_one_event, past, records, run_again
from clew.runtime.task import Failure
from clew.spark.options import SparkOptions
from clew.store.base import KeptStore

if TYPE_CHECKING:
    from clew.spark.program import Program

#: Wraps a user's function, so that something happens when it is called.
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

#: How many digits the number of an event has at most, in 64 bits; Python refuses to read it when there are thousands.
_MOST_DIGITS = 19
#: How much is shown of what names no event.
_MOST_SHOWN = 80

#: Of how many Input Sets that collection has worn it is asked at once what is left of them.
_WORN_AT_ONCE = 1_000


@contextmanager
def opened(graph: Graph, log: str | None, bodies: str | None) -> Iterator[tuple[KeptStore, Log]]:
    """Open the log of a pipeline that was run; makes none, and refuses that of another one."""
    place = Log.at(log, graph.name, bodies)
    with closing(place.existing(graph.name)) as store:
        yield store, place


def trace_back(
    graph: Graph, event: EventId | str, to: Port | str | None = None, *, log: str | None = None,
    bodies: str | None = None,
) -> Trace:  # fmt: skip
    """Return what an event was made of, to the sources or only along the paths from port `to`.

    Events and ports may be given as people name them: `"paid.out#17"`, `"orders"`.
    """
    start, port = _event(graph, event), _port(graph, to)
    with opened(graph, log, bodies) as (store, _):
        return of_one_moment(store, lambda: _backward(graph, store, start, port), _itself)


def _backward(graph: Graph, store: KeptStore, start: EventId, to: Port | None) -> Trace:
    return _worn(graph, backward(store, start, to, _begins(graph)))


def _itself(trace: Trace) -> Trace:
    return trace


def _begins(graph: Graph) -> set[Port]:
    """Return the ports at which lineage begins where there are scopes: no scope leads to what a source has read."""
    sources = {Port(spec.name, port) for spec in graph.operators.values() if spec.is_source for port in spec.outputs}
    return {scope.start for scope in graph.scopes} | sources if graph.scopes else set()


def _worn(graph: Graph, found: Trace) -> Trace:
    """Leave of the steps at the edge of what was collected those that can have had more events than are left."""

    def whole(step: Step) -> bool:
        spec = graph.operators.get(step.operator)
        one = spec is not None and spec.functions and all(has_one_event(spec, own.name) for own in spec.functions)
        return bool(one and step.inputs)

    return replace(found, edge=tuple(step for step in found.edge if not whole(step)))


def trace_forward(
    graph: Graph, event: EventId | str, to: Port | str | None = None, *, log: str | None = None,
    bodies: str | None = None,
) -> Trace:  # fmt: skip
    """Return what was made of an event, to the ends of the pipeline or only along the paths to port `to`."""
    start, port = _event(graph, event), _port(graph, to)
    with opened(graph, log, bodies) as (store, _):
        return of_one_moment(store, lambda: forward(store, start, port), _itself)


def step_back(graph: Graph, event: EventId | str, *, log: str | None = None, bodies: str | None = None) -> list[Step]:
    """Return what an event was made of, one step back: an Input Set, its events, and what it read."""
    asked = _event(graph, event)
    with opened(graph, log, bodies) as (store, _):

        def step() -> Trace:
            known = Connections(store)
            check(store, known, asked, begins=_begins(graph))
            return Trace(asked, "back", tuple(steps_back(store, known, asked.port, [asked.number])))

        return of_one_moment(store, step, _steps)


def step_forward(
    graph: Graph, event: EventId | str, *, log: str | None = None, bodies: str | None = None
) -> list[Step]:
    """Return what was made of an event, one step forward: the Input Sets that it joined, at all its receivers."""
    asked = _event(graph, event)
    with opened(graph, log, bodies) as (store, _):

        def step() -> Trace:
            known = Connections(store)
            check(store, known, asked, backward=False)
            return Trace(asked, "forward", tuple(steps_forward(store, known, asked.port, [asked.number])))

        return of_one_moment(store, step, _steps)


def _steps(trace: Trace) -> list[Step]:
    return list(trace.steps)


def trace_record(
    graph: Graph, event: EventId | str, place: int, to: Port | str | None = None, *, log: str | None = None,
    bodies: str | None = None, direction: Literal["back", "forward"] = "back",
) -> RecordTrace:  # fmt: skip
    """Return what one record of an event, by its place from 0 on, can have been made of, or can have a part in."""
    start, port = _event(graph, event), _port(graph, to)
    with opened(graph, log, bodies) as (store, root):

        def walk() -> Trace:
            return _backward(graph, store, start, port) if direction == "back" else forward(store, start, port)

        return of_one_moment(store, walk, lambda trace: _followed(graph, store, root.bodies, trace, place, port))


def _followed(
    graph: Graph, store: KeptStore, root: str | None, trace: Trace, place: int, to: Port | None
) -> RecordTrace:
    """Follow one record of the event that a trace starts from along the trace, which leads to port `to`, or to all."""

    def rows(one: EventId) -> int:
        return int(records(store, one, root).num_rows)

    if not 0 <= place < rows(trace.start):
        raise NoSuchRecord(trace.start.told, place, rows(trace.start))
    notes = Notes()
    find = contributions(graph, store, root, notes)

    def narrow(step: Step, outputs: Mapping[EventId, tuple[int, ...]]) -> dict[EventId, tuple[int, ...]]:
        return _places(find(step.operator, step.input_set, step.inputs, outputs))

    back = trace.direction == "back"
    found = records_back(trace, place, narrow) if back else records_forward(trace, place, rows, narrow)
    found = own_reads(found, narrow, partial(asked_of_records, graph, store, root), Connections(store).is_source)
    late = () if back else tuple(_late(graph, store, found, to, root))
    return replace(found, widened=tuple(sorted(notes.widened)), changed=tuple(sorted(notes.changed)), late=late)


def _late(
    graph: Graph, store: KeptStore, found: RecordTrace, to: Port | None, root: str | None
) -> Iterator[tuple[EventId, int, str]]:
    """Yield the records of a trace forward that came too late for an operator on the paths to a port; None is any."""
    known = Connections(store)
    on_path = None if to is None else {port.operator for port in known.before(to)}
    for event, places in sorted(found.records.items()):
        receivers = {receiver.operator for receiver in known.receivers.get(event.port, ()) if event.port != to}
        for operator in sorted(receivers if on_path is None else receivers & on_path):
            left = too_late(graph, store, root, operator, event)
            yield from ((event, place, operator) for place in places if place in left)


def _event(graph: Graph, given: EventId | str) -> EventId:
    return named_event(graph, given) if isinstance(given, str) else given


def _port(graph: Graph, given: Port | str | None) -> Port | None:
    return named_port(graph, given) if isinstance(given, str) else given


def _places(found: Mapping[EventId, set[int]]) -> dict[EventId, tuple[int, ...]]:
    return {event: tuple(sorted(places)) for event, places in found.items()}


def records_of(graph: Graph, event: EventId | str, *, log: str | None = None, bodies: str | None = None) -> pa.Table:
    """Return the records of an event, or those that a write action writes, from the log."""
    asked = _event(graph, event)
    with opened(graph, log, bodies) as (store, place):

        def alone() -> Trace:
            check(store, Connections(store), asked, backward=False)
            return Trace(asked, "forward", ())

        return of_one_moment(store, alone, lambda trace: records(store, trace.start, place.bodies))


def named_port(graph: Graph, text: str) -> Port:
    """Read `OPERATOR.PORT`, or `OPERATOR`; of one that only writes, it is its write actions."""
    port = Port.parse(text)
    spec = graph.operators.get(port.operator)
    if spec is not None and port.name not in spec.outputs:
        for connection in spec.sinks:
            if port.name == connection or text == spec.name:
                return Port(spec.name, writes_port(connection))
    return port


def named_event(graph: Graph, text: str) -> EventId:
    """Read `OPERATOR.PORT#NUMBER`."""
    name, _, number = text.rpartition("#")
    if not name or not (number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS):
        shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
        raise SetupFailed(f"{shown!r} is no event", "name one as OPERATOR.PORT#NUMBER, for example paid.out#17")
    return EventId(named_port(graph, name), int(number))


@dataclass(frozen=True)
class Difference:
    """An event that a function gives otherwise than it was logged; one that is new, or gone, has no counterpart."""

    port: str
    event: EventId | None
    logged: str
    now: str


@dataclass(frozen=True)
class Replayed:
    """An Input Set that was run once more."""

    operator: str
    input_set: InputSetId
    events: tuple[EventId, ...]
    outputs: tuple[EventId, ...]
    differences: tuple[Difference, ...] = ()
    #: What the function failed of, where it did.
    failure: Failure | None = None
    #: Whether its events may not all be in the log any more, or another window has formed it: then it was not run.
    expired: bool = False

    @property
    def same(self) -> bool:
        """Whether it gave what was logged."""
        return not self.differences and self.failure is None


def replay(
    graph: Graph,
    operator: str,
    event: EventId | str,
    *,
    log: str | None = None,
    bodies: str | None = None,
    wrap: Wrap | None = None,
    options: SparkOptions | None = None,
    program: "Program | None" = None,
) -> list[Replayed]:
    """Run the Output Set that an event belongs to once more, alone, on the inputs it had; nothing is logged.

    `event` is one that the operator made, or one that it took: then all Output Sets that it had a part in are run.
    Functions on DataFrames run on Spark, all others in this process.
    """
    spec = _operator(graph, operator)
    used = replace(graph, operators={**graph.operators, operator: wrapped(spec, wrap)}) if wrap else graph
    with opened(graph, log, bodies) as (store, place):
        _check_captured(store, operator)
        asked = _event(graph, event)

        def marks() -> Any:
            return store.worn(operator), store.extent(asked.port)

        def sets() -> list[Past]:
            return [past(used, store, operator, number, place.bodies) for number in _to_run(store, spec, asked)]

        before, looked_at = marks(), undisturbed(marks, sets)
        with _computing(used, looked_at, options, program) as engine:
            found = list(_compared(store, engine, looked_at, place.bodies))
        if marks() != before:
            # Where what was logged has gone meanwhile, it was compared with nothing: that they are gone is said then.
            sets()
        return found


def _to_run(store: KeptStore, spec: OperatorSpec, asked: EventId) -> list[InputSetId]:
    """Return the Input Sets to run once more for an event."""
    joined = _sets(store, spec, asked)
    # What was tried again is in another Input Set, which the event has joined too.
    given = [n for n in joined if _aside(store, spec.name, n) != "retried" and _was_given(store, spec.name, n)]
    still_open = store.open_sets(spec.name)
    numbers = [n for n in given if n not in still_open]
    if not numbers:
        raise _no_set(store, spec, joined, given)(asked.told, spec.name)
    return numbers


def _no_set(
    store: KeptStore, spec: OperatorSpec, joined: Sequence[InputSetId], given: Sequence[InputSetId]
) -> type[SetOpen] | type[SetDropped] | type[CameTooLate] | type[NoInputSet]:
    """Choose what is to be said of an event that no Input Set can be run again of."""
    if joined:
        return SetOpen if given else SetDropped
    captured = set(spec.inputs) <= set(store.captures().get(spec.name, Capture()).inputs)
    return CameTooLate if captured else NoInputSet


def diff(
    graph: Graph,
    operator: str,
    *,
    log: str | None = None,
    bodies: str | None = None,
    options: SparkOptions | None = None,
    program: "Program | None" = None,
) -> Iterator[Replayed]:
    """Run all logged Input Sets of an operator with its function as it is now; yields each, compared.

    Those that collection has left without some of their events are yielded as expired.
    """
    spec = _operator(graph, operator)
    with opened(graph, log, bodies) as (store, place):
        _check_captured(store, operator)
        engine: Engine | None = None
        try:
            for number in _made(store, spec):
                try:
                    one = past(graph, store, operator, number, place.bodies)
                except (SetExpired, FormedOtherwise):
                    yield Replayed(operator, number, (), (), expired=True)
                    continue
                if engine is None:
                    engine = _engine_for(graph, [one], options, program)
                yield from _compared(store, engine, [one], place.bodies)
        finally:
            if engine is not None:
                engine.close()


def _operator(graph: Graph, name: str) -> OperatorSpec:
    spec = graph.operators.get(name)
    if spec is None or not spec.functions:
        raise NotAnOperator(name, [one.name for one in graph.operators.values() if one.functions])
    return spec


def _check_captured(store: KeptStore, operator: str) -> None:
    """Refuse an operator whose Output Sets are not known, so that there is nothing to compare with."""
    if not store.captures().get(operator, Capture()).outputs:
        raise NotCaptured(operator)


def _sets(store: KeptStore, spec: OperatorSpec, event: EventId) -> list[InputSetId]:
    """Return the Input Sets of an operator that an event was made of, or that it joined."""
    known = Connections(store)
    check(store, known, event, backward=event.port.operator == spec.name)
    if event.port.operator == spec.name:
        return [step.input_set for step in steps_back(store, known, event.port, [event.number])]
    receivers = [Port(spec.name, port) for port, sender in spec.inputs.items() if sender == event.port]
    if not receivers:
        raise NotMadeBy(event.told, spec.name)
    return sorted({number for receiver in receivers for _, number in store.joined(receiver, event.number, 1)})


def _made(store: KeptStore, spec: OperatorSpec) -> Iterator[InputSetId]:
    """Yield the Input Sets that were made into Output Sets, empty ones too, as far as they are in the log."""
    state = store.state(spec.name)
    last = 0 if state is None else int(state.context["input_set"])
    still_open = store.open_sets(spec.name)
    for number in _traced(store, spec, last):
        if number in still_open or _aside(store, spec.name, number) is not None:
            continue
        if _was_given(store, spec.name, number):
            yield number


def _traced(store: KeptStore, spec: OperatorSpec, last: int) -> Iterator[InputSetId]:
    """Yield the Input Sets up to one of which events are left; lineage leaves out what none on its paths has a part in.

    Of those that collection has worn most have none left, so they are asked for many at once.
    """
    captured = store.captures().get(spec.name, Capture()).inputs
    worn, first = max(store.worn(spec.name).taken.values(), default=0), 1
    while first <= last:
        count = min(_WORN_AT_ONCE, worn + 1 - first) if first <= worn else 1
        members = store.inputs_of(spec.name, InputSetId(first), count)
        yield from sorted({member.input_set for member in members if member.port.name in captured})
        first += count


def _aside(store: KeptStore, operator: str, number: InputSetId) -> AsideStatus | None:
    """Return what became of an Input Set that was set aside as a whole; None of one that was not."""
    return next((row.status for row in store.asides_of(operator, number, 1) if row.records is None), None)


def _was_given(store: KeptStore, operator: str, number: InputSetId) -> bool:
    """Say whether a closed Input Set was given to a function: it was not dropped, and its event has a place."""
    label = store.label(operator, number)
    return label is None or label[0] not in (DROPPED[0], UNPLACED)


@contextmanager
def _computing(
    graph: Graph, sets: Sequence[Past], options: SparkOptions | None, program: "Program | None"
) -> Iterator[Engine]:
    engine = _engine_for(graph, sets, options, program)
    try:
        yield engine
    finally:
        engine.close()


def _engine_for(graph: Graph, sets: Sequence[Past], options: SparkOptions | None, program: "Program | None") -> Engine:
    frames = any(one.spec.function(one.work.function).style == "dataframe" for one in sets)
    return engine_for(graph, "spark" if frames else "inline", None, options or SparkOptions(), program, None)


def _compared(store: KeptStore, engine: Engine, sets: Sequence[Past], root: str | None) -> Iterator[Replayed]:
    for one, result in zip(sets, run_again(store, engine, sets, root) if sets else ()):
        known = {port: events for port, events in one.outputs.items() if port in one.spec.outputs}
        outputs = tuple(event for events in one.outputs.values() for event in events)
        made = Replayed(one.spec.name, one.work.number, one.events, outputs)
        if isinstance(result, Failure):
            if result.kind == OtherRead.__name__ and _aside(store, one.spec.name, one.work.number) is not None:
                # It may read as it did: the log keeps no answers that an Output Set does not come from.
                raise AnswersNotKept(one.spec.name, one.work.number)
            yield replace(made, failure=result)
            continue
        found = tuple(
            difference
            for port, events in known.items()
            for difference in _differences(store, port, events, result.get(port, ()), root)
        )
        yield replace(made, differences=found)


def _differences(
    store: KeptStore, port: str, events: Sequence[EventId], now: Sequence[pa.Table], root: str | None
) -> Iterator[Difference]:
    for index in range(max(len(events), len(now))):
        logged = records(store, events[index], root) if index < len(events) else None
        made = now[index] if index < len(now) else None
        event = events[index] if index < len(events) else None
        if logged is None or made is None:
            yield Difference(port, event, _shown(logged), _shown(made))
        elif logged.schema.names != made.schema.names:
            yield Difference(port, event, f"columns {logged.schema.names}", f"columns {made.schema.names}")
        elif not same_rows(before := rows_of(logged), after := rows_of(made)):
            yield Difference(port, event, *shown_apart(before, after, logged.schema.names))


def _shown(table: pa.Table | None) -> str:
    return "no event" if table is None else shown_apart(rows_of(table), (), table.schema.names)[0]


def wrapped(spec: OperatorSpec, wrap: Wrap) -> OperatorSpec:
    """Return an operator whose functions of the user's are wrapped."""
    return replace(spec, functions=tuple(_wrapped(function, wrap) for function in spec.functions))


def _wrapped(function: Generative, wrap: Wrap) -> Generative:
    run: Any = function.run
    match run:
        case OnPandas() | PerRecord():
            run = replace(run, function=wrap(run.function))
        case Branch():
            own = {port: _of_record(one, wrap) if callable(one) else one for port, one in run.predicates.items()}
            run = replace(run, predicates=own)
        case Enriched():
            run = replace(run, asks=_of_record(run.asks, wrap), add=run.add and _of_record(run.add, wrap))
        case _:
            run = wrap(run)
    return replace(function, run=run)


def _of_record(function: Callable[..., Any], wrap: Wrap) -> Callable[..., Any]:
    """Wrap a function of a record: where it takes a dataclass, the user's own and not what builds it."""
    if isinstance(function, OfDataclass):
        return replace(function, function=wrap(function.function))
    return wrap(function)


__all__ = [
    "Difference", "Replayed", "Trace", "Wrap", "diff", "named_event", "named_port",
    "RecordTrace", "Step", "opened", "records_of", "replay", "step_back", "step_forward", "trace_back",
    "trace_forward", "trace_record",
]  # fmt: skip
