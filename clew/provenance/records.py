"""Traces of single records: of each event on the way, the records that can have contributed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
            found = {number for number in range(rows(event)) if _meets(narrow(step, {event: (number,)}), taken)}
            met.setdefault(event, set()).update(found)
    return RecordTrace(trace, {event: tuple(sorted(places)) for event, places in met.items() if places})


def _meets(found: Mapping[EventId, tuple[int, ...]], taken: Mapping[EventId, set[int]]) -> bool:
    return any(not taken[event].isdisjoint(places) for event, places in found.items() if event in taken)
