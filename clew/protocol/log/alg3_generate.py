"""Algorithm 3: generation of Output Sets, Steps 2 to 5; one transaction for all of a turn's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clew.ids import Capture, InputSetId, Port, writes_port
from clew.protocol.log.alg2_update import Update
from clew.protocol.log.alg4_read import SideRead, log_reads
from clew.protocol.log.context import Context
from clew.protocol.log.runs import acknowledgements, finished, lineages, rejoins
from clew.protocol.rows import DROPPED, END, AsideRow, Bodies, EventRun, Header, WriteRow
from clew.protocol.step import (
    FixSchema,
    LogDecision,
    LogEvents,
    LogLineage,
    LogStateEvent,
    LogWrites,
    OpenSets,
    ResolveAside,
    SetAside,
    SetOperator,
    Step,
    Write,
)


@dataclass(frozen=True, slots=True)
class Output:
    """What some Input Sets produced on one port: `counts[i]` events for the i-th of them."""

    counts: tuple[int, ...]
    headers: tuple[Header, ...]
    bodies: tuple[Bodies, ...]


@dataclass(frozen=True, slots=True)
class Productions:
    """The Output Sets of `sets`, in that order."""

    sets: tuple[InputSetId, ...]
    outputs: Mapping[str, Output] = field(default_factory=dict)
    #: By connection: how many write actions each Input Set emitted, and their bodies one by one.
    writes: Mapping[str, Output] = field(default_factory=dict)
    reads: tuple[SideRead, ...] = ()
    schemas: tuple[FixSchema, ...] = ()
    #: Records that the function fails on, where it takes single ones: (Input Set, place in the event, error).
    failed: tuple[tuple[InputSetId, int, Mapping[str, Any]], ...] = ()


@dataclass(frozen=True, slots=True)
class Aside:
    """What a function fails on, and how: an Input Set, or some of its records."""

    input_set: InputSetId
    records: tuple[int, ...] | None
    error: Mapping[str, Any]


def generate(
    update: Update,
    productions: Sequence[Productions],
    sink: str | None = None,
    aside: Sequence[Aside] = (),
    capture: Capture | None = None,
) -> tuple[Context, Step]:
    """Log everything the turn did, atomically (Step 4), and name what to send after it (Step 5).

    `productions` hold the Output Sets of `update.closed`, in that order. `sink` names the connection of an
    operator without a function of its own: each closed Input Set is then one write action of its events.
    What is in `aside` has no Output Set, or one without some records, and is set aside. Lineage is recorded for the
    ports in `capture`, by default for all.

    The operator sends its own end when all its inputs have ended and nothing is set aside any more: what is tried again
    comes before the end.
    """
    if sink is None:
        _check(update, productions)
    context = update.context.numbering()
    capture = _all_ports(context, sink) if capture is None else capture
    set_aside = _set_aside(context, update, aside)
    ends = context.flushed and not context.finished and not context.held
    context.finished |= ends
    writes: list[Write] = list(acknowledgements(context.operator, update.taken, update.known))
    # The labels of Input Sets that were open before are in the log already.
    new = [s for _, _, s in context.opened.changes() if s is not None and s.number > update.known]
    new += [s for s in update.closed if s.number > update.known] if capture.labels else []
    opened = tuple((s.number, s.label) for s in sorted(new, key=lambda s: s.number))
    opened += tuple((number, DROPPED) for number in update.dropped) if capture.outputs else ()
    lineage = _Capture(capture, _left_out(update, capture))
    writes += [LogDecision(context.operator, *decided) for decided in update.decided]
    writes += [ResolveAside(context.operator, *resolved) for resolved in update.resolved]
    if set_aside:
        writes.append(SetAside(context.operator, set_aside))
    writes += rejoins(context.operator, update.rejoined)
    if opened:
        writes.append(OpenSets(context.operator, opened))
    writes += [schema for made in productions for schema in made.schemas]
    runs = [_log_output(context, port, productions, ends, lineage, writes) for port in context.outputs]
    writes += _state_events(context, update)
    for made in productions:
        writes += log_reads(context, made.reads)
        for connection, output in made.writes.items():
            if output.bodies:
                writes += _log_writes(context, connection, made.sets, output, lineage)
    if sink is not None and update.closed:
        writes += _sink_writes(context, sink, update, lineage)
    writes += finished(context.operator, [s.number for s in update.closed] + list(update.dropped))
    if ends:
        writes.append(SetOperator(context.operator, "finished"))
    sends = tuple(run for run in runs if run is not None)
    durable = bool(sends or update.closed or update.ends or update.resolved or ends)
    return context, Step((*writes, *context.store_keyed(), context.store_state()), sends, durable=durable)


def _set_aside(context: Context, update: Update, aside: Sequence[Aside]) -> tuple[AsideRow, ...]:
    """Number what is set aside."""
    sets = {closed.number: closed for closed in update.closed}
    rows = []
    for one in aside:
        context.aside += 1
        context.held += 1
        closed = sets[one.input_set]
        events = tuple((span.port, span.first, span.count, span.seq) for span in closed.spans)
        # Places of records are those in the event, also where only some of it were tried again.
        rows.append(
            AsideRow(context.aside, closed.number, closed.label, closed.state, events, one.records, dict(one.error))
        )
    return tuple(rows)


def _check(update: Update, productions: Sequence[Productions]) -> None:
    """Assert what makes it safe to set the Input Sets to done.

    G1: the Output Sets are those of the Input Sets that closed, in that order.
    G2: every output event is on a port of the operator and comes from one of these Input Sets.
    """
    made = [number for part in productions for number in part.sets]
    closed = [input_set.number for input_set in update.closed]
    if made != closed:
        raise AssertionError(f"G1: {update.context.operator} closed Input Sets {closed}, but produced those of {made}")
    for part in productions:
        for port, output in part.outputs.items():
            known = port in update.context.outputs
            if not known or len(output.counts) != len(part.sets) or sum(output.counts) != len(output.headers):
                raise AssertionError(
                    f"G2: {update.context.operator}.{port} has {len(output.headers)} output events, counted as "
                    f"{output.counts} for Input Sets {part.sets}; its ports are {update.context.outputs}"
                )


def _all_ports(context: Context, sink: str | None) -> Capture:
    writes = () if sink is None else (writes_port(sink),)
    return Capture(tuple(context.senders), (*context.outputs, *writes))


class _Capture(NamedTuple):
    """What a turn records of lineage: for these ports, and nothing of the Input Sets that are left out."""

    ports: Capture
    left_out: frozenset[InputSetId]

    def of(self, port: Port, first: int, sets: Sequence[InputSetId], counts: Sequence[int]) -> Iterator[Write]:
        """Step 4 (5b): yield the lineage of events from `first` on, `counts[i]` of them from `sets[i]`."""
        if port.name in self.ports.outputs:
            yield from (LogLineage(lineage) for lineage in lineages(port, first, sets, counts, self.left_out))


def _left_out(update: Update, capture: Capture) -> frozenset[InputSetId]:
    """Return the Input Sets without an event of a port in IN: nothing is recorded of what they produce."""
    if not capture.outputs or set(capture.inputs).issuperset(update.context.senders):
        return frozenset()
    inputs = set(capture.inputs)
    return frozenset(s.number for s in update.closed if not any(span.port in inputs for span in s.spans))


def _log_output(
    context: Context,
    port: str,
    productions: Sequence[Productions],
    ends: bool,
    lineage: _Capture,
    writes: list[Write],
) -> EventRun | None:
    """Step 4 (1), (2), (5b): number the output events of one port and log them with their lineage."""
    outputs = [(made.sets, made.outputs[port]) for made in productions if port in made.outputs]
    headers = [header for _, output in outputs for header in output.headers]
    bodies = tuple(run for _, output in outputs for run in output.bodies)
    if ends:
        headers.append(END)
    if not headers:
        return None
    sender = Port(context.operator, port)
    first = context.sent.get(port, 0) + 1
    run = EventRun(sender, first, tuple(headers), bodies)
    context.sent[port] = run.last
    writes.append(LogEvents(run))
    sets = [number for numbers, _ in outputs for number in numbers]
    counts = [count for _, output in outputs for count in output.counts]
    writes += lineage.of(sender, first, sets, counts)
    return run


def _state_events(context: Context, update: Update) -> Iterator[Write]:
    """Step 2 and Step 4 (3): the global state that each Input Set saw, as an event of that Input Set."""
    for closed in update.closed:
        if closed.state is not None:
            context.state_id += 1
            yield LogStateEvent(context.operator, context.state_id, closed.number, closed.state)


def _log_writes(
    context: Context, connection: str, sets: Sequence[InputSetId], output: Output, lineage: _Capture
) -> Iterator[Write]:
    first = context.writes.get(connection, 0) + 1
    bodies = [run.cut(i, i + 1) for run in output.bodies for i in range(len(run))]
    rows = tuple(WriteRow(first + index, (), (body,)) for index, body in enumerate(bodies))
    context.writes[connection] = first + len(rows) - 1
    yield LogWrites(Port(context.operator, connection), rows)
    yield from lineage.of(Port(context.operator, writes_port(connection)), first, sets, output.counts)


def _sink_writes(context: Context, connection: str, update: Update, lineage: _Capture) -> Iterator[Write]:
    first = context.writes.get(connection, 0) + 1
    rows = tuple(
        WriteRow(first + index, tuple((context.senders[s.port], s.first, s.count) for s in closed.spans))
        for index, closed in enumerate(update.closed)
    )
    context.writes[connection] = first + len(rows) - 1
    yield LogWrites(Port(context.operator, connection), rows)
    sets = [closed.number for closed in update.closed]
    yield from lineage.of(Port(context.operator, writes_port(connection)), first, sets, [1] * len(sets))
