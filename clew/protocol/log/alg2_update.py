"""Algorithm 2: the State Update phase, and the Triggering that ends it."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass

from clew.errors import GapInIds, UserFunctionFailed
from clew.ids import InputSetId
from clew.protocol.log.context import Arrival, Context, InputSet, Logic
from clew.protocol.log.runs import Taken
from clew.protocol.rows import Label


@dataclass(frozen=True, slots=True)
class Update:
    """What a turn decided on headers alone: the events taken and the Input Sets that closed, in order."""

    context: Context
    taken: tuple[Taken, ...]
    closed: tuple[InputSet, ...]
    #: The last Input Set id before this turn.
    known: int
    #: Input Sets that end without an Output Set: dropped by a flush.
    dropped: tuple[InputSetId, ...] = ()
    #: Whether the last of the operator's inputs ended in this turn: then, and never again, it sends its own end.
    ends: bool = False

    @property
    def nothing(self) -> bool:
        return not (self.taken or self.closed)


def update(context: Context, logic: Logic, arrivals: Iterable[Arrival]) -> Update:
    """Take events one by one; after each, close the Input Sets that became ready.

    Step 1: an obsolete event is discarded; a gap in ids is a bug and stops the operator (C1).
    Step 2: the event updates the global state, and is assigned to Input Sets.
    Step 3: triggering; a ready Input Set closes at once, with its own snapshot of the global state, and
    no event is assigned to it again.
    """
    after = context.draft()
    after.turn += 1
    taken: list[Taken] = []
    # What was ready when the operator stopped, if anything, comes first (Algorithm 9, Step 2.c).
    closed = _close(after, logic, logic.ready(after.state, after.opened)) if after.opened else []
    for event in arrivals:
        if event.number <= after.latest.get(event.port, 0):
            continue
        taken.append(_take(after, logic, event))
        closed += _close(after, logic, logic.ready(after.state, after.opened))
    closed += _close(after, logic, logic.end_turn(after.state, after.opened))
    dropped: tuple[InputSetId, ...] = ()
    ends = after.all_ended and bool(after.senders) and not after.finished
    if ends:
        closed += _close(after, logic, logic.flush(after.state, after.opened))
        dropped = tuple(left.number for left in after.opened.values())
        after.opened.clear()
        after.finished = True
    return Update(after, tuple(taken), tuple(closed), context.input_set, dropped, ends)


def _take(context: Context, logic: Logic, event: Arrival) -> Taken:
    expected = context.latest.get(event.port, 0) + 1
    if event.number != expected:
        raise GapInIds(f"{context.operator}.{event.port}", expected, event.number)
    context.latest[event.port] = event.number
    context.seq += 1
    if event.end:
        context.ended.append(event.port)
        logic.end(event.port, context.state)
        return Taken(event.port, event.number, context.seq, ())
    labels = logic.assign(event, context.state)
    return Taken(event.port, event.number, context.seq, assign(context, labels, event.port, event.number))


def assign(context: Context, labels: Sequence[Label], port: str, number: int) -> tuple[InputSetId, ...]:
    """Add the event once to each Input Set of these labels, opening those that are new; return their ids."""
    sets = []
    for label in dict.fromkeys(labels):
        opened = context.opened.get(label)
        if opened is None:
            context.input_set += 1
            opened = context.opened[label] = InputSet(InputSetId(context.input_set), label)
        opened.add(port, number)
        sets.append(opened.number)
    return tuple(sets)


def _close(context: Context, logic: Logic, labels: Iterable[Label]) -> list[InputSet]:
    closed = []
    for label in dict.fromkeys(labels):
        input_set = context.opened.pop(label, None)
        if input_set is None:
            why = "it is named as complete, but is not open; return only keys that are in `opened`"
            raise UserFunctionFailed(context.operator, f"Input Set {label[1]!r}", "KeyError", why, "")
        input_set.closed_at = context.seq
        if logic.uses_state:
            input_set.state = deepcopy(context.state)
        closed.append(input_set)
    return closed
