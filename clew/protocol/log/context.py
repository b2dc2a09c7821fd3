"""The LOG.io context of an operator: its counters, the array of latest ids, its open Input Sets.

Counters live in STATE, written by the transaction that uses them, and are never derived from rows (C2).
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from clew.ids import InputSetId, Port
from clew.protocol.log.layers import Layers, Overlay
from clew.protocol.rows import Label, StateRow
from clew.protocol.step import StoreKeyed, StoreState

State = dict[str, Any]
#: What a generative function's window remembers of its keys.
Keyed = Layers[Any]


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event as control sees it when it takes it: header and this receiver's facts."""

    port: str
    number: int
    rows: int = 0
    size: int = 0
    facts: Any = None
    end: bool = False


class Logic(Protocol):
    """The operator's own decisions, on headers and global state alone (LOG.io, Section 2.3)."""

    def initial(self) -> State: ...
    def assign(self, event: Arrival, memory: "Memory") -> Sequence[Label]: ...
    def ready(self, memory: "Memory", opened: "Opened") -> Sequence[Label]: ...
    def deadline(self, label: Label, memory: "Memory") -> int | None: ...
    def close(self, label: Label, memory: "Memory") -> Any: ...
    def end(self, port: str, memory: "Memory") -> None: ...
    def end_turn(self, memory: "Memory", opened: "Opened") -> Sequence[Label]: ...
    def flush(self, memory: "Memory", opened: "Opened") -> Sequence[Label]: ...
    def follow(self, decision: Any, memory: "Memory") -> None: ...


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive events received on a port, taken one after the other; the first carries number `seq`."""

    port: str
    first: int
    count: int
    seq: int = field(default=0, compare=False)


@dataclass(slots=True)
class InputSet:
    """An Input Set and the events assigned to it, in the order in which they were taken."""

    number: InputSetId
    label: Label
    spans: list[Span] = field(default_factory=list)
    #: The global state that its generative function sees, where it sees any.
    state: Any = None
    #: The number of the event after which it closed.
    closed_at: int = 0
    #: The records that it has, by their places in its event, where it is one that was set aside; None for all.
    only: tuple[int, ...] | None = None

    def add(self, port: str, number: int, seq: int) -> None:
        last = self.spans[-1] if self.spans else None
        if last and last.seq + last.count == seq and last.first + last.count == number and last.port == port:
            self.spans[-1] = Span(port, last.first, last.count + 1, last.seq)
        else:
            self.spans.append(Span(port, number, 1, seq))

    def absorb(self, other: "InputSet") -> list[Span]:
        """Take the events of another Input Set in, where they belong; return those that were not here."""
        here = {seq for span in self.spans for seq in range(span.seq, span.seq + span.count)}
        events = sorted(
            (span.seq + i, span.port, span.first + i) for span in (*self.spans, *other.spans) for i in range(span.count)
        )
        new = InputSet(self.number, self.label)
        self.spans.clear()
        for seq, port, number in dict.fromkeys(events):
            self.add(port, number, seq)
            if seq not in here:
                new.add(port, number, seq)
        return new.spans

    def copy(self) -> "InputSet":
        return InputSet(self.number, self.label, list(self.spans), self.state, self.closed_at, self.only)


@dataclass(frozen=True, slots=True)
class Memory:
    """What control remembers of an operator, as its logic may change it: all of it goes into STATE."""

    shared: State
    _keyed: Keyed
    _absorbed: list[tuple[Label, Label]]
    _function: str = ""
    #: Asked for several times per event, so made once.
    _by: dict[str, "Memory"] = field(default_factory=dict)

    def of(self, function: str) -> "Memory":
        """Return what one generative function's window remembers."""
        own = self._by.get(function)
        if own is None:
            own = self._by[function] = Memory(self.shared[function], self._keyed, self._absorbed, function)
        return own

    @property
    def keyed(self) -> MutableMapping[str, Any]:
        return self._keyed.layer(self._function)

    def absorb(self, gone: Any, into: Any) -> None:
        """Let all events of one open Input Set join another one."""
        self._absorbed.append(((self._function, gone), (self._function, into)))


class Opened(Layers[InputSet]):
    """The open Input Sets by label, and the times at which they are due.

    Alarms follow from the Input Sets and from STATE, so they are in no log. An Input Set has one alarm, which may be
    too early: its deadline is looked at again when it rings. They are not drafted: when a draft was forgotten, they are
    set again for all.
    """

    def __init__(self, copy: Callable[[InputSet], InputSet] = InputSet.copy) -> None:
        super().__init__(copy)
        self._alarms: dict[str, list[tuple[int, Any]]] = {}
        self._settled = [False]
        #: Asked for with every event, so made once.
        self._of: dict[str, OpenedOf] = {}

    def draft(self) -> "Opened":
        made = super().draft()
        assert isinstance(made, Opened)
        made._alarms, made._settled = self._alarms, self._settled
        return made

    def settle(self) -> None:
        super().settle()
        self._settled[0] = True

    def forget_alarms(self) -> None:
        """Let the next turn set all alarms: these Input Sets come from the log."""
        self._settled[0] = False

    def watch(self, deadline: Callable[[Label], int | None]) -> None:
        """Begin a turn: set all alarms anew, unless they are those of what was settled last."""
        if not self._settled[0]:
            self._alarms.clear()
            self._of.clear()
            for label in self:
                self.alarm(label, deadline(label))
        self._settled[0] = False

    def alarm(self, label: Label, deadline: int | None) -> None:
        """Set the alarm of an Input Set that was opened."""
        if deadline is not None:
            heapq.heappush(self._alarms.setdefault(label[0], []), (deadline, label[1]))

    def of(self, function: str) -> "OpenedOf":
        """Return those of one generative function."""
        own = self._of.get(function)
        if own is None:
            own = self._of[function] = OpenedOf(self.layer(function), self._alarms.setdefault(function, []))
        return own

    def labels(self) -> list[Label]:
        """Return all labels in the order in which they were opened."""
        return [opened.label for opened in sorted(self.values(), key=lambda opened: opened.number)]


@dataclass(frozen=True, slots=True)
class OpenedOf:
    """The open Input Sets of one generative function, by key."""

    _sets: Overlay[InputSet]
    _alarms: list[tuple[int, Any]]

    def __contains__(self, key: Any) -> bool:
        return key in self._sets

    def __iter__(self) -> Iterator[Any]:
        return iter(self._sets)

    def due(self, time: float, deadline: Callable[[Any], int]) -> list[Any]:
        """Return the keys whose deadline is not after `time`, in the order of their deadlines."""
        found: list[tuple[int, Any]] = []
        while self._alarms and self._alarms[0][0] <= time:
            _, key = heapq.heappop(self._alarms)
            if key in self._sets:
                at = deadline(key)
                if at <= time:
                    found.append((at, key))
                else:
                    heapq.heappush(self._alarms, (at, key))
        return [key for _, key in sorted(found)]


@dataclass
class Context:
    """What control holds for one operator: all that a crash of its group loses."""

    operator: str
    #: Input port -> the port that sends to it.
    senders: Mapping[str, Port] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    #: The array of latest ids: per input port, the last event that updated the global state.
    latest: dict[str, int] = field(default_factory=dict)
    #: Per output port, the last event sent.
    sent: dict[str, int] = field(default_factory=dict)
    #: Per connection, the last write action and the last read action.
    writes: dict[str, int] = field(default_factory=dict)
    actions: dict[str, int] = field(default_factory=dict)
    input_set: int = 0
    state_id: int = 0
    turn: int = 0
    #: The number of events taken so far: the order that Algorithm 9 keeps.
    seq: int = 0
    ended: list[str] = field(default_factory=list)
    #: Whether all inputs have ended and what was open has been flushed; with nothing set aside it finishes then.
    flushed: bool = False
    finished: bool = False
    #: How many Input Sets were set aside in all, and how many of them nobody has decided on.
    aside: int = 0
    held: int = 0
    state: State = field(default_factory=dict)
    opened: Opened = field(default_factory=Opened)
    keyed: Keyed = field(default_factory=Layers)

    def draft(self) -> "Context":
        """Return a copy that a turn may change without touching this one."""
        return Context(
            self.operator,
            self.senders,
            self.outputs,
            dict(self.latest),
            dict(self.sent),
            dict(self.writes),
            dict(self.actions),
            self.input_set,
            self.state_id,
            self.turn,
            self.seq,
            list(self.ended),
            self.flushed,
            self.finished,
            self.aside,
            self.held,
            deepcopy(self.state),
            self.opened.draft(),
            self.keyed.draft(),
        )

    def settle(self) -> None:
        """Make what a turn changed, and what was committed, part of what the next one finds."""
        self.opened.settle()
        self.keyed.settle()

    def memory(self, absorbed: list[tuple[Label, Label]]) -> Memory:
        """Return what the operator's logic may change; Input Sets that become others are added to `absorbed`."""
        return Memory(self.state, self.keyed, absorbed)

    def numbering(self) -> "Context":
        """Return a copy whose counters may advance; it shares what generation only reads: state and Input Sets."""
        return replace(self, sent=dict(self.sent), writes=dict(self.writes), actions=dict(self.actions))

    @property
    def rests(self) -> bool:
        """Whether it does nothing until an event comes, the clock decides something, or a person does."""
        return not self.opened and (self.flushed or not self.all_ended)

    @property
    def all_ended(self) -> bool:
        return len(self.ended) == len(self.senders)

    def store_state(self) -> StoreState:
        """Advance the state id and return the write that stores counters and global state."""
        self.state_id += 1
        counters = {name: getattr(self, name) for name in _COUNTERS}
        return StoreState(self.operator, self.state_id, counters, self.state)

    def store_keyed(self) -> Iterator[StoreKeyed]:
        """Yield the write that stores what was changed of keys, if anything was."""
        changes = tuple(self.keyed.changes())
        if changes:
            yield StoreKeyed(self.operator, changes)


_NO_COUNTERS = ("operator", "senders", "outputs", "state_id", "state", "opened", "keyed")
_COUNTERS = tuple(f.name for f in fields(Context) if f.name not in _NO_COUNTERS)


def fresh(operator: str, senders: Mapping[str, Port], outputs: Iterable[str], state: State) -> Context:
    """Return the context of an operator that has never run."""
    return Context(operator, dict(senders), tuple(outputs), state=state)


def restore(context: Context, row: StateRow | None) -> Context:
    """Return a copy of the context as STATE has it (Algorithm 9, Step 1), or as it is when STATE has none."""
    restored = context.draft()
    if row is None:
        return restored
    for name in _COUNTERS:
        # A log of an earlier version lacks some.
        if name in row.context:
            setattr(restored, name, deepcopy(row.context[name]))
    restored.state_id = row.state_id
    restored.state = deepcopy(dict(row.state))
    return restored
