"""The types that columns of a result get: those of the input, those that were declared, or lasting new ones."""

import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew import Connection, Pipeline, Stream
from clew.connectors import cached, files, generator, http, sqlite
from clew.errors import ClewError, TypeRefused, UserFunctionFailed
from clew.pipeline.columns import typed
from clew.pipeline.onpandas import OnPandas, to_pandas
from clew.pipeline.records import PerRecord
from clew.pipeline.schema import normalise
from clew.run import run, verify
from tests.pipeline.arrow_types import KEPT

#: Columns that are null, empty or short in the first event, and have a value in the next one.
COLUMNS: dict[str, tuple[pa.DataType, Any, Any]] = {
    "text": (pa.string(), None, "x"),
    "small": (pa.int32(), None, 5),
    "exact": (pa.decimal128(10, 2), Decimal("1.50"), Decimal("12.25")),
    "blank": (pa.decimal128(10, 2), None, Decimal("12.50")),
    "day": (pa.date32(), None, date(2024, 1, 1)),
    "at": (pa.timestamp("us", "UTC"), None, datetime(2024, 1, 1, tzinfo=UTC)),
    "flag": (pa.bool_(), None, True),
    "data": (pa.binary(), None, b"x"),
    "large": (pa.int64(), None, 2**53 + 1),
    "short": (pa.float32(), None, 0.5),
    "list": (pa.list_(pa.int64()), [], [1, None, 2**53 + 1]),
    "struct": (pa.struct([("a", pa.string())]), {"a": None}, {"a": "x"}),
    "map": (pa.map_(pa.string(), pa.int64()), [], [("a", None)]),
}


def table(index: int) -> pa.Table:
    return pa.table({name: pa.array([one[1 + min(index, 1)]], one[0]) for name, one in COLUMNS.items()})


def same_record(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "cents": 1}


def same_records(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [record]


def same_frame(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def ran(pipeline: Pipeline, stream: Stream, tmp_path: Path) -> list[pa.Table]:
    """Run and judge a pipeline, and return what the stream's sink holds, write by write."""
    stream.sink(files(tmp_path / "out"), name="sink", max_turn_events=1)
    log = f"sqlite:///{tmp_path}/log.db"
    run(pipeline, log=log, engine="inline")
    verdict = verify(pipeline, log=log, engine="inline")
    assert verdict.word == "explained", verdict.findings
    return [pq.ParquetFile(file).read() for file in sorted((tmp_path / "out").glob("*.parquet"))]


@pytest.mark.parametrize("verb", ["map", "flat_map", "apply"])
def test_a_column_that_passes_through_keeps_its_type_though_the_first_event_does_not_tell_it(
    verb: str, tmp_path: Path
) -> None:
    function = {"map": same_record, "flat_map": same_records, "apply": same_frame}[verb]
    pipeline = Pipeline("types")
    numbers = pipeline.source("numbers", generator(table, 3), max_turn_events=1)
    made = getattr(numbers, verb)(function, name="same", deterministic=True, max_turn_events=1)
    found = ran(pipeline, made, tmp_path)
    assert len(found) == 3
    for index, one in enumerate(found):
        assert one.select(list(COLUMNS)).cast(table(index).schema) == table(index)
        assert [kind for kind in one.schema.types if not pa.types.is_nested(kind)][: len(COLUMNS) - 3] == [
            kind for kind in table(0).schema.types if not pa.types.is_nested(kind)
        ]


def parts(column: pa.Array) -> list[pa.Array]:
    """A column as a whole, and its last value alone, which is null for most."""
    return [column, column.slice(len(column) - 1)]


@pytest.mark.parametrize("kept", [one for one in KEPT if one.normal.type not in (pa.date32(),)], ids=str)
def test_every_type_passes_through_pandas_as_it_is(kept: Any) -> None:
    for column in parts(kept.normal):
        given = pa.table({"c": column})
        made = OnPandas(same_frame)(given)
        assert made == given
        assert made.schema == given.schema


@pytest.mark.parametrize(
    "kept",
    [one for one in KEPT if not pa.types.is_temporal(one.normal.type) or pa.types.is_time(one.normal.type)],
    ids=str,
)
def test_every_type_passes_through_records_as_it_is(kept: Any) -> None:
    for column in parts(kept.normal):
        given = pa.table({"c": column})
        assert PerRecord(lambda record: {**record}, "map")(given).equals(given)


def test_pandas_tells_nan_from_null() -> None:
    nan = float("nan")
    given = pa.table(
        {"f": [1.0, nan], "g": [nan, None], "list": [[1, None, 2**53 + 1], [2]], "floats": [[nan], [None]]}
    )
    made = OnPandas(same_frame)(given)
    assert made.schema == given.schema
    assert str(made.to_pylist()) == str(given.to_pylist())
    assert to_pandas(given)["g"].dtype == "Float64"
    assert to_pandas(given)["list"][0] == [1, None, 2**53 + 1]


def test_nanoseconds_that_are_whole_microseconds_are_kept() -> None:
    times, spans = pd.Series([pd.Timestamp(1000), pd.NaT]), pd.Series([pd.Timedelta(1000), pd.NaT])
    made = OnPandas(lambda frame: pd.DataFrame({"t": times, "d": spans}))(pa.table({"n": [1]}))
    assert made.schema.types == [pa.timestamp("us"), pa.duration("us")]
    assert made["t"].null_count == 1


@pytest.mark.parametrize("kind", [None, object, "timestamp[ns][pyarrow]"], ids=str)
def test_nanoseconds_that_would_be_cut_off_are_told_with_their_column(kind: Any) -> None:
    times = pd.Series([pd.Timestamp(1000), pd.Timestamp(1001)], dtype=kind)
    with pytest.raises(ClewError) as refused:
        OnPandas(lambda frame: frame.assign(seen=times))(pa.table({"n": [1, 2]}))
    assert str(refused.value) == (
        "column seen has times with nanoseconds, expected whole microseconds, which are kept; round them, as with "
        '.dt.floor("us") of pandas, or keep them as whole numbers with .astype("int64")'
    )
    rounded = OnPandas(lambda frame: frame.assign(seen=pd.to_datetime(times).dt.floor("us")))(pa.table({"n": [1, 2]}))
    assert rounded["seen"].type == pa.timestamp("us")


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pd.period_range("2020-01", periods=2, freq="M"), "a period would .* make it a time with .dt.to_timestamp"),
        (pd.interval_range(0, 2), "an interval would forget .* keep its ends as two columns"),
    ],
    ids=["period", "interval"],
)
@pytest.mark.parametrize("kind", [None, "category"])
def test_types_of_pandas_that_mean_nothing_without_it_are_refused(column: Any, said: str, kind: Any) -> None:
    made = OnPandas(lambda frame: frame.assign(c=pd.Series(column).astype(kind or column.dtype)))(
        pa.table({"n": [1, 2]})
    )
    with pytest.raises(TypeRefused, match=f"column c has type .*pandas.*: {said}"):
        normalise(made)


def test_categories_become_their_values() -> None:
    made = OnPandas(lambda frame: frame.astype("category"))(pa.table({"n": ["a", "b", "a"]}))
    assert normalise(made).to_pydict() == {"n": ["a", "b", "a"]}


def test_nan_that_pandas_makes_is_null() -> None:
    given = pa.table({"n": [1.5, 2.5]})
    made = OnPandas(lambda frame: frame.assign(n=frame["n"].shift(), new=[float("nan"), 1.0]))(given)
    assert made.to_pylist() == [{"n": None, "new": None}, {"n": 1.5, "new": 1.0}]


def test_what_pandas_computes_keeps_the_type_of_the_input_where_it_fits() -> None:
    given = pa.table({"n": pa.array([1, 2], pa.int32()), "f": pa.array([0.5, 1], pa.float32())})
    sums = OnPandas(lambda frame: frame.astype({"n": "int64", "f": "float64"}) * 2)(given)
    assert sums.schema.types == [pa.int32(), pa.float32()]
    inexact = OnPandas(lambda frame: frame.astype({"n": "int64"}).assign(n=2**40, f=0.1))(given)
    assert inexact.schema.types == [pa.int64(), pa.float64()]
    halves = OnPandas(lambda frame: frame / 2)(given)
    assert halves.schema.types == [pa.float64(), pa.float32()]
    strings = OnPandas(lambda frame: frame.assign(n=["a", "b"]))(given)
    assert strings.schema.field("n").type == pa.string()


def test_inputs_that_disagree_on_a_column_tell_nothing_of_it() -> None:
    one, other = pa.table({"n": pa.array([1], pa.int32())}), pa.table({"n": ["a"]})
    assert OnPandas(lambda left, right: left.astype("int64"))(one, other).schema.types == [pa.int64()]


def test_a_frame_whose_column_has_no_one_type_names_it() -> None:
    with pytest.raises(
        ClewError, match=r"column n of the frame, object, has no one Arrow type .*; give all its values"
    ):
        OnPandas(lambda frame: pd.DataFrame({"n": [1, "a"]}))(pa.table({"n": [1]}))


@pytest.mark.parametrize(
    ("values", "known", "kind"),
    [
        ([1, None], pa.int32(), pa.int32()),
        ([2**31], pa.int32(), pa.int64()),
        ([2.0], pa.int64(), pa.float64()),
        ([2], pa.float64(), pa.float64()),
        ([2**53 + 1], pa.float64(), pa.int64()),
        ([0.1], pa.float32(), pa.float64()),
        ([True], pa.int64(), pa.bool_()),
        ([Decimal("1.1900")], pa.decimal128(10, 2), pa.decimal128(38, 18)),
        ([Decimal("1.2"), 3], pa.decimal128(10, 2), pa.decimal128(10, 2)),
        ([b"a"], pa.string(), pa.binary()),
        ([datetime(2024, 1, 1)], pa.timestamp("us", "UTC"), pa.timestamp("us")),
        ([datetime(2024, 1, 1)], pa.date32(), pa.timestamp("us")),
        ([{"a": 1, "b": 2}], pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
        ([{"a": 1}], pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int64())),
        ([[("a", 1)], [("b",)]], pa.map_(pa.string(), pa.int64()), None),
        ([Decimal("1.5")], None, pa.decimal128(38, 18)),
        ([[Decimal("1.5")]], None, pa.list_(pa.decimal128(38, 18))),
        ([{"a": Decimal("12.25")}], None, pa.struct([("a", pa.decimal128(38, 18))])),
    ],
)
def test_kinds_decide_and_not_what_values_happen_to_fit(
    values: list[Any], known: pa.DataType | None, kind: pa.DataType | None
) -> None:
    if kind is None:
        with pytest.raises(pa.ArrowException):
            typed("c", values, known)
    else:
        assert typed("c", values, known).type == kind


@pytest.mark.parametrize("style", ["record", "frame"])
def test_decimals_of_a_new_column_have_one_type_whatever_their_digits(style: str, tmp_path: Path) -> None:
    prices = [Decimal("1.5"), Decimal("12.25"), Decimal("0.000000000000000001")]

    def priced(record: dict[str, Any]) -> dict[str, Any]:
        return {"price": prices[record["n"]]}

    def framed(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"price": [prices[n] for n in frame["n"]]})

    pipeline = Pipeline("types")
    numbers = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), 3), max_turn_events=1)
    made = numbers.map(priced) if style == "record" else numbers.apply(framed)
    assert [row["price"] for one in ran(pipeline, made, tmp_path) for row in one.to_pylist()] == prices


def test_a_decimal_that_is_too_long_for_a_new_column_is_refused_and_a_declared_type_takes_it(tmp_path: Path) -> None:
    def third(record: dict[str, Any]) -> dict[str, Any]:
        return {"part": Decimal(1) / Decimal(3)}

    for schema in (None, pa.schema([("part", pa.decimal128(38, 28))])):
        pipeline = Pipeline("types")
        numbers = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), 1))
        made = numbers.map(third, schema=schema)
        if schema is None:
            with pytest.raises(ClewError, match=r"in column part, expected decimal128\(38, 18\) there"):
                ran(pipeline, made, tmp_path / "new")
        else:
            (found,) = ran(pipeline, made, tmp_path / "declared")
            assert found.to_pylist() == [{"part": Decimal("0." + 28 * "3")}]


@pytest.mark.parametrize("style", ["record", "frame"])
def test_a_declared_type_is_the_type_of_the_column(style: str, tmp_path: Path) -> None:
    def priced(record: dict[str, Any]) -> dict[str, Any]:
        return {"price": Decimal("1.5"), "n": None}

    def framed(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"price": [Decimal("1.5")], "n": [None]})

    pipeline = Pipeline("types")
    numbers = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), 1))
    schema = pa.schema([("price", pa.decimal128(10, 2)), ("n", pa.string())])
    (found,) = ran(
        pipeline,
        numbers.map(priced, schema=schema) if style == "record" else numbers.apply(framed, schema=schema),
        tmp_path,
    )
    assert found.schema.types == [pa.decimal128(10, 2), pa.string()]
    assert found.to_pylist() == [{"price": Decimal("1.50"), "n": None}]


RATES = pa.schema([("rate", pa.decimal128(18, 6))])


class Rates(Connection):
    """Answers 1.5, 12.25, null, 100; it may declare what its answers have."""

    def __init__(self, declared: pa.Schema | None) -> None:
        self.declared = declared

    def describe(self) -> str:
        return "rates"

    def schema(self) -> pa.Schema | None:
        return self.declared

    def read(self, action: str) -> pa.Table:
        rate = [1.5, 12.25, None, 100.0][int(action)]
        if self.declared is None:
            return pa.table({"rate": [rate]})
        return pa.table({"rate": [None if rate is None else Decimal(str(rate))]}, self.declared)


def asks(pipeline: Pipeline, connection: Connection, of: int, **settings: Any) -> Stream:
    """Records with the numbers 0 to 3, one per event; `of` is the first that asks."""
    numbers = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), 4), max_turn_events=1)
    return numbers.enrich(
        connection,
        lambda record: str(record["n"]) if record["n"] >= of else None,
        name="rated",
        max_turn_events=1,
        **settings,
    )


@pytest.mark.parametrize("remembered", [False, True])
@pytest.mark.parametrize("of", [0, 1, 4])
def test_answers_have_the_types_that_their_connection_declares_also_where_nobody_asks(
    of: int, remembered: bool, tmp_path: Path
) -> None:
    connection: Connection = Rates(RATES)
    pipeline = Pipeline("types")
    made = asks(pipeline, cached(connection, seconds=60) if remembered else connection, of, deterministic=True)
    found = ran(pipeline, made, tmp_path)
    assert {one.schema.field("rate").type for one in found} == {pa.decimal128(18, 6)}
    rates = [None if index < of else rate for index, rate in enumerate(["1.5", "12.25", None, "100"])]
    assert [one["rate"][0].as_py() for one in found] == [None if rate is None else Decimal(rate) for rate in rates]


def test_http_tells_what_its_answers_have() -> None:
    assert http("http://localhost/", schema=RATES).schema() == RATES
    assert cached(http("http://localhost/", schema=RATES), seconds=1).schema() == RATES
    assert http("http://localhost/").schema() is None


def test_a_database_answers_with_the_types_that_are_declared_of_it(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "rates.db")) as database:
        database.executescript("CREATE TABLE rates (n, rate); INSERT INTO rates VALUES (1, NULL), (2, 1.5), (3, 100)")
    schema = pa.schema([("rate", pa.float64())])
    numbers = (pipeline := Pipeline("types")).source(
        "numbers", generator(lambda index: pa.table({"n": [index]}), 4), max_turn_events=1
    )
    rates = sqlite(tmp_path / "rates.db", schema=schema)

    def query(record: dict[str, Any]) -> str | None:
        return f"SELECT rate FROM rates WHERE n = {record['n']}" if record["n"] else None

    found = ran(pipeline, numbers.enrich(rates, query, name="rated", max_turn_events=1), tmp_path)
    assert [one["rate"][0].as_py() for one in found] == [None, None, 1.5, 100.0]
    assert {one.schema.field("rate").type for one in found} == {pa.float64()}


def test_a_schema_of_enrich_tells_the_columns_too(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("rate", pa.float64())])
    pipeline = Pipeline("types")
    found = ran(pipeline, asks(pipeline, Rates(None), 2, schema=schema), tmp_path)
    assert [one["rate"][0].as_py() for one in found] == [None, None, None, 100.0]
    assert {one.schema.field("rate").type for one in found} == {pa.float64()}


def test_an_event_in_which_nobody_asks_says_what_to_declare(tmp_path: Path) -> None:
    pipeline = Pipeline("types")
    made = asks(pipeline, Rates(None), 1)
    with pytest.raises(ClewError, match=r"no record of it asks.*declare them with schema= of the connection, or all"):
        ran(pipeline, made, tmp_path)


def test_answers_that_nobody_declared_have_the_types_that_they_come_with(tmp_path: Path) -> None:
    class Small(Rates):
        def read(self, action: str) -> pa.Table:
            return pa.table({"rate": pa.array([int(action)], pa.int16())})

    pipeline = Pipeline("types")
    found = ran(pipeline, asks(pipeline, Small(None), 0), tmp_path)
    assert {one.schema.field("rate").type for one in found} == {pa.int16()}


def test_what_does_not_fit_the_type_of_the_first_event_is_told_with_its_cure(tmp_path: Path) -> None:
    pipeline = Pipeline("types")
    numbers = pipeline.source(
        "numbers", generator(lambda index: pa.table({"n": pa.array([index], pa.int32())}), 2), max_turn_events=1
    )
    made = numbers.map(lambda record: {"n": record["n"] * 2**40}, name="large", max_turn_events=1)
    with pytest.raises(UserFunctionFailed, match=r"returned 1099511627776 \(int\) in column n, expected int32 there"):
        ran(pipeline, made, tmp_path)
