"""Whole traces: backward and forward from an event, along all paths, to any port.

Ports are gone through in the order of the pipeline, each once, with all its events that the trace has met: so an event
that several paths lead to is asked for once, and a trace costs what it holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from clew.errors import EventExpired, NoSuchEvent, NoSuchPort, NotCaptured
from clew.ids import EventId, Port
from clew.lineage.steps import Connections, Step, steps_back, steps_forward
from clew.store.base import Lineages


@dataclass(frozen=True)
class Trace:
    """What an event came from, or what came of it: the steps on all paths, the nearest first."""

    start: EventId
    direction: Literal["back", "forward"]
    steps: tuple[Step, ...]
    #: Ports at which the trace ends because lineage is not captured further.
    cut: tuple[Port, ...] = ()
    #: Steps back at the edge of what was collected: events before the first, or all of a port, may be gone.
    edge: tuple[Step, ...] = ()
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


def backward(log: Lineages, start: EventId, to: Port | None = None) -> Trace:
    """Return what an event was made of: to the sources, or only along the paths from port `to`."""
    known = Connections(log)
    check(log, known, start)
    check_path(known, to, start.port)

    def wanted(port: Port) -> bool:
        return to is None or to in known.before(port)

    def steps(port: Port, numbers: Sequence[int]) -> list[Step]:
        return [] if port == to else [_kept(step, wanted) for step in steps_back(log, known, port, numbers)]

    found, cut = _walk(known, start, steps, lambda step: step.inputs, nearest_last=True)
    edge = _edge(log, known, found, wanted)
    return Trace(start, "back", tuple(found), tuple(port for port in cut if port != to), edge)


def forward(log: Lineages, start: EventId, to: Port | None = None) -> Trace:
    """Return what was made of an event: to the ends of the pipeline, or only along the paths to port `to`."""
    known = Connections(log)
    check(log, known, start, backward=False)
    check_path(known, start.port, to)

    def wanted(port: Port) -> bool:
        return to is None or port in known.before(to)

    def steps(port: Port, numbers: Sequence[int]) -> list[Step]:
        if port == to:
            return []
        found = steps_forward(log, known, port, numbers)
        on_path = [step for step in found if to is None or any(map(wanted, known.ports(step.operator)))]
        return [
            Step(s.operator, s.input_set, s.inputs, tuple(e for e in s.outputs if wanted(e.port)), s.reads, s.asides)
            for s in on_path
        ]

    found, _ = _walk(known, start, steps, lambda step: step.outputs, nearest_last=False)
    ends = {event.port for step in found for event in step.outputs} | {start.port}
    cut = sorted(
        port
        for port in ends
        if port != to and any(r.name not in known.captured(r.operator).inputs for r in known.receivers.get(port, ()))
    )
    return Trace(start, "forward", tuple(found), tuple(cut))


def _kept(step: Step, wanted: Callable[[Port], bool]) -> Step:
    inputs = tuple(event for event in step.inputs if wanted(event.port))
    return Step(step.operator, step.input_set, inputs, step.outputs, step.reads, step.asides)


def _edge(log: Lineages, known: Connections, steps: Sequence[Step], wanted: Callable[[Port], bool]) -> tuple[Step, ...]:
    """Return the steps whose first event of some port is the first that is left of it, or that have none of it."""
    collected: dict[Port, int] = {}
    edge = []
    for step in steps:
        for sender in filter(wanted, known.inputs(step.operator)):
            if sender not in collected:
                collected[sender] = log.extent(sender)[0]
            first = min((event.number for event in step.inputs if event.port == sender), default=0)
            if collected[sender] and first <= collected[sender] + 1:
                edge.append(step)
                break
    return tuple(edge)


def _walk(
    known: Connections,
    start: EventId,
    steps: Callable[[Port, Sequence[int]], list[Step]],
    onward: Callable[[Step], tuple[EventId, ...]],
    nearest_last: bool,
) -> tuple[list[Step], list[Port]]:
    """Go from port to port, with all events met there; returns the steps, and the ports that nothing led on from."""
    waiting: dict[Port, set[int]] = {start.port: {start.number}}
    found: list[Step] = []
    cut: list[Port] = []
    while waiting:
        # The one that no other can still lead to.
        port = (max if nearest_last else min)(waiting, key=lambda port: (known.depth(port.operator), port))
        made = steps(port, sorted(waiting.pop(port)))
        if not made:
            cut.append(port)
        found += made
        for step in made:
            for event in onward(step):
                waiting.setdefault(event.port, set()).add(event.number)
    return found, cut


def check(log: Lineages, known: Connections, event: EventId, backward: bool = True) -> None:
    """Refuse an event that nothing can be said of."""
    _check_port(known, event.port)
    collected, last = log.extent(event.port)
    if event.number < 1 or event.number > last:
        raise NoSuchEvent(str(event), str(event.port), last)
    if event.number <= collected:
        raise EventExpired(str(event), collected)
    if backward and event.port.name not in known.captured(event.port.operator).outputs:
        raise NotCaptured(str(event.port))


def check_path(known: Connections, start: Port | None, target: Port | None) -> None:
    """Refuse ports between which there is no path; None is any."""
    for port in (start, target):
        if port is not None:
            _check_port(known, port)
    if start is not None and target is not None and start not in known.before(target):
        raise NoSuchPort(f"{target}", f"after {start}", [str(p) for p in sorted(known.after(start) - {start})])


def _check_port(known: Connections, port: Port) -> None:
    operators = {one.operator for pair in known.senders.items() for one in pair} | set(known.captures)
    ports = {made for operator in operators for made in known.ports(operator)}
    if port not in ports:
        raise NoSuchPort(str(port), "in this log", [str(one) for one in sorted(ports)])
