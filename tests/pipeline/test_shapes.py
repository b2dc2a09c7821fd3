"""Which records become a table of a port's schema, and which are refused, each by itself."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from clew.pipeline.shapes import shaped

NOON = datetime(2024, 2, 29, 12)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, pa.int64()),
        (7, pa.int8()),
        (7, pa.float64()),
        (0.5, pa.float32()),
        (float("nan"), pa.float32()),
        (Decimal("1.5"), pa.decimal128(10, 2)),
        ([], pa.list_(pa.int64())),
        ([1, 2], pa.list_(pa.float64())),
        ({"x": None}, pa.struct({"x": pa.string()})),
        ([{"x": "1"}], pa.list_(pa.struct({"x": pa.string(), "y": pa.string()}))),
        (NOON, pa.timestamp("us")),
        (NOON.replace(tzinfo=UTC), pa.timestamp("us", "UTC")),
    ],
)
def test_a_value_of_the_ports_type_is_carried(value: Any, kind: pa.DataType) -> None:
    # Beside one that is wrong, so that each record is looked at.
    rows, schema = [{"c": value}, {"d": 1}], pa.schema([("c", kind)])
    together, none = shaped(rows[:1], [0], schema)
    apart, refused = shaped(rows, [0, 1], schema)
    assert not none
    assert list(refused) == [1]
    assert together.schema == apart.schema == schema
    assert repr(together.to_pylist()) == repr(apart.to_pylist())


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("n/a", pa.int64()),
        (1.5, pa.int64()),
        (2.0, pa.int64()),
        (True, pa.int64()),
        (2**70, pa.int64()),
        (300, pa.int8()),
        (2**53 + 1, pa.float64()),
        (0.1, pa.float32()),
        (Decimal("1.005"), pa.decimal128(10, 2)),
        (b"raw", pa.string()),
        (5, pa.string()),
        (NOON, pa.date32()),
        (date(2024, 2, 29), pa.timestamp("us")),
        (NOON, pa.timestamp("us", "UTC")),
        (object(), pa.string()),
        ([1, "x"], pa.list_(pa.int64())),
        ({"x": 1, "z": 2}, pa.struct({"x": pa.int64(), "y": pa.int64()})),
    ],
)
def test_a_value_that_would_become_another_is_refused(value: Any, kind: pa.DataType) -> None:
    table, refused = shaped([{"c": None}, {"c": value}], [0, 1], pa.schema([("c", kind)]))
    assert table.to_pylist() == [{"c": None}]
    assert str(refused[1]).endswith(f"({type(value).__name__}) in column c, expected {kind} there")


@pytest.mark.parametrize(
    ("values", "wrong", "kind"),
    [
        (["x", 1, 2], [0], pa.int64()),
        ([1, 1.5, "x"], [2], pa.float64()),
        (["x", 1, "y"], [1], pa.string()),
        ([{"a": 1}, 3, {"b": 2}], [1], pa.struct({"a": pa.int64(), "b": pa.int64()})),
        ([None, object(), None], [1], pa.null()),
        ([[1], 5, [], [None]], [1], pa.list_(pa.int64())),
    ],
)
def test_without_a_schema_most_records_decide(values: list[Any], wrong: list[int], kind: pa.DataType) -> None:
    table, refused = shaped([{"c": value} for value in values], range(len(values)), None)
    assert sorted(refused) == wrong
    assert table.schema == pa.schema([("c", kind)])
    assert table.num_rows == len(values) - len(wrong)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (1, "it returned a column 1 (int), expected a name that is text, as in '1'"),
        (None, "it returned a column None (NoneType), expected a name that is text, as in 'None'"),
        ("", "it returned a column '', expected a name to find it by; give it one"),
    ],
)
def test_a_record_with_a_column_that_has_no_usable_name_is_refused(name: Any, said: str) -> None:
    table, refused = shaped([{"c": 1}, {"c": 2, name: 3}], [0, 1], None)
    assert table.to_pylist() == [{"c": 1}]
    assert str(refused[1]) == said
    # Also where there is no other column, and where there is a schema.
    assert str(shaped([{name: 3}], [0], None)[1][0]) == said
    assert str(shaped([{name: 3}], [0], pa.schema([("c", pa.int64())]))[1][0]) == said


def test_a_value_that_no_record_has_a_type_for_is_told_with_the_reason() -> None:
    _, refused = shaped([{"c": {5: 1}}], [0], None)
    assert str(refused[0]) == (
        "it returned {5: 1} (dict) in column c, expected a value that there is a type for (Expected dict key of type "
        "str or bytes, got 'int')"
    )


@pytest.mark.parametrize("value", [pd.Timestamp(1), pd.Timedelta(1)])
def test_nanoseconds_of_a_record_are_refused(value: Any) -> None:
    good = type(value)(1000)
    table, refused = shaped([{"c": good}, {"c": None}, {"c": value}], [0, 1, 2], None)
    assert table.num_rows == 2
    assert str(refused[2]).endswith(
        f"({type(value).__name__}) in column c, expected {table.schema.field('c').type} there"
    )
