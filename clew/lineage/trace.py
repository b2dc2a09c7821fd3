"""Whole traces: backward and forward from an event, along all paths, to any port.

Ports are gone through in the order of the pipeline, each once, with all its events that the trace has met: so an event
that several paths lead to is asked for once, and a trace costs what it holds.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from clew.errors import EventExpired, NoSuchEvent, NoSuchPort, NotCaptured
from clew.ids import EventId, Port
from clew.lineage.steps import Connections, Step, steps_back, steps_forward
from clew.protocol.log.runs import consecutive
from clew.store.base import Lineages, Worn


@dataclass(frozen=True)
class Trace:
    """What an event came from, or what came of it: the steps on all paths, the nearest first."""

    start: EventId
    direction: Literal["back", "forward"]
    steps: tuple[Step, ...]
    #: Ports at which the trace ends because lineage is not captured further.
    cut: tuple[Port, ...] = ()
    #: Ports at which it ends because capture begins there: all that it was to say is said.
    begins: tuple[Port, ...] = ()
    #: Steps at the edge of what was collected: events that lead on from them may be gone.
    edge: tuple[Step, ...] = ()
    #: Events that an operator has passed over, so that they are in none of its Input Sets: they came too late.
    passed: tuple[tuple[EventId, str], ...] = ()
    _by_event: dict[EventId, list[Step]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for step in self.steps:
            for event in step.outputs if self.direction == "back" else step.inputs:
                self._by_event.setdefault(event, []).append(step)

    def steps_at(self, event: EventId) -> Sequence[Step]:
        """Return the steps that lead on from an event."""
        return self._by_event.get(event, ())

    def events(self, port: Port) -> list[EventId]:
        """Return the events of a port that the trace has met, in order."""
        met = {event for step in self.steps for event in (*step.inputs, *step.outputs) if event.port == port}
        return sorted(met | ({self.start} if self.start.port == port else set()))


def backward(log: Lineages, start: EventId, to: Port | None = None, begins: Collection[Port] = ()) -> Trace:
    """Return what an event was made of: to the sources, or only along the paths from port `to`.

    `begins` are the ports from which on lineage is captured: a trace that comes to one of them lacks nothing there.
    """
    known = Connections(log)
    check(log, known, start, begins=begins)
    check_path(known, start.port, to, backward=True)

    def wanted(port: Port) -> bool:
        return to is None or to in known.before(port)

    def steps(port: Port, numbers: Sequence[int]) -> list[Step]:
        return [] if port == to else [_kept(step, wanted) for step in steps_back(log, known, port, numbers)]

    found, ends = _walk(known, start, steps, lambda step: (step.outputs, step.inputs), nearest_last=True)
    begun = {port for port in ends - {to} if port in begins and not known.is_captured(port)}
    ends -= {*begun, to}
    for operator in {step.operator for step in found}:
        captured = known.captured(operator).inputs
        ends |= {sender for name, sender in known.inputs(operator).items() if name not in captured and wanted(sender)}

    def taken(operator: str, worn: Worn) -> Iterable[int]:
        captured, senders = known.captured(operator).inputs, known.inputs(operator)
        # A port that is gone was there when they took something on it.
        asked = [port for port in worn.taken if port not in senders or (port in captured and wanted(senders[port]))]
        return [worn.taken[port] for port in asked]

    trace = Trace(start, "back", tuple(found), tuple(sorted(ends)), tuple(sorted(begun)), _edge(log, found, taken))
    return trace if to is None else _leading(trace, to)


def forward(log: Lineages, start: EventId, to: Port | None = None) -> Trace:
    """Return what was made of an event: to the ends of the pipeline, or only along the paths to port `to`."""
    known = Connections(log)
    check(log, known, start, backward=False)
    check_path(known, start.port, to, backward=False)

    def wanted(port: Port) -> bool:
        return to is None or port in known.before(to)

    def steps(port: Port, numbers: Sequence[int]) -> list[Step]:
        if port == to:
            return []
        found = steps_forward(log, known, port, numbers)
        on_path = [step for step in found if to is None or any(map(wanted, known.ports(step.operator)))]
        return [replace(step, outputs=tuple(e for e in step.outputs if wanted(e.port))) for step in on_path]

    found, _ = _walk(known, start, steps, lambda step: (step.inputs, step.outputs), nearest_last=False)
    met = {event.port for step in found for event in step.outputs} | {start.port}
    ends = {port for port in met - {to} if any(_is_lost(known, r, to) for r in known.receivers.get(port, ()))}
    for operator in {step.operator for step in found}:
        captured = known.captured(operator).outputs
        ends |= {port for port in known.ports(operator) if port.name not in captured and wanted(port)}

    def made(operator: str, worn: Worn) -> Iterable[int]:
        return [number for port, number in worn.made.items() if wanted(Port(operator, port))]

    passed = _passed(log, known, start, found, to)
    trace = Trace(start, "forward", tuple(found), tuple(sorted(ends)), (), _edge(log, found, made), passed)
    return trace if to is None else _leading(trace, to)


def _passed(
    log: Lineages, known: Connections, start: EventId, steps: Sequence[Step], to: Port | None
) -> tuple[tuple[EventId, str], ...]:
    """Return the events of a trace that some operator has taken and has in no Input Set."""
    met = {start, *(event for step in steps for event in step.outputs if event.port != to)}
    taken = {(event, step.operator) for step in steps for event in step.inputs}
    left: dict[Port, list[int]] = {}
    for event in sorted(met):
        for receiver in known.receivers.get(event.port, ()):
            told = receiver.name in known.captured(receiver.operator).inputs
            if told and (event, receiver.operator) not in taken and _leads(known, receiver, to):
                left.setdefault(receiver, []).append(event.number)
    found = {
        (EventId(known.senders[receiver], number), receiver.operator)
        for receiver, numbers in left.items()
        for first, count in consecutive(numbers)
        for number in log.passed_over(receiver, first, count)
    }
    return tuple(sorted(found))


def _is_lost(known: Connections, receiver: Port, to: Port | None) -> bool:
    """Say whether nothing is told of what a port receives, though it may lead to where a trace is to go."""
    return receiver.name not in known.captured(receiver.operator).inputs and _leads(known, receiver, to)


def _leads(known: Connections, receiver: Port, to: Port | None) -> bool:
    """Say whether what a port receives may lead to where a trace is to go; None is anywhere."""
    return to is None or any(port in known.before(to) for port in known.ports(receiver.operator))


def _kept(step: Step, wanted: Callable[[Port], bool]) -> Step:
    return replace(step, inputs=tuple(event for event in step.inputs if wanted(event.port)))


def _leading(trace: Trace, to: Port) -> Trace:
    """Leave of a trace what leads to events of a port, and what may: to where it ends before it, or was set aside.

    An operator may be on a path to a port and its Input Set not: after a union, or a filter.
    """
    back = trace.direction == "back"
    ends, edge = {to, *trace.cut, *trace.begins}, {(step.operator, step.input_set) for step in trace.edge}
    leads: set[EventId] = set()
    kept: list[Step] = []
    # The farthest first, so that all that an event leads to is known before the event is asked for.
    for step in reversed(trace.steps):
        onward, from_here = (step.inputs, step.outputs) if back else (step.outputs, step.inputs)
        leading = tuple(event for event in onward if event.port in ends or event in leads)
        if leading or (step.operator, step.input_set) in edge or step.asides:
            kept.append(replace(step, inputs=leading) if back else replace(step, outputs=leading))
            leads.update(from_here)
    steps = tuple(reversed(kept))
    at_edge = tuple(step for step in steps if (step.operator, step.input_set) in edge)
    return replace(trace, steps=steps, edge=at_edge, _by_event={})


def _edge(log: Lineages, steps: Sequence[Step], ports: Callable[[str, Worn], Iterable[int]]) -> tuple[Step, ...]:
    """Return the steps of Input Sets that may have lost events to collection, by what `ports` chooses of the marks."""
    upto: dict[str, int] = {}
    for step in steps:
        if step.operator not in upto:
            upto[step.operator] = max(ports(step.operator, log.worn(step.operator)), default=0)
    return tuple(step for step in steps if step.input_set <= upto[step.operator])


def _walk(
    known: Connections,
    start: EventId,
    steps: Callable[[Port, Sequence[int]], list[Step]],
    ends: Callable[[Step], tuple[tuple[EventId, ...], tuple[EventId, ...]]],
    nearest_last: bool,
) -> tuple[list[Step], set[Port]]:
    """Go from port to port, with all events met there; returns the steps, and the ports of events nothing led on from.

    `ends` gives the events of a step that lead to it, and those that it leads to.
    """
    waiting: dict[Port, set[int]] = {start.port: {start.number}}
    found: list[Step] = []
    cut: set[Port] = set()
    while waiting:
        # The one that no other can still lead to.
        port = (max if nearest_last else min)(waiting, key=lambda port: (known.depth(port.operator), port))
        numbers = waiting.pop(port)
        made = steps(port, sorted(numbers))
        if not numbers <= {event.number for step in made for event in ends(step)[0]}:
            cut.add(port)
        found += made
        for step in made:
            for event in ends(step)[1]:
                waiting.setdefault(event.port, set()).add(event.number)
    return found, cut


def check(
    log: Lineages, known: Connections, event: EventId, backward: bool = True, begins: Collection[Port] = ()
) -> None:
    """Refuse an event that nothing can be said of; at a port at which capture begins, it is said that it does."""
    _check_port(known, event.port)
    collected, last = log.extent(event.port)
    # The end of the stream is numbered too, and is nobody's event.
    last -= int(log.ends(event.port))
    if event.number < 1 or event.number > last:
        raise NoSuchEvent(event.told, event.port.told, last)
    if event.number <= collected:
        raise EventExpired(event.told, collected)
    if backward and not known.is_captured(event.port) and event.port not in begins:
        raise NotCaptured(event.port.told)


def check_path(known: Connections, port: Port, to: Port | None, backward: bool) -> None:
    """Refuse a port that no path leads to from another, or back from it; None is any."""
    if to is None:
        return
    _check_port(known, to)
    ahead = (known.before(port) if backward else known.after(port)) - {port}
    if to not in ahead:
        where = f"{'before' if backward else 'after'} {port.told}"
        raise NoSuchPort(to.told, where, [one.told for one in sorted(ahead)])


def _check_port(known: Connections, port: Port) -> None:
    ports = known.all_ports()
    if port not in ports:
        raise NoSuchPort(port.told, "in this log", [one.told for one in sorted(ports)])
