"""Traces of single records: of each event on the way, the records that can have contributed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from clew.ids import EventId, InputSetId
from clew.lineage.steps import Step
from clew.lineage.trace import Trace

#: Given a step and the places of some records of its outputs: the places of the records of its inputs that can have
#: contributed to them.
Narrow = Callable[[Step, Mapping[EventId, tuple[int, ...]]], Mapping[EventId, tuple[int, ...]]]


@dataclass(frozen=True)
class RecordTrace:
    """What a record came from, or went into: the trace of its event, and the records of each event in it that can have
    a part, or can have it in them."""

    trace: Trace
    records: Mapping[EventId, tuple[int, ...]]
    #: Input Sets, by operator, of whose events all records are here: their operator was another one then.
    widened: tuple[tuple[str, InputSetId], ...] = ()
    #: Those of which all records are here because their operator, run again, gives other records than it gave.
    changed: tuple[tuple[str, InputSetId], ...] = ()
    #: Records, by their events and places, that an operator has left out though it took others of the event: they came
    #: too late for its windows.
    late: tuple[tuple[EventId, int, str], ...] = ()


def records_back(trace: Trace, place: int, narrow: Narrow) -> RecordTrace:
    """Follow one record of the event that a trace starts from."""
    wanted: dict[EventId, set[int]] = {trace.start: {place}}
    # Steps come the nearest first, so all that can lead to an event comes before what leads on from it.
    for step in trace.steps:
        outputs = {event: tuple(sorted(wanted[event])) for event in step.outputs if wanted.get(event)}
        found = narrow(step, outputs) if outputs and step.inputs else {}
        # Of the inputs that the trace does not follow nothing is asked.
        for event in step.inputs:
            wanted.setdefault(event, set()).update(found.get(event, ()))
    return RecordTrace(trace, {event: tuple(sorted(places)) for event, places in wanted.items() if places})


def records_forward(trace: Trace, place: int, rows: Callable[[EventId], int], narrow: Narrow) -> RecordTrace:
    """Follow one record of the event that a trace starts from, to the records that it can have contributed to."""
    met: dict[EventId, set[int]] = {trace.start: {place}}
    for step in trace.steps:
        taken = {event: met[event] for event in step.inputs if met.get(event)}
        for event in step.outputs if taken else ():
            meets = partial(_meets, narrow, step, event, taken)
            met.setdefault(event, set()).update(_reached(range(rows(event)), meets))
    return RecordTrace(trace, {event: tuple(sorted(places)) for event, places in met.items() if places})


def _reached(places: range, meets: Callable[[range], bool]) -> Iterator[int]:
    """Yield the places of records that meet something; what is asked grows with what is found.

    Some records together are made of what each of them is made of, so where they meet nothing, none of them does.
    """
    waiting = [places] if places and meets(places) else []
    while waiting:
        one = waiting.pop()
        if len(one) == 1:
            yield one[0]
            continue
        # By quarters: one record is found as soon as by halves, and all of them with half the questions between.
        size = -(-len(one) // 4)
        parts = (one[first : first + size] for first in range(0, len(one), size))
        waiting += [part for part in parts if meets(part)]


def _meets(narrow: Narrow, step: Step, event: EventId, taken: Mapping[EventId, set[int]], places: range) -> bool:
    """Say whether records of an event can be made of some of those that its Input Set has taken."""
    found = narrow(step, {event: tuple(places)})
    return any(not taken[one].isdisjoint(own) for one, own in found.items() if one in taken)
