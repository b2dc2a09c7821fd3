"""Windows: which events join which Input Set, when it is complete, and which records it sees."""

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from clew.errors import ClewError, GraphError, LateRecord, TypeRefused
from clew.pipeline.operators import WindowLogic
from clew.pipeline.windows import Batch, Count, Each, Tumbling, Window

HOUR = 3_600_000_000


@dataclass(frozen=True)
class Header:
    number: int = 1
    port: str = "in"
    facts: Any = None
    rows: int = 1
    size: int = 8


class Run:
    """One operator's control: takes events one by one, closes what is ready, as the runtime does."""

    def __init__(self, window: Window, ports: Sequence[str] = ("in",)) -> None:
        self.window = window
        self.state = window.initial(ports)
        self.opened: list[Any] = []

    def take(self, facts: Any = None, port: str = "in") -> list[Any]:
        keys = self.window.assign(Header(port=port, facts=facts), self.state)
        self.opened += [key for key in keys if key not in self.opened]
        return self.close(self.window.ready(self.state, self.opened))

    def end(self, port: str) -> list[Any]:
        self.window.end(port, self.state)
        return self.close(self.window.ready(self.state, self.opened))

    def end_turn(self) -> list[Any]:
        return self.close(self.window.end_turn(self.state, self.opened))

    def close(self, keys: Sequence[Any]) -> list[Any]:
        # The state goes to the log and comes back at any moment.
        self.state = json.loads(json.dumps(self.state))
        self.opened = [key for key in self.opened if key not in keys]
        return list(keys)


def _times(*values: Any, kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"t": pa.array(values, kind or pa.timestamp("us")), "n": list(range(len(values)))})


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
    with pytest.raises(GraphError, match="holds no event; give it 1 or more"):
        Count(0)


@pytest.mark.parametrize("window", [Each(), Batch(), Count(2)])
def test_windows_by_number_see_whole_events(window: Window) -> None:
    table = _times(1, 2)
    assert window.select(table, 1) is table
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
    assert run.window.facts(_times()) == []
    assert [run.take([0]), run.take([])] == [[], []]
    assert run.opened == [0]


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
    logic = WindowLogic({"f": run.window}, ("in",))
    assert logic.flush({"f": run.state}, [("f", 0)]) == (("f", 0),)


def test_a_late_record_is_an_error_that_says_what_is_closed() -> None:
    run = Run(Tumbling("1 hour", on="t"))
    run.take([0, 2 * HOUR])
    with pytest.raises(LateRecord) as late:
        run.take([HOUR, 2 * HOUR])
    assert (late.value.port, late.value.window, late.value.closed) == ("in", f"t={HOUR}", f"t={HOUR}")
    assert "sort the source" in str(late.value)


def test_a_late_record_changes_nothing() -> None:
    run = Run(Tumbling("1 hour", on="t"))
    run.take([2 * HOUR])
    before = json.dumps(run.state)
    with pytest.raises(LateRecord):
        run.take([0, 9 * HOUR])
    assert json.dumps(run.state) == before


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
    assert window.facts(_times(micros)) == [start]
    assert window.select(_times(micros), start).num_rows == 1


def test_facts_are_the_windows_of_the_records_in_order_and_once() -> None:
    assert Tumbling(10, on="t").facts(_times(25, 3, 21, -4, 7, kind=pa.int64())) == [-10, 0, 20]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()], ids=str)
def test_whole_numbers_have_windows_of_whole_numbers(kind: pa.DataType) -> None:
    window = Tumbling(10, on="t")
    table = _times(-11, -10, -1, 0, 9, 10, kind=kind)
    kept = window.select(table, -10)
    assert kept.to_pylist() == [
        {"t": -10, "n": 1, "window_start": -10, "window_end": 0},
        {"t": -1, "n": 2, "window_start": -10, "window_end": 0},
    ]
    assert kept.schema == window.extend(table.schema)
    assert kept.schema.field("window_start").type == pa.int64()


def test_dates_have_windows_in_naive_time() -> None:
    window = Tumbling("1 day", on="t")
    table = _times(date(1969, 12, 31), date(1970, 1, 1), date(2024, 3, 31), kind=pa.date32())
    assert window.facts(table) == [-24 * HOUR, 0, 19_813 * 24 * HOUR]
    (row,) = window.select(table, -24 * HOUR).to_pylist()
    assert (row["window_start"], row["window_end"]) == (datetime(1969, 12, 31), datetime(1970, 1, 1))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris", "-03:30"])
def test_moments_fall_into_the_same_window_in_any_time_zone(zone: str) -> None:
    window = Tumbling("1 day", on="t")
    table = _times(23 * HOUR, 24 * HOUR, kind=pa.timestamp("us", zone))
    assert window.facts(table) == [0, 24 * HOUR]
    kept = window.select(table, 0)
    assert kept.column("n").to_pylist() == [0]
    assert kept.schema == window.extend(table.schema)
    assert kept.column("window_end").to_pylist()[0].astimezone(UTC) == datetime(1970, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_coarser_timestamps_are_placed_too(unit: str) -> None:
    assert Tumbling("1 hour", on="t").facts(_times(-1, kind=pa.timestamp(unit))) == [-HOUR]


def test_every_record_is_in_exactly_one_window() -> None:
    window = Tumbling("1 hour", on="t")
    table = pa.concat_tables([_times(*range(-5 * HOUR, 5 * HOUR, HOUR // 3)), _times(7, -7)])
    parts = [window.select(table, key) for key in window.facts(table)]
    assert sum(part.num_rows for part in parts) == table.num_rows
    assert all(part.num_rows for part in parts)


def test_an_empty_table_has_the_extended_schema_too() -> None:
    window = Tumbling("1 hour", on="t")
    assert window.select(_times(), 0).schema == window.extend(_times().schema)


@pytest.mark.parametrize(
    ("size", "micros"),
    [("1 hour", HOUR), ("10 minutes", HOUR // 6), (" 2days ", 48 * HOUR), ("1 week", 168 * HOUR),
     ("5 milliseconds", 5000), ("7 microseconds", 7), ("3 seconds", 3_000_000), (timedelta(hours=1), HOUR), (5, 5)],
)  # fmt: skip
def test_sizes_are_durations_or_whole_numbers(size: Any, micros: int) -> None:
    assert Tumbling(size, on="t").step == micros


@pytest.mark.parametrize("size", ["hour", "1 fortnight", "", "1.5 hours", "-1 hour", "0 hours", 0, -5, timedelta(0)])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(GraphError, match=r"write it as|above zero"):
        Tumbling(size, on="t")


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
    for attempt in (lambda: window.facts(table), lambda: window.select(table, 0)):
        with pytest.raises(error, match=message) as refused:
            attempt()
        # Facts are computed on executors, so the error must survive the way back.
        assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


@pytest.mark.parametrize("name", ["window_start", "window_end"])
def test_the_windows_own_columns_never_hide_the_users(name: str) -> None:
    table = _times(1).append_column(name, [[1]])
    for attempt in (
        lambda: Tumbling("1 hour", on="t").select(table, 0),
        lambda: Tumbling("1 hour", on="t").extend(table.schema),
    ):
        with pytest.raises(TypeRefused, match=f"column {name} .* rename it"):
            attempt()


def test_facts_know_the_declaration_they_were_made_for() -> None:
    prints = {Tumbling(size, on=on).fingerprint() for size in ("1 hour", "2 hours") for on in ("t", "u")}
    assert len(prints) == 4
    assert Tumbling("1 hour", on="t").fingerprint() == Tumbling("1 hour", on="t").fingerprint()


def test_several_functions_see_the_same_events_through_their_own_windows() -> None:
    logic = WindowLogic({"pairs": Count(2), "hours": Tumbling("1 hour", on="t")}, ("in",))
    assert logic.needs_facts
    state = logic.initial()
    first = Header(facts=logic.facts(_times(0)))
    assert logic.assign(first, state) == [("pairs", 0), ("hours", 0)]
    assert logic.ready(state, [("pairs", 0), ("hours", 0)]) == []
    second = Header(number=2, facts=logic.facts(_times(HOUR)))
    assert logic.assign(second, state) == [("pairs", 0), ("hours", HOUR)]
    assert logic.ready(state, [("pairs", 0), ("hours", 0), ("hours", HOUR)]) == [("pairs", 0), ("hours", 0)]


def test_missing_facts_never_drop_an_event() -> None:
    logic = WindowLogic({"hours": Tumbling("1 hour", on="t")}, ("in",))
    for facts in (None, {}):
        with pytest.raises((TypeError, KeyError)):
            logic.assign(Header(facts=facts), logic.initial())


def test_windows_by_number_need_no_facts() -> None:
    logic = WindowLogic({"f": Each()}, ("in",))
    assert not logic.needs_facts
    assert logic.fingerprint == ""
    assert logic.assign(Header(), logic.initial()) == [("f", 1)]
