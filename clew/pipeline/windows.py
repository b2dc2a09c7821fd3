"""Windows: which events form an Input Set, and when it is complete.

A window decides on headers alone. What it remembers is JSON and becomes part of the operator's global state in STATE:
one value for all, and, where it has keys, one for each key, of which a turn stores only those that it touched.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import GraphError
from clew.pipeline.keys import key_columns, keys_of, of_key
from clew.pipeline.times import Duration, microseconds

Key = Any
State = dict[str, Any]


class Header(Protocol):
    """What control sees of an event.

    It has the input `port` that it came on, its `number`, how many `rows` and bytes (`size`) it holds, and what the
    operator's `facts` told of its records.
    """

    @property
    def port(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def facts(self) -> Any: ...


class Memory(Protocol):
    """What a window remembers from event to event."""

    @property
    def shared(self) -> State:
        """One value, stored with every turn."""

    @property
    def keyed(self) -> MutableMapping[str, Any]:
        """A value for each key, stored when it was changed."""

    def absorb(self, gone: Key, into: Key) -> None:
        """Let all events of one open Input Set join another one; the first ends without an Output Set."""


class Opened(Protocol):
    """The Input Sets of a window that are open."""

    def __contains__(self, key: Key) -> bool: ...
    def __iter__(self) -> Iterator[Key]: ...

    def due(self, time: float, deadline: Callable[[Key], int]) -> Sequence[Key]:
        """Return those whose deadline is not after `time`, in the order of their deadlines."""


class Clock(Protocol):
    """What control knows of time outside the records, when a turn begins."""

    @property
    def now(self) -> int:
        """Microseconds since the epoch."""

    @property
    def waiting(self) -> bool:
        """Whether events wait to be taken."""

    @property
    def decided(self) -> int | None:
        """When it last made this operator decide, in this process."""

    def quiet(self, port: str) -> int:
        """Return for how many microseconds nothing has come on a port."""


@dataclass(frozen=True, slots=True)
class Late:
    """Records of an event that came after their windows had fired."""

    rows: int
    #: What `Window.pick_late` needs to find them: JSON.
    which: Any


class Window(ABC):
    """One way to form Input Sets."""

    @property
    def needs_facts(self) -> bool:
        """Whether headers must carry this window's facts."""
        return False

    @property
    def whole(self) -> bool:
        """Whether the events of an Input Set must be seen together to tell which of their records it has."""
        return False

    @property
    def many_ports(self) -> bool:
        """Whether an operator with several inputs can have it."""
        return True

    @property
    def late_port(self) -> str | None:
        """The output port that late records go to; None where they are dropped and counted, or none is ever late."""
        return None

    def initial(self, ports: Sequence[str]) -> State:
        """Return the shared state before the first event."""
        return {}

    def facts(self, table: pa.Table) -> Any:
        """Compute what `assign` needs to know of the records; runs on an executor."""
        return None

    def fingerprint(self) -> str:
        """Name the declaration that facts were computed for."""
        return repr(self)

    def missed(self, event: Header, memory: Memory) -> Late | None:
        """Return which of an event's records come too late; asked before the event is assigned."""
        return None

    @abstractmethod
    def assign(self, event: Header, memory: Memory) -> Sequence[Key]:
        """Return the keys of the Input Sets that the event joins."""

    @abstractmethod
    def ready(self, memory: Memory, opened: Opened) -> Sequence[Key]:
        """Return the keys that are complete now."""

    def deadline(self, key: Key, memory: Memory) -> int | None:
        """Return the time at which an open Input Set is complete, where time completes it."""
        return None

    def close(self, key: Key, memory: Memory) -> Any:
        """Forget an Input Set that is complete; return what `select` needs to know of it besides its key."""
        return None

    def end(self, port: str, memory: Memory) -> None:
        """Learn that a port has ended."""

    def end_turn(self, memory: Memory, opened: Opened) -> Sequence[Key]:
        """Return the keys that are complete because the turn ends."""
        return ()

    def rest(self, memory: Memory, opened: Opened) -> Sequence[Key]:
        """Return the keys that are complete because all ports have ended."""
        return tuple(opened)

    def decide(self, memory: Memory, clock: Clock) -> Any:
        """Return what the clock makes this window decide now, as JSON that is logged; None where it is nothing."""
        return None

    def follow(self, decision: Any, memory: Memory) -> None:
        """Remember a decision."""

    def patience(self, memory: Memory, clock: Clock) -> int | None:
        """Return after how many microseconds, if nothing comes, the clock may make it decide; None for never."""
        return None

    def select(self, events: Sequence[tuple[int, pa.Table]], key: Key, seen: Any) -> pa.Table:
        """Return the records of some events that belong to the Input Set `key`; runs on an executor.

        `events` are numbers and records, at least one; `seen` is what `close` has returned.
        """
        return pa.concat_tables([table for _, table in events])

    def pick_late(self, table: pa.Table, which: Any) -> pa.Table:
        """Return the late records of an event; runs on an executor."""
        raise TypeError(f"{self!r} has no late records")

    def extend(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema that `select` gives."""
        return schema


@dataclass(frozen=True)
class Each(Window):
    """Every event is an Input Set of its own."""

    def initial(self, ports: Sequence[str]) -> State:
        return {"k": 0}

    def assign(self, event: Header, memory: Memory) -> Sequence[Key]:
        memory.shared["k"] += 1
        return (memory.shared["k"],)

    def ready(self, memory: Memory, opened: Opened) -> Sequence[Key]:
        key = memory.shared["k"]
        return (key,) if key in opened else ()


@dataclass(frozen=True)
class Batch(Window):
    """All events of one turn are one Input Set."""

    def initial(self, ports: Sequence[str]) -> State:
        return {"k": 0}

    def assign(self, event: Header, memory: Memory) -> Sequence[Key]:
        return (memory.shared["k"],)

    def ready(self, memory: Memory, opened: Opened) -> Sequence[Key]:
        return ()

    def end_turn(self, memory: Memory, opened: Opened) -> Sequence[Key]:
        done = tuple(opened)
        memory.shared["k"] += len(done)
        return done


@dataclass(frozen=True)
class Every(Window):
    """Events that are taken in the same stretch of the clock's time are one Input Set.

    This is processing time: which events come together depends on when they come, and that is logged. Stretches
    are aligned to the epoch.
    """

    interval: Duration
    step: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", microseconds(self.interval))
        if self.step < 1 or isinstance(self.interval, int):
            raise GraphError(f"Every({self.interval!r}) is not a stretch of time; write it as '10 seconds'")

    def initial(self, ports: Sequence[str]) -> State:
        return {"k": None, "open": False}

    def decide(self, memory: Memory, clock: Clock) -> Any:
        now, before = clock.now // self.step, memory.shared["k"]
        # A clock that was set back must not reopen what is complete; one that nobody waits for need not be asked.
        passed = before is None or now > before
        return now if passed and (memory.shared["open"] or clock.waiting) else None

    def follow(self, decision: Any, memory: Memory) -> None:
        memory.shared["k"] = decision

    def patience(self, memory: Memory, clock: Clock) -> int | None:
        return self.step - clock.now % self.step if memory.shared["open"] else None

    def assign(self, event: Header, memory: Memory) -> Sequence[Key]:
        memory.shared["open"] = True
        return (memory.shared["k"],)

    def close(self, key: Key, memory: Memory) -> Any:
        memory.shared["open"] = False

    def ready(self, memory: Memory, opened: Opened) -> Sequence[Key]:
        return sorted(key for key in opened if key < memory.shared["k"])


@dataclass(frozen=True)
class Count(Window):
    """Every `size` events, in the order in which they were taken, are one Input Set.

    With `by`, every `size` records of one key are: the function sees records of one key, `size` of them, fewer at the
    end. What is remembered of a key is stored when the key occurs, and forgotten when its Input Set is complete.
    """

    size: int
    by: "str | Sequence[str] | None" = None
    columns: tuple[str, ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        unit = "event" if self.by is None else "record"
        if not isinstance(self.size, int) or isinstance(self.size, bool):
            raise GraphError(f"Count({self.size!r}) is no number of {unit}s; give it a whole number, 1 or more")
        if self.size < 1:
            raise GraphError(f"Count({self.size}) holds no {unit}; give it 1 or more")
        object.__setattr__(self, "columns", key_columns(self.by, "Count"))

    @property
    def needs_facts(self) -> bool:
        return bool(self.columns)

    @property
    def whole(self) -> bool:
        return bool(self.columns)

    @property
    def many_ports(self) -> bool:
        return not self.columns

    def initial(self, ports: Sequence[str]) -> State:
        # With keys: those whose Input Sets the last event has filled.
        return {"full": []} if self.columns else {"k": 0, "n": 0}

    def facts(self, table: pa.Table) -> Any:
        texts, codes = keys_of(table, self.columns, "Count")
        rows = {count["values"]: count["counts"] for count in pc.value_counts(codes).to_pylist()}
        return [[text, rows[code]] for code, text in enumerate(texts)]

    def assign(self, event: Header, memory: Memory) -> Sequence[Key]:
        if self.columns:
            return [key for text, rows in event.facts for key in self._count(text, rows, memory)]
        state = memory.shared
        if state["n"] == self.size:
            state["k"], state["n"] = state["k"] + 1, 0
        state["n"] += 1
        return (state["k"],)

    def ready(self, memory: Memory, opened: Opened) -> Sequence[Key]:
        state = memory.shared
        if self.columns:
            return [tuple(key) for key in state["full"]]
        return (state["k"],) if state["n"] == self.size and state["k"] in opened else ()

    def close(self, key: Key, memory: Memory) -> Any:
        if self.columns:
            full = memory.shared["full"]
            if full and tuple(full[0]) == key:
                full.pop(0)
            else:
                # All inputs have ended, and it is complete though it is not full.
                del memory.keyed[key[0]]

    def select(self, events: Sequence[tuple[int, pa.Table]], key: Key, seen: Any) -> pa.Table:
        table = super().select(events, key, seen)
        if not self.columns or not table.num_rows:
            return table
        text, _, skip = key
        return of_key(table, self.columns, text, "Count").slice(skip, self.size)

    def _count(self, text: str, rows: int, memory: Memory) -> Iterator[Key]:
        """Yield the Input Sets that the records of a key in one event belong to: (key, how manieth, skip).

        `skip` is how many of the key's records in its first event belong to the Input Set before.
        """
        k, n, skip = memory.keyed.get(text, (0, 0, 0))
        taken = 0
        while taken < rows:
            skip = taken if n == 0 else skip
            step = min(self.size - n, rows - taken)
            n, taken = n + step, taken + step
            yield text, k, skip
            if n == self.size:
                memory.shared["full"].append([text, k, skip])
                k, n = k + 1, 0
        if n:
            memory.keyed[text] = [k, n, skip]
        else:
            memory.keyed.pop(text, None)
