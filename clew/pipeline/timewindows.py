"""Windows of event time: intervals that tumble or slide, watermarks, and records that come too late.

A port's watermark is the latest time that an event taken on it held, and the operator's is the least of its ports'. It
advances event by event, in the order in which they were taken; an event's records are judged against the watermark
before it. A window fires once, when the watermark has reached its end plus the allowed lateness.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import GraphError
from clew.pipeline.keys import group_of, key_columns, keys_of
from clew.pipeline.times import Duration, TimeColumn, floor, microseconds
from clew.pipeline.windows import Clock, Header, Key, Late, Memory, Opened, State, Window


@dataclass(frozen=True, kw_only=True)
class EventTime(Window):
    """What all windows of event time have in common.

    `on` names the column of times. `lateness` is how long a window waits for records that are out of order. Later ones
    are dropped and counted, or sent on the output port `late`. An input on which nothing has come for `idle` holds time
    back no longer, until something comes again; without `idle` it does until it ends.
    """

    lateness: Duration = 0
    late: str | None = None
    idle: Duration | None = None
    time: TimeColumn = field(init=False, repr=False, compare=False)
    waits: int = field(init=False, repr=False, compare=False)
    idles: int | None = field(init=False, repr=False, compare=False)

    def _prepare(self, size: Duration, on: str) -> None:
        name = type(self).__name__
        if not isinstance(on, str) or not on:
            raise GraphError(
                f"{name}(on={on!r}) does not say when records happened; name their column of times, on='at'"
            )
        set_ = object.__setattr__
        set_(self, "time", TimeColumn(on, name, isinstance(size, int), microseconds(size)))
        set_(self, "waits", microseconds(self.lateness))
        if isinstance(size, int) != isinstance(self.lateness, int) and self.lateness != 0:
            raise GraphError(f"{name}({size!r}, lateness={self.lateness!r}) measures time in two ways; use one")
        set_(self, "idles", None if self.idle is None else microseconds(self.idle))
        if self.waits < 0 or isinstance(self.idle, int):
            raise GraphError(f"{name}: lateness must not be below zero, and idle is a duration such as '30 seconds'")
        if self.late is not None and not isinstance(self.late, str):
            raise GraphError(f"{name}(late={self.late!r}) is no name of a port; give it one, such as late='too_late'")

    @property
    def needs_facts(self) -> bool:
        return True

    @property
    def late_port(self) -> str | None:
        return self.late

    def initial(self, ports: Sequence[str]) -> State:
        return {
            # Per port the latest time seen; None until it has one.
            "seen": dict.fromkeys(ports),
            "ended": [],
            "idle": [],
            "watermark": None,
            # How many records came too late.
            "late": 0,
        }

    def decide(self, memory: Memory, clock: Clock) -> Any:
        if self.idles is None:
            return None
        quiet = [port for port in self._live(memory.shared) if clock.quiet(port) >= self.idles]
        return quiet or None

    def follow(self, decision: Any, memory: Memory) -> None:
        memory.shared["idle"] += decision
        self._advance(memory.shared)

    def patience(self, memory: Memory, clock: Clock) -> int | None:
        if self.idles is None:
            return None
        left = [self.idles - clock.quiet(port) for port in self._live(memory.shared)]
        return max(min(left), 0) if left else None

    def end(self, port: str, memory: Memory) -> None:
        memory.shared["ended"].append(port)
        self._advance(memory.shared)

    def ready(self, memory: Memory, opened: Opened) -> Sequence[Key]:
        watermark = memory.shared["watermark"]
        if watermark is None:
            return ()
        return opened.due(watermark, lambda key: self.deadline(key, memory))

    def rest(self, memory: Memory, opened: Opened) -> Sequence[Key]:
        return opened.due(math.inf, lambda key: self.deadline(key, memory))

    @abstractmethod
    def deadline(self, key: Key, memory: Memory) -> int: ...

    def extend(self, schema: pa.Schema) -> pa.Schema:
        return self.time.extend(schema)

    def _live(self, state: State) -> list[str]:
        """Return the ports that may hold time back."""
        return [port for port in state["seen"] if port not in state["ended"] and port not in state["idle"]]

    def _see(self, event: Header, latest: int | None, memory: Memory) -> None:
        """Let an event advance the watermark."""
        state = memory.shared
        if event.port in state["idle"]:
            state["idle"].remove(event.port)
        if latest is not None:
            seen = state["seen"][event.port]
            state["seen"][event.port] = latest if seen is None else max(seen, latest)
        self._advance(state)

    def _advance(self, state: State) -> None:
        live = [state["seen"][port] for port in self._live(state)]
        if live and None not in live:
            # A port that was idle, or one that ended, may be behind the others: time never goes back.
            before = state["watermark"]
            state["watermark"] = min(live) if before is None else max(before, min(live))


@dataclass(frozen=True)
class _Intervals(EventTime):
    """Intervals of one length, aligned to the epoch (to zero), a new one every `step`.

    Facts are told by panes, the stretches into which all bounds of windows cut time. The key of an Input Set is the
    start of its interval, or (start, key group).
    """

    by: "str | Sequence[str] | None" = field(default=None, kw_only=True)
    key_groups: int = field(default=8, kw_only=True)
    columns: tuple[str, ...] = field(init=False, repr=False, compare=False)
    length: int = field(init=False, repr=False, compare=False)
    step: int = field(init=False, repr=False, compare=False)
    pane: int = field(init=False, repr=False, compare=False)

    def _cut(self, size: Duration, every: Duration, on: str) -> None:
        name = type(self).__name__
        set_ = object.__setattr__
        set_(self, "length", microseconds(size))
        set_(self, "step", microseconds(every))
        if isinstance(size, int) != isinstance(every, int):
            raise GraphError(f"{name}({size!r}, {every!r}) measures time in two ways; use one")
        if self.length < 1 or self.step < 1:
            raise GraphError(f"{name}({size!r}) is empty; give it a size above zero")
        if self.step > self.length:
            raise GraphError(f"{name}({size!r}, {every!r}) leaves out records between its windows; slide by {size!r}")
        set_(self, "pane", math.gcd(self.length, self.step))
        set_(self, "columns", key_columns(self.by, name))
        if not isinstance(self.key_groups, int) or isinstance(self.key_groups, bool) or self.key_groups < 1:
            raise GraphError(f"{name}(key_groups={self.key_groups!r}) has no place for a key; give it 1 or more")
        self._prepare(size, on)

    def facts(self, table: pa.Table) -> Any:
        """Return the latest time, and the panes: their starts, the records in each, and its key groups."""
        if table.num_rows == 0:
            return [None, []]
        times = self.time.numbers(table)
        columns = {"pane": floor(times, self.pane), "group": self._groups(table)}
        found = pa.table(columns).group_by(["pane", "group"]).aggregate([([], "count_all")]).sort_by("pane")
        panes: dict[int, list[Any]] = {}
        for pane, group, rows in zip(*(found[name].to_pylist() for name in ("pane", "group", "count_all"))):
            one = panes.setdefault(pane, [pane, 0, []])
            one[1] += rows
            one[2].append(group)
        return [pc.max(times).as_py(), [[pane, rows, sorted(groups)] for pane, rows, groups in panes.values()]]

    def missed(self, event: Header, memory: Memory) -> Late | None:
        panes = [(pane, rows) for pane, rows, _ in event.facts[1] if self._fired(self._last(pane), memory.shared)]
        return Late(sum(rows for _, rows in panes), [pane for pane, _ in panes]) if panes else None

    def assign(self, event: Header, memory: Memory) -> Sequence[Key]:
        latest, panes = event.facts
        found = {
            (start, group)
            for pane, _, groups in panes
            for start in self._windows(pane)
            if not self._fired(start, memory.shared)
            for group in groups
        }
        self._see(event, latest, memory)
        return [(start, group) if self.columns else start for start, group in sorted(found)]

    def deadline(self, key: Key, memory: Memory) -> int:
        return int(self._start(key)) + self.length + self.waits

    def select(self, events: Sequence[tuple[int, pa.Table]], key: Key, seen: Any) -> pa.Table:
        table = super().select(events, key, seen)
        start = self._start(key)
        if table.num_rows:
            times = self.time.numbers(table)
            within = pc.and_(pc.greater_equal(times, start), pc.less(times, start + self.length))
            if self.columns:
                within = pc.and_(within, pc.equal(self._groups(table), key[1]))
            table = table.filter(within)
        return self.time.bounded(table, start, start + self.length)

    def pick_late(self, table: pa.Table, which: Any) -> pa.Table:
        return table.filter(pc.is_in(floor(self.time.numbers(table), self.pane), pa.array(which, pa.int64())))

    def _start(self, key: Key) -> int:
        return int(key[0] if self.columns else key)

    def _groups(self, table: pa.Table) -> pa.Array:
        if not self.columns:
            return pa.array([0] * table.num_rows, pa.int64())
        texts, codes = keys_of(table, self.columns, type(self).__name__)
        return pa.array([group_of(text, self.key_groups) for text in texts], pa.int64()).take(codes)

    def _last(self, pane: int) -> int:
        """Return the start of the last window that a pane is in."""
        return pane // self.step * self.step

    def _windows(self, pane: int) -> Iterator[int]:
        start = self._last(pane)
        while start + self.length > pane:
            yield start
            start -= self.step

    def _fired(self, start: int, state: State) -> bool:
        watermark = state["watermark"]
        return watermark is not None and start + self.length + self.waits <= watermark


@dataclass(frozen=True)
class Tumbling(_Intervals):
    """Records of one interval of event time are one Input Set; with `by`, those of one interval and key group.

    `size` is a duration ('1 hour', a timedelta) for a column of timestamps or dates, or a whole number for a column of
    whole numbers. Intervals are aligned to the epoch (to zero). The function finds `window_start` and `window_end` too.
    With `by`, keys are spread over `key_groups`, and all records of a key are in one. `on`, `lateness`, `late` and
    `idle` are those of `EventTime`.
    """

    size: Duration
    on: str

    def __post_init__(self) -> None:
        self._cut(self.size, self.size, self.on)


@dataclass(frozen=True)
class Sliding(_Intervals):
    """Records of one interval of event time are one Input Set, and a new interval begins every `every`.

    A record is in all intervals that its time falls into. It is late when all of them have fired; those that have not
    still take it. The function also finds `window_start` and `window_end`. Everything else is as in `Tumbling`.
    """

    size: Duration
    every: Duration
    on: str

    def __post_init__(self) -> None:
        self._cut(self.size, self.every, self.on)
