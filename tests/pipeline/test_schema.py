"""The normal form: every type of Arrow passes without loss or is refused with its column and a cure."""

import inspect
import pickle
import re
from decimal import Decimal

import pyarrow as pa
import pytest

from clew.errors import SchemaChanged, TypeRefused
from clew.pipeline.schema import conform, fixed, from_bytes, normalise, to_bytes
from tests.pipeline.arrow_types import KEPT, REFUSED, Kept, Refused


def _column(array: pa.Array) -> pa.Table:
    return pa.table([array], names=["c"])


@pytest.mark.parametrize("case", KEPT, ids=str)
def test_a_type_that_loses_nothing_is_normalised(case: Kept) -> None:
    table = normalise(_column(case.given))
    assert table.equals(_column(case.normal))
    assert table.schema.equals(_column(case.normal).schema, check_metadata=True)


@pytest.mark.parametrize("case", KEPT, ids=str)
def test_a_slice_is_normalised_like_the_whole(case: Kept) -> None:
    assert normalise(_column(case.given).slice(1)).equals(_column(case.normal).slice(1))


@pytest.mark.parametrize("case", KEPT, ids=str)
def test_the_normal_form_is_normal(case: Kept) -> None:
    table = normalise(_column(case.given))
    assert normalise(table) is table
    assert fixed(table.schema) == table.schema
    assert fixed(_column(case.given).schema) == table.schema


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_type_that_would_lose_something_is_refused_with_column_and_cure(case: Refused) -> None:
    for attempt in (
        lambda: normalise(pa.table({"c": pa.chunked_array([], case.kind)})),
        lambda: fixed(pa.schema({"c": case.kind})),
    ):
        with pytest.raises(TypeRefused) as refused:
            attempt()
        assert refused.value.column == case.path
        assert case.cure in refused.value.cure
        assert refused.value.why
        assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


#: Functions of pyarrow whose documentation speaks of types, but that make none of their own.
_NOT_FACTORIES = {
    "array", "chunked_array", "field", "from_numpy_dtype", "infer_type", "nulls", "register_extension_type", "scalar",
    "schema", "type_for_alias", "unregister_extension_type",
}  # fmt: skip


def _factories() -> set[str]:
    """The functions of pyarrow that make types, by what their documentation says."""
    found = set()
    for name, function in vars(pa).items():
        text = (inspect.getdoc(function) or "").lower()
        if name.startswith("_") or inspect.isclass(function) or not callable(function):
            continue
        if re.search(r"datatype|instance of|type instance|: \w+type$", text, re.MULTILINE):
            found.add(name)
    return found - _NOT_FACTORIES


def _ids(kind: pa.DataType) -> set[int]:
    inner = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else None
    return {kind.id} | (_ids(inner) if inner is not None else set())


def test_no_type_factory_of_pyarrow_is_forgotten() -> None:
    assert _factories() == {case.factory for case in (*KEPT, *REFUSED)}


def test_no_type_id_of_arrow_is_forgotten() -> None:
    known = {name for name in dir(pa.lib) if name.startswith("Type_")}
    # pyarrow has no way to make these two; they are refused like any type that no rule names.
    known -= {"Type_INTERVAL_MONTHS", "Type_INTERVAL_DAY_TIME"}
    covered = set().union(*(_ids(case.given.type) for case in KEPT), *(_ids(case.kind) for case in REFUSED))
    assert {name for name in known if getattr(pa.lib, name) not in covered} == set()


def test_nanoseconds_are_refused_even_when_the_values_are_whole_microseconds() -> None:
    with pytest.raises(TypeRefused, match=r"column c has type timestamp\[ns\].*cast it to pa.timestamp\('us'\)"):
        normalise(_column(pa.array([1000], pa.timestamp("ns"))))


@pytest.mark.parametrize(
    "lossy",
    [
        pa.array([1], pa.date64()),
        pa.array([1], pa.time64("ns")),
        pa.array([2**62], pa.timestamp("s")),
        pa.array([2**62], pa.duration("ms")),
        pa.array([[1]], pa.list_view(pa.time64("ns"))),
    ],
    ids=lambda array: str(array.type),
)
def test_values_that_do_not_fit_are_refused_never_cut(lossy: pa.Array) -> None:
    with pytest.raises(TypeRefused, match=r"column c .* cannot be kept as"):
        normalise(_column(lossy))


def test_list_views_keep_their_items_in_any_order() -> None:
    views = pa.ListViewArray.from_arrays(pa.array([2, 0, 1], pa.int32()), pa.array([1, 2, 2], pa.int32()), [7, 8, 9])
    assert normalise(_column(views)).column("c").to_pylist() == [[9], [7, 8], [8, 9]]


def test_not_a_number_stays_not_a_number() -> None:
    values = normalise(_column(pa.array([float("nan"), None], pa.float32()))).column("c").to_pylist()
    assert values[0] != values[0]
    assert values[1] is None


def test_metadata_and_nullability_are_stripped() -> None:
    field = pa.field(
        "c", pa.list_(pa.field("item", pa.int64(), nullable=False, metadata={"k": "v"})), False, {"k": "v"}
    )
    table = pa.table([[[1]]], schema=pa.schema([field], metadata={"pandas": "{}"}))
    plain = pa.schema({"c": pa.list_(pa.int64())})
    assert normalise(table).schema.equals(plain, check_metadata=True)
    assert normalise(table.schema.empty_table()).schema.equals(plain, check_metadata=True)


def test_chunks_and_empty_tables_are_normalised() -> None:
    chunks = pa.chunked_array([pa.array([1], pa.uint8()), pa.array([], pa.uint8()), pa.array([2], pa.uint8())])
    assert normalise(pa.table({"c": chunks})).column("c").to_pylist() == [1, 2]
    assert normalise(pa.table({"c": pa.chunked_array([], pa.list_view(pa.uint8()))})).num_rows == 0


def test_a_table_without_columns_passes() -> None:
    assert normalise(pa.table({})).num_columns == 0


@pytest.mark.parametrize(("names", "column"), [(["a", "a"], "a"), (["a", ""], "''")])
def test_columns_must_have_names_of_their_own(names: list[str], column: str) -> None:
    with pytest.raises(TypeRefused) as refused:
        normalise(pa.table([[1], [2]], names=names))
    assert refused.value.column == column
    assert "name" in refused.value.cure


PORT = "paid.out"
FIXED = pa.schema({"id": pa.int64(), "price": pa.decimal128(12, 2), "tags": pa.list_(pa.string())})


def test_a_table_of_the_ports_schema_passes_untouched() -> None:
    table = FIXED.empty_table()
    assert conform(table, FIXED, PORT) is table


def test_columns_are_matched_by_name() -> None:
    table = pa.table({"tags": [["a"]], "price": pa.array([Decimal("1.50")], pa.decimal128(12, 2)), "id": [1]})
    result = conform(table, FIXED, PORT)
    assert result.schema == FIXED
    assert result.to_pylist() == [{"id": 1, "price": Decimal("1.50"), "tags": ["a"]}]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pa.int8(), pa.int16()),
        (pa.int32(), pa.int64()),
        (pa.int32(), pa.float64()),
        (pa.int16(), pa.float32()),
        (pa.float32(), pa.float64()),
        (pa.int32(), pa.decimal128(12, 2)),
        (pa.decimal128(5, 2), pa.decimal128(8, 3)),
        (pa.null(), pa.timestamp("us", "UTC")),
        (pa.null(), pa.map_(pa.string(), pa.int64())),
        (pa.list_(pa.null()), pa.list_(pa.int64())),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int64())),
        (pa.struct({"x": pa.int8(), "y": pa.null()}), pa.struct({"y": pa.string(), "x": pa.int64()})),
    ],
    ids=str,
)
def test_a_type_whose_every_value_fits_is_widened(found: pa.DataType, expected: pa.DataType) -> None:
    value = {pa.types.is_list: [None], pa.types.is_map: [], pa.types.is_struct: {"x": None, "y": None}}
    values = [None, next((v for is_kind, v in value.items() if is_kind(found)), None)]
    result = conform(_column(pa.array(values, found)), pa.schema({"c": expected}), PORT)
    assert result.equals(_column(pa.array(values, expected)))


@pytest.mark.parametrize(
    ("found", "expected", "column"),
    [
        (pa.int64(), pa.int32(), "c"),
        (pa.int64(), pa.float64(), "c"),
        (pa.int32(), pa.float32(), "c"),
        (pa.float64(), pa.float32(), "c"),
        (pa.float64(), pa.int64(), "c"),
        (pa.int64(), pa.decimal128(20, 2), "c"),
        (pa.decimal128(5, 2), pa.decimal128(5, 3), "c"),
        (pa.decimal128(5, 2), pa.decimal128(8, 1), "c"),
        (pa.string(), pa.int64(), "c"),
        (pa.int64(), pa.string(), "c"),
        (pa.bool_(), pa.int64(), "c"),
        (pa.int64(), pa.null(), "c"),
        (pa.date32(), pa.timestamp("us"), "c"),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), "c"),
        (pa.list_(pa.int64()), pa.int64(), "c"),
        (pa.list_(pa.int64()), pa.list_(pa.int32()), "c.item"),
        (pa.map_(pa.int64(), pa.int8()), pa.map_(pa.int32(), pa.int8()), "c.key"),
        (pa.map_(pa.int8(), pa.int64()), pa.map_(pa.int8(), pa.int32()), "c.value"),
        (pa.struct({"x": pa.int64()}), pa.struct({"x": pa.int8()}), "c.x"),
        (pa.struct({"x": pa.int64()}), pa.struct({"x": pa.int64(), "y": pa.int8()}), "c.y"),
        (pa.struct({"x": pa.int64(), "z": pa.int8()}), pa.struct({"x": pa.int64()}), "c.z"),
    ],
    ids=str,
)
def test_types_decide_not_values(found: pa.DataType, expected: pa.DataType, column: str) -> None:
    """An empty table holds no value that could fail, and is refused all the same."""
    with pytest.raises(SchemaChanged) as changed:
        conform(pa.schema({"c": found}).empty_table(), pa.schema({"c": expected}), PORT)
    assert (changed.value.port, changed.value.column) == (PORT, column)


def test_a_changed_column_is_named_with_both_types() -> None:
    with pytest.raises(SchemaChanged, match=r"paid.out produced column id as string, but this port is fixed to int64"):
        conform(FIXED.set(0, pa.field("id", pa.string())).empty_table(), FIXED, PORT)


def test_missing_and_extra_columns_are_named() -> None:
    with pytest.raises(SchemaChanged) as missing:
        conform(FIXED.empty_table().drop_columns(["id", "tags"]), FIXED, PORT)
    assert (missing.value.column, missing.value.found) == ("id, tags", "missing")
    with pytest.raises(SchemaChanged) as extra:
        conform(FIXED.append(pa.field("note", pa.string())).empty_table(), FIXED, PORT)
    assert (extra.value.column, extra.value.found) == ("note", "string")
    with pytest.raises(SchemaChanged, match=r"column id as missing \(it has key instead"):
        conform(FIXED.empty_table().rename_columns(["key", "price", "tags"]), FIXED, PORT)


@pytest.mark.parametrize("case", KEPT, ids=str)
def test_a_schema_survives_the_log(case: Kept) -> None:
    schema = _column(case.normal).schema
    assert from_bytes(to_bytes(schema)).equals(schema, check_metadata=True)


def test_the_same_bytes_give_the_same_schema_object() -> None:
    data = to_bytes(FIXED)
    assert from_bytes(data) is from_bytes(bytes(bytearray(data)))
