"""Traces of single records: of each event on the way, the records that can have contributed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from clew.ids import EventId, InputSetId
from clew.lineage.steps import Step
from clew.lineage.trace import Trace

#: Given a step and the places of some records of its outputs: the places of the records of its inputs that can have
#: contributed to them.
Narrow = Callable[[Step, Mapping[EventId, tuple[int, ...]]], Mapping[EventId, tuple[int, ...]]]
#: Given a step: an event that it has taken, and what was asked for each record of that; None where that is not known.
Asked = Callable[[Step], tuple[EventId, Sequence[str | None]] | None]


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
    #: Input Sets, by operator, of which it is not known which reads served the records here: all their reads are.
    read_whole: tuple[tuple[str, InputSetId], ...] = ()


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


def own_reads(found: RecordTrace, narrow: Narrow, asked: Asked, is_source: Callable[[str], bool]) -> RecordTrace:
    """Leave of the reads that served Input Sets those that were made for the records, where that is known."""
    steps: list[Step] = []
    whole: list[tuple[str, InputSetId]] = []
    for step in found.trace.steps:
        if step.reads and not is_source(step.operator):
            own = _own_actions(found, step, narrow, asked)
            if own is None:
                whole.append((step.operator, step.input_set))
            else:
                step = replace(step, reads=tuple(read for read in step.reads if read.description in own))
        steps.append(step)
    return replace(found, trace=replace(found.trace, steps=tuple(steps), _by_event={}), read_whole=tuple(whole))


def _own_actions(found: RecordTrace, step: Step, narrow: Narrow, asked: Asked) -> set[str | None] | None:
    """Return what was asked for the records of a trace that are in an Input Set; None where that is not known."""
    known = asked(step)
    if known is None:
        return None
    event, actions = known
    taken = found.records
    if found.trace.direction == "back":
        # The event may be there with other records too, for what other operators have made of it.
        taken = narrow(step, {made: found.records[made] for made in step.outputs if made in found.records})
    return {actions[place] for place in taken[event]} if event in taken else None


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
