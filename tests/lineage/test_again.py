"""Whatever kind an operator is, its Output Sets of the past come out the same when they are run again."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from clew import Connection, Pipeline
from clew.connectors import files, generator
from clew.retrace import diff, replay
from clew.run import run
from tests.model.pipelines import PIPELINES
from tests.model.runs import finished


@pytest.mark.parametrize("name", PIPELINES)
def test_what_was_made_is_made_again(tmp_path: Path, name: str) -> None:
    made = finished(PIPELINES[name](tmp_path), tmp_path)
    graph = made.pipeline.graph()
    for spec in graph.operators.values():
        if spec.functions and spec.settings.deterministic:
            found = list(diff(graph, spec.name, log=made.url, bodies=str(made.bodies)))
            assert found or name == "empty"
            assert [one for one in found if not one.same] == [], spec.name


@dataclass
class Number:
    """A record."""

    n: int


class Squares(Connection):
    """Knows squares."""

    def describe(self) -> str:
        return "squares"

    def read(self, action: str) -> pa.Table:
        return pa.table({"square": [int(action) ** 2]})


def asks(record: Number) -> str:
    return str(record.n)


def adds(record: dict[str, Any], answer: pa.Table) -> dict[str, Any]:
    return {**record, "square": answer["square"][0].as_py()}


def is_odd(record: Number) -> bool:
    return record.n % 2 == 1


@pytest.mark.parametrize(
    ("operator", "event", "called"),
    [("squared", "squared#2", ["asks", "adds"] * 2), ("sorted", "sorted.odd#2", ["is_odd"])],
)
def test_the_users_own_functions_are_wrapped(tmp_path: Path, operator: str, event: str, called: list[str]) -> None:
    pipeline = Pipeline("wrapped")
    numbers = pipeline.source("numbers", generator(lambda i: pa.table({"n": [2 * i, 2 * i + 1]}), 3))
    squared = numbers.enrich(Squares(), asks, add=adds, name="squared")
    sides = numbers.branch(large=pc.field("n") == 2, odd=is_odd, name="sorted")
    pipeline.sink(squared, files(tmp_path / "squared"), name="squares")
    pipeline.sink(sides["odd"], files(tmp_path / "odd"), name="odds")
    log = f"sqlite:///{tmp_path / 'log.db'}"
    run(pipeline, log=log, engine="inline")
    heard = []

    def heeded(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            heard.append(function.__name__)
            return function(*given, **named)

        return call

    (again,) = replay(pipeline.graph(), operator, event, log=log, wrap=heeded)
    assert again.same
    assert heard == called
