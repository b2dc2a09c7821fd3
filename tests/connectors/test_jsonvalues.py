"""Records as JSON and back."""

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from clew.connectors.jsonvalues import decoded, encoded

TEXT = st.text(st.characters(codec="utf-8"))
#: Types, and values that each of them holds exactly.
FLAT: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False),
    pa.float32(): st.floats(allow_nan=False, allow_infinity=False, width=32),
    pa.bool_(): st.booleans(),
    pa.string(): TEXT,
    pa.decimal128(38, 9): st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}E-9")),
    pa.decimal128(5, 0): st.integers(-99999, 99999).map(Decimal),
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
}

Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def _or_null(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def _nested(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    lists = inner.map(lambda one: (pa.list_(one[0]), st.lists(_or_null(one[1]), max_size=3)))
    maps = inner.map(lambda one: (pa.map_(pa.string(), one[0]), _pairs(one[1])))
    structs = st.dictionaries(TEXT.filter(bool), inner, min_size=1, max_size=3).map(
        lambda fields: (
            pa.struct([(name, kind) for name, (kind, _) in fields.items()]),
            st.fixed_dictionaries({name: _or_null(values) for name, (_, values) in fields.items()}),
        )
    )
    return lists | maps | structs


def _pairs(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(TEXT, _or_null(values), max_size=3).map(lambda pairs: list(pairs.items()))


TYPED = st.recursive(st.sampled_from(list(FLAT.items())), _nested, max_leaves=4)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    columns = draw(st.dictionaries(TEXT.filter(bool), TYPED, min_size=1, max_size=4))
    rows = draw(st.integers(0, 4))
    arrays = [
        pa.array(draw(st.lists(_or_null(values), min_size=rows, max_size=rows)), kind)
        for kind, values in columns.values()
    ]
    return pa.table(arrays, names=list(columns))


@given(tables(), st.booleans())
def test_what_is_written_reads_back_equal(table: pa.Table, lines: bool) -> None:
    records = list(encoded([table], table.schema))
    content = "\n".join(records) if lines else f"[{','.join(records)}]"
    back = decoded(content.encode(), lines=lines, schema=table.schema)
    assert back.schema == table.schema
    assert back.to_pylist() == table.to_pylist()


@given(tables())
def test_a_record_is_one_line_of_standard_json_without_floats_for_decimals(table: pa.Table) -> None:
    for record, row in zip(encoded([table], table.schema), table.to_pylist(), strict=True):
        assert "\n" not in record
        assert "\r" not in record

        def refuse(name: str) -> None:
            raise AssertionError(name)

        plain = json.loads(record, parse_constant=refuse)
        assert list(plain) == list(row)
        for name, value in row.items():
            if isinstance(value, Decimal):
                assert Decimal(plain[name]) == value
                assert isinstance(plain[name], str)


def test_the_forms_are_these() -> None:
    table = pa.table(
        {
            "d": pa.array([Decimal("-0.10")], pa.decimal128(4, 2)),
            "t": pa.array([datetime(2024, 1, 2, 3, 4, 5, 6)], pa.timestamp("us")),
            "z": pa.array([datetime(2024, 1, 2, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            "day": [date(2024, 1, 2)],
            "time": [time(1, 2)],
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "nest": [{"x": [None, "é😀"]}],
        }
    )
    (record,) = encoded([table], table.schema)
    assert json.loads(record) == {
        "d": "-0.10", "t": "2024-01-02T03:04:05.000006", "z": "2024-01-02T00:00:00+00:00", "day": "2024-01-02",
        "time": "01:02:00", "map": [["k", 1]], "nest": {"x": [None, "é😀"]},
    }  # fmt: skip


def test_types_are_taken_from_the_values_where_none_are_declared() -> None:
    table = decoded(b'[{"i": 1, "f": 1, "n": null}, {"f": 0.1, "s": "2024-01-01"}]', lines=False, schema=None)
    assert table.schema == pa.schema([("i", pa.int64()), ("f", pa.float64()), ("n", pa.null()), ("s", pa.string())])
    assert table.to_pylist() == [
        {"i": 1, "f": 1.0, "n": None, "s": None},
        {"i": None, "f": 0.1, "n": None, "s": "2024-01-01"},
    ]
