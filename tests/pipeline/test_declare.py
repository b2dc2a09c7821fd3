"""Declaring a pipeline: functions stay functions, annotations choose how they run, nothing is started."""

import subprocess
import sys
from typing import TYPE_CHECKING, Any, Optional

import pandas as pd
import pyarrow as pa
import pytest

from clew import Batch, Capacity, Count, Each, InputSet, Operator, Pipeline, Stream
from clew.errors import GraphError, GraphErrors
from clew.ids import Port
from clew.pipeline.graph import OperatorSpec, Settings, warnings
from tests.pipeline.outside import Drain, Tap, same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _pipeline() -> tuple[Pipeline, Stream]:
    pipeline = Pipeline("sales")
    return pipeline, pipeline.source("orders", Tap())


def _declare(function: Any, **declared: Any) -> OperatorSpec:
    pipeline, orders = _pipeline()
    pipeline.operator(orders, **declared)(function)
    return pipeline.graph().operators[declared.get("name", function.__name__)]


def test_a_decorated_function_is_returned_unchanged() -> None:
    pipeline, orders = _pipeline()
    assert pipeline.operator(orders)(same) is same
    assert pipeline.also(same, outputs=("more",), window=Batch())(same) is same


def test_the_functions_name_is_the_operators() -> None:
    assert _declare(same).name == "same"
    assert _declare(same, name="other").name == "other"


def test_a_table_annotation_runs_in_python() -> None:
    (function,) = _declare(same).functions
    assert (function.name, function.style, function.run) == ("same", "arrow", same)
    assert isinstance(function.window, Each)


def test_a_dataframe_annotation_runs_as_a_spark_plan_without_importing_it() -> None:
    def plan(df: "DataFrame") -> "DataFrame":
        return df

    assert _declare(plan).functions[0].style == "dataframe"


@pytest.mark.parametrize(
    ("annotation", "style"),
    [("pa.Table", "arrow"), ("'pa.Table'", "arrow"), ("pyarrow.Table", "arrow"), ("DataFrame", "dataframe"),
     ("pyspark.sql.DataFrame", "dataframe"), ("sql.DataFrame", "dataframe")],
)  # fmt: skip
def test_annotations_may_be_strings(annotation: str, style: str) -> None:
    space: dict[str, Any] = {"pa": pa}
    exec(f"from __future__ import annotations\ndef f(x: {annotation}) -> {annotation}: return x", space)
    assert _declare(space["f"]).functions[0].style == style


@pytest.mark.parametrize(
    ("annotation", "found"),
    [
        ("", "x without an annotation"),
        (": int", "x as int"),
        (": pa.RecordBatch", "x as pyarrow.RecordBatch"),
        (": Optional[pa.Table]", "x as typing.Optional[pyarrow.lib.Table]"),
        (": 'no.such.Table'", "x as 'no.such.Table', which names nothing that is defined there"),
        (": 'pl.DataFrame'", "x as 'pl.DataFrame', which names nothing that is defined there"),
    ],
)
def test_an_annotation_that_chooses_no_way_to_run_is_told_with_those_that_do(annotation: str, found: str) -> None:
    space: dict[str, Any] = {"pa": pa, "Optional": Optional}
    exec(f"def f(x{annotation}): return x", space)
    with pytest.raises(GraphErrors) as wrong:
        _declare(space["f"])
    assert wrong.value.errors[0].message == (
        f"f takes {found}, expected pyarrow.Table, pandas.DataFrame or pyspark.sql.DataFrame, for the annotation "
        "chooses how f runs; annotate its parameter so; for single records there are map, flat_map and filter"
    )


def test_parameters_that_are_not_annotated_alike_are_told() -> None:
    space: dict[str, Any] = {"pa": pa, "pd": pd}
    exec("def f(x: pa.Table, y: pd.DataFrame): return x", space)
    told = "f takes x as pyarrow.Table and y as pandas.DataFrame, expected .*annotate them all alike"
    with pytest.raises(GraphErrors, match=told):
        _declare(space["f"])


def test_a_function_that_takes_nothing_is_told_what_it_must_take() -> None:
    space: dict[str, Any] = {}
    exec("def f(): return None", space)
    with pytest.raises(GraphErrors, match=r"f takes nothing, expected pyarrow.Table"):
        _declare(space["f"])


def test_a_future_annotation_that_cannot_be_evaluated_is_an_error_not_a_crash() -> None:
    space: dict[str, Any] = {"pa": pa}
    exec("from __future__ import annotations\ndef f(x: pa.Tabel) -> None: ...", space)
    with pytest.raises(GraphErrors, match=r"f takes x as 'pa.Tabel', which names nothing that is defined there"):
        _declare(space["f"])


def test_an_annotation_that_cannot_be_evaluated_does_not_spoil_the_others() -> None:
    space: dict[str, Any] = {"pa": pa}
    exec("from __future__ import annotations\ndef f(x: pa.lib.Table) -> Nowhere: return x", space)
    assert _declare(space["f"]).functions[0].style == "arrow"


def test_one_input_arrives_at_port_in() -> None:
    assert _declare(same).inputs == {"in": Port("orders", "out")}


def test_several_inputs_arrive_at_ports_named_like_the_parameters() -> None:
    pipeline, orders = _pipeline()
    returns = pipeline.source("returns", Tap())

    @pipeline.operator(orders, returns)
    def joined(left: pa.Table, right: pa.Table) -> pa.Table:
        return left

    assert pipeline.graph().operators["joined"].inputs == {
        "left": Port("orders", "out"),
        "right": Port("returns", "out"),
    }


def test_an_input_may_be_a_function_a_stream_or_a_text() -> None:
    pipeline, orders = _pipeline()
    pipeline.operator(orders, outputs=("out", "rest"))(same)
    for name, stream in [
        ("a", same),
        ("b", "same"),
        ("c", "same.rest"),
        ("d", pipeline.port("same.rest")),
        ("e", orders["out"]),
    ]:
        pipeline.sink(stream, Drain(), name=name)
    graph = pipeline.graph()
    assert [str(graph.sender(Port(name, "in"))) for name in "abcde"] == [
        "same.out", "same.out", "same.rest", "same.rest", "orders.out",
    ]  # fmt: skip
    assert graph.receivers(Port("same", "rest")) == (Port("c", "in"), Port("d", "in"))


def test_a_port_may_be_read_before_it_is_declared() -> None:
    pipeline = Pipeline("sales")
    pipeline.sink(pipeline.port("orders"), Drain())
    pipeline.source("orders", Tap())
    assert list(pipeline.graph().operators) == ["orders_sink", "orders"]


def test_output_ports_are_as_named_and_one_may_stand_alone() -> None:
    assert _declare(same).outputs == ("out",)
    assert _declare(same, outputs=("good", "bad")).outputs == ("good", "bad")
    assert _declare(same, outputs="good").outputs == ("good",)


def test_sinks_are_named_after_what_they_write() -> None:
    pipeline, orders = _pipeline()
    pipeline.operator(orders, outputs=("out", "bad"))(same)
    pipeline.sink(same, Drain())
    pipeline.sink("same.bad", Drain())
    pipeline.sink(orders, Drain(), name="archive")
    graph = pipeline.graph()
    assert [spec.name for spec in graph.operators.values() if spec.is_sink] == ["same_sink", "same_bad_sink", "archive"]


def test_a_further_function_has_a_window_and_ports_of_its_own() -> None:
    pipeline, orders = _pipeline()
    pipeline.operator(orders)(same)

    @pipeline.also(same, window=Count(10), outputs=("counts",))
    def counts(table: pa.Table) -> pa.Table:
        return table

    spec = pipeline.graph().operators["same"]
    assert spec.outputs == ("out", "counts")
    assert [(f.name, f.window, f.outputs) for f in spec.functions] == [
        ("same", Each(), ("out",)),
        ("counts", Count(10), ("counts",)),
    ]
    assert spec.function("counts").run is counts


class Doubler(Operator):
    functions = ("generate", "again")

    def generate(self, input_set: InputSet, context: Any) -> pa.Table:
        return input_set.table()

    def again(self, input_set: InputSet, context: Any) -> pa.Table:
        return input_set.table()


def test_a_general_operator_brings_its_own_functions() -> None:
    pipeline, orders = _pipeline()
    stream = pipeline.general("twice", Doubler(), orders, outputs=("a", "b"), writes={"log": Drain()})
    spec = pipeline.graph().operators["twice"]
    assert stream == Stream(Port("twice", "a"))
    assert [f.name for f in spec.functions] == ["generate", "again"]
    assert spec.inputs == {"in": Port("orders", "out")}
    assert not spec.is_sink


def test_input_ports_of_a_general_operator_are_numbered_or_named() -> None:
    pipeline, orders = _pipeline()
    pipeline.general("a", Doubler(), orders, orders)
    pipeline.general("b", Doubler(), orders, orders, ports=("left", "right"))
    graph = pipeline.graph()
    assert [list(graph.operators[name].inputs) for name in "ab"] == [["in1", "in2"], ["left", "right"]]


def test_settings_have_defaults_and_can_be_given() -> None:
    assert _declare(same).settings == Settings()
    spec = _declare(same, group="g", deterministic=True, attempts=1, turn_timeout=5.0)
    assert (spec.group, spec.settings.deterministic, spec.settings.attempts) == ("g", True, 1)
    assert _declare(same).group == "same"


def test_a_capacity_is_a_number_of_events_or_more() -> None:
    assert _declare(same, capacity=5).settings.capacity == Capacity(events=5)
    assert _declare(same, capacity=Capacity(bytes=7)).settings.capacity == Capacity(bytes=7)


def test_a_decorator_used_twice_keeps_its_settings() -> None:
    pipeline, orders = _pipeline()
    twice = pipeline.operator(orders, capacity=5)
    first = twice(same)

    @twice
    def second(table: pa.Table) -> pa.Table:
        return table

    graph = pipeline.graph()
    assert {graph.operators[name].settings.capacity.events for name in (first.__name__, "second")} == {5}


def test_declared_schemas_are_in_normal_form() -> None:
    declared = pa.schema([pa.field("a", pa.uint8(), nullable=False)])
    normal = {"out": pa.schema({"a": pa.int16()})}
    assert _declare(same, schema=declared).schemas == normal
    assert _declare(same, schema={"out": declared}).schemas == normal
    pipeline = Pipeline("sales")
    pipeline.source("orders", Tap(declared))
    assert pipeline.graph().operators["orders"].schemas == normal


def test_operators_are_grouped_in_order_of_declaration() -> None:
    pipeline, orders = _pipeline()
    pipeline.operator(orders, group="g")(same)
    pipeline.sink(same, Drain(), group="g")
    assert pipeline.graph().groups == {"orders": ("orders",), "g": ("same", "same_sink")}


def test_the_fingerprint_names_the_shape_not_the_settings() -> None:
    def shape(name: str, **settings: Any) -> str:
        pipeline, orders = _pipeline()
        pipeline.operator(orders, name=name, **settings)(same)
        return pipeline.graph().fingerprint

    assert shape("a") == shape("a", attempts=9)
    assert shape("a") != shape("b")


def test_one_job_per_event_is_warned_of() -> None:
    def plan(df: "DataFrame") -> "DataFrame":
        return df

    def warned(**declared: Any) -> list[str]:
        pipeline, orders = _pipeline()
        pipeline.operator(orders, **declared)(plan)
        pipeline.sink(plan, Drain())
        return list(warnings(pipeline.graph()))

    (warning,) = warned()
    assert warning.startswith(f"{__file__}:")
    assert "plan costs one Spark job per event" in warning
    assert warned(window=Batch()) == warned(row_local=True) == []


def test_a_pipeline_that_writes_nothing_is_warned_of() -> None:
    pipeline, orders = _pipeline()
    (warning,) = warnings(pipeline.graph())
    assert warning.startswith(f"{__file__}:")
    assert warning.endswith("has no sink, so it writes nothing; add one with .sink(...)")
    orders.sink(Drain())
    assert list(warnings(pipeline.graph())) == []


def test_a_pipelines_name_must_be_usable() -> None:
    with pytest.raises(GraphError, match=f"{__file__}:.*'my pipeline' cannot name a pipeline"):
        Pipeline("my pipeline")


def test_importing_clew_and_declaring_import_neither_pyspark_nor_a_jvm() -> None:
    code = """
import sys
import pyarrow as pa
import clew
from tests.pipeline.outside import Tap, Drain
pipeline = clew.Pipeline("p")
orders = pipeline.source("orders", Tap())
@pipeline.operator(orders)
def plan(df: "DataFrame") -> "DataFrame": ...
pipeline.sink(plan, Drain())
pipeline.graph()
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("pyspark", "py4j", "pandas")))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=_root())
    assert (result.stdout, result.stderr) == ("[]\n", "")


def _root() -> str:
    return __file__.removesuffix("/tests/pipeline/test_declare.py")
