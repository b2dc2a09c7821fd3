"""Windows of event time, record by record: watermarks, lateness, intervals and sessions.

An event's records are judged against the watermark before it; then the event advances the watermark. Nothing here is
told by facts that the run computed: times and keys are read from the records again.
"""

import heapq
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from clew.model.windows import Course, Event, NotDeclared, Records, keys_of
from clew.pipeline.sessions import Session
from clew.pipeline.timewindows import EventTime, Sliding, Tumbling


def times_of(window: EventTime, table: pa.Table) -> list[int]:
    """Return the time of each record."""
    times = table.column(window.time.name)
    if not pa.types.is_integer(times.type):
        times = times.cast(pa.timestamp("us", getattr(times.type, "tz", None))).cast(pa.int64())
    return [int(time) for time in times.to_pylist()]


def groups_of(window: Tumbling | Sliding, table: pa.Table) -> list[int]:
    """Return the key group of each record; 0 where records have no keys."""
    if not window.columns:
        return [0] * table.num_rows
    return [zlib.crc32(key.encode()) % window.key_groups for key in keys_of(table, window.columns)]


class _Timed(Course):
    """What windows of event time have in common: ports that advance, end, and fall idle."""

    needs_facts = True

    def __init__(self, window: EventTime, ports: Sequence[str]) -> None:
        self._idles = window.idle is not None
        self._latest: dict[str, int | None] = dict.fromkeys(ports)
        self._idle: set[str] = set()
        self._watermark: int | None = None

    def decide(self, decision: Any) -> None:
        ports = set(decision)
        if not self._idles or len(ports) < len(decision) or not ports <= set(self._latest) - self._idle:
            raise NotDeclared
        self._idle |= ports
        self._advance()

    def end(self, port: str) -> None:
        del self._latest[port]
        self._idle.discard(port)
        self._advance()

    def _see(self, port: str, times: Sequence[int]) -> None:
        self._idle.discard(port)
        before = self._latest[port]
        self._latest[port] = max((*times, *(() if before is None else (before,))), default=None)
        self._advance()

    def _advance(self) -> None:
        awake = [time for port, time in self._latest.items() if port not in self._idle]
        if awake and all(time is not None for time in awake):
            least = min(time for time in awake if time is not None)
            self._watermark = least if self._watermark is None else max(self._watermark, least)

    def _over(self, time: int) -> bool:
        return self._watermark is not None and time <= self._watermark


class IntervalCourse(_Timed):
    """Intervals that tumble or slide."""

    def __init__(self, window: Tumbling | Sliding, ports: Sequence[str]) -> None:
        super().__init__(window, ports)
        self._window = window
        #: Those that are open, and the same as a heap: they fire in the order of their starts.
        self._open: set[tuple[int, int]] = set()
        self._first: list[tuple[int, int]] = []

    def facts(self, table: pa.Table) -> Any:
        return list(zip(times_of(self._window, table), groups_of(self._window, table)))

    def take(self, event: Event, logged: Sequence[int]) -> Sequence[Any]:
        joined: set[tuple[int, int]] = set()
        missed: list[int] = []
        for place, (time, group) in enumerate(event.facts):
            starts = [start for start in self._starts(time) if not self._over(self._fires(start))]
            joined |= {(start, group) for start in starts}
            if not starts:
                missed.append(place)
        self.missed = missed
        self.late += len(missed)
        for key in joined - self._open:
            heapq.heappush(self._first, key)
        self._open |= joined
        self._see(event.port, [time for time, _ in event.facts])
        return sorted(joined)

    def _starts(self, time: int) -> Iterator[int]:
        """Yield where the intervals begin that a time falls into."""
        start = time // self._window.step * self._window.step
        while start + self._window.length > time:
            yield start
            start -= self._window.step

    def _fires(self, start: int) -> int:
        return start + self._window.length + self._window.waits

    def complete(self) -> Sequence[Any]:
        done: list[tuple[int, int]] = []
        while self._first and self._over(self._fires(self._first[0][0])):
            done.append(heapq.heappop(self._first))
        self._open.difference_update(done)
        return done

    def rest(self) -> Sequence[Any]:
        return sorted(self._open)


@dataclass(eq=False)
class _Sitting:
    """A session that is open: what began it, its records, and the times of the first and the last one."""

    began: tuple[str, int, int]
    #: How many were opened before it.
    nth: int
    first: int
    last: int
    records: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    #: Whether it is closed, or has become part of another one.
    is_gone: bool = False


@dataclass
class _OfKey:
    """The open sessions of one key: in the order of their times, which are a pause apart."""

    sittings: list[_Sitting] = field(default_factory=list)
    #: The same as a heap of (event that began it, how manieth), with some that are gone.
    oldest: list[tuple[int, int, _Sitting]] = field(default_factory=list)
    #: What none of them has: times of events up to one, as (event, first time, last time).
    left_out: list[list[int]] = field(default_factory=list)
    #: The event that began the oldest of them when that was last looked at.
    since: int = 0

    def near(self, first: int, last: int, pause: int) -> slice:
        """Return where the sessions stand that are not a pause away from these times."""
        start = bisect_right(self.sittings, first - pause, key=lambda one: one.last)
        return slice(start, bisect_left(self.sittings, last + pause, lo=start, key=lambda one: one.first))

    def add(self, at: slice, sitting: _Sitting) -> None:
        """Put a session in the place of those that it takes in."""
        for one in self.sittings[at]:
            one.is_gone = one is not sitting
        if sitting not in self.sittings[at]:
            heapq.heappush(self.oldest, (sitting.began[1], sitting.nth, sitting))
        self.sittings[at] = [sitting]

    def remove(self, sitting: _Sitting) -> None:
        sitting.is_gone = True
        del self.sittings[bisect_left(self.sittings, sitting.first, key=lambda one: one.first)]

    def leave_out(self, one: list[int]) -> None:
        """Remember what no open session has, as far as these hold events that old."""
        while self.oldest[0][2].is_gone:
            heapq.heappop(self.oldest)
        began = self.oldest[0][0]
        if began != self.since:
            self.left_out = [left for left in self.left_out if left[0] >= began]
            self.since = began
        if one[0] >= began:
            self.left_out.append(one)


class SessionCourse(_Timed):
    """Sessions, each with the very records that it has."""

    def __init__(self, window: Session, ports: Sequence[str]) -> None:
        super().__init__(window, ports)
        self._window = window
        self._open: dict[str, _OfKey] = {}
        self._opened = 0
        #: Open sessions as a heap: (when it fires, what began it, how manieth, itself); one that grew stands again.
        self._due: list[tuple[int, tuple[str, int, int], int, _Sitting]] = []
        self._gone: list[tuple[Any, Any]] = []
        self._closed: dict[tuple[str, int, int], tuple[_Sitting, list[list[int]]]] = {}
        self._number = 0

    def facts(self, table: pa.Table) -> Any:
        columns = self._window.columns
        keys = keys_of(table, columns) if columns else ["[]"] * table.num_rows
        return list(zip(times_of(self._window, table), keys))

    def take(self, event: Event, logged: Sequence[int]) -> Sequence[Any]:
        missed: list[int] = []
        joined: list[_Sitting] = []
        by_key: dict[str, list[tuple[int, int]]] = {}
        for place, (time, key) in enumerate(event.facts):
            by_key.setdefault(key, []).append((time, place))
        for key, records in by_key.items():
            late: list[list[int]] = []
            for stretch in self._stretches(records):
                sitting = self._sit(key, event, stretch)
                if sitting is None:
                    missed += [place for _, place in stretch]
                    late.append([event.number, stretch[0][0], stretch[-1][0]])
                else:
                    joined.append(sitting)
            for one in late if key in self._open else ():
                self._open[key].leave_out(one)
        self.missed = sorted(missed)
        self.late += len(missed)
        self._number = event.number
        self._see(event.port, [time for time, _ in event.facts])
        # A session that another record has joined to an earlier one goes by that one's beginning.
        became = dict(self._gone)
        return list(dict.fromkeys(_followed(sitting.began, became) for sitting in joined))

    def _stretches(self, records: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        """Yield the records of a key, (time, place), in the order of their times, cut where there is a pause."""
        stretch: list[tuple[int, int]] = []
        for time, place in sorted(records):
            if stretch and time - stretch[-1][0] >= self._window.pause:
                yield stretch
                stretch = []
            stretch.append((time, place))
        yield stretch

    def _sit(self, key: str, event: Event, stretch: Sequence[tuple[int, int]]) -> _Sitting | None:
        """Let a stretch join its session, or begin one; None where it comes too late for that."""
        first, last = stretch[0][0], stretch[-1][0]
        own = self._open.get(key, _OfKey())
        at = own.near(first, last, self._window.pause)
        near = sorted(own.sittings[at], key=lambda one: one.nth)
        if not near:
            if self._over(last + self._window.pause + self._window.waits):
                return None
            self._opened += 1
            self._open[key] = own
            near = [_Sitting((key, event.number, first), self._opened, first, last)]
            self._await(near[0])
        kept, *others = near
        for other in others:
            self._gone.append((other.began, kept.began))
            for place in other.records:
                kept.records.setdefault(place, []).extend(other.records[place])
        before = kept.last
        kept.first, kept.last = min(first, *(o.first for o in near)), max(last, *(o.last for o in near))
        kept.records.setdefault((event.port, event.number), []).extend(place for _, place in stretch)
        own.add(at, kept)
        if kept.last != before:
            self._await(kept)
        return kept

    def _await(self, sitting: _Sitting) -> None:
        heapq.heappush(self._due, (self._fires(sitting), sitting.began, sitting.nth, sitting))

    def absorbed(self) -> Sequence[tuple[Any, Any]]:
        gone, self._gone = self._gone, []
        return gone

    def complete(self) -> Sequence[Any]:
        return self._close(self._over)

    def rest(self) -> Sequence[Any]:
        return self._close(lambda time: True)

    def _close(self, over: Callable[[int], bool]) -> Sequence[Any]:
        done: list[Any] = []
        while self._due and over(self._due[0][0]):
            fires, began, _, one = heapq.heappop(self._due)
            if one.is_gone or fires != self._fires(one):
                continue
            done.append(began)
            own = self._open[began[0]]
            own.remove(one)
            self._closed[began] = (one, list(own.left_out))
            if own.sittings:
                own.leave_out([self._number, one.first, one.last])
            else:
                del self._open[began[0]]
        return done

    def _fires(self, sitting: _Sitting) -> int:
        return sitting.last + self._window.pause + self._window.waits

    def state(self, key: Any) -> Any:
        sitting, left_out = self._closed[key]
        return {"from": sitting.first, "to": sitting.last, "without": left_out}

    def records(self, key: Any) -> Records | None:
        return {event: sorted(places) for event, places in self._closed.pop(key)[0].records.items()}


def _followed(began: Any, became: dict[Any, Any]) -> Any:
    while began in became:
        began = became[began]
    return began
