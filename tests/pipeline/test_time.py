"""Every window against a computation that knows no turns or crashes: the same results, the same late records.

Times, lateness, keys and the bounds of events are drawn; so are the places where control is lost and rebuilt from what
the log has. With several ports the order in which events were taken is given, and so is what the clock made an operator
decide: both are in the log. Records are numbered as they are taken, so whoever reorders them is seen.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import Count, Every, Session, Sliding, Tumbling
from clew.ids import Port
from clew.pipeline.graph import Generative, late_function
from clew.pipeline.operators import WindowLogic
from clew.pipeline.windows import Window
from clew.protocol.log.alg2_update import update
from clew.protocol.log.alg3_generate import Output, Productions, generate
from clew.protocol.log.context import Arrival, Context, InputSet
from clew.protocol.rows import END
from tests.protocol.scene import Log, started

#: A record: its time, its key, and its number in the order in which records are taken.
Record = tuple[int, str, int]
#: What a window showed: its bounds where it has them, and its records.
Shown = tuple[Any, tuple[Record, ...]]


@dataclass(frozen=True)
class Clock:
    """What control finds on the clock when a turn begins."""

    now: int = 0
    #: The ports on which nothing has come for long.
    still: frozenset[str] = frozenset()
    waiting: bool = True
    decided: int | None = None

    def quiet(self, port: str) -> int:
        return 1_000_000 * (port in self.still)


@dataclass
class Decision:
    """What the clock made the operator decide, in its place among the events."""

    made: Any


class Control:
    """An operator with one window, over records: what its function would see, and what came too late."""

    def __init__(self, window: Window, ports: Sequence[str]) -> None:
        self.window = window
        self.ports = ports
        main = Generative("f", lambda table: table, "arrow", window, ("out",))
        self.windows = {one.name: one.window for one in (main, *late_function(main, tuple(ports)))}
        self.logic = WindowLogic(self.windows, ports)
        self.log = Log(*[f"S.{port} > OP.{port}" for port in ports])
        self.fresh = started(self.logic, **{port: f"S.{port}" for port in ports})
        self.context: Context = self.fresh
        self.events: dict[tuple[str, int], pa.Table] = {}
        self.shown: list[Shown] = []
        self.late: list[Record] = []
        #: What was taken and decided, in this order.
        self.history: list[tuple[str, list[Record]] | Decision] = []

    def turn(self, events: "Taken", crash: bool, clock: Clock) -> None:
        """Take some events in one turn, and commit it; a crash before the commit makes it happen twice."""
        for port, records in events:
            number = self.log.sent.get(Port("S", port), 0) + 1
            self.events[port, number] = _table(records)
            self.log.send(f"S.{port}", self.logic.facts(_table(records)))
        if crash:
            update(self.context, self.logic, self._arrivals(events), self._decide(clock))
            self.context = self.log.recover(self.fresh, self.logic)
        decision = self._decide(clock)
        self.history += [] if decision is None else [Decision(decision["f"])]
        self.history += events
        self._commit(update(self.context, self.logic, self._arrivals(events), decision))

    def _decide(self, clock: Clock) -> Any:
        decision = self.logic.decide(self.context.memory([]), clock)
        # Decisions go through the log.
        return json.loads(json.dumps(decision))

    def finish(self) -> None:
        for port in self.ports:
            number = self.context.latest.get(port, 0) + 1
            self.log.send(f"S.{port}", END)
            self._commit(update(self.context, self.logic, [Arrival(port, number, end=True)]))
        assert self.context.finished
        assert self.log.store.members("OP") == []
        assert self.log.store.keyed("OP") == []

    def _arrivals(self, events: Sequence[tuple[str, Sequence[Record]]]) -> Iterator[Arrival]:
        numbers = dict(self.context.latest)
        for port, records in events:
            numbers[port] = numbers.get(port, 0) + 1
            # Facts go through the log.
            facts = json.loads(json.dumps(self.logic.facts(_table(records))))
            yield Arrival(port, numbers[port], len(records), 1, facts)

    def _commit(self, done: Any) -> None:
        for closed in done.closed:
            self._show(closed)
        sets = tuple(closed.number for closed in done.closed)
        made = [Productions(sets, {"out": Output((0,) * len(sets), (), ())})] if sets else []
        self.context, step = generate(done, made)
        self.log.commit("OP", step)
        self.context.settle()

    def _show(self, closed: InputSet) -> None:
        function, key = closed.label
        seen: list[Record] = []
        bounds: set[Any] = set()
        for port in self.ports:
            events = [
                (number, self.events[port, number])
                for span in closed.spans
                if span.port == port
                for number in range(span.first, span.first + span.count)
            ]
            if events:
                table = self.windows[function].select(events, key, closed.state)
                own = _records(table)
                assert [number for _, _, number in own] == sorted(number for _, _, number in own), "records keep order"
                seen += own
                if "window_start" in table.schema.names:
                    bounds |= set(zip(table["window_start"].to_pylist(), table["window_end"].to_pylist()))
        if function == "f":
            assert len(bounds) <= 1
            self.shown.append((next(iter(bounds), None), tuple(sorted(seen))))
        else:
            self.late += seen


def _table(records: Sequence[Record]) -> pa.Table:
    schema = pa.schema({"t": pa.int64(), "k": pa.string(), "n": pa.int64()})
    return pa.Table.from_pylist([{"t": t, "k": k, "n": n} for t, k, n in records], schema)


def _records(table: pa.Table) -> list[Record]:
    return [(row["t"], row["k"], row["n"]) for row in table.select(["t", "k", "n"]).to_pylist()]


# What should come of it.


Taken = list[tuple[str, list[Record]]]
History = Sequence[tuple[str, list[Record]] | Decision]


@dataclass
class Watermark:
    """The least of the latest times of all ports that are not idle; it never goes back."""

    ports: Sequence[str]
    latest: dict[str, int] = field(default_factory=dict)
    idle: set[str] = field(default_factory=set)
    times: list[int] = field(default_factory=list)

    def see(self, port: str, records: Sequence[Record]) -> None:
        self.idle.discard(port)
        times = [time for time, _, _ in records]
        if times:
            self.latest[port] = max(*times, self.latest.get(port, times[0]))
        self._advance()

    def leave(self, ports: Sequence[str]) -> None:
        assert not self.idle.intersection(ports), "a port falls idle once"
        self.idle.update(ports)
        self._advance()

    def _advance(self) -> None:
        awake = [port for port in self.ports if port not in self.idle]
        if awake and all(port in self.latest for port in awake):
            self.times.append(min(self.latest[port] for port in awake))

    def reached(self, time: int) -> bool:
        return any(passed >= time for passed in self.times)


def intervals(history: History, ports: Sequence[str], size: int, every: int, lateness: int) -> tuple[Any, list[Record]]:
    """Return the records of each interval, and the late ones."""
    watermark, windows, late = Watermark(ports), {}, []
    for one in history:
        if isinstance(one, Decision):
            watermark.leave(one.made)
            continue
        port, records = one
        for record in records:
            # Any start from which the interval reaches the record will do for a search.
            starts = [at for at in range(record[0] - size, record[0] + 1) if at % every == 0 and at + size > record[0]]
            waiting = [start for start in starts if not watermark.reached(start + size + lateness)]
            for start in waiting:
                windows.setdefault((start, start + size), []).append(record)
            if not waiting:
                late.append(record)
        watermark.see(port, records)
    return windows, late


def sessions(history: History, gap: int, lateness: int, keyed: bool) -> tuple[list[Shown], list[Record]]:
    """Return all sessions, and the late records."""
    watermark, waiting, fired, late = Watermark(["in"]), [], [], []
    for event in history:
        if isinstance(event, Decision):
            watermark.leave(event.made)
            continue
        port, records = event
        for stretch in _stretches(records, gap, keyed):
            near = [one for one in waiting if _near(one, stretch, gap, keyed)]
            if not near and watermark.reached(stretch[-1][0] + gap + lateness):
                late += stretch
                continue
            joined = sorted([*stretch, *(record for one in near for record in one)])
            waiting = [*(one for one in waiting if one not in near), joined]
        watermark.see(port, records)
        over = [one for one in waiting if watermark.reached(one[-1][0] + gap + lateness)]
        fired += over
        waiting = [one for one in waiting if one not in over]
    return [((one[0][0], one[-1][0] + gap), tuple(one)) for one in (*fired, *waiting)], sorted(
        late, key=lambda record: record[2]
    )


def _key(record: Record, keyed: bool) -> str:
    return record[1] if keyed else ""


def _near(one: Sequence[Record], other: Sequence[Record], gap: int, keyed: bool) -> bool:
    return any(abs(a[0] - b[0]) < gap and _key(a, keyed) == _key(b, keyed) for a in one for b in other)


def _stretches(records: Sequence[Record], gap: int, keyed: bool) -> list[list[Record]]:
    found: list[list[Record]] = []
    for record in sorted(records, key=lambda record: (_key(record, keyed), record)):
        last = found[-1][-1] if found else None
        if last and _key(last, keyed) == _key(record, keyed) and record[0] - last[0] < gap:
            found[-1].append(record)
        else:
            found.append([record])
    return found


# Drawn.

RECORDS = st.lists(st.tuples(st.integers(-30, 60), st.sampled_from("abc")), max_size=5)


@st.composite
def turns(draw: st.DrawFn, ports: Sequence[str]) -> "Drawn":
    """Draw turns of events, with whether each is lost once before it is committed, and what the clock shows then."""
    number, drift, now, made = 0, 0, 0, []
    for _ in range(draw(st.integers(1, 6))):
        events: Taken = []
        for _ in range(draw(st.integers(0, 4))):
            records = []
            for time, key in draw(RECORDS):
                number += 1
                records.append((time + drift, key, number))
            drift += draw(st.integers(0, 25))
            events.append((draw(st.sampled_from(list(ports))), records))
        # The clock may be set back.
        now += draw(st.integers(-1_000_000, 3_000_000))
        still = draw(st.frozensets(st.sampled_from(list(ports))))
        made.append((events, draw(st.booleans()), Clock(max(now, 0), still, bool(events))))
    return made


Drawn = list[tuple[Taken, bool, Clock]]


def run(window: Window, ports: Sequence[str], drawn: Drawn) -> Control:
    control = Control(window, ports)
    for events, crash, clock in drawn:
        control.turn(events, crash, clock)
    control.finish()
    return control


def taken(drawn: Drawn) -> Taken:
    return [event for events, _, _ in drawn for event in events]


def counted(control: Control) -> int:
    return int(control.context.state["f"]["late"])


LATENESS = st.sampled_from((0, 4, 15))
#: The clock of a turn finds a port still for a second, or not at all.
IDLE = st.sampled_from((None, "1 second"))


@pytest.mark.parametrize("ports", [("in",), ("a", "b")], ids=len)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), size=st.sampled_from((1, 7, 10)), lateness=LATENESS, keyed=st.booleans(), idle=IDLE)
def test_tumbling_windows(
    ports: tuple[str, ...], data: st.DataObject, size: int, lateness: int, keyed: bool, idle: str | None
) -> None:
    drawn = data.draw(turns(ports))
    window = Tumbling(size, on="t", lateness=lateness, late="late", by="k" if keyed else None, key_groups=2, idle=idle)
    control = run(window, ports, drawn)
    _check_intervals(control, intervals(control.history, ports, size, size, lateness), keyed)


@pytest.mark.parametrize("ports", [("in",), ("a", "b")], ids=len)
@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    sizes=st.sampled_from(((10, 5), (10, 4), (9, 9), (7, 3))),
    lateness=LATENESS,
    keyed=st.booleans(),
    idle=IDLE,
)
def test_sliding_windows(
    ports: tuple[str, ...], data: st.DataObject, sizes: tuple[int, int], lateness: int, keyed: bool, idle: str | None
) -> None:
    drawn = data.draw(turns(ports))
    window = Sliding(*sizes, on="t", lateness=lateness, late="late", by="k" if keyed else None, key_groups=2, idle=idle)
    control = run(window, ports, drawn)
    _check_intervals(control, intervals(control.history, ports, *sizes, lateness), keyed)


def _check_intervals(control: Control, expected: tuple[Any, list[Record]], keyed: bool) -> None:
    windows, late = expected
    found: dict[Any, list[Record]] = {}
    for bounds, records in control.shown:
        assert keyed or bounds not in found, "a window fires once"
        # A key is in one key group.
        assert not {key for _, key, _ in found.get(bounds, [])} & {key for _, key, _ in records}
        found.setdefault(bounds, []).extend(records)
    assert {bounds: sorted(records) for bounds, records in found.items()} == {
        bounds: sorted(records) for bounds, records in windows.items()
    }
    assert control.late == late
    assert counted(control) == len(late)


@settings(max_examples=300, deadline=None)
@given(drawn=turns(("in",)), gap=st.sampled_from((1, 6, 12)), lateness=LATENESS, keyed=st.booleans(), idle=IDLE)
def test_session_windows(drawn: Drawn, gap: int, lateness: int, keyed: bool, idle: str | None) -> None:
    window = Session(gap, on="t", lateness=lateness, late="late", by="k" if keyed else None, idle=idle)
    control = run(window, ("in",), drawn)
    expected, late = sessions(control.history, gap, lateness, keyed)
    assert Counter(control.shown) == Counter(expected)
    assert control.late == late
    assert counted(control) == len(late)


@settings(max_examples=150, deadline=None)
@given(drawn=turns(("in",)), size=st.integers(1, 4))
def test_counts_by_key(drawn: Drawn, size: int) -> None:
    control = run(Count(size, by="k"), ("in",), drawn)
    records = [record for _, records in taken(drawn) for record in records]
    expected: Counter[Shown] = Counter()
    for key in "abc":
        own = [record for record in records if record[1] == key]
        expected.update((None, tuple(sorted(own[at : at + size]))) for at in range(0, len(own), size))
    assert Counter(control.shown) == expected


@pytest.mark.parametrize("ports", [("in",), ("a", "b")], ids=len)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_windows_of_the_clock(ports: tuple[str, ...], data: st.DataObject) -> None:
    """What was taken between two decisions is one Input Set, and what is complete is never reopened."""
    control = run(Every("1 second"), ports, data.draw(turns(ports)))
    decisions = [one.made for one in control.history if isinstance(one, Decision)]
    assert decisions == sorted(set(decisions))
    expected: list[list[list[Record]]] = []
    for one in control.history:
        if isinstance(one, Decision):
            expected.append([])
        else:
            expected[-1].append(one[1])
    assert control.shown == [(None, tuple(sorted(chain(*events)))) for events in expected if events]
