"""Windows: which events join which Input Set, when it is complete, and which records it sees."""

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from clew.errors import ClewError, GraphError, TypeRefused
from clew.ids import InputSetId, Port
from clew.pipeline.operators import WindowLogic
from clew.pipeline.sessions import Session
from clew.pipeline.timewindows import Sliding, Tumbling
from clew.pipeline.windows import Batch, Count, Each, Every, Late, Window
from clew.protocol.log.alg2_update import Update, update
from clew.protocol.log.context import Arrival, InputSet, Keyed, Memory, Opened, fresh
from clew.protocol.log.layers import Layers

HOUR = 3_600_000_000


@dataclass(frozen=True)
class Header:
    number: int = 1
    port: str = "in"
    facts: Any = None
    rows: int = 1
    size: int = 8


class Run:
    """One function's control: takes events one by one, closes what is ready, as the protocol does."""

    def __init__(self, window: Window, ports: Sequence[str] = ("in",)) -> None:
        self.window = window
        self.state = window.initial(ports)
        self.keyed: Keyed = Layers()
        self.opened = Opened()
        self.number = 0
        #: What is late of the event taken last.
        self.late: Late | None = None

    @property
    def memory(self) -> Memory:
        return Memory({"f": self.state}, self.keyed, []).of("f")

    def take(self, times: Sequence[Any] = (), port: str = "in") -> list[Any]:
        self.number += 1
        facts = self.window.facts(_times(*times)) if self.window.needs_facts else None
        event = Header(self.number, port, facts)
        self.late = self.window.missed(event, self.memory)
        for key in self.window.assign(event, self.memory):
            if ("f", key) not in self.opened:
                self.opened["f", key] = InputSet(InputSetId(1), ("f", key))
                self.opened.alarm(("f", key), self.window.deadline(key, self.memory))
        return self.ready()

    def ready(self) -> list[Any]:
        return self.close(self.window.ready(self.memory, self.opened.of("f")))

    def end(self, port: str) -> list[Any]:
        self.window.end(port, self.memory)
        return self.ready()

    def end_turn(self) -> list[Any]:
        return self.close(self.window.end_turn(self.memory, self.opened.of("f")))

    def rest(self) -> list[Any]:
        return self.close(self.window.rest(self.memory, self.opened.of("f")))

    def close(self, keys: Sequence[Any]) -> list[Any]:
        for key in keys:
            assert self.opened.pop(("f", key)) is not None
            self.window.close(key, self.memory)
        # The state goes to the log and comes back at any moment.
        self.state = json.loads(json.dumps(self.state))
        return list(keys)


def _times(*values: Any, kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"t": pa.array(values, kind or pa.timestamp("us")), "n": list(range(len(values)))})


def select(window: Window, table: pa.Table, key: Any) -> pa.Table:
    return window.select([(1, table)], key, None)


def starts(window: Window, table: pa.Table) -> list[int]:
    return [pane for pane, _, _ in window.facts(table)[1]]


def test_each_event_is_an_input_set_of_its_own() -> None:
    run = Run(Each())
    assert [run.take(), run.take(), run.take(port="other")] == [[1], [2], [3]]
    assert run.end_turn() == []


def test_a_batch_is_complete_when_the_turn_ends() -> None:
    run = Run(Batch())
    assert [run.take(), run.take(), run.end_turn()] == [[], [], [0]]
    assert [run.take(), run.end_turn()] == [[], [1]]


def test_a_turn_without_events_closes_no_batch() -> None:
    run = Run(Batch())
    assert run.end_turn() == []
    assert [run.take(), run.end_turn()] == [[], [0]]


def test_a_count_is_complete_at_its_size_across_turns_and_ports() -> None:
    run = Run(Count(3), ("a", "b"))
    assert [run.take(port="a"), run.take(port="b"), run.end_turn(), run.take(port="b")] == [[], [], [], [0]]
    assert [run.take(), run.take(), run.take()] == [[], [], [1]]


def test_a_count_of_one_is_complete_at_once() -> None:
    run = Run(Count(1))
    assert [run.take(), run.take()] == [[0], [1]]


def test_a_count_of_nothing_is_refused() -> None:
    with pytest.raises(GraphError, match=r"Count\('5'\) is no number of events; give it a whole number, 1 or more"):
        Count("5")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"Count\(2.5\) is no number of records; give it a whole number, 1 or more"):
        Count(2.5, by="k")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="holds no event; give it 1 or more"):
        Count(0)


@pytest.mark.parametrize("window", [Each(), Batch(), Count(2)])
def test_windows_by_number_see_whole_events(window: Window) -> None:
    table = _times(1, 2)
    assert select(window, table, 1) == table
    assert window.extend(table.schema) == table.schema
    assert not window.needs_facts


def test_a_tumbling_window_is_complete_when_time_has_passed_it() -> None:
    run = Run(Tumbling("1 hour", on="t"))
    assert run.take([0]) == []
    assert run.take([0, HOUR]) == [0]
    assert run.take([HOUR]) == []
    assert run.end_turn() == []
    assert run.take([3 * HOUR]) == [HOUR]


def test_one_event_may_close_several_windows_in_order() -> None:
    run = Run(Tumbling("1 hour", on="t"))
    assert run.take([-HOUR, 0, HOUR, 2 * HOUR]) == [-HOUR, 0, HOUR]


def test_an_event_without_records_joins_nothing() -> None:
    run = Run(Tumbling("1 hour", on="t"))
    assert run.window.facts(_times()) == [None, []]
    assert [run.take([0]), run.take([])] == [[], []]
    assert run.opened.labels() == [("f", 0)]


def test_a_window_waits_for_the_slowest_port() -> None:
    run = Run(Tumbling("1 hour", on="t"), ("a", "b"))
    assert run.take([0, 5 * HOUR], "a") == []
    assert run.take([HOUR], "b") == [0]
    assert run.take([5 * HOUR], "b") == [HOUR]


def test_an_ended_port_holds_nothing_back() -> None:
    run = Run(Tumbling("1 hour", on="t"), ("a", "b"))
    assert run.take([0, 2 * HOUR], "a") == []
    assert run.end("b") == [0]
    assert run.take([3 * HOUR], "a") == [2 * HOUR]


def test_when_all_ports_have_ended_the_rest_is_left_to_the_flush() -> None:
    run = Run(Tumbling("1 hour", on="t"))
    assert run.take([0]) == []
    assert run.end("in") == []
    assert run.rest() == [0]


def test_a_record_is_late_when_its_window_has_fired() -> None:
    run = Run(Tumbling("1 hour", on="t"))
    assert run.take([0, 2 * HOUR]) == [0]
    assert run.take([HOUR - 1, HOUR, 2 * HOUR]) == []
    assert run.late == Late(2, [0, HOUR])
    assert run.opened.labels() == [("f", 2 * HOUR)]


def test_an_events_own_records_do_not_make_each_other_late() -> None:
    run = Run(Tumbling("1 hour", on="t"))
    assert run.take([9 * HOUR, 0]) == [0]
    assert run.late is None


def test_a_window_waits_as_long_as_lateness_allows() -> None:
    run = Run(Tumbling("1 hour", on="t", lateness="30 minutes"))
    assert run.take([0, HOUR]) == []
    assert run.take([HOUR + HOUR // 2 - 1, 5]) == []
    assert run.late is None
    assert run.take([HOUR + HOUR // 2, 7]) == [0]
    assert run.take([7]) == []
    assert run.late == Late(1, [0])


def test_a_record_is_not_late_while_another_port_is_behind() -> None:
    run = Run(Tumbling("1 hour", on="t"), ("a", "b"))
    run.take([5 * HOUR], "a")
    run.take([0], "b")
    assert run.take([HOUR], "a") == []


def test_a_record_of_a_window_that_is_still_open_is_not_late() -> None:
    run = Run(Tumbling("1 hour", on="t"))
    run.take([0, HOUR])
    assert run.take([HOUR]) == []


@pytest.mark.parametrize(
    ("micros", "start"),
    [(0, 0), (1, 0), (HOUR - 1, 0), (HOUR, HOUR), (-1, -HOUR), (-HOUR, -HOUR), (-HOUR - 1, -2 * HOUR)],
)
def test_intervals_are_aligned_to_the_epoch_on_both_sides_of_it(micros: int, start: int) -> None:
    window = Tumbling("1 hour", on="t")
    assert starts(window, _times(micros)) == [start]
    assert select(window, _times(micros), start).num_rows == 1


def test_facts_are_the_windows_of_the_records_in_order_and_once() -> None:
    facts = Tumbling(10, on="t").facts(_times(25, 3, 21, -4, 7, kind=pa.int64()))
    assert facts == [25, [[-10, 1, [0]], [0, 2, [0]], [20, 2, [0]]]]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()], ids=str)
def test_whole_numbers_have_windows_of_whole_numbers(kind: pa.DataType) -> None:
    window = Tumbling(10, on="t")
    table = _times(-11, -10, -1, 0, 9, 10, kind=kind)
    kept = select(window, table, -10)
    assert kept.to_pylist() == [
        {"t": -10, "n": 1, "window_start": -10, "window_end": 0},
        {"t": -1, "n": 2, "window_start": -10, "window_end": 0},
    ]
    assert kept.schema == window.extend(table.schema)
    assert kept.schema.field("window_start").type == pa.int64()


def test_dates_have_windows_in_naive_time() -> None:
    window = Tumbling("1 day", on="t")
    table = _times(date(1969, 12, 31), date(1970, 1, 1), date(2024, 3, 31), kind=pa.date32())
    assert starts(window, table) == [-24 * HOUR, 0, 19_813 * 24 * HOUR]
    (row,) = select(window, table, -24 * HOUR).to_pylist()
    assert (row["window_start"], row["window_end"]) == (datetime(1969, 12, 31), datetime(1970, 1, 1))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris", "-03:30"])
def test_moments_fall_into_the_same_window_in_any_time_zone(zone: str) -> None:
    window = Tumbling("1 day", on="t")
    table = _times(23 * HOUR, 24 * HOUR, kind=pa.timestamp("us", zone))
    assert starts(window, table) == [0, 24 * HOUR]
    kept = select(window, table, 0)
    assert kept.column("n").to_pylist() == [0]
    assert kept.schema == window.extend(table.schema)
    assert kept.column("window_end").to_pylist()[0].astimezone(UTC) == datetime(1970, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_coarser_timestamps_are_placed_too(unit: str) -> None:
    assert starts(Tumbling("1 hour", on="t"), _times(-1, kind=pa.timestamp(unit))) == [-HOUR]


def test_every_record_is_in_exactly_one_window() -> None:
    window = Tumbling("1 hour", on="t")
    table = pa.concat_tables([_times(*range(-5 * HOUR, 5 * HOUR, HOUR // 3)), _times(7, -7)])
    parts = [select(window, table, key) for key in starts(window, table)]
    assert sum(part.num_rows for part in parts) == table.num_rows
    assert all(part.num_rows for part in parts)


def test_an_empty_table_has_the_extended_schema_too() -> None:
    window = Tumbling("1 hour", on="t")
    assert select(window, _times(), 0).schema == window.extend(_times().schema)


@pytest.mark.parametrize(
    ("size", "micros"),
    [("1 hour", HOUR), ("10 minutes", HOUR // 6), (" 2days ", 48 * HOUR), ("1 week", 168 * HOUR),
     ("5 milliseconds", 5000), ("7 microseconds", 7), ("3 seconds", 3_000_000), (timedelta(hours=1), HOUR), (5, 5),
     ("10 s", 10_000_000), ("10s", 10_000_000), ("1 Hour", HOUR), ("1.5 hours", 3 * HOUR // 2), ("60 MIN", HOUR),
     ("30 mins", HOUR // 2), ("0.5 h", HOUR // 2), ("2 d", 48 * HOUR), ("1 w", 168 * HOUR), ("250 ms", 250_000),
     ("0.000001 s", 1), ("3 us", 3), ("2 hrs", 2 * HOUR), ("4 sec", 4_000_000)],
)  # fmt: skip
def test_sizes_are_durations_or_whole_numbers(size: Any, micros: int) -> None:
    assert Tumbling(size, on="t").step == micros


@pytest.mark.parametrize(
    "size",
    ["hour", "1 fortnight", "", "1.5.1 hours", "-1 hour", "0 hours", "1 month", "1 m", "1 hs", 0, -5, timedelta(0),
     True, 1.5, None, ["1 hour"]],
)  # fmt: skip
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(GraphError, match=r"write it as .* or short as us, ms, s, sec, min, h, hr, d, w|above zero"):
        Tumbling(size, on="t")


def test_a_size_finer_than_a_microsecond_is_refused() -> None:
    with pytest.raises(GraphError, match=r"'1.5 us' is no whole number of microseconds.*round it"):
        Tumbling("1.5 us", on="t")


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: Tumbling(5, on=["t"]), r"Tumbling\(on=\['t'\]\) does not say when records happened"),
        (lambda: Session(5, on=3), r"Session\(on=3\) does not say when"),
        (lambda: Tumbling(5, on=""), "does not say when"),
        (lambda: Tumbling(5, on="t", late=3), r"late=3\) is no name of a port"),
        (lambda: Tumbling(5, on="t", key_groups="8"), r"key_groups='8'\) has no place"),
        (lambda: Tumbling(5, on="t", lateness=1.5), "1.5 is not a duration"),
        (lambda: Sliding("1 hour", True, on="t"), "True is not a duration"),
        (lambda: Every(True), "True is not a duration"),
        (lambda: Count(3, by=3), r"Count\(by=3\) does not make a key"),
        (lambda: Session(5, on="t", by=[["k"]]), "does not make a key"),
        (lambda: Tumbling(5, on="t", by={"k"}), "does not make a key"),
    ],
)  # fmt: skip
def test_arguments_of_another_type_are_refused(declare: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        declare()


@pytest.mark.parametrize("time", [2**63 - 1, -(2**63), 2**63 - 10, -(2**63) + 9])
@pytest.mark.parametrize("window", [Tumbling(10, on="t"), Sliding(10, 5, on="t"), Session(10, on="t")], ids=repr)
def test_a_time_next_to_the_end_of_what_64_bits_hold_is_refused(window: Window, time: int) -> None:
    with pytest.raises(TypeRefused, match="would not fit into 64 bits; filter it out") as refused:
        window.facts(pa.table({"t": [5, time]}))
    assert refused.value.__clew_record__ == (1, {"t": time})  # type: ignore[attr-defined]


def test_a_date_beyond_all_times_is_refused() -> None:
    with pytest.raises(TypeRefused, match="so far away"):
        Tumbling("1 day", on="t").facts(pa.table({"t": pa.array([2**31 - 1], pa.int32()).cast(pa.date32())}))


def test_a_time_beyond_the_years_of_python_is_blamed_all_the_same() -> None:
    table = pa.table({"t": pa.array([2**63 - 5], pa.timestamp("us"))})
    with pytest.raises(TypeRefused, match="so far away") as refused:
        Tumbling("1 day", on="t").facts(table)
    assert refused.value.__clew_record__ == (0, {"t": 2**63 - 5})  # type: ignore[attr-defined]


@pytest.mark.parametrize("time", [2**63 - 11, -(2**63) + 10])
def test_the_furthest_times_that_have_windows_are_placed(time: int) -> None:
    window, table = Tumbling(10, on="t"), pa.table({"t": [time]})
    latest, panes = window.facts(table)
    assert latest == time
    assert select(window, table, panes[0][0])["window_start"].to_pylist() == [time // 10 * 10]


@pytest.mark.parametrize(
    ("window", "table", "error", "message"),
    [
        (Tumbling("1 hour", on="x"), _times(1), GraphError, "finds no such column; the records have t, n"),
        (Tumbling("1 hour", on="t"), _times(1, None), TypeRefused, "records without a time.*filter them out"),
        (Tumbling("1 hour", on="t"), _times("a", kind=pa.string()), TypeRefused, "needs a timestamp.*cast it"),
        (Tumbling("1 hour", on="t"), _times(1.5, kind=pa.float64()), TypeRefused, "needs a timestamp.*cast it"),
        (Tumbling("1 hour", on="t"), _times(1, kind=pa.int64()), TypeRefused, "give it a whole number"),
        (Tumbling(5, on="t"), _times(1), TypeRefused, "give it a duration"),
    ],
)
def test_records_that_cannot_be_placed_are_refused_on_any_machine(
    window: Window, table: pa.Table, error: type[ClewError], message: str
) -> None:
    for attempt in (lambda: window.facts(table), lambda: select(window, table, 0)):
        with pytest.raises(error, match=message) as refused:
            attempt()
        # Facts are computed on executors, so the error must survive the way back.
        assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


@pytest.mark.parametrize("name", ["window_start", "window_end"])
def test_the_windows_own_columns_never_hide_those_of_windows_before(name: str) -> None:
    window, table = Tumbling("1 hour", on="t"), _times(1)
    names = ["t", "n"]
    for level in range(3):
        table = table.append_column(name, [[level]])
        names = [f"inner_{one}" if one.endswith(name) else one for one in (*names, name)]
        found = select(window, table, 0)
        assert found.column_names == [*names, "window_start", "window_end"]
        assert window.extend(table.schema) == found.schema
        assert found[f"inner_{name}"].to_pylist() == [level]
        table = found.drop_columns(["window_start", "window_end"])


def test_what_is_called_inner_stays_what_it_is_where_nothing_pushes_it() -> None:
    table = _times(1).append_column("inner_window_start", [[7]])
    assert select(Tumbling("1 hour", on="t"), table, 0)["inner_window_start"].to_pylist() == [7]


def test_facts_know_the_declaration_they_were_made_for() -> None:
    prints = {Tumbling(size, on=on).fingerprint() for size in ("1 hour", "2 hours") for on in ("t", "u")}
    assert len(prints) == 4
    assert Tumbling("1 hour", on="t").fingerprint() == Tumbling("1 hour", on="t").fingerprint()


def taken(logic: WindowLogic, *facts: Any) -> Update:
    """Take events with these facts in one turn."""
    context = fresh("OP", {"in": Port("S", "out")}, ("out",), logic.initial())
    return update(context, logic, [Arrival("in", number, 1, 1, one) for number, one in enumerate(facts, 1)])


def test_several_functions_see_the_same_events_through_their_own_windows() -> None:
    logic = WindowLogic({"pairs": Count(2), "hours": Tumbling("1 hour", on="t")}, ("in",))
    assert logic.needs_facts
    turn = taken(logic, logic.facts(_times(0)), logic.facts(_times(HOUR)))
    assert [event.sets for event in turn.taken] == [(1, 2), (1, 3)]
    assert [closed.label for closed in turn.closed] == [("pairs", 0), ("hours", 0)]


def test_missing_facts_never_drop_an_event() -> None:
    logic = WindowLogic({"hours": Tumbling("1 hour", on="t")}, ("in",))
    for facts in (None, {}):
        with pytest.raises((TypeError, KeyError)):
            taken(logic, facts)


def test_windows_by_number_need_no_facts() -> None:
    logic = WindowLogic({"f": Each()}, ("in",))
    assert not logic.needs_facts
    assert logic.fingerprint == ""
    assert [closed.label for closed in taken(logic, None).closed] == [("f", 1)]


# The clock.


@dataclass
class Watching:
    """A clock that stands until it is set."""

    now: int = 0
    waiting: bool = True
    decided: int | None = None
    heard: dict[str, int] = field(default_factory=dict)

    def quiet(self, port: str) -> int:
        return self.now - self.heard.get(port, 0)


def ask(run: Run, clock: Watching) -> list[Any] | None:
    """Let the clock decide; returns what is complete then, or None where there was nothing to decide."""
    decision = json.loads(json.dumps(run.window.decide(run.memory, clock)))
    if decision is None:
        return None
    run.window.follow(decision, run.memory)
    return run.ready()


def test_an_idle_port_holds_time_back_no_longer() -> None:
    run, clock = Run(Tumbling("1 hour", on="t", idle="30 seconds"), ("a", "b")), Watching()
    run.take([0, 5 * HOUR], "a")
    assert ask(run, clock) is None
    clock.now, clock.heard = 30_000_000, {"a": 1}
    assert run.window.patience(run.memory, clock) == 0
    assert ask(run, clock) == [0]
    assert ask(run, clock) is None, "it is decided once"


def test_a_port_that_wakes_up_does_not_turn_time_back() -> None:
    run, clock = Run(Tumbling("1 hour", on="t", idle="30 seconds"), ("a", "b")), Watching(30_000_000)
    clock.heard = {"a": 1}
    run.take([0, 5 * HOUR], "a")
    assert ask(run, clock) == [0]
    assert run.take([HOUR, 6 * HOUR], "b") == []
    assert run.late == Late(1, [HOUR])
    # Now it counts again: time goes on with the slower of the two.
    assert run.take([9 * HOUR], "a") == [5 * HOUR]
    assert run.rest() == [6 * HOUR, 9 * HOUR]


def test_a_port_that_is_idle_by_its_end_is_no_more_asked() -> None:
    run, clock = Run(Tumbling("1 hour", on="t", idle="30 seconds"), ("a", "b")), Watching(90_000_000)
    run.end("a")
    run.end("b")
    assert (ask(run, clock), run.window.patience(run.memory, clock)) == (None, None)


def test_a_stretch_of_the_clock_is_an_input_set() -> None:
    run, clock = Run(Every("10 seconds")), Watching(3_000_000)
    assert ask(run, clock) == []
    assert [run.take(), run.take()] == [[], []]
    assert run.window.patience(run.memory, clock) == 7_000_000
    assert ask(run, clock) is None
    clock.now = 10_000_000
    assert ask(run, clock) == [0]
    assert run.take() == []
    assert run.rest() == [1]


def test_a_clock_that_nobody_waits_for_decides_nothing() -> None:
    run, clock = Run(Every("10 seconds")), Watching(3_000_000)
    clock.waiting = False
    assert (ask(run, clock), run.window.patience(run.memory, clock)) == (None, None)


def test_a_clock_that_is_set_back_reopens_nothing() -> None:
    run, clock = Run(Every("10 seconds")), Watching(33_000_000)
    assert ask(run, clock) == []
    run.take()
    clock.now = 1_000_000
    assert ask(run, clock) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Every(10), "not a stretch of time"),
        (lambda: Every("0 seconds"), "not a stretch of time"),
        (lambda: Tumbling("1 hour", on=""), "does not say when"),
        (lambda: Tumbling("1 hour", on="t", lateness=5), "two ways"),
        (lambda: Tumbling("1 hour", on="t", idle=5), "idle is a duration"),
        (lambda: Tumbling("1 hour", on="t", by=[]), "does not make a key"),
        (lambda: Tumbling("1 hour", on="t", by=["a", "a"]), "does not make a key"),
        (lambda: Tumbling("1 hour", on="t", by="a", key_groups=0), "no place for a key"),
        (lambda: Sliding("1 hour", "2 hours", on="t"), "leaves out records"),
        (lambda: Sliding("1 hour", 5, on="t"), "two ways"),
        (lambda: Session("0 seconds", on="t"), "has no gap"),
        (lambda: Count(0, by="k"), "holds no record"),
    ],
)
def test_a_window_that_means_nothing_is_refused(make: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()


@pytest.mark.parametrize("window", [Tumbling("1 hour", on="t", by="x"), Session("1 hour", on="t", by="x")])
def test_a_key_that_is_not_there_is_refused(window: Window) -> None:
    with pytest.raises(GraphError, match="finds no such column; the records have t, n"):
        window.facts(_times(1))


def test_keys_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(TypeRefused, match="tell keys of this type apart"):
        Count(2, by="x").facts(pa.table({"x": [1.5]}))
