"""Verbs, and functions of every kind: what they declare, and what a run of them leaves in the sinks."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from random import random
from typing import Any, ClassVar, TypedDict

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import Batch, Connection, Count, Pipeline, Session, Stream, Tumbling
from clew.connectors import files, generator
from clew.errors import ClewError, GraphError, GraphErrors, OperatorFailed, UserFunctionFailed
from clew.ids import Port
from clew.pipeline.functions import Aggregate, Join
from clew.pipeline.onpandas import OnPandas, to_pandas
from clew.run import run, verify


def records(index: int) -> pa.Table:
    """Two records per event."""
    return pa.table({"n": [2 * index, 2 * index + 1], "t": [5 * index, 5 * index + 1], "k": ["a", "b"]})


def ran(pipeline: Pipeline, tmp_path: Path, *ports: str) -> dict[str, list[dict[str, Any]]]:
    """Run a pipeline with these ports as sinks, let it be judged, and return what the sinks hold."""
    for port in ports:
        pipeline.sink(port, files(tmp_path / port), name=f"sink_{port.replace('.', '_')}")
    log = f"sqlite:///{tmp_path}/log.db"
    run(pipeline, log=log, engine="inline")
    verdict = verify(pipeline, log=log, engine="inline")
    assert verdict.word == "explained", verdict.findings
    return {port: rows(tmp_path / port) for port in ports}


def rows(place: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(place.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def source(pipeline: Pipeline, events: int = 4) -> Stream:
    return pipeline.source("numbers", generator(records, events))


@dataclass
class Order:
    n: int
    t: int
    k: str


@dataclass
class Priced:
    n: int
    price: float | None
    day: date
    tags: list[str]


class Row(TypedDict):
    n: int


def test_records_are_mapped_one_by_one(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    source(pipeline).map(lambda record: {"n": record["n"] * 2}, name="doubled")
    assert ran(pipeline, tmp_path, "doubled")["doubled"] == [{"n": 2 * n} for n in range(8)]


def test_records_may_be_dataclasses_that_tell_their_schema(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")

    @pipeline.map(source(pipeline), deterministic=True)
    def priced(order: Order) -> Priced:
        return Priced(order.n, None if order.n < 8 else 1.5, date(2024, 1, 1 + order.n), [order.k])

    schema = pipeline.graph().operators["priced"].schemas["out"]
    assert schema == pa.schema(
        {"n": pa.int64(), "price": pa.float64(), "day": pa.date32(), "tags": pa.list_(pa.string())}
    )
    assert ran(pipeline, tmp_path, "priced")["priced"][1] == {
        "n": 1, "price": None, "day": date(2024, 1, 2), "tags": ["b"],
    }  # fmt: skip


def test_a_record_becomes_any_number_of_records(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")

    @pipeline.flat_map(source(pipeline), deterministic=True)
    def copies(record: dict[str, Any]) -> Iterator[Row]:
        yield from ({"n": record["n"]} for _ in range(record["n"] % 3))

    found = Counter(row["n"] for row in ran(pipeline, tmp_path, "copies")["copies"])
    assert found == Counter({n: n % 3 for n in range(8) if n % 3})


def test_records_are_filtered_by_a_function_or_an_expression(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    numbers = source(pipeline)
    numbers.filter(pc.field("n") > 4, name="large")
    numbers.filter(lambda record: record["k"] == "a", name="a", deterministic=True)
    found = ran(pipeline, tmp_path, "large", "a")
    assert [row["n"] for row in found["large"]] == [5, 6, 7]
    assert [row["n"] for row in found["a"]] == [0, 2, 4, 6]


def test_streams_are_put_together(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    numbers = source(pipeline)
    others = pipeline.source("others", generator(lambda i: records(i + 10), 3))
    numbers.union(others, numbers.filter(pc.field("n") == 0), name="all")
    found = [row["n"] for row in ran(pipeline, tmp_path, "all")["all"]]
    assert Counter(found) == Counter([*range(8), *range(20, 26), 0])
    assert [n for n in found if n >= 20] == list(range(20, 26))


def test_records_go_to_the_first_port_that_takes_them(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    ports = source(pipeline).branch(
        large=pc.field("n") > 5, even=lambda record: record["n"] % 2 == 0, rest="other", name="sorted"
    )
    assert sorted(ports) == ["even", "large", "other"]
    found = ran(pipeline, tmp_path, "sorted.large", "sorted.even", "sorted.other")
    assert [[row["n"] for row in found[f"sorted.{port}"]] for port in ("large", "even", "other")] == [
        [6, 7], [0, 2, 4], [1, 3, 5],
    ]  # fmt: skip


def test_what_no_port_takes_is_dropped(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    source(pipeline).branch(large=pc.field("n") > 5, name="sorted")
    assert [row["n"] for row in ran(pipeline, tmp_path, "sorted.large")["sorted.large"]] == [6, 7]


def test_records_are_numbered_across_events(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    source(pipeline).filter(pc.field("n") != 3).number("place", start=10, name="numbered")
    found = ran(pipeline, tmp_path, "numbered")["numbered"]
    assert [(row["n"], row["place"]) for row in found] == [(n, 10 + i) for i, n in enumerate([0, 1, 2, 4, 5, 6, 7])]


def test_records_are_told_when_they_were_taken(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    source(pipeline).stamp("taken_at", name="stamped")
    found = ran(pipeline, tmp_path, "stamped")["stamped"]
    assert len(found) == 8
    assert all(isinstance(row["taken_at"], datetime) for row in found)


class Prices(Connection):
    """Knows the price of keys, and how often it was asked."""

    asked: ClassVar[Counter[str]] = Counter()

    def describe(self) -> str:
        return "prices"

    def read(self, action: str) -> pa.Table:
        Prices.asked[action] += 1
        return pa.table({"price": pa.array([] if action == "a" else [len(action)], pa.int64())})


def test_records_are_enriched_and_each_question_is_asked_once_per_event(tmp_path: Path) -> None:
    Prices.asked.clear()
    pipeline = Pipeline("verbs")
    repeated = source(pipeline).flat_map(lambda record: [record, record])
    repeated.enrich(Prices(), lambda record: None if record["n"] == 0 else record["k"], name="priced")
    found = ran(pipeline, tmp_path, "priced")["priced"]
    assert Prices.asked == {"a": 3, "b": 4}
    assert {(row["k"], row.get("price")) for row in found} == {("a", None), ("b", 1)}


def test_windows_are_aggregated(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    windowed = source(pipeline).window(Tumbling(10, on="t"))
    windowed.aggregate("k", total=("n", "sum"), rows="count", name="totals")
    found = ran(pipeline, tmp_path, "totals")["totals"]
    assert found[0] == {"window_start": 0, "window_end": 10, "k": "a", "total": 2, "rows": 2}
    assert [(row["window_start"], row["k"], row["total"]) for row in found] == [
        (0, "a", 2), (0, "b", 4), (10, "a", 10), (10, "b", 12),
    ]  # fmt: skip


def test_a_window_without_keys_has_one_group(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    source(pipeline).window(Count(2)).aggregate(total=("n", "sum"), name="totals")
    assert ran(pipeline, tmp_path, "totals")["totals"] == [{"total": 6}, {"total": 22}]


@settings(max_examples=30)
@given(
    keys=st.lists(st.integers(0, 400), min_size=1, max_size=600),
    cuts=st.lists(st.integers(1, 600), max_size=6),
    random=st.randoms(use_true_random=False),
)
def test_groups_come_as_their_first_records_do_whatever_the_chunks(
    keys: list[int], cuts: list[int], random: Any
) -> None:
    table = pa.table({"k": keys, "x": [random.random() for _ in keys]})
    at = [0, *sorted({cut for cut in cuts if cut < len(keys)}), len(keys)]
    chunked = pa.concat_tables([table.slice(start, stop - start) for start, stop in pairwise(at)])
    columns = {"total": ("x", "sum"), "again": ("x", "sum"), "spread": ("x", "stddev"), "rows": ("", "count_all")}
    one, other = (Aggregate(("k",), columns)(given) for given in (table, chunked))
    assert one["k"].to_pylist() == list(dict.fromkeys(keys))
    assert one.equals(other)
    assert one["total"].equals(one["again"])


@pytest.mark.parametrize(
    ("by", "columns", "message"),
    [
        (
            (),
            {"n": ("nn", "sum")},
            "operator totals is to aggregate column nn, which numbers does not have; name one of its columns in "
            r"aggregate\(\.\.\.\): n, t, k",
        ),
        (
            ("kk",),
            {"n": "count"},
            "operator totals is to group by column kk, which numbers does not have; name one of its columns in "
            r"aggregate\(\.\.\.\): n, t, k",
        ),
    ],
)
def test_a_column_that_is_not_there_is_named(
    by: tuple[str, ...], columns: dict[str, Any], message: str, tmp_path: Path
) -> None:
    pipeline = Pipeline("verbs")
    source(pipeline).window(Count(2)).aggregate(*by, name="totals", **columns)
    where = r"operator totals failed on numbers.out#1\.\.2: "
    with pytest.raises(OperatorFailed, match=f"{where}{message}\nmend that and run again: the run resumes"):
        ran(pipeline, tmp_path, "totals")


def test_words_for_aggregates_mean_what_they_mean_in_spark(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    prices = pa.array([Decimal("9.62"), Decimal("9.63"), None, Decimal("1.00")], pa.decimal128(10, 2))
    table = pa.table({"k": ["a", "a", "a", "b"], "n": [1, 2, 4, 7], "x": [None, 2.0, 3.0, 4.0], "price": prices})
    pipeline.source("numbers", generator(lambda index: table, 1)).window(Count(1)).aggregate(
        "k", deviation=("n", "stddev"), variance=("n", "variance"), min=("x", "first"), last=("price", "last"),
        mean=("price", "mean"), average=("n", "avg"), max=("n", "max"), name="made",
    )  # fmt: skip
    first, second = ran(pipeline, tmp_path, "made")["made"]
    assert [first["deviation"] ** 2, first["variance"], first["average"]] == pytest.approx([7 / 3] * 3)
    assert [first[name] for name in ("min", "last", "mean", "max")] == [None, None, Decimal("9.625000"), 4]
    assert list(second.values()) == ["b", None, None, 4.0, Decimal("1.00"), Decimal("1.000000"), 7.0, 7]
    (made,) = (tmp_path / "made").glob("*.parquet")
    assert pq.read_schema(made).field("mean").type == pa.decimal128(14, 6)


def test_functions_of_pandas_frames(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")

    @pipeline.operator(source(pipeline), window=Batch(), deterministic=True)
    def sums(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.groupby("k").agg(total=("n", "sum"))

    found = ran(pipeline, tmp_path, "sums")["sums"]
    assert sum(row["total"] for row in found) == 28
    assert {row["k"] for row in found} == {"a", "b"}


def test_pandas_keeps_what_it_would_change() -> None:
    big = 2**60 + 1
    kept = pa.table({"n": [big, None], "flag": [True, None], "at": pa.array([1, None], pa.timestamp("us"))})
    frame = to_pandas(kept)
    assert frame["n"].iloc[0] == big
    assert OnPandas(lambda frame: frame)(kept) == kept
    made = OnPandas(lambda frame: pd.DataFrame({"at": pd.to_datetime(["2024-01-01T00:00:00.000001"])}))(kept)
    assert made.schema.field("at").type == pa.timestamp("us")
    with pytest.raises(ClewError, match="column at has times with nanoseconds"):
        OnPandas(lambda frame: pd.DataFrame({"at": pd.to_datetime(["2024-01-01T00:00:00.000000001"])}))(kept)
    assert OnPandas(lambda frame: None)(kept) is None
    assert OnPandas(lambda frame: [frame, frame])(kept) == [kept, kept]
    assert OnPandas(lambda frame: {"out": frame})(kept) == {"out": kept}
    with pytest.raises(ClewError, match="returned int; return a pandas DataFrame"):
        OnPandas(lambda frame: 5)(kept)


ORDERS = pa.table({"id": [1, 2, 2, None], "t": [1, 2, 3, 4], "what": ["x", "y", "z", "null"]})
REFUNDS = pa.table({"id": [2, 3, None], "t": [5, 6, 7], "list": [[1], [2, 3], []]})


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [(2, 2, "y", 5, [1]), (2, 3, "z", 5, [1])]),
        ("left", [(1, 1, "x", None, None), (2, 2, "y", 5, [1]), (2, 3, "z", 5, [1]), (None, 4, "null", None, None)]),
        (
            "full",
            [(1, 1, "x", None, None), (2, 2, "y", 5, [1]), (2, 3, "z", 5, [1]), (None, 4, "null", None, None),
             (3, None, None, 6, [2, 3]), (None, None, None, 7, [])],
        ),
    ],
)  # fmt: skip
def test_tables_are_joined_as_sql_joins_them(how: Any, expected: list[Any]) -> None:
    joined = Join(("id",), how, "_right")(ORDERS, REFUNDS)
    assert joined is not None
    assert joined.column_names == ["id", "t", "what", "t_right", "list"]
    assert [tuple(row.values()) for row in joined.to_pylist()] == expected


def test_streams_are_joined_in_windows(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    left = source(pipeline)
    right = pipeline.source("others", generator(lambda i: records(i).set_column(0, "m", [[7, 8]]), 2))
    left.join(right, on=["k", "t"], how="left", window=Tumbling(10, on="t"), name="joined")
    found = ran(pipeline, tmp_path, "joined")["joined"]
    assert [(row["n"], row["m"]) for row in sorted(found, key=lambda row: row["n"])] == [
        (0, 7), (1, 8), (2, 7), (3, 8), (4, None), (5, None), (6, None), (7, None),
    ]  # fmt: skip
    assert {(row["window_start"], row["window_end"]) for row in found} == {(0, 10), (10, 20)}


def test_a_join_knows_the_declared_columns_of_an_input_on_which_nothing_comes(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    others = pipeline.source("others", generator(records, 2))
    schema = pa.schema({"k": pa.string(), "t": pa.int64(), "m": pa.int64()})
    empty = others.filter(pc.field("n") < 0).map(lambda record: record, schema=schema)
    source(pipeline).join(empty, on="k", how="left", window=Tumbling(10, on="t"), name="joined")
    assert {row["m"] for row in ran(pipeline, tmp_path, "joined")["joined"]} == {None}


def filtered(numbers: Stream) -> Stream:
    return numbers.filter(pc.field("n") < 0, name="empty")


def picked(numbers: Stream) -> Stream:
    return numbers.filter(lambda record: False, name="empty")


def branched(numbers: Stream) -> Stream:
    return numbers.branch(negative=pc.field("n") < 0, rest="others", name="empty")["negative"]


def late(numbers: Stream) -> Stream:
    return numbers.window(Tumbling(10, on="t", late="late")).aggregate(rows="count", name="empty")["late"]


@pytest.mark.parametrize("how", ["left", "full"])
@pytest.mark.parametrize("empty", [filtered, picked, branched, late])
def test_a_join_knows_the_columns_of_an_input_that_passes_nothing_on(empty: Any, how: Any, tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    numbers = source(pipeline)
    numbers.join(empty(numbers), on="n", how=how, window=Tumbling(10, on="t"), name="joined")
    found = ran(pipeline, tmp_path, "joined")["joined"]
    assert [(row["n"], row["t_right"], row["k_right"]) for row in found] == [(n, None, None) for n in range(8)]


def test_what_a_union_passes_on_is_known_where_its_inputs_agree() -> None:
    pipeline = Pipeline("verbs")
    numbers = source(pipeline)
    others = pipeline.source("others", generator(records, 1))
    filtered(numbers).union(numbers.filter(pc.field("n") < 8), name="both")
    numbers.union(others, name="mixed")
    numbers.map(lambda record: record, name="mapped")
    graph = pipeline.graph()
    schemas = {Port("numbers", "out"): records(0).schema, Port("others", "out"): pa.schema([("m", pa.string())])}
    assert graph.schema(Port("both", "out"), schemas.get) == records(0).schema
    assert graph.schema(Port("mixed", "out"), schemas.get) is None
    assert graph.schema(Port("mapped", "out"), schemas.get) is None
    assert graph.schema(Port("both", "out"), {}.get) is None


def test_every_verb_takes_the_schema_that_a_join_asks_for(tmp_path: Path) -> None:
    schema = pa.schema({"k": pa.string(), "t": pa.int64(), "m": pa.int64()})
    pipeline = Pipeline("verbs")
    numbers = source(pipeline)
    unknown = filtered(numbers).map(lambda record: record, name="unknown")
    empty = [
        unknown.filter(pc.field("m") > 0, schema=schema, name="kept"),
        unknown.union(schema=schema, name="united"),
        unknown.branch(m=pc.field("m") > 0, settings={"schema": {"m": schema}}, name="branched")["m"],
        unknown.window(Count(2)).aggregate("k", "t", m=("m", "sum"), settings={"schema": schema}, name="counted"),
    ]
    ports = []
    for one in empty:
        ports.append(f"joined_{one.port.operator}")
        numbers.join(one, on="k", how="left", window=Tumbling(10, on="t"), name=ports[-1])
    found = ran(pipeline, tmp_path, *ports)
    assert {len(found[port]) for port in ports} == {8}


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (ORDERS, pa.table({}), "nothing has come from b yet.*declare its schema="),
        (ORDERS, REFUNDS.drop_columns(["id"]), "b has no column id to join on; it has t, list"),
        (ORDERS, REFUNDS.set_column(0, "id", [["1", "2", "3"]]), "int64 in a and string in b.*cast one of them"),
    ],
)
def test_tables_that_cannot_be_joined_are_refused(left: pa.Table, right: pa.Table, message: str) -> None:
    with pytest.raises(ClewError, match=message):
        Join(("id",), "left", "_right", ("a", "b"))(left, right)


def test_an_operator_without_a_name_has_one_that_stays() -> None:
    pipeline = Pipeline("verbs")
    numbers = source(pipeline)

    def half(record: dict[str, Any]) -> dict[str, Any]:
        return {"n": record["n"] / 2}

    made = [numbers.filter(pc.field("n") > 1), numbers.filter(lambda r: True), numbers.map(half)]
    assert [one.port.operator for one in made] == ["numbers_filter", "numbers_filter_2", "half"]


def returns_text(record: dict[str, Any]) -> str:
    return ""


def returns_number(record: dict[str, Any]) -> int:
    return 0


def takes_number(record: int) -> dict[str, Any]:
    return {}


def takes_two(record: Any, other: Any) -> Any:
    return record


@pytest.mark.parametrize(
    ("verb", "function", "message"),
    [
        ("map", returns_text, "str is no record; annotate it as dict"),
        ("map", takes_number, "int is no record"),
        ("map", takes_two, "takes 2 inputs, but 1 is given"),
        ("filter", returns_text, "returns str; what filters returns bool"),
        ("flat_map", takes_number, None),
        ("flat_map", returns_number, "returns int; what flat_map calls returns records, as in list\\[dict\\]"),
    ],
)
def test_annotations_are_checked_where_they_are_declared(verb: str, function: Any, message: str | None) -> None:
    pipeline = Pipeline("verbs")
    getattr(source(pipeline), verb)(function)
    with pytest.raises(GraphErrors, match=message or "no record"):
        pipeline.graph()


def test_a_function_that_returns_another_kind_than_it_takes_is_refused() -> None:
    pipeline = Pipeline("verbs")

    @pipeline.operator(source(pipeline))
    def wrong(table: pa.Table) -> pd.DataFrame:
        return table.to_pandas()

    with pytest.raises(GraphErrors, match=r"takes pyarrow.Table and returns pandas.DataFrame; it must return"):
        pipeline.graph()


def test_a_window_that_follows_one_input_is_refused_for_two() -> None:
    pipeline = Pipeline("verbs")
    numbers = source(pipeline)
    numbers.join(numbers, on="k", window=Session(5, on="t"), name="joined")
    with pytest.raises(GraphErrors, match="follows one input, but 2 are given; join them before with union"):
        pipeline.graph()


def test_an_aggregation_that_is_none_is_refused() -> None:
    pipeline = Pipeline("verbs")
    with pytest.raises(GraphError, match=r"total='n' is no aggregation; write it as total=\(column, how\)"):
        source(pipeline).window(Count(2)).aggregate(total="n")


def test_a_record_that_fails_is_named(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")

    @pipeline.map(source(pipeline))
    def inverse(record: dict[str, Any]) -> dict[str, Any]:
        return {"n": 12 // (record["n"] - 3)}

    pipeline.sink(inverse, files(tmp_path / "out"))
    with pytest.raises(UserFunctionFailed) as failed:
        run(pipeline, log=f"sqlite:///{tmp_path}/log.db", engine="inline")
    text = str(failed.value)
    assert "numbers.out#2" in text
    assert "record 1" in text
    assert "'n': 3" in text
    assert "ZeroDivisionError" in text


@pytest.mark.parametrize("result", ["text", 5, Order])
def test_what_is_no_record_is_refused_where_it_is_returned(result: Any, tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    source(pipeline).map(lambda record: result, name="wrong")
    pipeline.sink("wrong", files(tmp_path / "out"))
    with pytest.raises(ClewError, match="a record must be a dict or a dataclass"):
        run(pipeline, log=f"sqlite:///{tmp_path}/log.db", engine="inline")


def test_a_column_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    pipeline.sink(source(pipeline).number("n"), files(tmp_path / "out"))
    with pytest.raises(ClewError, match="have a column n already; name another one"):
        run(pipeline, log=f"sqlite:///{tmp_path}/log.db", engine="inline")


def test_settings_of_branch_and_aggregate_are_known_by_their_names() -> None:
    pipeline = Pipeline("verbs")
    numbers = source(pipeline)
    ports = numbers.branch(
        big=lambda record: record["n"] > 5, rest="small", name="sorted", on_error="quarantine", deterministic=True
    )
    numbers.window(Count(2)).aggregate(rows="count", name="totals", attempts=1, group="sums")
    specs = pipeline.graph().operators
    assert sorted(ports) == ["big", "small"]
    assert specs["sorted"].outputs == ("big", "small")
    assert (specs["sorted"].settings.on_error, specs["sorted"].settings.deterministic) == ("quarantine", True)
    assert (specs["totals"].settings.attempts, specs["totals"].group) == (1, "sums")


def test_a_port_or_a_column_may_have_the_name_of_a_setting_where_settings_are_given_apart(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    numbers = source(pipeline)
    numbers.branch(group=pc.field("n") > 5, name="sorted", settings={"attempts": 1})
    numbers.window(Count(2)).aggregate(attempts=("n", "sum"), name="totals", settings={})
    found = ran(pipeline, tmp_path, "sorted.group", "totals")
    assert [row["n"] for row in found["sorted.group"]] == [6, 7]
    assert [row["attempts"] for row in found["totals"]] == [6, 22]


def test_a_port_or_a_column_that_would_be_taken_for_a_setting_is_refused() -> None:
    pipeline = Pipeline("verbs")
    numbers = source(pipeline)
    numbers.branch(group=pc.field("n") > 5, rest="small", name="sorted")
    numbers.window(Count(2)).aggregate(attempts=("n", "sum"), lineage="count", name="totals")
    with pytest.raises(GraphErrors) as wrong:
        pipeline.graph()
    told = str(wrong.value)
    assert (
        "sorted has a setting group, so a port of that name is taken for it; name the port otherwise, or give " in told
    )
    assert "totals has a setting attempts, so a column of that name is taken for it; name the column otherwise" in told
    assert "totals has a setting lineage, so a column" in told


def test_what_calls_a_function_of_the_users_is_deterministic_only_where_that_is_declared() -> None:
    pipeline = Pipeline("verbs")
    numbers = source(pipeline)
    numbers.branch(big=lambda record: random() > 0.5, name="drawn")
    numbers.branch(big=lambda record: record["n"] > 5, name="declared", deterministic=True)
    numbers.branch(big=pc.field("n") > 5, name="built")
    specs = pipeline.graph().operators
    assert not specs["drawn"].settings.deterministic
    assert not specs["drawn"].built_in
    assert specs["declared"].settings.deterministic
    assert not specs["declared"].built_in
    assert specs["built"].settings.deterministic
    assert specs["built"].built_in


def test_a_branch_that_draws_is_not_condemned(tmp_path: Path) -> None:
    pipeline = Pipeline("verbs")
    source(pipeline, 40).branch(big=lambda record: random() > 0.5, rest="small", name="drawn")
    found = ran(pipeline, tmp_path, "drawn.big", "drawn.small")
    assert sorted(row["n"] for port in found.values() for row in port) == list(range(80))
