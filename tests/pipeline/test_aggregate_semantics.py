"""What aggregations and joins say of values at the edge: what Spark says, or a sentence with the cure."""

import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew import Batch, Count, Each, Pipeline, Stream, Tumbling
from clew.connectors import generator
from clew.errors import ClewError, GraphError, GraphErrors, OperatorFailed
from clew.pipeline.column_lineage import ColumnUse, column_lineage, deciding_columns
from clew.pipeline.dependencies import Dependencies, contributing
from clew.pipeline.functions import AGGREGATIONS, Aggregate, Join
from tests.pipeline.test_verbs import ran

NAN = float("nan")
#: The largest that 38 digits hold.
NINES = Decimal("9" * 38)


def aggregated(values: pa.Array, *words: str, keys: list[Any] | None = None) -> pa.Table:
    """Aggregate a column x by some words; without keys all of it."""
    table = pa.table({"x": values} if keys is None else {"x": values, "k": keys})
    return Aggregate(() if keys is None else ("k",), {word: ("x", AGGREGATIONS[word]) for word in words})(table)


def of_stream(pipeline: Pipeline, table: pa.Table, name: str = "numbers") -> Stream:
    return pipeline.source(name, generator(lambda index: table, 1))


# Sums and means.


@pytest.mark.parametrize("keys", [None, ["a", "a", "a"]])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            pa.array([2**62] * 3),
            "operator totals is to compute sum of column n of numbers, and of one group it is larger than int64 holds; "
            r"cast the column before this operator, to pa.decimal128\(38, 0\) or pa.float64\(\)",
        ),
        (
            pa.array([NINES, NINES, None], pa.decimal128(38, 0)),
            "operator totals is to compute sum of column n of numbers, and of one group it is larger than "
            r"decimal128\(38, 0\) holds; cast the column before this operator, to a decimal with fewer digits after "
            r"the point or to pa.float64\(\)",
        ),
    ],
    ids=["whole numbers", "decimals"],
)
def test_a_sum_that_does_not_fit_is_refused(
    values: pa.Array, message: str, keys: list[str] | None, tmp_path: Path
) -> None:
    pipeline = Pipeline("sums")
    table = pa.table({"n": values} if keys is None else {"n": values, "k": keys})
    by = () if keys is None else ("k",)
    of_stream(pipeline, table).window(Count(1)).aggregate(*by, total=("n", "sum"), name="totals")
    with pytest.raises(OperatorFailed, match=message):
        ran(pipeline, tmp_path, "totals")


@given(
    values=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9), max_size=8),
    random=st.randoms(use_true_random=False),
)
def test_a_sum_of_whole_numbers_is_exact_or_refused(values: list[int | None], random: Any) -> None:
    keys = [random.choice("ab") for _ in values]
    known = {k: [v for key, v in zip(keys, values) if key == k and v is not None] for k in dict.fromkeys(keys)}
    expected = {k: sum(found) if found else None for k, found in known.items()}
    if all(total is None or -(2**63) <= total < 2**63 for total in expected.values()):
        made = aggregated(pa.array(values, pa.int64()), "sum", keys=pa.array(keys, pa.string()))
        assert made["sum"].type == pa.int64()
        assert dict(zip(made["k"].to_pylist(), made["sum"].to_pylist())) == expected
    else:
        with pytest.raises(ClewError, match="larger than int64 holds"):
            aggregated(pa.array(values, pa.int64()), "sum", keys=keys)


@given(st.lists(st.none() | st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-9, 9), min_size=1, max_size=5))
def test_a_sum_of_decimals_is_exact_or_refused(values: list[int | None]) -> None:
    column = pa.array([None if v is None else Decimal(f"{v}E-2") for v in values], pa.decimal128(38, 2))
    found = [v for v in values if v is not None]
    if abs(sum(found)) < 10**38:
        made = aggregated(column, "sum")["sum"]
        assert made.type == pa.decimal128(38, 2)
        assert made.to_pylist() == [Decimal(f"{sum(found)}E-2") if found else None]
    else:
        with pytest.raises(ClewError, match=r"larger than decimal128\(38, 2\) holds"):
            aggregated(column, "sum")


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()], ids=str
)
def test_a_sum_of_whole_numbers_is_int64_whatever_their_width(kind: pa.DataType) -> None:
    made = aggregated(pa.array([100, 100, None, 100], kind), "sum", "mean", keys=["a", "a", "b", "c"])
    assert made["sum"].type == pa.int64()
    assert made["sum"].to_pylist() == [200, None, 100]
    assert made["mean"].to_pylist() == [100.0, None, 100.0]
    empty = aggregated(pa.array([], kind), "sum", "mean", "min", "count", "list", "first")
    assert empty.to_pylist() == [{"sum": None, "mean": None, "min": None, "count": 0, "list": [], "first": None}]
    assert aggregated(pa.array([], kind), "sum", "list", keys=pa.array([], pa.string())).num_rows == 0


def test_a_sum_of_unsigned_numbers_beyond_int64_is_refused() -> None:
    with pytest.raises(ClewError, match="larger than int64 holds"):
        aggregated(pa.array([2**64 - 1], pa.uint64()), "sum")


def test_a_mean_of_whole_numbers_does_not_overflow() -> None:
    for kind, large in ((pa.int64(), 2**62), (pa.uint64(), 2**63)):
        for keys in (None, ["a"] * 3):
            assert aggregated(pa.array([large] * 3, kind), "mean", keys=keys)["mean"].to_pylist() == [float(large)]


def test_a_mean_of_large_decimals_is_computed() -> None:
    large = Decimal("9" * 32 + ".99")
    made = aggregated(pa.array([large, large, None], pa.decimal128(38, 2)), "mean")["mean"]
    assert made.type == pa.decimal128(38, 6)
    assert made.to_pylist() == [Decimal("9" * 32 + ".990000")]


def test_a_mean_with_more_digits_than_there_are_is_refused() -> None:
    message = (
        r"operator aggregate is to compute mean of column x of the stream, and of one group it is larger than "
        r"decimal128\(38, 6\) holds; cast the column before this operator, to a decimal with fewer digits"
    )
    with pytest.raises(ClewError, match=message):
        aggregated(pa.array([Decimal("9" * 36 + ".99")], pa.decimal128(38, 2)), "mean", keys=["a"])


def test_durations_are_summed_and_compared() -> None:
    spans = pa.array([1, 5, None], pa.duration("us"))
    made = aggregated(spans, "sum", "min", "max", keys=["a", "a", "b"])
    assert [made[name].type for name in ("sum", "min", "max")] == [pa.duration("us")] * 3
    assert [made[name].cast(pa.int64()).to_pylist() for name in ("sum", "min", "max")] == [
        [6, None],
        [1, None],
        [5, None],
    ]
    with pytest.raises(ClewError, match=r"larger than duration\[us\] holds"):
        aggregated(pa.array([2**62] * 3, pa.duration("us")), "sum")


# Types that a word has no meaning for.


@pytest.mark.parametrize("keys", [None, ["a"]])
@pytest.mark.parametrize(
    ("word", "values", "cure"),
    [
        *(
            (word, pa.array(["1"]), r"which is string; it needs numbers: cast it to pa.int64\(\), pa.float64\(\) or")
            for word in ("sum", "mean", "stddev", "variance")
        ),
        ("sum", pa.array([True]), r'which is bool; a sum needs numbers: cast it to pa.int64\(\).*or filter .*"count"'),
        ("stddev", pa.array([True]), "which is bool; it needs numbers"),
        ("mean", pa.array([1], pa.timestamp("us")), r"which is timestamp\[us\]; it needs numbers"),
        ("any", pa.array([1]), "which is int64; it needs booleans: put a comparison into a column of its own"),
        ("all", pa.array(["yes"]), "which is string; it needs booleans"),
        ("min", pa.array([[1]]), r"which is list<.*>; values of this type are not compared: put the part of it"),
        ("max", pa.array([{"a": 1}]), r"which is struct<.*>; values of this type are not compared"),
        ("count_distinct", pa.array([[1]]), r"which is list<.*>; values of this type are not compared"),
    ],
)
def test_a_word_that_means_nothing_for_a_type_is_refused_with_the_cure(
    word: str, values: pa.Array, cure: str, keys: list[str] | None
) -> None:
    with pytest.raises(ClewError, match=f"operator aggregate is to compute {word} of column x of the stream, {cure}"):
        aggregated(values, word, keys=keys)


@pytest.mark.parametrize("keys", [None, ["a", "a"]])
def test_every_word_passes_over_a_column_of_nothing(keys: list[str] | None) -> None:
    words = [word for word in AGGREGATIONS if word not in ("first", "last", "list")]
    (made,) = aggregated(pa.nulls(2), *words, keys=keys).select(words).to_pylist()
    assert made == {word: 0 if word.startswith("count") else None for word in words}


def test_what_cannot_be_compared_is_no_key_of_groups_or_joins() -> None:
    table = pa.table({"k": [[1]], "n": [1]})
    with pytest.raises(ClewError, match=r"group by column k of the stream, which is list<.*>; values of this type"):
        Aggregate(("k",), {"rows": ("", "count_all")})(table)
    for one in (table, pa.table({"k": pa.nulls(1)})):
        with pytest.raises(
            ClewError, match=r"column k is .* in a and b, and values of this type are not compared; join"
        ):
            Join(("k",), "inner", "_right", ("a", "b"))(one, one)


# Floats.


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("keyed", [False, True])
def test_nan_is_larger_than_any_number(kind: pa.DataType, keyed: bool) -> None:
    for values, least, most in (
        ([1.0, NAN], 1.0, NAN),
        ([NAN, None, math.inf], math.inf, NAN),
        ([NAN, NAN], NAN, NAN),
        ([None, None], None, None),
        ([2.0, 1.0], 1.0, 2.0),
    ):
        made = aggregated(pa.array(values, kind), "min", "max", keys=["a"] * len(values) if keyed else None)
        assert repr([made["min"][0].as_py(), made["max"][0].as_py()]) == repr([least, most])
        assert made["max"].type == kind


def test_nan_in_one_group_is_not_in_another() -> None:
    made = aggregated(pa.array([NAN, 1.0, None, 3.0]), "max", keys=["a", "a", "b", "c"])
    assert repr(made["max"].to_pylist()) == "[nan, None, 3.0]"


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_that_are_equal_are_one_key(kind: pa.DataType) -> None:
    keys = pa.array([-0.0, 0.0, NAN, -NAN, None, 1.0], kind)
    made = aggregated(pa.array([1, 2, 4, 8, 16, 32]), "sum", keys=keys)
    assert repr(made["k"].to_pylist()) == "[0.0, nan, None, 1.0]"
    assert made["sum"].to_pylist() == [3, 12, 16, 32]
    for several in (None, ["a"] * 6):
        assert aggregated(keys, "count_distinct", keys=several)["count_distinct"].to_pylist() == [3]


def test_floats_that_are_equal_are_joined() -> None:
    left = pa.table({"k": [0.0, NAN, None], "a": [1, 2, 3]})
    right = pa.table({"k": [-0.0, 0.0, -NAN, None], "b": [4, 5, 6, 7]})
    joined = Join(("k",), "inner", "_right")(left, right)
    assert joined is not None
    assert [(row["a"], row["b"]) for row in joined.to_pylist()] == [(1, 4), (1, 5), (2, 6)]
    assert repr(joined["k"].to_pylist()) == "[0.0, 0.0, nan]"


def test_the_lineage_of_a_group_has_all_its_records() -> None:
    records = pa.table({"k": [-0.0, 1.0, 0.0, NAN], "n": [1, 2, 3, 4]})
    made = Aggregate(("k",), {"total": ("n", "sum")})(records)
    assert contributing(Dependencies({"k": "k"}), made, [0], records)["n"].to_pylist() == [1, 3]
    assert contributing(Dependencies({"k": "k"}), made, [2], records)["n"].to_pylist() == [4]


# Groups.


@pytest.mark.parametrize(
    "values",
    [[1, None, 3], ["x", None, ""], [[1], None, []], [{"a": 1}, None, {"a": None}], [None, None, None]],
    ids=["numbers", "text", "lists", "structs", "nulls"],
)
def test_a_list_has_the_values_of_a_group_or_of_all(values: list[Any]) -> None:
    assert aggregated(pa.array(values), "list")["list"].to_pylist() == [values]
    made = aggregated(pa.array(values), "list", keys=["b", "a", "b"])
    assert made["list"].to_pylist() == [[values[0], values[2]], [values[1]]]
    assert made["list"].type == pa.list_(pa.array(values).type)


def test_a_list_of_all_records_of_a_window(tmp_path: Path) -> None:
    pipeline = Pipeline("lists")
    table = pa.table({"n": [3, 1, 2]})
    of_stream(pipeline, table).window(Count(1)).aggregate(all=("n", "list"), total=("n", "sum"), name="made")
    assert ran(pipeline, tmp_path, "made")["made"] == [{"all": [3, 1, 2], "total": 6}]


def test_the_bounds_of_a_window_may_be_named_as_keys(tmp_path: Path) -> None:
    pipeline = Pipeline("bounds")
    numbers = of_stream(pipeline, pa.table({"t": [1, 2, 11], "k": ["a", "b", "a"]}))
    by_window = numbers.window(Tumbling(10, on="t")).aggregate("window_start", rows="count", name="by_window")
    # These are ordinary columns for a window that is none of time.
    by_window.window(Count(2)).aggregate("window_end", "window_start", total=("rows", "sum"), name="again")
    found = ran(pipeline, tmp_path, "by_window", "again")
    assert found["by_window"] == [
        {"window_start": 0, "window_end": 10, "rows": 2},
        {"window_start": 10, "window_end": 20, "rows": 1},
    ]
    assert [(row["window_start"], row["total"]) for row in found["again"]] == [(0, 2), (10, 1)]
    spec = pipeline.graph().operators["by_window"]
    assert deciding_columns(spec, "out", {"in": pa.schema([("window_start", pa.int64())])}) == []


def test_a_column_may_have_any_name_in_groups_and_joins(tmp_path: Path) -> None:
    names = ("_clew_place", "_clew_made_total", "_clew_place_first", "0", "_left", "_right", "left", "right")
    table = pa.table({name: [1, 1] for name in names})
    pipeline = Pipeline("names")
    numbers = of_stream(pipeline, table)
    columns = {name: (name, "sum") for name in names[1:]}
    numbers.window(Count(1)).aggregate("_clew_place", settings={}, **columns, name="made")
    assert ran(pipeline, tmp_path, "made")["made"] == [{"_clew_place": 1, **dict.fromkeys(names[1:], 2)}]
    joined = Join(names, "full", "_right")(table, table)
    assert joined is not None
    assert joined.column_names == [*names]
    assert joined.num_rows == 4


@pytest.mark.parametrize(
    ("by", "columns", "message"),
    [
        (("k", "k"), {"rows": "count"}, "totals is to group by column k more than once; name it once"),
        (("k",), {"k": ("n", "sum")}, "totals is to compute column k, by which its records are grouped already; give"),
        ((), {"window_end": ("n", "max")}, "totals is to compute column window_end, by which its records are grouped"),
        ((pc.field("k"),), {"rows": "count"}, "totals is to group by .*, which is no name of a column; name one"),
        ((), {}, 'totals is to compute nothing; name a column to make, as in aggregate."item", rows="count".'),
    ],
)
def test_names_of_groups_that_cannot_be_are_refused_where_they_are_declared(
    by: tuple[Any, ...], columns: dict[str, Any], message: str
) -> None:
    pipeline = Pipeline("names")
    numbers = of_stream(pipeline, pa.table({"t": [1], "k": ["a"], "n": [1]}))
    numbers.window(Tumbling(10, on="t")).aggregate(*by, name="totals", **columns)
    with pytest.raises(GraphErrors, match=message):
        pipeline.graph()


@pytest.mark.parametrize("asked", [(3, "sum"), ("n", ["sum"]), pc.field("n"), ("n", "sum", "max"), "sum"], ids=str)
def test_what_is_no_aggregation_is_refused_whatever_it_is(asked: Any) -> None:
    numbers = of_stream(Pipeline("names"), pa.table({"n": [1]}))
    with pytest.raises(GraphError, match=r"is no aggregation; write it as total=\(column, how\)"):
        numbers.window(Count(1)).aggregate(total=asked)


def test_a_column_of_bounds_that_is_grouped_by_cannot_be_made() -> None:
    table = pa.table({"window_start": [1], "n": [1]})
    message = "operator aggregate is to compute column window_start, by which its records are grouped already; give"
    with pytest.raises(ClewError, match=message):
        Aggregate((), {"window_start": ("n", "max")})(table)


# Joins.


@pytest.mark.parametrize(
    ("left", "right", "suffix", "twice", "of"),
    [
        (("k", "x", "x_right"), ("k", "x"), "_right", "x_right", "x"),
        (("k", "x"), ("k", "x", "x_right"), "_right", "x_right", "x_right"),
        (("k", "x"), ("k", "x_right", "x"), "_right", "x_right", "x"),
        (("k", "x"), ("k", "x"), "", "x", "x"),
    ],
)
def test_a_join_that_would_lose_a_column_is_refused(
    left: tuple[str, ...], right: tuple[str, ...], suffix: str, twice: str, of: str, tmp_path: Path
) -> None:
    tables = [pa.table({name: [1] for name in names}) for names in (left, right)]
    pipeline = Pipeline("joins")
    streams = [of_stream(pipeline, table, name) for table, name in zip(tables, ("ours", "theirs"))]
    streams[0].join(streams[1], on="k", window=Count(2), suffix=suffix, name="joined")
    message = (
        f"a join of ours and theirs would have two columns {twice}, one of them column {of} of theirs; give another "
        f"suffix than suffix='{suffix}', or rename one before"
    )
    with pytest.raises(OperatorFailed, match=message):
        ran(pipeline, tmp_path, "joined")
    joined = Join(("k",), "inner", "_theirs")(*tables)
    assert joined is not None
    assert joined.num_columns == len(left) + len(right) - 1


def test_bounds_of_other_windows_are_not_lost_in_a_join() -> None:
    left = pa.table({"k": [1], "window_start": [0]})
    right = pa.table({"k": [1], "window_start": [10], "window_end": [20]})
    with pytest.raises(ClewError, match="records of a and b that are joined differ in window_start, of which a join"):
        Join(("k",), "inner", "_right", ("a", "b"))(left, right)
    with pytest.raises(ClewError, match="column window_start is int64 in a and string in b; a join needs one type"):
        Join(("k",), "inner", "_right", ("a", "b"))(left, right.set_column(1, "window_start", [["10"]]))
    only = Join(("k",), "inner", "_right")(left.select(["k"]), right)
    assert only is not None
    assert only.to_pylist() == [{"k": 1, "window_start": 10, "window_end": 20}]


def test_the_columns_of_bounds_that_one_side_has_are_told() -> None:
    ours, theirs = pa.schema([("k", pa.int64())]), pa.schema([("k", pa.int64()), ("window_start", pa.int64())])
    for window, known in ((Count(2), True), (Tumbling(10, on="k"), False)):
        pipeline = Pipeline("joins")
        numbers = of_stream(pipeline, ours.empty_table())
        numbers.join(numbers, on="k", window=window, name="joined")
        found = column_lineage(pipeline.graph().operators["joined"], "out", {"in1": ours, "in2": theirs})
        assert (found.get("window_start") == [ColumnUse("in2", "window_start", "identity")]) == known


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (
            lambda s: s.join(s, on="n", window=Each(), name="j"),
            r"the window of j is Each\(\), in which each event is alone",
        ),
        (
            lambda s: s.join(s, on="n", window=Count(1), name="j"),
            "in which each event is alone, so that nothing is ever",
        ),
        (
            lambda s: s.join(s, on="n", window=None, name="j"),
            "j has no window; give it one that events of both streams",
        ),
        (lambda s: s.join(s, on="n", window=Batch(), suffix=3), "suffix= of join of numbers is 3, which is no text"),
    ],
    ids=["each", "one", "none", "suffix"],
)
def test_a_join_that_joins_nothing_is_refused(declare: Callable[[Stream], Any], message: str) -> None:
    pipeline = Pipeline("joins")
    declare(of_stream(pipeline, pa.table({"n": [1]})))
    with pytest.raises(GraphErrors, match=message):
        pipeline.graph()


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (
            lambda s: s.window(Count(2)).aggregate(total=("text", "sum"), name="a"),
            "operator a is to compute sum of column",
        ),
        (
            lambda s: s.window(Tumbling(9, on="n")).aggregate("kk", rows="count", name="a"),
            "a is to group by column kk,",
        ),
        (lambda s: s.join(s, on="text", window=Count(2), name="j"), "a join of typed and typed would have two columns"),
        (
            lambda s: s.join(s, on="m", window=Tumbling(9, on="n"), name="j"),
            "typed has no column m to join on; it has n",
        ),
    ],
)
def test_what_declared_types_tell_is_told_where_it_is_declared(declare: Callable[[Stream], Any], message: str) -> None:
    pipeline = Pipeline("typed")
    schema = pa.schema({"n": pa.int64(), "n_right": pa.int64(), "text": pa.string()})
    typed = of_stream(pipeline, pa.table({"n": [1]})).map(lambda record: record, schema=schema, name="typed")
    declare(typed)
    with pytest.raises(GraphErrors, match=message):
        pipeline.graph()


@pytest.mark.parametrize("window", [Count(2), Tumbling(9, on="n")])
def test_what_is_declared_and_fits_is_taken(window: Any) -> None:
    pipeline = Pipeline("typed")
    numbers = of_stream(pipeline, pa.table({"n": [1]}))
    typed = numbers.map(lambda record: record, schema=pa.schema({"n": pa.int64()}), name="typed")
    typed.window(window).aggregate("n", total=("n", "sum"), all=("n", "list"))
    typed.join(typed, on="n", window=window)
    typed.join(numbers, on="n", window=window)
    assert pipeline.graph()


def test_a_window_that_does_not_fit_is_what_is_told() -> None:
    pipeline = Pipeline("typed")
    typed = of_stream(pipeline, pa.table({"n": [1]})).map(lambda record: record, schema=pa.schema({"n": pa.int64()}))
    typed.window(Tumbling(9, on="t")).aggregate("n", total=("t", "sum"))
    with pytest.raises(GraphErrors) as refused:
        pipeline.graph()
    (error,) = refused.value.errors
    assert "finds no such column; the records have n" in str(error)


def test_what_is_wrong_with_names_is_told_once() -> None:
    pipeline = Pipeline("typed")
    typed = of_stream(pipeline, pa.table({"n": [1]})).map(lambda record: record, schema=pa.schema({"n": pa.int64()}))
    typed.window(Count(2)).aggregate("n", n=("n", "sum"))
    with pytest.raises(GraphErrors) as refused:
        pipeline.graph()
    assert len(refused.value.errors) == 1
