"""Finer than events (LOG.io, Section 7.3, Example 11): which records can have contributed to one record."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from clew import Connection, Count, Pipeline, Session, Tumbling
from clew.connectors import files, generator
from clew.errors import GraphError, GraphErrors, NoSuchRecord
from clew.ids import EventId, Port
from clew.retrace import opened, records_of, trace_record
from clew.run import run

ITEMS, STATES, SALES = ("BZ234", "AX1", "QQ7"), ("Ohio", "Iowa"), 40


def sale(index: int) -> pa.Table:
    """Event `index`: six sales, of all items and both states, at times that reach into the next hour."""
    sold = [(item, state) for item in ITEMS for state in STATES]
    return pa.table(
        {
            "id": [6 * index + n for n in range(6)],
            "item_ID": [item for item, _ in sold],
            "state": [state for _, state in sold],
            "t": [5 * index + 3 * n for n in range(6)],
            "amount": [10 * index + n for n in range(6)],
        }
    )


ALL = pa.concat_tables([sale(index) for index in range(SALES)])


class Sales:
    """A pipeline that was run, and what its records can be traced to."""

    def __init__(self, directory: Path, declare: Callable[[Pipeline, Any], Any]) -> None:
        self.pipeline = Pipeline("sales")
        source = self.pipeline.source("sales", generator(sale, SALES))
        made = declare(self.pipeline, source)
        self.pipeline.sink(made, files(directory / "out"))
        self.graph = self.pipeline.graph()
        self.log = f"sqlite:///{directory / 'log.db'}"
        run(self.pipeline, log=self.log, engine="inline")

    def last(self, operator: str) -> int:
        with opened(self.graph, self.log, None) as (store, _):
            return store.extent(Port(operator, "out"))[1] - 1

    def records(self, event: EventId) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = records_of(self.graph, event, log=self.log).to_pylist()
        return rows

    def sold(self, event: EventId, place: int) -> set[int]:
        """Return the ids of the sales that a record is traced to."""
        found = trace_record(self.graph, event, place, log=self.log).records
        return {
            self.records(one)[at]["id"]
            for one, places in found.items()
            if one.port.operator == "sales"
            for at in places
        }


def hourly(**settings: Any) -> Callable[[Pipeline, Any], Any]:
    def declare(pipeline: Pipeline, source: Any) -> Any:
        @pipeline.operator(source, window=Tumbling(60, on="t", lateness=60), **settings)
        def totals(table: pa.Table) -> pa.Table:
            return table.group_by(["window_start", "item_ID", "state"]).aggregate([("amount", "sum")])

        return totals

    return declare


def contributed(record: dict[str, Any]) -> set[int]:
    """Compute from the input data which sales a total is the sum of."""
    start = record["window_start"]
    within = pc.and_(pc.greater_equal(ALL["t"], start), pc.less(ALL["t"], start + 60))
    same = pc.and_(pc.equal(ALL["item_ID"], record["item_ID"]), pc.equal(ALL["state"], record["state"]))
    return set(ALL.filter(pc.and_(within, same))["id"].to_pylist())


@pytest.mark.parametrize("depends", [["item_ID", "state"], {"item_ID": "item_ID", "state": "state"},
                                     {"in": {"item_ID": "item_ID", "state": "state"}}])  # fmt: skip
def test_example_11_declared_dependencies_and_the_window_leave_the_records_that_contributed(
    tmp_path: Path, depends: Any
) -> None:
    sales = Sales(tmp_path, hourly(depends=depends))
    for number in range(1, sales.last("totals") + 1):
        event = EventId(Port("totals", "out"), number)
        for place, record in enumerate(sales.records(event)):
            assert sales.sold(event, place) == contributed(record)


def test_without_a_declaration_the_records_of_other_windows_are_still_left_out(tmp_path: Path) -> None:
    sales = Sales(tmp_path, hourly())
    event = EventId(Port("totals", "out"), 2)
    start = sales.records(event)[0]["window_start"]
    within = pc.and_(pc.greater_equal(ALL["t"], start), pc.less(ALL["t"], start + 60))
    assert sales.sold(event, 0) == set(ALL.filter(within)["id"].to_pylist())


def test_dependencies_of_built_in_functions_are_known(tmp_path: Path) -> None:
    """A filter, a map, an aggregate over windows: nothing is declared."""

    def declare(pipeline: Pipeline, source: Any) -> Any:
        large = source.filter(lambda sold: sold["amount"] % 2 == 0, name="even", deterministic=True)
        named = large.map(lambda sold: {**sold, "item_ID": sold["item_ID"].lower()}, name="named")
        return named.window(Tumbling(60, on="t", lateness=60)).aggregate(
            "item_ID", "state", name="totals", total=("amount", "sum")
        )

    sales = Sales(tmp_path, declare)
    event = EventId(Port("totals", "out"), 2)
    for place, record in enumerate(sales.records(event)):
        upper = {**record, "item_ID": record["item_ID"].upper()}
        even = set(ALL.filter(pc.equal(pc.bit_wise_and(ALL["amount"], 1), 0))["id"].to_pylist())
        assert sales.sold(event, place) == contributed(upper) & even


def test_a_joined_record_is_traced_to_its_own_record_of_either_side(tmp_path: Path) -> None:
    def declare(pipeline: Pipeline, source: Any) -> Any:
        ohio = source.filter(lambda sold: sold["state"] == "Ohio", name="ohio")
        iowa = source.filter(lambda sold: sold["state"] == "Iowa", name="iowa")
        return ohio.join(iowa, on=["item_ID"], window=Tumbling(60, on="t", lateness=60), name="both")

    sales = Sales(tmp_path, declare)
    event = EventId(Port("both", "out"), 2)
    records = sales.records(event)
    # Every record of Ohio is joined with several of Iowa, and the other way round.
    assert len(records) > 10 * len({record["id"] for record in records})
    assert len(records) > 10 * len({record["id_right"] for record in records})
    for place in range(0, len(records), 20):
        assert sales.sold(event, place) == {records[place]["id"], records[place]["id_right"]}


def test_a_record_of_either_side_leads_to_the_pairs_that_it_is_in_alone(tmp_path: Path) -> None:
    def declare(pipeline: Pipeline, source: Any) -> Any:
        return source.join(source, on="item_ID", window=Count(2), suffix="_too", name="both")

    sales = Sales(tmp_path, declare)
    pairs = sales.records(EventId(Port("both", "out"), 1))
    for place, record in enumerate(sale(0).to_pylist()):
        found = trace_record(sales.graph, EventId(Port("sales", "out"), 1), place, log=sales.log, direction="forward")
        expected = tuple(n for n, pair in enumerate(pairs) if record["id"] in (pair["id"], pair["id_too"]))
        assert found.records[EventId(Port("both", "out"), 1)] == expected


def test_a_record_of_a_session_is_traced_to_its_session_alone(tmp_path: Path) -> None:
    def declare(pipeline: Pipeline, source: Any) -> Any:
        @pipeline.operator(source, window=Session(4, on="t", by="item_ID"))
        def visits(table: pa.Table) -> pa.Table:
            return pa.table({"ids": [table["id"].to_pylist()]})

        return visits

    sales = Sales(tmp_path, declare)
    for number in range(1, min(sales.last("visits"), 12) + 1):
        event = EventId(Port("visits", "out"), number)
        (record,) = sales.records(event)
        assert sales.sold(event, 0) == set(record["ids"])


def test_a_written_record_is_traced_through_its_sink(tmp_path: Path) -> None:
    sales = Sales(tmp_path, hourly(depends=["item_ID", "state"]))
    write = EventId(Port("totals_sink", "writes:out"), 1)
    first = EventId(Port("totals", "out"), 1)
    assert sales.sold(write, 3) == sales.sold(first, 3)


def test_forward_leads_to_the_records_that_lead_back(tmp_path: Path) -> None:
    sales = Sales(tmp_path, hourly(depends=["item_ID", "state"]))
    totals = [EventId(Port("totals", "out"), number) for number in range(1, sales.last("totals") + 1)]
    back = {(event, place): sales.sold(event, place) for event in totals for place in range(len(sales.records(event)))}
    for number in (1, 5, SALES):
        event = EventId(Port("sales", "out"), number)
        for place, record in enumerate(sales.records(event)):
            found = trace_record(sales.graph, event, place, log=sales.log, direction="forward").records
            reached = {(one, at) for one, places in found.items() if one.port.operator == "totals" for at in places}
            assert reached == {made for made, sold in back.items() if record["id"] in sold}
            assert reached
            written = [(one, at) for one, own in found.items() if one.port.operator == "totals_sink" for at in own]
            assert len(written) == len(reached)
            assert all(record["id"] in sales.sold(one, at) for one, at in written)


def test_records_that_are_in_a_window_already_are_grouped_by_it(tmp_path: Path) -> None:
    def declare(pipeline: Pipeline, source: Any) -> Any:
        def placed(table: pa.Table) -> pa.Table:
            return table

        return (
            source.window(Tumbling(20, on="t", lateness=60))
            .apply(placed)
            .window(Count(3))
            .aggregate(name="totals", ids=("id", "list"))
        )

    sales = Sales(tmp_path, declare)
    event = EventId(Port("totals", "out"), 1)
    records = sales.records(event)
    assert len(records) == 3
    for place, record in enumerate(records):
        assert sales.sold(event, place) == set(record["ids"])


class Prices(Connection):
    """Knows a price of everything."""

    def describe(self) -> str:
        return "prices"

    def read(self, action: str) -> pa.Table:
        return pa.table({"price": [len(action)]})


def test_what_goes_record_by_record_is_traced_record_by_record(tmp_path: Path) -> None:
    def declare(pipeline: Pipeline, source: Any) -> Any:
        def checked(sold: dict[str, Any]) -> dict[str, Any]:
            if sold["amount"] % 10 == 2:
                raise ValueError("two")
            return {"was": sold["id"], "item": sold["item_ID"]}

        made = source.map(checked, name="checked", on_error="quarantine", attempts=1)
        return made.enrich(Prices(), lambda record: str(record["item"]), name="priced")

    sales = Sales(tmp_path, declare)
    event = EventId(Port("priced", "out"), 2)
    records = sales.records(event)
    # One of the six is set aside, and those after it are still told apart.
    assert len(records) == 5
    for place, record in enumerate(records):
        assert sales.sold(event, place) == {record["was"]}


def test_what_is_numbered_and_stamped_is_traced_record_by_record(tmp_path: Path) -> None:
    """Records that are alike are told apart by their places."""

    def declare(pipeline: Pipeline, source: Any) -> Any:
        return source.map(lambda sold: {"one": 1}, name="same").number("at", name="numbered").stamp("t", name="stamped")

    sales = Sales(tmp_path, declare)
    for event in (EventId(Port("numbered", "out"), 2), EventId(Port("stamped", "out"), 3)):
        ids = sale(event.number - 1)["id"].to_pylist()
        assert [sales.sold(event, place) for place in range(6)] == [{id} for id in ids]


def alike(index: int) -> pa.Table:
    return pa.table({"x": [1, 1, 2, 1, 3, 2]})


def passed_on(directory: Path, declare: Callable[[Any], Any]) -> list[tuple[int, ...]]:
    """Return of each record that was passed on of the first event which of the source's it is traced to."""
    pipeline = Pipeline("alike")
    made = declare(pipeline.source("s", generator(alike, 2)))
    pipeline.sink(made, files(directory / "out"))
    graph, log = pipeline.graph(), f"sqlite:///{directory / 'log.db'}"
    run(pipeline, log=log, engine="inline")
    first = EventId(made.port, 1)
    count = records_of(graph, first, log=log).num_rows
    return [trace_record(graph, first, place, log=log).records[EventId(Port("s", "out"), 1)] for place in range(count)]


@pytest.mark.parametrize(
    ("declare", "places"),
    [
        (lambda s: s.filter(pc.field("x") < 3, name="f"), [0, 1, 2, 3, 5]),
        (lambda s: s.filter(lambda one: one["x"] != 2, name="f", deterministic=True), [0, 1, 3, 4]),
        (lambda s: s.branch(low=pc.field("x") < 2, high=pc.field("x") >= 2, name="b")["high"], [2, 4, 5]),
        (lambda s: s.union(s.filter(pc.field("x") > 3, name="none"), name="u"), [0, 1, 2, 3, 4, 5]),
    ],
    ids=["expression", "function", "branch", "union"],
)
def test_records_that_are_passed_on_are_told_from_others_just_like_them(
    tmp_path: Path, declare: Callable[[Any], Any], places: list[int]
) -> None:
    assert passed_on(tmp_path, declare) == [(place,) for place in places]


def test_of_a_record_that_was_passed_on_while_one_just_like_it_was_not_both_are_shown(tmp_path: Path) -> None:
    seen = []

    def second(one: dict[str, Any]) -> bool:
        seen.append(one)
        return len(seen) % 2 == 0

    assert passed_on(tmp_path, lambda s: s.filter(second, name="f")) == [(0, 1, 3), (0, 1, 3), (2, 5)]


def parts(sold: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if sold["amount"] % 10 == 2:
        raise ValueError("two")
    for part in range(sold["amount"] % 4):
        yield {"was": sold["id"], "part": part}


@pytest.mark.parametrize("settings", [{}, {"deterministic": True}])
def test_records_of_flat_map_are_told_apart_where_it_can_be_run_again(tmp_path: Path, settings: dict[str, Any]) -> None:
    sales = Sales(
        tmp_path, lambda _, source: source.flat_map(parts, name="parts", on_error="quarantine", attempts=1, **settings)
    )
    event = EventId(Port("parts", "out"), 2)
    for place, record in enumerate(sales.records(event)):
        # One of the six is set aside.
        others = set() if settings else {id for id in range(6, 12) if id != 8}
        assert sales.sold(event, place) == {record["was"]} | others


def test_records_of_flat_map_are_not_told_apart_by_another_function(tmp_path: Path) -> None:
    more = [0]

    def changing(sold: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"was": sold["id"] + more[0]}] * 2

    sales = Sales(tmp_path, lambda _, source: source.flat_map(changing, name="parts", deterministic=True))
    event = EventId(Port("parts", "out"), 1)
    assert sales.sold(event, 0) == {0}
    assert trace_record(sales.graph, event, 0, log=sales.log).changed == ()
    more[0] = 1
    assert sales.sold(event, 0) == set(range(6))
    assert trace_record(sales.graph, event, 0, log=sales.log).changed == (("parts", 1),)


NAN = float("nan")


@pytest.mark.parametrize("nan", [NAN, {"deep": NAN}, [1.0, NAN], np.float32("nan")], ids=repr)
def test_records_of_flat_map_are_told_apart_by_what_is_no_number_too(tmp_path: Path, nan: Any) -> None:
    def twice(sold: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"was": sold["id"], "none": nan}] * 2

    sales = Sales(tmp_path, lambda _, source: source.flat_map(twice, name="parts", deterministic=True))
    event = EventId(Port("parts", "out"), 2)
    for place, record in enumerate(sales.records(event)):
        assert sales.sold(event, place) == {record["was"]}
    assert trace_record(sales.graph, event, 0, log=sales.log).changed == ()


def test_records_of_flat_map_are_told_apart_where_the_port_does_not_carry_one(tmp_path: Path) -> None:
    def told(sold: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"was": sold["id"], "part": "two" if sold["amount"] % 10 == 2 else part} for part in range(2)]

    schema = pa.schema({"was": pa.int64(), "part": pa.int64()})
    settings: dict[str, Any] = {"deterministic": True, "on_error": "quarantine", "attempts": 1, "schema": schema}
    sales = Sales(tmp_path, lambda _, source: source.flat_map(told, name="parts", **settings))
    event = EventId(Port("parts", "out"), 2)
    records = sales.records(event)
    assert [record["was"] for record in records] == [6, 6, 7, 7, 9, 9, 10, 10, 11, 11]
    for place, record in enumerate(records):
        assert sales.sold(event, place) == {record["was"]}


def test_a_record_that_an_event_does_not_have(tmp_path: Path) -> None:
    sales = Sales(tmp_path, hourly())
    with pytest.raises(NoSuchRecord, match=r"totals\.out#1 has no record 99; it has 6 records, counted from 0"):
        trace_record(sales.graph, EventId(Port("totals", "out"), 1), 99, log=sales.log)


@pytest.mark.parametrize("depends", [5, {"item_ID": 5}, [5]])
def test_dependencies_that_cannot_be_read_are_refused(depends: Any) -> None:
    pipeline = Pipeline("sales")
    source = pipeline.source("sales", generator(sale, SALES))
    hourly(depends=depends)(pipeline, source)
    with pytest.raises(GraphErrors, match=r"totals has depends=.* write it as a list of columns that pass through"):
        pipeline.graph()


@pytest.mark.parametrize(
    ("depends", "wrong"),
    [
        (["item"], "names column item, which no input of it has: its columns there are id, item_ID, state, t, amount"),
        ({"item": "item_ID"}, "names column item, which no output of it has: its columns there are window_start, "),
    ],
)
def test_a_trace_does_not_follow_a_declaration_of_columns_that_are_not_there(
    tmp_path: Path, depends: Any, wrong: str
) -> None:
    sales = Sales(tmp_path, hourly(depends=depends))
    with pytest.raises(GraphError) as refused:
        sales.sold(EventId(Port("totals", "out"), 1), 0)
    assert wrong in refused.value.message


def test_bounds_of_windows_may_be_declared_whoever_makes_them(tmp_path: Path) -> None:
    sales = Sales(tmp_path, hourly(depends=["window_start", "item_ID", "state"]))
    event = EventId(Port("totals", "out"), 1)
    assert sales.sold(event, 0) == contributed(sales.records(event)[0])


def test_a_declaration_of_columns_that_are_not_there_is_refused_where_columns_are_declared() -> None:
    pipeline = Pipeline("sales")
    source = pipeline.source("sales", generator(sale, SALES, schema=sale(0).schema))
    hourly(depends=["item"])(pipeline, source)
    with pytest.raises(GraphErrors, match="depends= of totals names column item, which no input of it has"):
        pipeline.graph()


def test_a_declaration_for_an_input_that_is_not_there_is_refused() -> None:
    pipeline = Pipeline("sales")
    source = pipeline.source("sales", generator(sale, SALES))
    hourly(depends={"left": {"item_ID": "item_ID"}})(pipeline, source)
    with pytest.raises(GraphErrors, match="depends= of totals names the input port left; expected one of in"):
        pipeline.graph()


def moves(index: int) -> pa.Table:
    """Event `index`: whatever column is looked at alone, its values are those of many others."""
    numbers = range(index, index + 30)
    return pa.table({"x": [7 * n % 5 % 3 for n in numbers], "y": [11 * n % 7 % 4 for n in numbers]})


def test_several_records_that_are_wanted_are_followed_each_by_all_its_columns(tmp_path: Path) -> None:
    """A filter, groups of two keys, a function that declares two columns, a join: each is asked for many records."""
    pipeline = Pipeline("moves")
    source = pipeline.source("moves", generator(moves, 2))
    above = source.filter(lambda one: one["x"] > one["y"], name="above", deterministic=True)

    def pairs(table: pa.Table) -> pa.Table:
        rows = sorted({(row["x"], row["y"]) for row in table.to_pylist()})
        return pa.table({"a": [x for x, _ in rows], "b": [y for _, y in rows]})

    declared = source.window(Count(2)).apply(pairs, depends={"a": "x", "b": "y"})
    renamed = declared.map(lambda one: {"x": one["a"], "y": one["b"]}, name="renamed")
    cells = source.window(Count(2)).aggregate("x", "y", n="count", name="cells")
    joined = renamed.join(cells, on=["x", "y"], window=Count(2), name="joined")
    for name, stream in (("above", above), ("joined", joined)):
        marked = stream.map(lambda row: {**row, "even": (row["x"] + row["y"]) % 2 == 0}, name=f"even_{name}")
        gathered = marked.window(Count(1)).aggregate("even", n="count", name=f"by_{name}")
        pipeline.sink(gathered, files(tmp_path / name), name=f"sink_{name}")
    graph, log = pipeline.graph(), f"sqlite:///{tmp_path / 'log.db'}"
    run(pipeline, log=log, engine="inline")

    def read(port: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = records_of(graph, port, log=log).to_pylist()
        return rows

    def origins(port: str, place: int) -> set[tuple[int, int]]:
        found = trace_record(graph, port, place, log=log).records
        return {(one.number, at) for one, own in found.items() if one.port.operator == "moves" for at in own}

    def expected(event: int, even: bool, above: bool) -> set[tuple[int, int]]:
        own = [one for one in enumerate(moves(event - 1).to_pylist()) if not above or one[1]["x"] > one[1]["y"]]
        found = {(event, at) for at, one in own if ((one["x"] + one["y"]) % 2 == 0) == even}
        assert 1 < len(found) < len(own)
        return found

    for number in (1, 2):
        for place, row in enumerate(read(f"by_above#{number}")):
            assert origins(f"by_above#{number}", place) == expected(number, row["even"], above=True)
    for place, row in enumerate(read("by_joined#1")):
        both = expected(1, row["even"], above=False) | expected(2, row["even"], above=False)
        assert origins("by_joined#1", place) == both


@pytest.mark.parametrize("how", ["left", "full"])
@pytest.mark.parametrize("nothing", [7, None])
def test_a_record_whose_key_is_null_is_joined_with_nothing(tmp_path: Path, how: Any, nothing: int | None) -> None:
    """Also where the records of the other side have nothing but nulls, but for those that are just like it."""
    pipeline = Pipeline("nulls")
    left = pa.table({"k": [None, "x", None], "j": [1, 2, 3], "l": pa.array([1, 2, nothing], pa.int64())})
    right = pa.table({"k": [None, "x"], "j": [1, 2], "l": [3, 4], "r": pa.array([nothing, 4], pa.int64())})
    a, b = (pipeline.source(name, generator([table].__getitem__, 1)) for name, table in (("a", left), ("b", right)))
    pipeline.sink(a.join(b, on=["k", "j"], how=how, window=Count(2), name="both"), files(tmp_path / "out"))
    graph, log = pipeline.graph(), f"sqlite:///{tmp_path / 'log.db'}"
    run(pipeline, log=log, engine="inline")
    shown = []
    for place, record in enumerate(records_of(graph, "both#1", log=log).to_pylist()):
        found = trace_record(graph, "both#1", place, log=log).records
        shown.append((list(record.values()), {str(one): places for one, places in found.items() if one.number == 1}))
        del shown[-1][1]["both.out#1"]
    assert sorted(shown, key=repr) == sorted(
        [
            ([None, 1, 1, None, None], {"a.out#1": (0,)}),
            (["x", 2, 2, 4, 4], {"a.out#1": (1,), "b.out#1": (1,)}),
            ([None, 3, nothing, None, None], {"a.out#1": (2,)}),
            *([([None, 1, None, 3, nothing], {"b.out#1": (0,)})] if how == "full" else []),
        ],
        key=repr,
    )


def traced_pairs(directory: Path, left: pa.Table, right: pa.Table, how: Any) -> list[tuple[dict[str, Any], Any, Any]]:
    """Join two tables, each an event, on `k`; return each record with its places in them, None for none."""
    pipeline = Pipeline("pairs")
    a, b = (pipeline.source(name, generator([table].__getitem__, 1)) for name, table in (("a", left), ("b", right)))
    pipeline.sink(a.join(b, on="k", how=how, window=Count(2), name="both"), files(directory / "out"))
    graph, log = pipeline.graph(), f"sqlite:///{directory / 'log.db'}"
    run(pipeline, log=log, engine="inline")
    found = []
    for place, record in enumerate(records_of(graph, "both#1", log=log).to_pylist()):
        records = trace_record(graph, "both#1", place, log=log).records
        sides = [records.get(EventId(Port(name, "out"), 1)) for name in ("a", "b")]
        found.append((record, *sides))
    return found


def test_a_record_of_an_outer_join_is_traced_to_nothing_where_it_was_joined_with_nothing(tmp_path: Path) -> None:
    """Also where its key is zero, of which there are two, and where a record that it is joined with is all nulls."""
    left = pa.table({"k": [1.0, 2.0, -0.0, None], "v": ["a", None, None, "d"]})
    right = pa.table({"k": [2.0, 2.0, 0.0, 3.0, None], "v": ["e", None, "g", None, "i"]})
    assert traced_pairs(tmp_path, left, right, "full") == [
        ({"k": 1.0, "v": "a", "v_right": None}, (0,), None),
        ({"k": 2.0, "v": None, "v_right": "e"}, (1,), (0,)),
        ({"k": 2.0, "v": None, "v_right": None}, (1,), (1,)),
        ({"k": 0.0, "v": None, "v_right": "g"}, (2,), (2,)),
        ({"k": None, "v": "d", "v_right": None}, (3,), None),
        ({"k": 3.0, "v": None, "v_right": None}, None, (3,)),
        ({"k": None, "v": None, "v_right": "i"}, None, (4,)),
    ]


def test_a_joined_record_that_has_its_window_from_the_other_side_is_traced_to_both(tmp_path: Path) -> None:
    left = pa.table({"k": ["x", "y"], "window_start": pa.array([None, 7], pa.int64()), "l": [1, 2]})
    right = pa.table({"k": ["x", "y"], "window_start": pa.array([5, None], pa.int64()), "r": [3, 4]})
    assert traced_pairs(tmp_path, left, right, "inner") == [
        ({"k": "x", "window_start": 5, "l": 1, "r": 3}, (0,), (0,)),
        ({"k": "y", "window_start": 7, "l": 2, "r": 4}, (1,), (1,)),
    ]
