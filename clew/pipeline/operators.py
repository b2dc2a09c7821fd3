"""The general operator (LOG.io, Section 2.3), and the logic that control follows for every operator."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from clew.ids import EventId
from clew.pipeline.code import digest_of, parts_used
from clew.pipeline.times import Duration, microseconds
from clew.pipeline.unplaced import UNPLACED, unplaced
from clew.pipeline.windows import Clock, Header, Key, Opened, State, Window
from clew.pipeline.windows import Memory as OwnMemory

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

    @property
    def lookups(self) -> Mapping[str, pa.Table]:
        """The lookups that were declared for the operator."""

    @property
    def records(self) -> Mapping[str, Any]:
        """The lookups as functions of single records get them: a dict by key, or a list of dicts."""

    @property
    def resources(self) -> Any:
        """What the operator's setup hook made."""

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

    #: How often `tick` is called, where it is defined; by default once in every turn that takes events.
    tick_every: Duration = "0 seconds"

    def tick(self, now: int, state: State) -> None:
        """Learn what time it is, in microseconds since the epoch; may change `state`.

        Each call is logged, in its place among the events, so that a crash does not change what was decided by it.
        """

    fold: Callable[[Any, Event], Any] | None = None

    def generate(self, input_set: InputSet, context: Context) -> Outputs:
        """Compute the Output Set."""
        raise TypeError(f"{type(self).__name__} must define generate(input_set, context)")


class Memory(OwnMemory, Protocol):
    """What an operator remembers: its own global state, or that of its generative functions' windows."""

    def of(self, function: str) -> OwnMemory: ...


class AllOpened(Protocol):
    """All Input Sets of an operator that are open."""

    def of(self, function: str) -> Opened: ...
    def labels(self) -> list[Label]: ...


class LateRecords(Window):
    """The late records of an event are an Input Set of their own, which passes them on as they are."""

    def __init__(self, of: Window) -> None:
        self.of = of

    def __repr__(self) -> str:
        return "late records"

    def assign(self, event: Header, memory: OwnMemory) -> Sequence[Key]:
        raise TypeError("late records are told by the window that they are late for")

    def ready(self, memory: OwnMemory, opened: Opened) -> Sequence[Key]:
        return tuple(opened)

    def select(self, events: Sequence[tuple[int, pa.Table]], key: Key, seen: Any) -> pa.Table:
        return self.of.pick_late(super().select(events, key, seen), json.loads(key[2]))


class WindowLogic:
    """Control's decisions for an operator whose generative functions have windows."""

    def __init__(self, windows: Mapping[str, Window], ports: Sequence[str]) -> None:
        self._windows = {name: window for name, window in windows.items() if not isinstance(window, LateRecords)}
        #: By the window's function, the one that passes its late records on.
        self._late = {
            main: name
            for name, window in windows.items()
            if isinstance(window, LateRecords)
            for main, of in self._windows.items()
            if of is window.of
        }
        self._ports = tuple(ports)
        self.needs_facts = any(window.needs_facts for window in self._windows.values())
        self.fingerprint = ";".join(f"{name}={w.fingerprint()}" for name, w in self._windows.items() if w.needs_facts)

    def initial(self) -> State:
        return {name: window.initial(self._ports) for name, window in self._windows.items()}

    def facts(self, table: pa.Table) -> Any:
        return {name: window.facts(table) for name, window in self._windows.items() if window.needs_facts}

    def assign(self, event: Header, memory: Memory) -> Sequence[Label]:
        missing = unplaced(event.facts)
        if missing is not None:
            return [missing.label(event.port, event.number)]
        labels: list[Label] = []
        for name, window in self._windows.items():
            # Facts that are missing are an error here: taken as none, they would drop the event's records.
            seen = _Seen(event, event.facts[name]) if window.needs_facts else event
            own = memory.of(name)
            late = window.missed(seen, own)
            if late is not None:
                own.shared["late"] += late.rows
                if name in self._late:
                    labels.append((self._late[name], (event.port, event.number, json.dumps(late.which))))
            labels += [(name, key) for key in window.assign(seen, own)]
        return labels

    def ready(self, memory: Memory, opened: AllOpened) -> Sequence[Label]:
        alone = [UNPLACED] if self.needs_facts else []
        late = [(name, key) for name in (*alone, *self._late.values()) for key in opened.of(name)]
        return [*late, *self._gather(lambda window, own, keys: window.ready(own, keys), memory, opened)]

    def deadline(self, label: Label, memory: Memory) -> int | None:
        name, key = label
        return self._windows[name].deadline(key, memory.of(name)) if name in self._windows else None

    def close(self, label: Label, memory: Memory) -> Any:
        name, key = label
        return self._windows[name].close(key, memory.of(name)) if name in self._windows else None

    def end(self, port: str, memory: Memory) -> None:
        for name, window in self._windows.items():
            window.end(port, memory.of(name))

    def end_turn(self, memory: Memory, opened: AllOpened) -> Sequence[Label]:
        return self._gather(lambda window, own, keys: window.end_turn(own, keys), memory, opened)

    def flush(self, memory: Memory, opened: AllOpened) -> Sequence[Label]:
        return self._gather(lambda window, own, keys: window.rest(own, keys), memory, opened)

    def decide(self, memory: Memory, clock: Clock) -> Any:
        made = {name: window.decide(memory.of(name), clock) for name, window in self._windows.items()}
        return {name: decision for name, decision in made.items() if decision is not None} or None

    def follow(self, decision: Any, memory: Memory) -> None:
        for name, own in decision.items():
            self._windows[name].follow(own, memory.of(name))

    def patience(self, memory: Memory, clock: Clock) -> int | None:
        waits = [window.patience(memory.of(name), clock) for name, window in self._windows.items()]
        return min((wait for wait in waits if wait is not None), default=None)

    def _gather(
        self, ask: Callable[[Window, OwnMemory, Opened], Sequence[Key]], memory: Memory, opened: AllOpened
    ) -> list[Label]:
        return [
            (name, key)
            for name, window in self._windows.items()
            for key in ask(window, memory.of(name), opened.of(name))
        ]


class OperatorLogic:
    """Control's decisions for a general operator: the user's own `assign` and `ready`."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._several = len(operator.functions) > 1
        self._uses_state = operator.uses_state or type(operator).initial is not Operator.initial
        self._every = microseconds(operator.tick_every)
        self._ticks = type(operator).tick is not Operator.tick
        self.needs_facts = type(operator).facts is not Operator.facts
        self.fingerprint = f"facts {digest_of(parts_used(operator, ['facts']))}" if self.needs_facts else ""

    def initial(self) -> State:
        return self._operator.initial()

    def facts(self, table: pa.Table) -> Any:
        return self._operator.facts(table)

    def assign(self, event: Header, memory: Memory) -> Sequence[Label]:
        missing = unplaced(event.facts) if self.needs_facts else None
        if missing is not None:
            return [missing.label(event.port, event.number)]
        return self._labels(self._operator.assign(event, memory.shared))

    def ready(self, memory: Memory, opened: AllOpened) -> Sequence[Label]:
        alone = [(UNPLACED, key) for key in opened.of(UNPLACED)] if self.needs_facts else []
        return [*alone, *self._labels(self._operator.ready(memory.shared, self._keys(opened)))]

    def deadline(self, label: Label, memory: Memory) -> int | None:
        return None

    def close(self, label: Label, memory: Memory) -> Any:
        return deepcopy(memory.shared) if self._uses_state and label[0] != UNPLACED else None

    def end(self, port: str, memory: Memory) -> None:
        return None

    def end_turn(self, memory: Memory, opened: AllOpened) -> Sequence[Label]:
        return ()

    def flush(self, memory: Memory, opened: AllOpened) -> Sequence[Label]:
        return self._labels(self._operator.flush(memory.shared, self._keys(opened)))

    def decide(self, memory: Memory, clock: Clock) -> Any:
        return clock.now if self._ticks and self._due(clock) <= 0 and (self._every or clock.waiting) else None

    def follow(self, decision: Any, memory: Memory) -> None:
        self._operator.tick(decision, memory.shared)

    def patience(self, memory: Memory, clock: Clock) -> int | None:
        return max(self._due(clock), 0) if self._ticks and self._every else None

    def _due(self, clock: Clock) -> int:
        """Return in how many microseconds the operator is to be told the time again."""
        return 0 if clock.decided is None else self._every - (clock.now - clock.decided)

    def _labels(self, keys: Sequence[Key]) -> Sequence[Label]:
        if self._several:
            return [(function, key) for function, key in keys]
        return [(self._operator.functions[0], key) for key in keys]

    def _keys(self, opened: AllOpened) -> list[Key]:
        labels = [label for label in opened.labels() if label[0] != UNPLACED]
        return labels if self._several else [key for _, key in labels]


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
