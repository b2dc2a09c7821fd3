"""Annotations of functions of records: they are read, and checked, wherever such a function is given."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from clew import Connection, Pipeline, Stream, lookup
from clew.connectors import files, generator
from clew.errors import ClewError, GraphError, GraphErrors, OperatorFailed
from clew.ids import EventId, Port
from clew.pipeline.hints import apart, built, check_returns, misfit, schema_of
from clew.pipeline.records import Branch, PerRecord
from clew.retrace import replay
from clew.run import quarantine_of, run, verify

COLUMNS = pa.schema([("id", pa.int64()), ("k", pa.string())])


@dataclass
class Order:
    id: int
    k: str


@dataclass
class Other:
    id: int
    amount: float


@dataclass
class Point:
    x: int
    y: int | None = None


@dataclass
class Shape:
    name: str
    centre: Point
    corners: list[Point]
    mark: Point | None = None


class Place(TypedDict):
    id: int
    at: Point


@dataclass
class Tree:
    name: str
    below: "list[Tree]"


def orders(index: int) -> pa.Table:
    return pa.table({"id": [2 * index, 2 * index + 1], "k": ["a", "b"]}, schema=COLUMNS)


def source(pipeline: Pipeline, schema: pa.Schema | None = COLUMNS) -> Stream:
    return pipeline.source("orders", generator(orders, 3, schema=schema))


def ran(pipeline: Pipeline, tmp_path: Path, *ports: str) -> list[list[dict[str, Any]]]:
    """Run a pipeline with these ports as sinks, let it be judged, and return what the sinks hold."""
    for port in ports:
        pipeline.sink(port, files(tmp_path / port), name=f"sink_{port.replace('.', '_')}")
    log = f"sqlite:///{tmp_path}/log.db"
    run(pipeline, log=log, engine="inline")
    verdict = verify(pipeline, log=log, engine="inline")
    assert verdict.word == "explained", verdict.findings
    return [rows(tmp_path / port) for port in ports]


def rows(place: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(place.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def wrong(pipeline: Pipeline) -> str:
    with pytest.raises(GraphErrors) as found:
        pipeline.graph()
    (error,) = found.value.errors
    return error.message


class Rates(Connection):
    """Answers every question with one number."""

    def describe(self) -> str:
        return "rates"

    def schema(self) -> pa.Schema | None:
        return pa.schema([("rate", pa.int64())])

    def read(self, action: str) -> pa.Table:
        return pa.table({"rate": [len(action)]})


# What branch calls.


def test_a_predicate_of_a_branch_takes_the_dataclass_that_it_is_annotated_with(tmp_path: Path) -> None:
    pipeline = Pipeline("hints")

    def late(order: Order) -> bool:
        return order.id > 3

    source(pipeline).branch(late=late, a=lambda order: order["k"] == "a", rest="b", name="parts", deterministic=True)
    late_ones, a, b = ran(pipeline, tmp_path, "parts.late", "parts.a", "parts.b")
    assert [row["id"] for row in late_ones] == [4, 5]
    assert [row["id"] for row in a] == [0, 2]
    assert [row["id"] for row in b] == [1, 3]


def test_a_record_that_a_predicate_of_dataclasses_fails_on_is_set_aside_alone(tmp_path: Path) -> None:
    pipeline = Pipeline("hints")

    def late(order: Order) -> bool:
        return 1 // (order.id - 3) > 0

    source(pipeline).branch(late=late, rest="others", name="parts", on_error="quarantine")
    pipeline.sink("parts.others", files(tmp_path / "out"))
    log = f"sqlite:///{tmp_path}/log.db"
    assert run(pipeline, log=log, engine="inline").quarantined == 1
    assert [row["id"] for row in rows(tmp_path / "out")] == [0, 1, 2, 5]
    (one,) = quarantine_of(pipeline.graph(), log=log)
    assert one.row.error["record"] == "{'id': 3, 'k': 'b'}"


def test_functions_of_dataclasses_take_lookups_also_when_they_are_run_again(tmp_path: Path) -> None:
    pipeline = Pipeline("hints")
    limits = lookup([{"k": "a", "limit": 1}, {"k": "b", "limit": 4}], key="k")

    def late(order: Order, limits: dict[str, Any]) -> bool:
        return bool(order.id > limits[order.k]["limit"])

    def ask(order: Order, limits: dict[str, Any]) -> str:
        return "x" * limits[order.k]["limit"]

    orders = source(pipeline)
    orders.branch(late=late, name="parts", lookups={"limits": limits}, deterministic=True)
    orders.enrich(Rates(), ask, name="rated", lookups={"limits": limits}, deterministic=True)
    late_ones, rated = ran(pipeline, tmp_path, "parts.late", "rated")
    assert [row["id"] for row in late_ones] == [2, 4, 5]
    assert [row["rate"] for row in rated] == [1, 4] * 3
    seen = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def watching(*given: Any, **named: Any) -> Any:
            seen.append(given)
            return function(*given, **named)

        return watching

    event = EventId(Port("parts", "late"), 1)
    (again,) = replay(pipeline.graph(), "parts", event, log=f"sqlite:///{tmp_path}/log.db", wrap=watched)
    assert seen
    assert again.same


def test_what_a_predicate_of_a_branch_returns_is_checked() -> None:
    pipeline = Pipeline("hints")

    def late(order: dict[str, Any]) -> str:
        return "yes"

    source(pipeline).branch(late=late, rest="others", name="parts")
    assert wrong(pipeline) == "port late of parts returns str; what filters returns bool"


def test_what_a_predicate_of_a_branch_takes_is_checked() -> None:
    pipeline = Pipeline("hints")

    def late(order: int) -> bool:
        return True

    source(pipeline).branch(late=late, name="parts")
    assert wrong(pipeline) == (
        "port late of parts: int is no record; annotate it as dict, as a TypedDict or as a dataclass"
    )


def test_a_predicate_of_a_branch_that_takes_two_records_is_refused() -> None:
    pipeline = Pipeline("hints")
    source(pipeline).branch(late=lambda one, other: True, name="parts")
    assert wrong(pipeline) == (
        "port late of parts cannot be called with a record (missing a required argument: 'other'); let it take these, "
        "and lookups by their names"
    )


def test_a_predicate_of_a_branch_may_have_defaults_and_need_not_tell_its_parameters() -> None:
    pipeline = Pipeline("hints")
    branches = source(pipeline).branch(late=lambda order, limit=3: order["id"] > limit, any=bool, name="parts")
    assert set(branches) == {"late", "any"}
    pipeline.graph()


def test_an_annotation_that_names_nothing_is_told_as_that() -> None:
    pipeline = Pipeline("hints")

    def late(order: "Oder") -> bool:  # type: ignore[name-defined]  # noqa: F821
        return True

    source(pipeline).branch(late=late, name="parts")
    assert wrong(pipeline) == (
        "port late of parts: the annotation 'Oder' names nothing that is defined there; name dict, a TypedDict or a "
        "dataclass, and define it at the top of a module"
    )


@pytest.mark.parametrize("column", ["_clew_place", "_clew_place_clew_place"])
def test_a_column_may_be_called_as_clew_calls_places(column: str, tmp_path: Path) -> None:
    pipeline = Pipeline("hints")
    numbers = pipeline.source("numbers", generator(lambda i: pa.table({"_clew_place": [7, 8], column: [7, 8]}), 1))
    numbers.branch(
        seven=lambda row: row["_clew_place"] == 7, eight=pc.field(column) == 8, name="parts", deterministic=True
    )
    seven, eight = ran(pipeline, tmp_path, "parts.seven", "parts.eight")
    assert ([row[column] for row in seven], [row[column] for row in eight]) == ([7], [8])


# What enrich calls.


def test_what_enrich_calls_takes_the_dataclasses_that_it_is_annotated_with(tmp_path: Path) -> None:
    pipeline = Pipeline("hints")

    def ask(order: Order) -> str | None:
        return None if order.id == 0 else order.k * order.id

    def add(order: Order, answer: pa.Table) -> Other:
        return Other(order.id, 0.5 if not answer.num_rows else float(answer["rate"][0].as_py()))

    source(pipeline).enrich(Rates(), ask, add=add, name="rated", deterministic=True)
    assert pipeline.graph().operators["rated"].schemas["out"] == pa.schema(
        [("id", pa.int64()), ("amount", pa.float64())]
    )
    (rated,) = ran(pipeline, tmp_path, "rated")
    assert rated == [{"id": n, "amount": n or 0.5} for n in range(6)]


def _asks_number(order: dict[str, Any]) -> int:
    return 5


def _asks_list(order: dict[str, Any]) -> list[str]:
    return []


def _takes_number(order: int) -> str:
    return ""


def _takes_nothing() -> str:
    return ""


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (_asks_number, "ask of rated returns int; what asks returns str, or None for a record that does not"),
        (_asks_list, "ask of rated returns list[str]; what asks returns str, or None for a record that does not"),
        (_takes_number, "ask of rated: int is no record; annotate it as dict, as a TypedDict or as a dataclass"),
        (
            _takes_nothing,
            "ask of rated cannot be called with a record (too many positional arguments); let it take these, and "
            "lookups by their names",
        ),
    ],
)
def test_annotations_of_what_asks_are_checked(ask: Callable[..., Any], said: str) -> None:
    pipeline = Pipeline("hints")
    source(pipeline).enrich(Rates(), ask, name="rated")
    assert wrong(pipeline) == said


def _asks_one_of(order: dict[str, Any]) -> Literal["a", "b"] | None:
    return None


def _asks_anything(order: dict[str, Any]) -> Any:
    return None


@pytest.mark.parametrize("ask", [_asks_one_of, _asks_anything, lambda order: "a"])
def test_what_may_be_text_or_none_may_ask(ask: Callable[..., Any]) -> None:
    pipeline = Pipeline("hints")
    source(pipeline).enrich(Rates(), ask, name="rated")
    pipeline.graph()


def _adds_text(order: dict[str, Any], answer: pa.Table) -> str:
    return ""


def _adds_to_rows(order: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    return order


def _adds_alone(order: dict[str, Any]) -> dict[str, Any]:
    return order


@pytest.mark.parametrize(
    ("add", "said"),
    [
        (_adds_text, "add of rated: str is no record; annotate it as dict, as a TypedDict or as a dataclass"),
        (
            _adds_to_rows,
            "add of rated: it takes the answer as dict[str, typing.Any], expected pyarrow.Table, as answers are; "
            "annotate it so",
        ),
        (
            _adds_alone,
            "add of rated cannot be called with a record and the answer (too many positional arguments); let it take "
            "these, and lookups by their names",
        ),
    ],
)
def test_annotations_of_what_adds_are_checked(add: Callable[..., Any], said: str) -> None:
    pipeline = Pipeline("hints")
    source(pipeline).enrich(Rates(), lambda order: "a", add=add, name="rated")
    assert wrong(pipeline) == said


def test_what_is_asked_that_is_no_text_is_told_with_its_record(tmp_path: Path) -> None:
    pipeline = Pipeline("hints")
    source(pipeline).enrich(Rates(), lambda order: order["id"] if order["id"] == 3 else "a", name="rated")
    with pytest.raises(OperatorFailed) as failed:
        run(pipeline, log=f"sqlite:///{tmp_path}/log.db", engine="inline")
    assert str(failed.value) == (
        "operator rated failed on orders.out#2, record 1 {'id': 3, 'k': 'b'}: ask returned 3 (int), expected the text "
        "of a read action, or None for a record that needs none; return one of these\n"
        "mend that and run again: the run resumes at this event"
    )


# Dataclasses in dataclasses.


def test_dataclasses_in_dataclasses_are_structs_both_ways(tmp_path: Path) -> None:
    pipeline = Pipeline("hints")

    @pipeline.map(source(pipeline), deterministic=True)
    def shapes(order: Order) -> Shape:
        return Shape(order.k, Point(order.id), [Point(1, 2), Point(3)], Point(0, 0) if order.id else None)

    @pipeline.map(shapes, deterministic=True)
    def moved(shape: Shape) -> Shape:
        shape.centre.x += 10
        shape.corners[1].y = shape.corners[0].x
        return shape

    point = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    told = pa.schema([("name", pa.string()), ("centre", point), ("corners", pa.list_(point)), ("mark", point)])
    assert pipeline.graph().operators["shapes"].schemas["out"] == told
    (found,) = ran(pipeline, tmp_path, "moved")
    assert found[0] == {
        "name": "a", "centre": {"x": 10, "y": None}, "corners": [{"x": 1, "y": 2}, {"x": 3, "y": 1}], "mark": None,
    }  # fmt: skip
    assert found[1]["mark"] == {"x": 0, "y": 0}


def test_dataclasses_in_dicts_are_structs_too(tmp_path: Path) -> None:
    pipeline = Pipeline("hints")

    @pipeline.flat_map(source(pipeline), deterministic=True)
    def places(order: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"id": order["id"], "at": Point(1, 0), "price": Decimal("1.5"), "seen": ({"by": Point(2, 3)},)}]

    (found,) = ran(pipeline, tmp_path, "places")
    assert (found[0]["at"], found[0]["seen"]) == ({"x": 1, "y": 0}, [{"by": {"x": 2, "y": 3}}])


def test_what_annotations_tell_of_nested_records() -> None:
    point = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    assert schema_of(Place, "map") == pa.schema([("id", pa.int64()), ("at", point)])
    assert schema_of(list[Place] | None, "flat_map") == schema_of(Place, "map")
    # A record in one of its own kind has no end.
    assert schema_of(Tree, "map") is None
    tree = built(Tree, {"name": "a", "below": [{"name": "b", "below": []}]})
    assert tree == Tree("a", [Tree("b", [])])
    assert apart(tree) == {"name": "a", "below": [{"name": "b", "below": []}]}


def test_what_makes_many_records_may_make_none() -> None:
    check_returns(list[Place] | None, "flat_map", "f")
    for hint in (int | str, "Nowhere"):
        with pytest.raises(GraphError, match="what flat_map calls returns records"):
            check_returns(hint, "flat_map", "f")


def test_only_fields_of_a_dataclass_are_columns() -> None:
    @dataclass
    class Counted:
        n: int
        limit: ClassVar[dict[str, int]] = {}

    assert schema_of(Counted, "map") == pa.schema([("n", pa.int64())])


def test_annotations_of_fields_that_cannot_be_read_are_told() -> None:
    @dataclass
    class Odd:
        n: "Nowhere"  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(GraphError, match=r"annotations of Odd cannot be read \(name 'Nowhere' is not defined\); use"):
        schema_of(Odd, "map")
    # Who only takes such records need not know.
    assert built(Odd, {"n": 1}) == Odd(1)


# Dataclasses and the columns that there are.


def _late(order: Other) -> bool:
    return True


def _asks(order: Other) -> str | None:
    return None


@pytest.mark.parametrize(
    "declare",
    [
        lambda stream: stream.filter(_late, name="taking"),
        lambda stream: stream.branch(late=_late, name="taking"),
        lambda stream: stream.enrich(Rates(), _asks, name="taking"),
        lambda stream: stream.union(stream.filter(pc.field("id") > 1)).filter(_late, name="taking"),
    ],
    ids=["filter", "branch", "enrich", "derived"],
)
def test_a_dataclass_that_declared_columns_do_not_fit_is_refused_where_it_is_declared(
    declare: Callable[[Stream], Any],
) -> None:
    pipeline = Pipeline("hints")
    declare(source(pipeline))
    assert wrong(pipeline).partition(": ")[2] == (
        "a record cannot be made a Other: there is no column amount and Other has no field k; expected a column for "
        "each field and a field for each of id, k: mend the dataclass, give fields that may be missing a default, or "
        "take a dict"
    )


@pytest.mark.parametrize(
    "declare",
    [
        lambda stream: stream.filter(_late, name="taking"),
        lambda stream: stream.branch(late=_late, name="taking"),
        lambda stream: stream.enrich(Rates(), _asks, name="taking"),
    ],
    ids=["filter", "branch", "enrich"],
)
def test_a_dataclass_that_columns_do_not_fit_is_told_with_the_columns(
    declare: Callable[[Stream], Any], tmp_path: Path
) -> None:
    pipeline = Pipeline("hints")
    declare(source(pipeline, schema=None))
    with pytest.raises(OperatorFailed) as failed:
        run(pipeline, log=f"sqlite:///{tmp_path}/log.db", engine="inline")
    assert str(failed.value).startswith(
        "operator taking failed on orders.out#1: a record cannot be made a Other: there is no column amount and Other "
        "has no field k; expected a column for each field"
    )


def test_fields_with_defaults_need_no_column_and_some_dataclasses_take_any() -> None:
    @dataclass
    class Lenient:
        id: int
        note: str = ""
        made: int = field(default=0, init=False)

    @dataclass(init=False)
    class Any_:
        def __init__(self, **columns: Any) -> None:
            self.columns = columns

    assert misfit(Lenient, pa.schema([("id", pa.int64())])) is None
    assert "Lenient has no field made" in (misfit(Lenient, pa.schema([("id", pa.int64()), ("made", pa.int64())])) or "")
    assert misfit(Any_, COLUMNS) is None


def test_parts_of_columns_are_compared_too() -> None:
    point, other = pa.struct([("x", pa.int64())]), pa.struct([("z", pa.int64())])
    good = pa.schema([("name", pa.string()), ("centre", point), ("corners", pa.list_(point))])
    assert misfit(Shape, good) is None
    assert (misfit(Shape, good.set(2, pa.field("corners", pa.list_(other)))) or "").startswith(
        "a record cannot be made a Point in column corners: there is no part x and Point has no field z; expected"
    )
    assert misfit(Shape, good.set(1, pa.field("centre", pa.string()))) == (
        "column centre is string, expected a struct, for Shape.centre is a Point; annotate the field with what the "
        "column holds"
    )
    assert misfit(Shape, good.set(1, pa.field("centre", pa.null()))) is None


def test_functions_of_dataclasses_fail_on_tables_that_do_not_fit() -> None:
    with pytest.raises(ClewError, match="there is no column amount"):
        PerRecord(_late, "filter", Other)(orders(0))
    assert Branch({"all": lambda order: True}, None)(orders(0))["all"].num_rows == 2
