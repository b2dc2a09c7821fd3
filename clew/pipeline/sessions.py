"""Session windows: records of one key that follow each other closely."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import GraphError
from clew.pipeline.keys import key_columns, key_text, keys_of, of_key
from clew.pipeline.times import Duration, microseconds
from clew.pipeline.timewindows import EventTime
from clew.pipeline.windows import Header, Key, Late, Memory, State

#: The key of records without keys.
_ALL = key_text(())


@dataclass(frozen=True)
class Session(EventTime):
    """Records of one key without a pause of `gap` or more are one Input Set.

    A session ends `gap` after its last record; `window_start` is the time of the first one, `window_end` that end. A
    record that lies between two open sessions makes one of them. A record is late when no open session is near, and
    the one that it would begin has fired.

    Facts are told by stretches: records of one key in one event without a pause. The key of an Input Set is
    (key, event, time): what began it.
    """

    gap: Duration
    on: str
    by: "str | Sequence[str] | None" = field(default=None, kw_only=True)
    columns: tuple[str, ...] = field(init=False, repr=False, compare=False)
    pause: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pause", microseconds(self.gap))
        object.__setattr__(self, "columns", key_columns(self.by, "Session"))
        if self.pause < 1:
            raise GraphError(f"Session({self.gap!r}) has no gap; give it one above zero")
        self._prepare(self.gap, self.on)

    def initial(self, ports: Sequence[str]) -> State:
        # With the number of the event taken last.
        return {**super().initial(ports), "taken": 0}

    @property
    def whole(self) -> bool:
        return True

    @property
    def many_ports(self) -> bool:
        return False

    def facts(self, table: pa.Table) -> Any:
        """Return the latest time, and the stretches: key, first and last time, records."""
        if table.num_rows == 0:
            return [None, []]
        times = self.time.numbers(table).combine_chunks()
        texts, codes = self._keys(table)
        ordered = pa.table({"code": codes, "time": times}).sort_by([("code", "ascending"), ("time", "ascending")])
        pairs = zip(ordered["code"].to_pylist(), ordered["time"].to_pylist())
        return [pc.max(times).as_py(), [[texts[code], *rest] for code, *rest in self._stretches(pairs)]]

    def _stretches(self, pairs: Iterator[tuple[int, int]]) -> Iterator[list[int]]:
        """Yield [key, first, last, records] for each stretch without a pause, of pairs in order."""
        current: list[int] | None = None
        for code, time in pairs:
            if current and current[0] == code and time < current[2] + self.pause:
                current[2], current[3] = time, current[3] + 1
            else:
                if current:
                    yield current
                current = [code, time, time, 1]
        if current:
            yield current

    def missed(self, event: Header, memory: Memory) -> Late | None:
        missed = [stretch for stretch in self._judged(event, memory) if stretch[4]]
        if not missed:
            return None
        return Late(sum(rows for _, _, _, rows, _ in missed), [[text, lo, hi] for text, lo, hi, _, _ in missed])

    def assign(self, event: Header, memory: Memory) -> Sequence[Key]:
        judged = list(self._judged(event, memory))
        became: dict[Key, Key] = {}
        keys = [self._join(text, lo, hi, event.number, memory, became) for text, lo, hi, _, late in judged if not late]
        for text, lo, hi, _, late in judged:
            if late and text in memory.keyed:
                self._leave_out(memory.keyed[text], event.number, lo, hi)
        memory.shared["taken"] = event.number
        self._see(event, event.facts[0], memory)
        return list(dict.fromkeys(_follow(became, key) for key in keys))

    def deadline(self, key: Key, memory: Memory) -> int:
        return int(self._session(key, memory)[1]) + self.pause + self.waits

    def close(self, key: Key, memory: Memory) -> Any:
        row = memory.keyed[key[0]]
        session = self._session(key, memory)
        row["open"].remove(session)
        # The next event of the turn may add to the row's.
        seen = {"from": session[0], "to": session[1], "without": list(row["without"])}
        if row["open"]:
            self._leave_out(row, memory.shared["taken"], session[0], session[1])
        else:
            del memory.keyed[key[0]]
        return seen

    def _leave_out(self, row: Any, number: int, lo: int, hi: int) -> None:
        """Remember that no session that is open has records of this time of events up to this one.

        They came late, or a session that has fired had them. The events may be in an open session with other records
        of the key, and that session may still grow over this time. What is older than all open sessions is forgotten.
        """
        began = min(one[2] for one in row["open"])
        row["without"] = [left for left in row["without"] if left[0] >= began]
        if number >= began:
            row["without"].append([number, lo, hi])

    def select(self, events: Sequence[tuple[int, pa.Table]], key: Key, seen: Any) -> pa.Table:
        parts = [self._of_session(table, number, key[0], seen) for number, table in events]
        return self.time.bounded(pa.concat_tables(parts), seen["from"], seen["to"] + self.pause)

    def pick_late(self, table: pa.Table, which: Any) -> pa.Table:
        # One filter for all stretches, so that records keep the order of their event.
        times = self.time.numbers(table)
        texts, codes = self._keys(table)
        stretches = (pc.and_(pc.equal(codes, texts.index(text)), _between(times, lo, hi)) for text, lo, hi in which)
        return table.filter(reduce(pc.or_, stretches))

    def _judged(self, event: Header, memory: Memory) -> Iterator[tuple[str, int, int, int, bool]]:
        """Yield each stretch with whether it is too late; one that an earlier one lets in is not."""
        watermark = memory.shared["watermark"]
        for text, stretches in _by_key(event.facts[1]):
            sessions = [(lo, hi) for lo, hi, _, _ in memory.keyed.get(text, {"open": []})["open"]]
            for _, lo, hi, rows in stretches:
                near = any(lo < end + self.pause and start < hi + self.pause for start, end in sessions)
                too_late = not near and watermark is not None and hi + self.pause + self.waits <= watermark
                if not too_late:
                    sessions.append((lo, hi))
                yield text, lo, hi, rows, too_late

    def _join(self, text: str, lo: int, hi: int, number: int, memory: Memory, became: dict[Key, Key]) -> Key:
        """Let a stretch join the sessions near it, which become one, or begin a session; return its key."""
        row = memory.keyed.setdefault(text, {"open": [], "without": []})
        near = [one for one in row["open"] if lo < one[1] + self.pause and one[0] < hi + self.pause]
        if not near:
            row["open"].append([lo, hi, number, lo])
            return text, number, lo
        first, *others = near
        for other in others:
            became[text, other[2], other[3]] = (text, first[2], first[3])
            memory.absorb((text, other[2], other[3]), (text, first[2], first[3]))
            row["open"].remove(other)
        first[0] = min(lo, *(one[0] for one in near))
        first[1] = max(hi, *(one[1] for one in near))
        return text, first[2], first[3]

    def _session(self, key: Key, memory: Memory) -> list[int]:
        """Return what is remembered of an open session: first and last time, and what began it."""
        text, number, lo = key
        found: list[int] = next(one for one in memory.keyed[text]["open"] if one[2:] == [number, lo])
        return found

    def _of_session(self, table: pa.Table, number: int, text: str, seen: Any) -> pa.Table:
        own = self._of_key(table, text)
        if not own.num_rows:
            return own
        times = self.time.numbers(own)
        within = _between(times, seen["from"], seen["to"])
        for upto, lo, hi in seen["without"]:
            if number <= upto:
                within = pc.and_not(within, _between(times, lo, hi))
        return own.filter(within)

    def _of_key(self, table: pa.Table, text: str) -> pa.Table:
        return of_key(table, self.columns, text, "Session") if self.columns and table.num_rows else table

    def _keys(self, table: pa.Table) -> tuple[list[str], pa.Array]:
        if self.columns:
            return keys_of(table, self.columns, "Session")
        return [_ALL], pa.array([0] * table.num_rows, pa.int64())


def _by_key(stretches: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield stretches by key: in facts, those of one key stand together."""
    for text, group in groupby(stretches, key=lambda stretch: stretch[0]):
        yield text, list(group)


def _between(times: pa.ChunkedArray, lo: int, hi: int) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(times, lo), pc.less_equal(times, hi))


def _follow(became: dict[Key, Key], key: Key) -> Key:
    while key in became:
        key = became[key]
    return key
