"""The general operator (LOG.io, Section 2.3), and the logic that control follows for every operator."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from clew.ids import EventId
from clew.pipeline.windows import Header, Key, State, Window

#: Which generative function an Input Set is for, and the key the operator knows it by.
Label = tuple[str, Key]


@dataclass(frozen=True, slots=True)
class Event:
    """One event of an Input Set, as `generate` sees it."""

    id: EventId
    port: str
    table: pa.Table


@dataclass(frozen=True)
class InputSet:
    """The events that one Output Set is made of, in the order in which they were taken."""

    id: int
    key: Key
    events: tuple[Event, ...]
    schemas: Mapping[str, pa.Schema]
    #: What `fold` made of the events, where the operator has one.
    folded: Any = None

    def table(self, port: str = "in") -> pa.Table:
        """Return all records received on `port`, in order."""
        tables = [event.table for event in self.events if event.port == port]
        if tables:
            return pa.concat_tables(tables)
        return self.schemas.get(port, pa.schema([])).empty_table()


class Context(Protocol):
    """What `generate` may use besides its Input Set."""

    @property
    def state(self) -> Mapping[str, Any]:
        """The global state as it was when the Input Set closed; read-only."""

    def read(self, connection: str, action: str) -> pa.Table:
        """Perform a side-effect read action (Algorithm 4); its effect is logged with the Output Set."""

    def write(self, connection: str, table: pa.Table) -> None:
        """Emit a write action (Algorithm 5); it is performed after the Output Set is logged."""


#: What `generate` may return: nothing, one table, several events, or these by port.
Outputs: TypeAlias = pa.Table | Sequence[pa.Table] | Mapping[str, pa.Table | Sequence[pa.Table]] | None


class Operator:
    """A stateful operator of your own; override what you need.

    `assign` and `ready` run in control, on headers, and must be light and free of side effects.
    `facts`, `fold` and the generative functions run on Spark executors.
    """

    #: Names of the generative functions; each is a method of this class.
    functions: tuple[str, ...] = ("generate",)
    #: Whether `generate` looks at `context.state`; then each Input Set's snapshot of it is logged. An operator
    #: that defines `initial` does.
    uses_state = False

    def initial(self) -> State:
        """Return the global state before the first event: JSON only."""
        return {}

    def facts(self, table: pa.Table) -> Any:
        """Compute what `assign` needs to know of the records: JSON only."""
        return None

    def assign(self, event: Header, state: State) -> Sequence[Key]:
        """Return the keys of the Input Sets that the event joins; may change `state`.

        With several generative functions, return pairs (function name, key).
        """
        raise TypeError(f"{type(self).__name__} must define assign(event, state)")

    def ready(self, state: State, opened: Collection[Key]) -> Sequence[Key]:
        """Return the keys of the open Input Sets that are complete now."""
        raise TypeError(f"{type(self).__name__} must define ready(state, opened)")

    def flush(self, state: State, opened: Collection[Key]) -> Sequence[Key]:
        """Return the keys to generate when all inputs have ended; the others are dropped as empty."""
        return tuple(opened)

    fold: Callable[[Any, Event], Any] | None = None

    def generate(self, input_set: InputSet, context: Context) -> Outputs:
        """Compute the Output Set."""
        raise TypeError(f"{type(self).__name__} must define generate(input_set, context)")


class WindowLogic:
    """Control's decisions for an operator whose generative functions have windows."""

    uses_state = False

    def __init__(self, windows: Mapping[str, Window], ports: Sequence[str]) -> None:
        self._windows = dict(windows)
        self._ports = tuple(ports)
        self.needs_facts = any(window.needs_facts for window in self._windows.values())
        self.fingerprint = ";".join(f"{name}={w.fingerprint()}" for name, w in self._windows.items() if w.needs_facts)

    def initial(self) -> State:
        return {name: window.initial(self._ports) for name, window in self._windows.items()}

    def facts(self, table: pa.Table) -> Any:
        return {name: window.facts(table) for name, window in self._windows.items() if window.needs_facts}

    def assign(self, event: Header, state: State) -> Sequence[Label]:
        labels: list[Label] = []
        for name, window in self._windows.items():
            # Facts that are missing are an error here: taken as none, they would drop the event's records.
            seen = _Seen(event, event.facts[name]) if window.needs_facts else event
            labels += [(name, key) for key in window.assign(seen, state[name])]
        return labels

    def ready(self, state: State, opened: Collection[Label]) -> Sequence[Label]:
        return self._gather(lambda w, s, keys: w.ready(s, keys), state, opened)

    def end(self, port: str, state: State) -> None:
        for name, window in self._windows.items():
            window.end(port, state[name])

    def end_turn(self, state: State, opened: Collection[Label]) -> Sequence[Label]:
        return self._gather(lambda w, s, keys: w.end_turn(s, keys), state, opened)

    def flush(self, state: State, opened: Collection[Label]) -> Sequence[Label]:
        return tuple(opened)

    def _gather(
        self, ask: Callable[[Window, State, list[Key]], Sequence[Key]], state: State, opened: Collection[Label]
    ) -> Sequence[Label]:
        labels: list[Label] = []
        for name, window in self._windows.items():
            keys = [key for function, key in opened if function == name]
            labels += [(name, key) for key in ask(window, state[name], keys)]
        return labels


class OperatorLogic:
    """Control's decisions for a general operator: the user's own `assign` and `ready`."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._several = len(operator.functions) > 1
        self.uses_state = operator.uses_state or type(operator).initial is not Operator.initial
        self.needs_facts = type(operator).facts is not Operator.facts
        self.fingerprint = type(operator).__qualname__ if self.needs_facts else ""

    def initial(self) -> State:
        return self._operator.initial()

    def facts(self, table: pa.Table) -> Any:
        return self._operator.facts(table)

    def assign(self, event: Header, state: State) -> Sequence[Label]:
        return self._labels(self._operator.assign(event, state))

    def ready(self, state: State, opened: Collection[Label]) -> Sequence[Label]:
        return self._labels(self._operator.ready(state, self._keys(opened)))

    def end(self, port: str, state: State) -> None:
        return None

    def end_turn(self, state: State, opened: Collection[Label]) -> Sequence[Label]:
        return ()

    def flush(self, state: State, opened: Collection[Label]) -> Sequence[Label]:
        return self._labels(self._operator.flush(state, self._keys(opened)))

    def _labels(self, keys: Sequence[Key]) -> Sequence[Label]:
        if self._several:
            return [(function, key) for function, key in keys]
        return [(self._operator.functions[0], key) for key in keys]

    def _keys(self, labels: Collection[Label]) -> list[Key]:
        return list(labels) if self._several else [key for _, key in labels]


@dataclass(frozen=True, slots=True)
class _Seen:
    """An event's header with one window's own facts."""

    event: Header
    facts: Any

    @property
    def port(self) -> str:
        return self.event.port

    @property
    def number(self) -> int:
        return self.event.number

    @property
    def rows(self) -> int:
        return self.event.rows

    @property
    def size(self) -> int:
        return self.event.size
