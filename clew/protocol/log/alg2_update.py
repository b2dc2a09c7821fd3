"""Algorithm 2: the State Update phase, and the Triggering that ends it."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from clew.errors import GapInIds, UserFunctionFailed
from clew.ids import InputSetId
from clew.protocol.log.context import Arrival, Context, InputSet, Logic, Memory, Span, State
from clew.protocol.log.runs import Taken
from clew.protocol.rows import AsideRow, Label


@dataclass(frozen=True, slots=True)
class Update:
    """What a turn decided on headers alone: the events taken and the Input Sets that closed, in order."""

    context: Context
    taken: tuple[Taken, ...]
    closed: tuple[InputSet, ...]
    #: The last Input Set id before this turn.
    known: int
    #: Input Sets that end without an Output Set: dropped by a flush, or become part of another one.
    dropped: tuple[InputSetId, ...] = ()
    #: Whether the last of the operator's inputs ended in this turn, so that what was open is flushed.
    ends: bool = False
    #: What was decided before any event was taken, with its numbers in that order: by the clock, or by a person.
    decided: tuple[tuple[int, Any], ...] = ()
    #: What was set aside and is tried again, or dropped: its number, and its Input Set now.
    resolved: tuple[tuple[int, InputSetId | None], ...] = ()
    #: Events that joined a further Input Set after they were taken.
    rejoined: tuple[tuple[Span, InputSetId], ...] = ()

    @property
    def nothing(self) -> bool:
        return not (self.taken or self.closed or self.decided or self.ends)


@dataclass(frozen=True, slots=True)
class Retaken:
    """Events to be assigned anew, because the logic is another one now, with their numbers in the order of taking."""

    #: The global state of the new logic, before any event.
    state: State
    events: tuple[tuple[Arrival, int], ...]


def update(
    context: Context,
    logic: Logic,
    arrivals: Iterable[Arrival],
    decision: Any = None,
    asked: Sequence[AsideRow] = (),
    retaken: Retaken | None = None,
) -> Update:
    """Take events one by one; after each, close the Input Sets that became ready.

    Step 1: an obsolete event is discarded; a gap in ids is a bug and stops the operator (C1).
    Step 2: the event updates the global state, and is assigned to Input Sets.
    Step 3: triggering; a ready Input Set closes at once, with its own snapshot of the global state, and
    no event is assigned to it again.

    `decision` is what the clock makes the operator decide, `asked` what a person decided on that was set aside; both
    come before the events and have numbers as they have.

    `retaken` are all events of the open Input Sets, which end without Output Sets: the logic is another one since they
    were taken, and assigns them once more, in the same order, as if they came now.
    """
    turn = _Turn(context.draft(), logic)
    if retaken is not None:
        turn.forget(retaken.state)
    turn.begin()
    if asked:
        turn.resolve(asked)
    if decision is not None:
        turn.decide(decision)
    if retaken is not None:
        turn.retake(retaken.events)
    for event in arrivals:
        if event.number > turn.context.latest.get(event.port, 0):
            turn.take(event)
    turn.end()
    after = turn.context
    return Update(
        after, tuple(turn.taken), tuple(turn.closed), context.input_set, tuple(turn.dropped),
        after.flushed and not context.flushed, tuple(turn.decided), tuple(turn.resolved), tuple(turn.rejoined),
    )  # fmt: skip


@dataclass
class _Turn:
    """A turn under way."""

    context: Context
    logic: Logic
    taken: list[Taken] = field(default_factory=list)
    closed: list[InputSet] = field(default_factory=list)
    dropped: list[InputSetId] = field(default_factory=list)
    rejoined: list[tuple[Span, InputSetId]] = field(default_factory=list)
    decided: list[tuple[int, Any]] = field(default_factory=list)
    resolved: list[tuple[int, InputSetId | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._absorbed: list[tuple[Label, Label]] = []
        self._memory: Memory = self.context.memory(self._absorbed)

    def begin(self) -> None:
        self.context.turn += 1
        self.context.opened.watch(lambda label: self.logic.deadline(label, self._memory))
        # What was ready when the operator stopped, if anything, comes first (Algorithm 9, Step 2.c).
        if self.context.opened:
            self._close(self.logic.ready(self._memory, self.context.opened))

    def forget(self, state: State) -> None:
        """Let all that is open end, and begin with a global state of another logic."""
        context = self.context
        self.dropped += sorted(opened.number for opened in context.opened.values())
        context.opened.clear()
        context.keyed.clear()
        # A copy: a turn that fails is tried again from the same one.
        context.state = deepcopy(state)
        self._memory = context.memory(self._absorbed)

    def retake(self, events: Sequence[tuple[Arrival, int]]) -> None:
        for event, seq in events:
            labels = self.logic.assign(event, self._memory)
            self._absorb()
            for number in self._assign(labels, event, seq):
                self.rejoined.append((Span(event.port, event.number, 1, seq), number))
            self._close(self.logic.ready(self._memory, self.context.opened))
        for port in self.context.ended:
            self.logic.end(port, self._memory)
            self._close(self.logic.ready(self._memory, self.context.opened))

    def decide(self, decision: Any) -> None:
        self.context.seq += 1
        self.decided.append((self.context.seq, decision))
        self.logic.follow(decision, self._memory)
        self._close(self.logic.ready(self._memory, self.context.opened))

    def resolve(self, asked: Sequence[AsideRow]) -> None:
        """Do with what was set aside as a person decided: its events are a new Input Set, or are given up."""
        context = self.context
        context.seq += 1
        for row in asked:
            context.held -= 1
            self.resolved.append((row.number, self._again(row) if row.status == "retry" else None))
        self.decided.append((context.seq, {"": [list(pair) for pair in self.resolved]}))

    def _again(self, row: AsideRow) -> InputSetId:
        context = self.context
        context.input_set += 1
        again = InputSet(InputSetId(context.input_set), row.label, state=row.state, only=row.records)
        again.spans = [Span(*events) for events in row.events]
        again.closed_at = context.seq
        self.rejoined += [(span, again.number) for span in again.spans]
        self.closed.append(again)
        return again.number

    def take(self, event: Arrival) -> None:
        context = self.context
        expected = context.latest.get(event.port, 0) + 1
        if event.number != expected:
            raise GapInIds(f"{context.operator}.{event.port}", expected, event.number)
        context.latest[event.port] = event.number
        context.seq += 1
        sets: tuple[InputSetId, ...] = ()
        if event.end:
            context.ended.append(event.port)
            self.logic.end(event.port, self._memory)
        else:
            labels = self.logic.assign(event, self._memory)
            self._absorb()
            sets = self._assign(labels, event, context.seq)
        self.taken.append(Taken(event.port, event.number, context.seq, sets))
        self._close(self.logic.ready(self._memory, context.opened))

    def end(self) -> None:
        context = self.context
        self._close(self.logic.end_turn(self._memory, context.opened))
        if context.all_ended and context.senders and not context.flushed:
            self._close(self.logic.flush(self._memory, context.opened))
            self.dropped += [left.number for left in context.opened.values()]
            context.opened.clear()
            context.flushed = True

    def _assign(self, labels: Sequence[Label], event: Arrival, seq: int) -> tuple[InputSetId, ...]:
        """Add the event, number `seq` in the order taken, once to each Input Set of these labels; return their ids."""
        context = self.context
        sets = []
        for label in labels if len(labels) == 1 else dict.fromkeys(labels):
            opened = context.opened.get(label)
            if opened is None:
                context.input_set += 1
                opened = context.opened[label] = InputSet(InputSetId(context.input_set), label)
                context.opened.alarm(label, self.logic.deadline(label, self._memory))
            opened.add(event.port, event.number, seq)
            sets.append(opened.number)
        return tuple(sets)

    def _absorb(self) -> None:
        """Let Input Sets become part of others, with all their events."""
        opened = self.context.opened
        for gone, into in self._absorbed:
            old = opened.pop(gone)
            assert old is not None, f"{self.context.operator} has no open Input Set {gone}"
            target = opened[into]
            self.rejoined += [(span, target.number) for span in target.absorb(old)]
            self.dropped.append(old.number)
        self._absorbed.clear()

    def _close(self, labels: Iterable[Label]) -> None:
        context = self.context
        for label in dict.fromkeys(labels):
            input_set = context.opened.pop(label)
            if input_set is None:
                why = "it is named as complete, but is not open; return only keys that are in `opened`"
                raise UserFunctionFailed(context.operator, f"Input Set {label[1]!r}", "KeyError", why, "")
            input_set.closed_at = context.seq
            input_set.state = self.logic.close(label, self._memory)
            self.closed.append(input_set)
