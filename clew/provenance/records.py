"""Traces of single records: of each event on the way, the records that can have contributed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clew.ids import EventId
from clew.lineage.steps import Step
from clew.lineage.trace import Trace

#: Given a step and the places of some records of its outputs: the places of the records of its inputs that can have
#: contributed to them.
Narrow = Callable[[Step, Mapping[EventId, tuple[int, ...]]], Mapping[EventId, tuple[int, ...]]]


@dataclass(frozen=True)
class RecordTrace:
    """What a record came from: the trace of its event, and the records of each event in it that can have a part."""

    trace: Trace
    records: Mapping[EventId, tuple[int, ...]]


def records_back(trace: Trace, place: int, narrow: Narrow) -> RecordTrace:
    """Follow one record of the event that a trace starts from."""
    wanted: dict[EventId, set[int]] = {trace.start: {place}}
    # Steps come the nearest first, so all that can lead to an event comes before what leads on from it.
    for step in trace.steps:
        outputs = {event: tuple(sorted(wanted[event])) for event in step.outputs if wanted.get(event)}
        if outputs and step.inputs:
            for event, places in narrow(step, outputs).items():
                wanted.setdefault(event, set()).update(places)
    return RecordTrace(trace, {event: tuple(sorted(places)) for event, places in wanted.items() if places})
