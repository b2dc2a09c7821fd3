"""Whatever touches records runs on executors: in a Spark task, in a process that is not the driver's."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clew import Connection, Operator, Pipeline, Sink, WriteAction, files, generator
from clew.run import run
from tests.spark.outside import rows


def here() -> str:
    """Say where this code runs: the process, and whether it is inside a Spark task."""
    return json.dumps({"pid": os.getpid(), "task": TaskContext.get() is not None})


def marked(table: pa.Table, name: str) -> pa.Table:
    return table.append_column(name, pa.array([here()] * table.num_rows))


class Elsewhere(Connection):
    """A system that an operator reads while it generates."""

    def describe(self) -> str:
        return "elsewhere"

    def read(self, action: str) -> pa.Table:
        return pa.table({"read": [here()]})


class Witness(Operator):
    """Keeps what `facts` saw in its global state, and shows it to `generate`."""

    def initial(self) -> dict[str, Any]:
        return {"facts": "", "k": 0}

    def facts(self, table: pa.Table) -> str:
        return here()

    def assign(self, event: Any, state: dict[str, Any]) -> list[int]:
        state["facts"], state["k"] = event.facts, event.number
        return [event.number]

    def ready(self, state: dict[str, Any], opened: Any) -> list[int]:
        return list(opened)

    def generate(self, input_set: Any, context: Any) -> pa.Table:
        table = marked(input_set.table(), "generate")
        table = table.append_column("facts", pa.array([context.state["facts"]] * table.num_rows))
        read = context.read("elsewhere", "look")["read"][0].as_py()
        context.write("aside", marked(input_set.table(), "emitted"))
        return table.append_column("read", pa.array([read] * table.num_rows))


class Lines(Sink):
    """One JSON file per write action, which says where it was written."""

    idempotent = True
    checkable = True

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def describe(self) -> str:
        return f"lines {self.directory}"

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        found = {"write": here(), "rows": sum(table.num_rows for table in tables)}
        (Path(self.directory) / f"{action.name}.json").write_text(json.dumps(found))

    def applied(self, action: WriteAction) -> bool:
        return (Path(self.directory) / f"{action.name}.json").exists()


def pipeline(place: Path) -> Pipeline:
    p = Pipeline("witness")
    replayed = p.source("replayed", generator(lambda i: marked(pa.table({"n": [i]}), "source"), 5))
    observed = p.source("observed", generator(lambda i: marked(pa.table({"n": [i]}), "source"), 3, replayable=False))

    @p.operator(replayed)
    def arrow(table: pa.Table) -> pa.Table:
        return marked(table, "arrow")

    general = p.general(
        "general", Witness(), arrow, reads={"elsewhere": Elsewhere()}, writes={"aside": Lines(str(place / "aside"))}
    )

    @p.operator(general, row_local=True)
    def frame(df: DataFrame) -> DataFrame:
        return df.withColumn("frame", F.udf(here)())

    p.sink(frame, files(place / "frames"), name="frames")
    p.sink(frame, Lines(str(place / "lines")), name="lines")
    p.sink(observed, files(place / "observed"), name="kept")
    return p


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("witness")
    for name in ("aside", "lines"):
        (place / name).mkdir()
    run(pipeline(place), spark=spark, log=f"sqlite:///{place}/log.db")
    return place


def on_executor(witness: str) -> bool:
    found: Mapping[str, Any] = json.loads(witness)
    return found["task"] and found["pid"] != os.getpid()


@pytest.mark.parametrize("column", ["source", "arrow", "facts", "generate", "read", "frame"])
def test_records_are_touched_on_executors_only(ran: Path, column: str) -> None:
    found = [row[column] for row in rows(ran / "frames")]
    assert len(found) == 5
    assert all(map(on_executor, found))


def test_a_read_that_is_not_replayable_is_performed_on_an_executor(ran: Path) -> None:
    found = [row["source"] for row in rows(ran / "observed")]
    assert len(found) == 3
    assert all(map(on_executor, found))


@pytest.mark.parametrize(("place", "expected"), [("lines", 5), ("aside", 5)])
def test_sinks_write_on_executors(ran: Path, place: str, expected: int) -> None:
    found = [json.loads(path.read_text()) for path in (ran / place).glob("*.json")]
    assert sum(write["rows"] for write in found) == expected
    assert all(on_executor(write["write"]) for write in found)


def test_control_is_in_the_driver(ran: Path) -> None:
    # The counterpart: what the tests above would find if the code ran here.
    assert json.loads(here()) == {"pid": os.getpid(), "task": False}
