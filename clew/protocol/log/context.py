"""The LOG.io context of an operator: its counters, the array of latest ids, its open Input Sets.

Counters live in STATE, written by the transaction that uses them, and are never derived from rows (C2).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from clew.ids import InputSetId, Port
from clew.protocol.rows import Label, StateRow
from clew.protocol.step import StoreState

State = dict[str, Any]


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
    def assign(self, event: Arrival, state: State) -> Sequence[Label]: ...
    def ready(self, state: State, opened: Collection[Label]) -> Sequence[Label]: ...
    def end(self, port: str, state: State) -> None: ...
    def end_turn(self, state: State, opened: Collection[Label]) -> Sequence[Label]: ...
    def flush(self, state: State, opened: Collection[Label]) -> Sequence[Label]: ...
    @property
    def uses_state(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive events received on a port."""

    port: str
    first: int
    count: int


@dataclass(slots=True)
class InputSet:
    """An Input Set and the events assigned to it, in the order in which they were taken."""

    number: InputSetId
    label: Label
    spans: list[Span] = field(default_factory=list)
    #: The global state when it closed, where the generative function uses it.
    state: State | None = None
    #: The number of the event after which it closed.
    closed_at: int = 0

    def add(self, port: str, number: int) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and last.port == port and last.first + last.count == number:
            self.spans[-1] = Span(port, last.first, last.count + 1)
        else:
            self.spans.append(Span(port, number, 1))

    def copy(self) -> "InputSet":
        return InputSet(self.number, self.label, list(self.spans), self.state)


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
    finished: bool = False
    state: State = field(default_factory=dict)
    opened: dict[Label, InputSet] = field(default_factory=dict)

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
            self.finished,
            deepcopy(self.state),
            {label: opened.copy() for label, opened in self.opened.items()},
        )

    def numbering(self) -> "Context":
        """Return a copy whose counters may advance; it shares what generation only reads: state and Input Sets."""
        return replace(self, sent=dict(self.sent), writes=dict(self.writes), actions=dict(self.actions))

    @property
    def all_ended(self) -> bool:
        return len(self.ended) == len(self.senders)

    def store_state(self) -> StoreState:
        """Advance the state id and return the write that stores counters and global state."""
        self.state_id += 1
        counters = {name: getattr(self, name) for name in _COUNTERS}
        return StoreState(self.operator, self.state_id, counters, self.state)


_COUNTERS = tuple(
    f.name for f in fields(Context) if f.name not in ("operator", "senders", "outputs", "state_id", "state", "opened")
)


def fresh(operator: str, senders: Mapping[str, Port], outputs: Iterable[str], state: State) -> Context:
    """Return the context of an operator that has never run."""
    return Context(operator, dict(senders), tuple(outputs), state=state)


def restore(context: Context, row: StateRow | None) -> Context:
    """Return a copy of the context as STATE has it (Algorithm 9, Step 1), or as it is when STATE has none."""
    restored = context.draft()
    if row is None:
        return restored
    for name in _COUNTERS:
        setattr(restored, name, deepcopy(row.context[name]))
    restored.state_id = row.state_id
    restored.state = deepcopy(dict(row.state))
    return restored


def hashable(label: Any) -> Any:
    """Return a label read back from JSON, where tuples have become lists."""
    return tuple(hashable(part) for part in label) if isinstance(label, list) else label
