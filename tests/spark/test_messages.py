"""What is said when Spark, or what is given to it, fails: fact, expectation, cure."""

import os
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from clew import Pipeline, generator
from clew.errors import ClewError, EngineFailed, EngineLost, SetupFailed
from clew.ids import InputSetId
from clew.pipeline.graph import Graph
from clew.runtime.engine import Job
from clew.runtime.gate import Gate
from clew.spark import engine
from clew.spark.engine import SparkEngine, _prove_shared, explained
from clew.spark.frames import _check_result, described
from clew.spark.program import _MOST_BYTES, Program
from clew.spark.streams import Handler, SparkQuery
from clew.spark.verify import SparkCompute


def graph() -> Graph:
    pipeline = Pipeline("numbers")
    pipeline.operator(pipeline.source("numbers", generator(lambda i: pa.table({"n": [i]}), 1)))(same)
    return pipeline.graph()


def same(table: pa.Table) -> pa.Table:
    return table


JOB = Job("same", 1, 1, "numbers.out#1", 60.0)


@pytest.mark.parametrize(
    ("port", "message"),
    [
        (
            "elsewhere",
            "same returned records for port 'elsewhere'; it has out: return records for those, or declare the port "
            "with outputs=",
        ),
        ("out", "same returned Table on port out; return a DataFrame, or a dict of them by port"),
    ],
)
def test_what_a_function_of_dataframes_must_not_return_is_named(port: str, message: str) -> None:
    spec = graph().operators["same"]
    with pytest.raises(ClewError) as refused:
        _check_result(spec, spec.functions[0], port, pa.table({"n": [1]}), False)
    assert str(refused.value) == message


def test_what_clew_says_on_an_executor_is_said_here() -> None:
    text = (
        'Traceback (most recent call last):\n  File "worker.py", line 3, in main\n    load()\n'
        "clew.errors.SetupFailed: the program is gone; send it again\n"
    )
    found = described(PythonException(text), InputSetId(1), "same")
    assert (type(found.error), str(found.error)) == (ClewError, "the program is gone; send it again")


def test_what_is_not_of_java_has_no_stack_file() -> None:
    assert str(explained("same", "1", ValueError("no such port"))) == (
        "operator same: Spark failed the job: ValueError: no such port; mend the cause and run again"
    )


def test_a_pipeline_beside_too_much_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").touch()
    (tmp_path / "large.py").touch()
    os.truncate(tmp_path / "large.py", _MOST_BYTES + 1)
    with pytest.raises(SetupFailed) as refused:
        Program.of_file(tmp_path / "pipeline.py")
    assert str(refused.value) == (
        "the Python files beside pipeline.py are more than 20 MB; "
        "put the pipeline into a folder of its own, with only the modules it imports"
    )


def dead_gateway() -> JavaGateway:
    """A way to a JVM that nobody answers on any more."""
    with socket.socket() as once:
        once.bind(("127.0.0.1", 0))
        port = once.getsockname()[1]
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    # As PySpark has it where somebody else has started the JVM.
    gateway.proc = None
    return gateway


def test_a_query_whose_driver_is_dead_is_lost() -> None:
    gateway = dead_gateway()
    context = SimpleNamespace(_gateway=gateway, _jsc=gateway.entry_point)
    gate = Gate(lambda: None)
    session: Any = SimpleNamespace(sparkContext=context)
    query = SparkQuery("batches", StreamingQuery(gateway.entry_point), Handler(gate, JOB, 1), gate, session)
    with pytest.raises(EngineLost) as lost:
        query.ended()
    assert str(lost.value) == (
        "the Spark driver died under the streaming query of batches; if it is short of memory, raise it with "
        "--conf spark.driver.memory=SIZE"
    )


def test_a_driver_that_dies_again_and_again_is_given_up(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SparkEngine(graph(), spark=spark)
    made._own = True
    # To the engine each session that it is given is dead as soon as something fails on it.
    monkeypatch.setattr(engine, "is_alive", lambda session: False)
    monkeypatch.setattr(engine, "forget_session", lambda: None)
    monkeypatch.setattr(engine, "open_session", lambda options: spark)
    tried = []

    def dying(session: SparkSession) -> list[Any]:
        tried.append(session)
        return [dead_gateway().entry_point.sc()]

    with pytest.raises(EngineLost) as lost:
        made._start(JOB, dying).result()
    assert str(lost.value) == (
        "the Spark driver died 3 times under one turn of same; if it is short of memory, raise it with "
        "--conf spark.driver.memory=SIZE"
    )
    assert len(tried) == 3
    made.close()


def test_bodies_that_executors_write_elsewhere_are_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that means one place to the workers and another one here, as on a machine of their own."""
    (theirs,) = spark.sparkContext.parallelize([0], 1).map(lambda _: os.getcwd()).collect()
    ours = tmp_path / "driver" / theirs.lstrip("/")
    ours.mkdir(parents=True)
    monkeypatch.chdir(ours)
    root = os.path.relpath(tmp_path / "bodies", theirs)
    said = rf"^an executor on \S+ wrote to {re.escape(root)}, but the driver does not see it there; put the bodies on a"
    with pytest.raises(SetupFailed, match=rf"{said} path that all executors share, with --bodies DIR$"):
        _prove_shared(spark, root)
    assert [path.name[:7] for path in (tmp_path / "bodies").iterdir()] == [".probe-"]


def test_a_verification_whose_job_fails_says_why_in_one_line(spark: SparkSession) -> None:
    compute = SparkCompute(graph(), spark=spark)
    try:
        with pytest.raises(
            EngineFailed,
            match=r"^Spark failed a job of the verification: .*UnpicklingError: .*; the Java stack is in .*verify-job",
        ):
            compute._threads.submit(compute._job, [b"no work"]).result()
    finally:
        compute.close()
