"""A pipeline that cannot run says so before anything starts: all that is wrong, each with its line."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import clew
from clew import Batch, Capacity, Connection, InputSet, Operator, Pipeline, WriteAction, spark_write, sqlite
from clew.connectors import files, http
from clew.errors import GraphError, GraphErrors
from tests.pipeline.outside import Drain, Tap, here, same


def _errors(pipeline: Pipeline) -> tuple[GraphError, ...]:
    with pytest.raises(GraphErrors) as wrong:
        pipeline.graph()
    assert wrong.value.pipeline == pipeline.name
    assert str(pickle.loads(pickle.dumps(wrong.value))) == str(wrong.value)
    return wrong.value.errors


def _only(pipeline: Pipeline, line: int) -> str:
    """Return the message of the one error there is, which must name `line` of this file."""
    (error,) = _errors(pipeline)
    assert error.location == f"{__file__}:{line}"
    assert str(error) == f"{__file__}:{line}: {error.message}"
    return error.message


def _pipeline() -> tuple[Pipeline, Any]:
    pipeline = Pipeline("sales")
    return pipeline, pipeline.source("orders", Tap())


def test_a_cycle_is_named_the_way_events_go() -> None:
    pipeline, orders = _pipeline()
    line = here() + 1
    pipeline.general("a", Kept(), orders, "c.out")
    pipeline.general("b", Kept(), "a")
    pipeline.general("c", Kept(), "b")
    assert "cycle: a -> b -> c -> a;" in _only(pipeline, line)


def test_an_operator_that_reads_itself_is_a_cycle() -> None:
    pipeline, orders = _pipeline()
    line = here() + 1
    pipeline.general("a", Kept(), orders, "a")
    assert "cycle: a -> a;" in _only(pipeline, line)


def test_two_ways_from_one_operator_to_another_are_no_cycle() -> None:
    pipeline, orders = _pipeline()
    pipeline.general("a", Kept(), orders)
    pipeline.general("b", Kept(), orders)
    pipeline.general("c", Kept(), "a", "b", orders)
    assert len(pipeline.graph().links) == 5


def test_an_unknown_port_is_named_with_those_there_are() -> None:
    pipeline, orders = _pipeline()
    pipeline.operator(orders, outputs=("good", "bad"))(same)
    line = here() + 1
    pipeline.sink(same, Drain())
    assert _only(pipeline, line) == "same_sink reads from unknown port same.out; it has same.bad, same.good"


def test_an_unknown_operator_is_named() -> None:
    pipeline, _ = _pipeline()
    line = here() + 1
    pipeline.sink("nobody", Drain())
    assert "unknown port nobody.out; no such operator has been declared" in _only(pipeline, line)


def test_two_operators_of_one_name_are_both_located() -> None:
    pipeline, orders = _pipeline()
    first = here() + 1
    pipeline.operator(orders)(same)
    line = here() + 1
    pipeline.operator(orders)(same)
    assert f"same is declared twice (first at {__file__}:{first})" in _only(pipeline, line)


def test_an_operator_that_has_the_name_of_its_input_is_no_cycle() -> None:
    pipeline, orders = _pipeline()
    pipeline.operator(orders)(same)
    line = here() + 1
    pipeline.operator("same.out")(same)
    assert "same is declared twice" in _only(pipeline, line)


def test_a_sink_that_is_unsafe_to_repeat_is_refused() -> None:
    pipeline, orders = _pipeline()
    line = here() + 1
    pipeline.sink(orders, Drain(idempotent=False))
    assert "writes to a drain, which can be neither checked nor repeated safely" in _only(pipeline, line)


@pytest.mark.parametrize("safety", ["transactional", "idempotent", "checkable"])
def test_a_sink_that_is_safe_in_any_way_passes(safety: str) -> None:
    pipeline, orders = _pipeline()
    pipeline.sink(orders, Drain(**{safety: True}))
    assert "orders_sink" in pipeline.graph().operators


def test_a_write_connection_of_a_general_operator_must_be_safe_too() -> None:
    pipeline, orders = _pipeline()
    line = here() + 1
    pipeline.general("a", Kept(), orders, writes={"log": Drain(checkable=False)})
    assert "neither checked nor repeated" in _only(pipeline, line)


def test_a_pipeline_without_a_source_is_located_at_its_own_declaration() -> None:
    line = here() + 1
    pipeline = Pipeline("sales")
    assert "pipeline sales has no source; declare one" in _only(pipeline, line)


def test_an_undecorated_function_is_named() -> None:
    pipeline, _ = _pipeline()
    line = here() + 1
    pipeline.sink(same, Drain())
    undecorated, unknown = _errors(pipeline)
    assert "same is not an operator of pipeline sales; decorate it" in undecorated.message
    assert undecorated.location == unknown.location == f"{__file__}:{line}"


def test_a_decorator_that_decorates_nothing_is_found() -> None:
    pipeline, _ = _pipeline()
    line = here() + 2

    @pipeline.operator
    def forgotten(table: pa.Table) -> pa.Table:
        return table

    assert "decorates nothing" in _only(pipeline, line)


def test_an_operator_needs_an_input() -> None:
    pipeline, _ = _pipeline()
    line = here() + 2

    @pipeline.operator()
    def alone() -> pa.Table: ...

    assert [e.location for e in _errors(pipeline)] == [f"{__file__}:{line}"] * len(_errors(pipeline))
    assert any("operator alone has no input" in e.message for e in _errors(pipeline))


def test_parameters_and_inputs_must_match() -> None:
    pipeline, orders = _pipeline()
    line = here() + 1
    pipeline.operator(orders, orders)(same)
    assert "operator same takes 1 input, but 2 are given" in _only(pipeline, line)


def test_a_further_function_must_take_the_same_inputs() -> None:
    pipeline, orders = _pipeline()
    pipeline.operator(orders)(same)
    line = here() + 2

    @pipeline.also(same, outputs=("more",))
    def more(left: pa.Table, right: pa.Table) -> pa.Table:
        return left

    assert "more takes 2 inputs, but 1 is given" in _only(pipeline, line)


def test_a_further_function_of_an_unknown_operator_is_named() -> None:
    pipeline, _ = _pipeline()
    line = here() + 1
    pipeline.also("nobody", outputs=("more",))(same)
    assert _only(pipeline, line) == "same is declared for unknown operator nobody"


def test_functions_and_ports_of_one_operator_have_different_names() -> None:
    pipeline, orders = _pipeline()
    line = here() + 1
    pipeline.operator(orders)(same)
    pipeline.also(same, outputs=("out",), window=Batch())(same)
    port, function = _errors(pipeline)
    assert port.location == function.location == f"{__file__}:{line}"
    assert "more than one output port out" in port.message
    assert "more than one generative function same" in function.message


def _input_ports(pipeline: Pipeline, orders: Any) -> None:
    pipeline.general("a", Kept(), orders, orders, ports=("x", "x"))


def _port_name(pipeline: Pipeline, orders: Any) -> None:
    pipeline.operator(orders, outputs=("a.b",))(same)


def _operator_name(pipeline: Pipeline, orders: Any) -> None:
    pipeline.operator(orders, name="a b")(same)


def _source_name(pipeline: Pipeline, orders: Any) -> None:
    pipeline.source("", Tap())


def _unknown_setting(pipeline: Pipeline, orders: Any) -> None:
    pipeline.operator(orders, colour="red")(same)


def _nearly_a_setting(pipeline: Pipeline, orders: Any) -> None:
    pipeline.operator(orders, lookup={})(same)


def _no_attempts(pipeline: Pipeline, orders: Any) -> None:
    pipeline.operator(orders, attempts=0)(same)


def _no_capacity(pipeline: Pipeline, orders: Any) -> None:
    pipeline.sink(orders, Drain(), capacity=0)


def _no_bytes(pipeline: Pipeline, orders: Any) -> None:
    pipeline.sink(orders, Drain(), capacity=Capacity(bytes=0))


def _odd_capacity(pipeline: Pipeline, orders: Any) -> None:
    pipeline.sink(orders, Drain(), capacity="much")


def _schema_type(pipeline: Pipeline, orders: Any) -> None:
    pipeline.operator(orders, schema=pa.schema({"a": pa.uint64()}))(same)


def _schema_port(pipeline: Pipeline, orders: Any) -> None:
    pipeline.operator(orders, schema={"other": pa.schema({"a": pa.int64()})})(same)


def _source_schema(pipeline: Pipeline, orders: Any) -> None:
    pipeline.source("b", Tap(pa.schema({"a": pa.timestamp("ns")})))


def _class(pipeline: Pipeline, orders: Any) -> None:
    pipeline.general("a", Kept, orders)


def _method(pipeline: Pipeline, orders: Any) -> None:
    pipeline.general("a", Misnamed(), orders)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (_input_ports, "two input ports of one name: x, x"),
        (_port_name, "'a.b' cannot name a port of same"),
        (_operator_name, "'a b' cannot name an operator"),
        (_source_name, "'' cannot name an operator"),
        (_unknown_setting, "same has no setting colour; there are group, deterministic"),
        (_nearly_a_setting, "on_error, lineage, depends; did you mean lookups?"),
        (_no_attempts, "same could not move with attempts"),
        (_no_capacity, "orders_sink could not move with capacity.events"),
        (_no_bytes, "orders_sink could not move with capacity.bytes"),
        (_odd_capacity, "orders_sink could not move with capacity.events"),
        (_schema_type, "schema declared for port out cannot be kept: column a has type uint64"),
        (_schema_port, "same declares a schema for port other, but has out"),
        (_source_schema, "schema declared for port out cannot be kept: column a has type timestamp[ns]"),
        (_class, "a needs an object of a subclass of clew.Operator"),
        (_method, "Misnamed names the function make, but has no such method"),
    ],
)
def test_a_mistake_is_named_with_its_line(declare: Callable[[Pipeline, Any], None], message: str) -> None:
    pipeline, orders = _pipeline()
    declare(pipeline, orders)
    error = _errors(pipeline)[0]
    assert message in error.message
    assert error.location == f"{__file__}:{declare.__code__.co_firstlineno + 1}"


def test_everything_that_is_wrong_is_reported_together() -> None:
    pipeline = Pipeline("sales")
    pipeline.sink("nobody", Drain(idempotent=False), colour="red")
    pipeline.general("a", Kept(), "b")
    pipeline.general("b", Kept(), "a")
    pipeline.general("b", Kept(), "a")
    text = str(_expect(pipeline))
    for part in ("no setting colour", "unknown port", "neither checked", "declared twice", "no source", "cycle"):
        assert part in text
    assert text.startswith("pipeline sales cannot run:\n")
    assert text.count(f"  {__file__}:") == 6


def _expect(pipeline: Pipeline) -> GraphErrors:
    with pytest.raises(GraphErrors) as wrong:
        pipeline.graph()
    return wrong.value


def test_mistakes_are_found_without_a_jvm() -> None:
    """In a process of its own, since another test may have started one in this."""
    code = """
import sys
import clew
try:
    clew.Pipeline("sales").graph()
except clew.errors.GraphErrors:
    print(sorted(name for name in sys.modules if name.partition(".")[0] in ("pyspark", "py4j")))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("[]\n", "")


def test_a_users_folder_may_begin_with_our_name() -> None:
    file = f"{Path(clew.__file__).parent}-shop/pipeline.py"
    space: dict[str, Any] = {"clew": clew}
    exec(compile('pipeline = clew.Pipeline("sales")', file, "exec"), space)
    assert _expect(space["pipeline"]).errors[0].location == f"{file}:1"


def test_a_declaration_of_several_lines_is_located_at_its_first() -> None:
    pipeline, orders = _pipeline()
    line = here() + 1
    pipeline.sink(
        orders,
        Drain(
            idempotent=False,
        ),
    )
    _only(pipeline, line)


def test_a_sink_that_cannot_be_asked_says_so() -> None:
    action = WriteAction("run", "drain", "out", 1, 1)
    with pytest.raises(TypeError, match="a drain is not checkable"):
        Drain().applied(action)
    frames = spark_write(lambda frame, name: None, describe="frames")
    with pytest.raises(TypeError, match="frames writes DataFrames, where the session is"):
        frames.write(action, iter(()), pa.schema([]))


#: What is given in place of a source, a sink and the like, and how it is told.
WRONG: list[tuple[Any, str]] = [
    (None, "None"), (5, "5"), ("x.db", "'x.db'"), (Batch, "the class Batch (call it)"), ("x" * 90, f"'{'x' * 76}..."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "told"), [*WRONG, (sqlite("x.db"), "the connection sqlite x.db"), (Tap(), "the source a tap")]
)
def test_what_is_no_sink_is_refused_with_its_line(given: Any, told: str) -> None:
    pipeline, orders = _pipeline()
    line = here() + 1
    orders.sink(given, name="keep")
    assert _only(pipeline, line) == (
        f"keep is to write to {told}, which is no sink; give it one, such as files(...) or sqlite(..., table=...)"
    )


@pytest.mark.parametrize(("given", "told"), [*WRONG, (sqlite("x.db", table="t"), "the sink sqlite x.db table t")])
def test_what_is_no_source_is_refused_with_its_line(given: Any, told: str) -> None:
    pipeline = Pipeline("sales")
    line = here() + 1
    pipeline.source("orders", given).sink(Drain())
    assert _only(pipeline, line) == (
        f"source orders is to read {told}, which is no source; give it one, such as files(...), generator(...) or "
        "sqlite(..., query=...)"
    )


def _window_in_the_decorator(pipeline: Pipeline, orders: Any) -> None:
    pipeline.operator(orders, name="sums", window=5)(same)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda p, s: s.window(5), "the window of orders.out is 5; give it one, such as Batch(), Count(5) or"),
        (lambda p, s: s.window(5).aggregate(n="count"), "the window of orders.out is 5; give it one"),
        (lambda p, s: s.window(Batch).apply(same), "the window of orders.out is the class Batch (call it)"),
        (_window_in_the_decorator, "the window of sums is 5; give it one"),
        (lambda p, s: p.operator(s, window=0)(same), "the window of same is 0; give it one"),
        (lambda p, s: p.sql("q", "SELECT 1", window=5, r=s), "the window of q is 5; give it one"),
        (lambda p, s: s.join(s, on="n", window=5, name="j"), "the window of j is 5; give it one"),
        (lambda p, s: s.map(None).sink(Drain()), "orders_map is to call None, which is no function; give it one"),
        (lambda p, s: s.flat_map("x", name="y"), "y is to call 'x', which is no function; give it one"),
        (lambda p, s: s.apply(None, name="y").sink(Drain()), "y is to call None, which is no function; give it one"),
        (lambda p, s: p.operator(s)(5), "an operator is to call 5, which is no function; give it one"),
        (lambda p, s: s.enrich(Prices(), None, name="e"), "e is to call None, which is no function; give it one"),
        (
            lambda p, s: s.enrich(Drain(), str, name="e"),
            "e is to ask the sink a drain, which cannot be asked; give it a connection, such as postgres(...) without "
            "query= and table=, or http(...)",
        ),
        (lambda p, s: p.general("g", Kept(), s, writes={"w": None}), "g is to write to None, which is no sink"),
        (
            lambda p, s: s.filter(5, name="some").sink(Drain()),
            "some is to look whether 5 holds of a record, which is no predicate; give it a function of a record, or an "
            'Arrow expression such as pc.field("n") > 3',
        ),
        (lambda p, s: s.branch(big=5, name="b"), "port big of b is to look whether 5 holds of a record, which is no"),
        (lambda p, s: s.branch(rest=5, name="b"), "5 cannot name a port of b"),
        (lambda p, s: p.source(5, Tap()), "5 cannot name an operator"),
        (
            lambda p, s: s.map(dict, schema={"id": "string"}, name="m"),
            "schema= of m is {'id': 'string'}, which is no schema; give it one of Arrow, as in "
            'pa.schema([("id", pa.int64())]), or such schemas by output port',
        ),
        (lambda p, s: p.source("f", files("in.csv", schema="id long")), "schema= of f is 'id long', which is no"),
        (
            lambda p, s: p.operator(s, name="o", schema=StructType())(same),
            "schema= of o is StructType([]), which is no schema; pyspark.sql.pandas.types.to_arrow_schema(...) makes",
        ),
        (lambda p, s: s.enrich(http("http://x", schema=["n"]), str, name="e"), "schema= of http http://x is ['n']"),
    ],
)
def test_what_is_of_another_kind_than_is_needed_is_refused(declare: Any, message: str) -> None:
    pipeline, orders = _pipeline()
    declare(pipeline, orders)
    (error,) = _errors(pipeline)
    assert error.message.startswith(message)
    assert error.location.startswith(f"{__file__}:")


def test_also_needs_a_function_too() -> None:
    pipeline, orders = _pipeline()
    pipeline.operator(orders)(same)
    line = here() + 1
    pipeline.also(same, outputs="more")(None)  # type: ignore[type-var]
    assert _only(pipeline, line) == "same is to call None, which is no function; give it one"


class Prices(Connection):
    """A system that answers nothing."""

    def describe(self) -> str:
        return "prices"

    def read(self, action: str) -> pa.Table:
        return pa.table({})


class Kept(Operator):
    """A general operator that passes on what it gets."""

    def generate(self, input_set: InputSet, context: Any) -> pa.Table:
        return input_set.table()


class Misnamed(Operator):
    functions = ("make",)
