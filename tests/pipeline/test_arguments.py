"""What can mean nothing is refused where it is declared, by its line, and not when records come."""

import functools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from clew import Count, Pipeline, Stream, Tumbling
from clew.errors import ClewError, GraphError, GraphErrors, UserFunctionFailed
from clew.pipeline.functions import Aggregate
from clew.pipeline.records import Branch, Filter
from clew.runtime.task import failure
from tests.pipeline.outside import Drain, Tap, here, same

TABLE = pa.table({"id": [1, 2, 3], "amount": [5, 50, 500], "text": ["a", "b", "c"]})


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline("p")


@pytest.fixture
def orders(pipeline: Pipeline) -> Stream:
    return pipeline.source("orders", Tap())


def refused(declare: Callable[[], Any], message: str) -> None:
    """Assert that a declaration is refused at once, with the line on which it stands."""
    with pytest.raises(GraphError, match=message) as raised:
        declare()
    assert raised.value.location.startswith(f"{__file__}:")


@pytest.mark.parametrize("on", [[], "", ["id", "id"], 3, [3], None, {"id"}], ids=repr)
def test_a_join_on_nothing_is_refused(orders: Stream, on: Any) -> None:
    refused(lambda: orders.join(orders, on=on, window=Count(1)), "names no columns to compare; name one")


def test_a_join_of_a_kind_that_there_is_not_is_refused(orders: Stream) -> None:
    message = r"join\(how='right'\).* there are inner, left, full: for \"right\", exchange the streams"
    refused(lambda: orders.join(orders, on="id", window=Count(1), how="right"), message)  # type: ignore[arg-type]
    refused(
        lambda: orders.join(orders, on="id", window=Count(1), how="outer"),  # type: ignore[arg-type]
        "inner, left, full: name one of these",
    )


def test_a_predicate_on_a_column_that_is_not_there_says_which_are() -> None:
    message = r"\(amont > 1\) finds no column amont; the records have id, amount, text: name one of them"
    for function in (Filter(pc.field("amont") > 1), Branch({"large": pc.field("amont") > 1}, None)):
        with pytest.raises(ClewError, match=message):
            function(TABLE)


def test_a_predicate_of_two_types_says_which_the_columns_have() -> None:
    with pytest.raises(
        ClewError, match=r"cannot be computed .* the records are id int64, .*: compare what has one type"
    ):
        Filter(pc.field("text") > 1)(TABLE)
    with pytest.raises(ClewError, match="cannot be computed"):
        Filter(pc.field("amount"))(TABLE)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda stream: stream.filter(pc.field("amont") > 1, name="op"), r"\(amont > 1\) finds no column amont"),
        (lambda stream: stream.filter(pc.field("text") > 1, name="op"), "cannot be computed"),
        (lambda stream: stream.window(Tumbling(5, on="t")).aggregate(n="count", name="op"), "on='t'. finds no such"),
        (lambda stream: stream.window(Tumbling(5, on="text")).aggregate(n="count", name="op"), "needs a timestamp"),
        (lambda stream: stream.window(Count(5, by="t")).aggregate(n="count", name="op"), "by='t'. finds no such"),
    ],
)
def test_what_a_declared_schema_does_not_have_is_refused_before_anything_starts(
    pipeline: Pipeline, ask: Any, message: str
) -> None:
    ask(pipeline.source("known", Tap(TABLE.schema))).sink(Drain())
    said = f"op cannot take what known.out is declared to send: .*{message}"
    with pytest.raises(GraphErrors, match=said) as raised:
        pipeline.graph()
    assert len(raised.value.errors) == 1
    assert raised.value.errors[0].location.startswith(f"{__file__}:")


def test_what_a_declared_schema_has_is_taken(pipeline: Pipeline) -> None:
    known = pipeline.source("known", Tap(TABLE.schema)).filter(pc.field("amount") > 1, name="op")
    known.window(Tumbling(5, on="id", by="text", late="late")).aggregate(n="count", name="windows").sink(Drain())
    pipeline.graph()


async def waiting(table: pa.Table) -> pa.Table:
    return table


async def of_a_record(record: dict[str, Any]) -> dict[str, Any]:
    return record


@pytest.mark.parametrize(
    "declare",
    [
        lambda stream: stream.apply(waiting, name="op"),
        lambda stream: stream.map(of_a_record, name="op"),
        lambda stream: stream.filter(of_a_record, name="op"),
        lambda stream: stream.branch(large=of_a_record, name="op"),
    ],
    ids=["apply", "map", "filter", "branch"],
)
def test_an_async_function_is_refused(pipeline: Pipeline, orders: Stream, declare: Any) -> None:
    declare(orders)
    with pytest.raises(GraphErrors, match=r"of op is declared with async.*declare it with def"):
        pipeline.graph()


@pytest.mark.parametrize("kind", [int, str, float, bool, bytes])
def test_a_function_of_tables_that_returns_none_is_refused_with_its_line(
    pipeline: Pipeline, orders: Stream, kind: type
) -> None:
    def wrong(table: pa.Table) -> Any:
        return 1

    wrong.__annotations__["return"] = kind
    line = here() + 1
    orders.apply(wrong, name="op").sink(Drain())
    with pytest.raises(
        GraphErrors, match=f"{line}: wrong takes pyarrow.Table and returns {kind.__name__}; it must return"
    ):
        pipeline.graph()


def test_only_a_function_of_the_users_is_to_be_mended() -> None:
    """What Arrow says to a verb of Clew's has no line of the user's; what it says to the user's function has one."""

    def users(table: pa.Table) -> pa.Table:
        return table.select(["nothing"])

    verb = Aggregate((), {"n": ("text", "sum")})
    for function, frames, cure in (
        (functools.partial(verb, TABLE), False, "mend its declaration, or what it is given, and run again"),
        (functools.partial(users, TABLE), True, "mend the function and run again"),
    ):
        try:
            function()
        except Exception as error:
            # Without this test's own line.
            found = failure(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        assert bool(found.frames) == frames
        told = UserFunctionFailed("op", "orders.out#1", found.kind, found.message, found.frames)
        assert str(told).endswith(f"{cure}: the run resumes at this event")
        assert "\n\n" not in str(told)


def test_plain_functions_are_taken_as_they_are(pipeline: Pipeline, orders: Stream) -> None:
    orders.window(Count(2)).apply(same, name="op").sink(Drain())
    pipeline.graph()
