"""Every window against a computation that knows no events, turns or crashes: the same results, the same late records.

Times, lateness, keys and the bounds of events are drawn; so are the places where control is lost and rebuilt from what
the log has. With several ports the order in which events were taken is given.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import Count, Session, Sliding, Tumbling
from clew.ids import Port
from clew.pipeline.graph import Generative, late_function
from clew.pipeline.operators import WindowLogic
from clew.pipeline.windows import Window
from clew.protocol.log.alg2_update import update
from clew.protocol.log.alg3_generate import Output, Productions, generate
from clew.protocol.log.context import Arrival, Context, InputSet
from clew.protocol.rows import END
from tests.protocol.scene import Log, started

#: A record: its time, its key, and a number that no other has.
Record = tuple[int, str, int]
#: What a window showed: its bounds where it has them, and its records.
Shown = tuple[Any, tuple[Record, ...]]


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

    def turn(self, events: Sequence[tuple[str, Sequence[Record]]], crash: bool) -> None:
        """Take some events in one turn, and commit it; a crash before the commit makes it happen twice."""
        for port, records in events:
            number = self.log.sent.get(Port("S", port), 0) + 1
            self.events[port, number] = _table(records)
            self.log.send(f"S.{port}", self.logic.facts(_table(records)))
        if crash:
            update(self.context, self.logic, self._arrivals(events))
            self.context = self.log.recover(self.fresh, self.logic)
        done = update(self.context, self.logic, self._arrivals(events))
        self._commit(done)

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
                seen += _records(table)
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


class Watermark:
    """The least of the latest times of all ports."""

    def __init__(self, ports: Sequence[str]) -> None:
        self.latest: dict[str, list[int]] = {port: [] for port in ports}

    def see(self, port: str, records: Sequence[Record]) -> None:
        self.latest[port] += [time for time, _, _ in records]

    def reached(self, time: int) -> bool:
        return all(times and max(times) >= time for times in self.latest.values())


Taken = list[tuple[str, list[Record]]]


def intervals(taken: Taken, ports: Sequence[str], size: int, every: int, lateness: int) -> tuple[Any, list[Record]]:
    """Return the records of each interval, and the late ones."""
    watermark, windows, late = Watermark(ports), {}, []
    for port, records in taken:
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


def sessions(taken: Taken, gap: int, lateness: int, keyed: bool) -> tuple[list[Shown], list[Record]]:
    """Return all sessions, and the late records."""
    watermark, waiting, fired, late = Watermark(["in"]), [], [], []
    for port, records in taken:
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
    return [((one[0][0], one[-1][0] + gap), tuple(one)) for one in (*fired, *waiting)], late


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
def turns(draw: st.DrawFn, ports: Sequence[str]) -> list[tuple[Taken, bool]]:
    """Draw turns of events, with whether each is lost once before it is committed."""
    number, drift, made = 0, 0, []
    for _ in range(draw(st.integers(1, 6))):
        events: Taken = []
        for _ in range(draw(st.integers(0, 4))):
            records = []
            for time, key in draw(RECORDS):
                number += 1
                records.append((time + drift, key, number))
            drift += draw(st.integers(0, 25))
            events.append((draw(st.sampled_from(list(ports))), records))
        made.append((events, draw(st.booleans())))
    return made


def run(window: Window, ports: Sequence[str], drawn: Sequence[tuple[Taken, bool]]) -> Control:
    control = Control(window, ports)
    for events, crash in drawn:
        control.turn(events, crash)
    control.finish()
    return control


def taken(drawn: Sequence[tuple[Taken, bool]]) -> Taken:
    return [event for events, _ in drawn for event in events]


def counted(control: Control) -> int:
    return int(control.context.state["f"]["late"])


LATENESS = st.sampled_from((0, 4, 15))


@pytest.mark.parametrize("ports", [("in",), ("a", "b")], ids=len)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), size=st.sampled_from((1, 7, 10)), lateness=LATENESS, keyed=st.booleans())
def test_tumbling_windows(ports: tuple[str, ...], data: st.DataObject, size: int, lateness: int, keyed: bool) -> None:
    drawn = data.draw(turns(ports))
    window = Tumbling(size, on="t", lateness=lateness, late="late", by="k" if keyed else None, key_groups=2)
    _check_intervals(run(window, ports, drawn), intervals(taken(drawn), ports, size, size, lateness), keyed)


@pytest.mark.parametrize("ports", [("in",), ("a", "b")], ids=len)
@settings(max_examples=150, deadline=None)
@given(
    data=st.data(), sizes=st.sampled_from(((10, 5), (10, 4), (9, 9), (7, 3))), lateness=LATENESS, keyed=st.booleans()
)
def test_sliding_windows(
    ports: tuple[str, ...], data: st.DataObject, sizes: tuple[int, int], lateness: int, keyed: bool
) -> None:
    drawn = data.draw(turns(ports))
    window = Sliding(*sizes, on="t", lateness=lateness, late="late", by="k" if keyed else None, key_groups=2)
    _check_intervals(run(window, ports, drawn), intervals(taken(drawn), ports, *sizes, lateness), keyed)


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
    assert sorted(control.late) == sorted(late)
    assert counted(control) == len(late)


@settings(max_examples=300, deadline=None)
@given(drawn=turns(("in",)), gap=st.sampled_from((1, 6, 12)), lateness=LATENESS, keyed=st.booleans())
def test_session_windows(drawn: list[tuple[Taken, bool]], gap: int, lateness: int, keyed: bool) -> None:
    control = run(Session(gap, on="t", lateness=lateness, late="late", by="k" if keyed else None), ("in",), drawn)
    expected, late = sessions(taken(drawn), gap, lateness, keyed)
    assert Counter(control.shown) == Counter(expected)
    assert sorted(control.late) == sorted(late)
    assert counted(control) == len(late)


@settings(max_examples=150, deadline=None)
@given(drawn=turns(("in",)), size=st.integers(1, 4))
def test_counts_by_key(drawn: list[tuple[Taken, bool]], size: int) -> None:
    control = run(Count(size, by="k"), ("in",), drawn)
    records = [record for _, records in taken(drawn) for record in records]
    expected: Counter[Shown] = Counter()
    for key in "abc":
        own = [record for record in records if record[1] == key]
        expected.update((None, tuple(sorted(own[at : at + size]))) for at in range(0, len(own), size))
    assert Counter(control.shown) == expected
