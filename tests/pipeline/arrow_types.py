"""Every type of Arrow: what Clew makes of it, or that it refuses it.

One list for all who must agree on it: the normal form, the codec and Spark.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Kept:
    """A column that passes: as it was given, and its normal form with the same values."""

    factory: str
    given: pa.Array
    normal: pa.Array

    def __str__(self) -> str:
        return str(self.given.type)


@dataclass(frozen=True)
class Refused:
    """A type that does not pass, the path of the culprit below column `c`, and what the cure must speak of."""

    factory: str
    kind: pa.DataType
    cure: str
    path: str = "c"

    def __str__(self) -> str:
        return str(self.kind)


def _same(factory: str, values: list[Any], kind: pa.DataType) -> Kept:
    return Kept(factory, pa.array(values, kind), pa.array(values, kind))


def _to(factory: str, values: list[Any], kind: pa.DataType, normal: pa.DataType) -> Kept:
    return Kept(factory, pa.array(values, kind), pa.array(values, normal))


def _stored(factory: str, kind: Any, storage: pa.Array, normal: pa.DataType) -> Kept:
    return Kept(factory, pa.ExtensionArray.from_storage(kind, storage), pa.array(storage.to_pylist(), normal))


_WORDS = ["", "a\x00b", "ä\U0001f9f6", None]
_BYTES = [b"", b"\xff\x00", None]
_LISTS = [[1, None], [], None, [4, 5, 6]]
_PAIRS = [[1, 2], None, [3, None]]
_MAP = [[("a", 1), ("b", None)], [], None]
_STRUCTS = [{"x": 1, "y": "a"}, {"x": None, "y": None}, None]
#: The furthest moments that microseconds reach, the last one before the epoch, and one in a change to summer time.
_MOMENTS = [-(2**63) + 1, -1, 0, 1_711_846_800_000_000, 2**63 - 1, None]

KEPT = (
    _same("null", [None, None], pa.null()),
    _same("bool_", [True, False, None], pa.bool_()),
    _same("int8", [-128, 127, None], pa.int8()),
    _same("int16", [-(2**15), 2**15 - 1, None], pa.int16()),
    _same("int32", [-(2**31), 2**31 - 1, None], pa.int32()),
    _same("int64", [-(2**63), 2**63 - 1, None], pa.int64()),
    _to("uint8", [0, 255, None], pa.uint8(), pa.int16()),
    _to("uint16", [0, 2**16 - 1, None], pa.uint16(), pa.int32()),
    _to("uint32", [0, 2**32 - 1, None], pa.uint32(), pa.int64()),
    _same("float32", [0.1, -0.0, float("inf"), None], pa.float32()),
    _same("float64", [0.1, -0.0, 5e-324, float("-inf"), None], pa.float64()),
    _to("decimal32", [Decimal("-1234567.89"), None], pa.decimal32(9, 2), pa.decimal128(9, 2)),
    _to("decimal64", [Decimal("0." + "9" * 18), None], pa.decimal64(18, 18), pa.decimal128(18, 18)),
    _same("decimal128", [Decimal("9" * 38), Decimal("-1"), None], pa.decimal128(38, 0)),
    _same("decimal128", [Decimal("0." + "9" * 38), None], pa.decimal128(38, 38)),
    _same("string", _WORDS, pa.string()),
    _to("utf8", _WORDS, pa.utf8(), pa.string()),
    _to("large_string", _WORDS, pa.large_string(), pa.string()),
    _to("large_utf8", _WORDS, pa.large_utf8(), pa.string()),
    _to("string_view", [*_WORDS, "longer than twelve bytes"], pa.string_view(), pa.string()),
    _same("binary", _BYTES, pa.binary()),
    _to("binary", [b"ab", b"\xff\x00", None], pa.binary(2), pa.binary()),
    _to("large_binary", _BYTES, pa.large_binary(), pa.binary()),
    _to("binary_view", [*_BYTES, b"longer than twelve bytes"], pa.binary_view(), pa.binary()),
    _same("date32", [-(2**31), -1, 0, 2**31 - 1, None], pa.date32()),
    Kept("date64", pa.array([-86_400_000, 86_400_000, None], pa.date64()), pa.array([-1, 1, None], pa.date32())),
    Kept("time32", pa.array([0, 86_399, None], pa.time32("s")), pa.array([0, 86_399_000_000, None], pa.time64("us"))),
    Kept(
        "time32", pa.array([1, 86_399_999, None], pa.time32("ms")), pa.array([1000, 86399999000, None], pa.time64("us"))
    ),
    _same("time64", [1, 86_399_999_999, None], pa.time64("us")),
    # What Spark's own TIME looks like in Arrow.
    Kept(
        "time64",
        pa.array([1000, 86399999999000, None], pa.time64("ns")),
        pa.array([1, 86399999999, None], pa.time64("us")),
    ),
    Kept(
        "timestamp", pa.array([-1, 1, None], pa.timestamp("s")), pa.array([-(10**6), 10**6, None], pa.timestamp("us"))
    ),
    Kept("timestamp", pa.array([-1, 1, None], pa.timestamp("ms")), pa.array([-1000, 1000, None], pa.timestamp("us"))),
    _same("timestamp", _MOMENTS, pa.timestamp("us")),
    _same("timestamp", _MOMENTS, pa.timestamp("us", "UTC")),
    _to("timestamp", _MOMENTS, pa.timestamp("us", "Europe/Paris"), pa.timestamp("us", "UTC")),
    _to("timestamp", _MOMENTS, pa.timestamp("us", "-03:30"), pa.timestamp("us", "UTC")),
    Kept(
        "timestamp",
        pa.array([-1, 1, None], pa.timestamp("s", "Asia/Tokyo")),
        pa.array([-(10**6), 10**6, None], pa.timestamp("us", "UTC")),
    ),
    Kept("duration", pa.array([-1, 1, None], pa.duration("s")), pa.array([-(10**6), 10**6, None], pa.duration("us"))),
    Kept("duration", pa.array([-1, 1, None], pa.duration("ms")), pa.array([-1000, 1000, None], pa.duration("us"))),
    _same("duration", [-(2**62), 2**62, None], pa.duration("us")),
    _same("list_", _LISTS, pa.list_(pa.int64())),
    _to("list_", _LISTS, pa.list_(pa.field("element", pa.int64(), nullable=True)), pa.list_(pa.int64())),
    _to("list_", _PAIRS, pa.list_(pa.uint8(), 2), pa.list_(pa.int16())),
    _to("list_", [["a"], None, [None]], pa.list_(pa.large_string()), pa.list_(pa.string())),
    _same("list_", [[None], [], None], pa.list_(pa.null())),
    _to("large_list", _LISTS, pa.large_list(pa.int64()), pa.list_(pa.int64())),
    _to("list_view", _LISTS, pa.list_view(pa.uint8()), pa.list_(pa.int16())),
    _to("large_list_view", _LISTS, pa.large_list_view(pa.int64()), pa.list_(pa.int64())),
    _same("struct", _STRUCTS, pa.struct({"x": pa.int64(), "y": pa.string()})),
    _to(
        "struct",
        _STRUCTS,
        pa.struct({"x": pa.uint8(), "y": pa.string_view()}),
        pa.struct({"x": pa.int16(), "y": pa.string()}),
    ),
    _same("map_", _MAP, pa.map_(pa.string(), pa.int64())),
    _to("map_", _MAP, pa.map_(pa.large_string(), pa.uint8()), pa.map_(pa.string(), pa.int16())),
    _to("map_", _MAP, pa.map_(pa.string(), pa.int64(), keys_sorted=True), pa.map_(pa.string(), pa.int64())),
    _to(
        "map_",
        [[("a", [1, 2])], None],
        pa.map_(pa.string(), pa.list_view(pa.uint8())),
        pa.map_(pa.string(), pa.list_(pa.int16())),
    ),
    Kept("dictionary", pa.array(["a", "b", None, "a"]).dictionary_encode(), pa.array(["a", "b", None, "a"])),
    Kept(
        "dictionary",
        pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), pa.array([7, 300], pa.uint16())),
        pa.array([300, 7, None], pa.int32()),
    ),
    Kept(
        "dictionary",
        pa.DictionaryArray.from_arrays(pa.array([1, None]), pa.array([[1], [2, 3]])),
        pa.array([[2, 3], None], pa.list_(pa.int64())),
    ),
    Kept(
        "dictionary",
        pa.ListArray.from_arrays([0, 2], pa.array(["a", "b"]).dictionary_encode()),
        pa.array([["a", "b"]]),
    ),
    Kept("run_end_encoded", pc.run_end_encode(pa.array([7, 7, None], pa.uint8())), pa.array([7, 7, None], pa.int16())),
    Kept(
        "run_end_encoded",
        pa.StructArray.from_arrays([pc.run_end_encode(pa.array(["a", "a", None]))], ["x"]),
        pa.array([{"x": "a"}, {"x": "a"}, {"x": None}]),
    ),
    _stored("uuid", pa.uuid(), pa.array([b"0123456789abcdef", None], pa.binary(16)), pa.binary()),
    _stored("json_", pa.json_(), pa.array(['{"a": 1}', None]), pa.string()),
    _stored("bool8", pa.bool8(), pa.array([0, 1, None], pa.int8()), pa.int8()),
    _stored("opaque", pa.opaque(pa.uint8(), "a", "b"), pa.array([255, None], pa.uint8()), pa.int16()),
    _stored(
        "fixed_shape_tensor",
        pa.fixed_shape_tensor(pa.int32(), [2]),
        pa.array([[1, 2]], pa.list_(pa.int32(), 2)),
        pa.list_(pa.int32()),
    ),
)

REFUSED = (
    Refused("uint64", pa.uint64(), "decimal128(20, 0)"),
    Refused("float16", pa.float16(), "float32"),
    Refused("decimal256", pa.decimal256(40, 2), "decimal128(38"),
    Refused("decimal256", pa.decimal256(5, 2), "decimal128(38"),
    Refused("decimal128", pa.decimal128(5, -2), "decimal128(7, 0)"),
    Refused("decimal128", pa.decimal128(3, 5), "decimal128(5, 5)"),
    Refused("timestamp", pa.timestamp("ns"), "pa.timestamp('us')"),
    Refused("timestamp", pa.timestamp("ns", "Europe/Paris"), "pa.timestamp('us', 'Europe/Paris')"),
    Refused("duration", pa.duration("ns"), "pa.duration('us')"),
    Refused("month_day_nano_interval", pa.month_day_nano_interval(), "duration"),
    Refused("dense_union", pa.dense_union([pa.field("a", pa.int8())]), "a column of its own"),
    Refused("sparse_union", pa.sparse_union([pa.field("a", pa.int8())]), "a column of its own"),
    Refused("union", pa.union([pa.field("a", pa.int8())], "dense"), "a column of its own"),
    Refused("struct", pa.struct([]), "drop it"),
    Refused("struct", pa.struct([("a", pa.int8()), ("a", pa.int8())]), "rename", "c.a"),
    Refused("struct", pa.struct([("", pa.int8())]), "name", "c.''"),
    Refused("list_", pa.list_(pa.uint64()), "decimal128(20, 0)", "c.item"),
    Refused("list_view", pa.list_view(pa.float16()), "float32", "c.item"),
    Refused(
        "struct", pa.struct({"x": pa.list_(pa.struct({"y": pa.timestamp("ns")}))}), "pa.timestamp('us')", "c.x.item.y"
    ),
    Refused("map_", pa.map_(pa.uint64(), pa.int8()), "decimal128(20, 0)", "c.key"),
    Refused("map_", pa.map_(pa.string(), pa.duration("ns")), "pa.duration('us')", "c.value"),
    Refused("dictionary", pa.dictionary(pa.int8(), pa.timestamp("ns")), "pa.timestamp('us')"),
    Refused("run_end_encoded", pa.run_end_encoded(pa.int32(), pa.uint64()), "decimal128(20, 0)"),
    Refused("opaque", pa.opaque(pa.uint64(), "a", "b"), "decimal128(20, 0)"),
)
