"""A trace of a record shows what was read for it, and says where that was read for more than it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Connection, Pipeline, lookup
from clew.connectors import files, generator
from clew.pipeline.graph import Graph
from clew.provenance.records import RecordTrace
from clew.retrace import trace_record
from clew.run import run
from tests.app.pipelines import call


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'log.db'}"


def ten(index: int) -> pa.Table:
    return pa.table({"n": [10 * index + place for place in range(10)]})


class Prices(Connection):
    """Knows a price of everything."""

    def describe(self) -> str:
        return "prices"

    def read(self, action: str) -> pa.Table:
        return pa.table({"price": [len(action)]})


@dataclass
class Number:
    n: int


def two_alike(record: dict[str, Any]) -> str | None:
    """Records ask in pairs; the last one of ten asks nothing."""
    return None if record["n"] % 10 == 9 else f"item {record['n'] // 2}"


def of_object(record: Number) -> str | None:
    return two_alike({"n": record.n})


def with_names(record: dict[str, Any], names: Any) -> str:
    return f"item {record['n']} {names[1]['name']}"


def enriched(directory: Path, ask: Any, **settings: Any) -> Graph:
    pipeline = Pipeline("reads")
    source = pipeline.source("s", generator(ten, 3))
    pipeline.sink(source.enrich(Prices(), ask, name="e", **settings), files(directory / "out"))
    return pipeline.graph()


def read(found: RecordTrace) -> list[str]:
    return [one.description for step in found.trace.steps if step.operator == "e" for one in step.reads]


@pytest.mark.parametrize("ask", [two_alike, of_object])
def test_what_was_read_for_a_record_is_told_from_what_was_read_for_others(tmp_path: Path, url: str, ask: Any) -> None:
    graph = enriched(tmp_path, ask, deterministic=True)
    run(graph, log=url, engine="inline")
    for place in range(10):
        back = trace_record(graph, "e#2", place, log=url)
        forward = trace_record(graph, "s#2", place, log=url, direction="forward")
        expected = [action for action in [two_alike({"n": 10 + place})] if action is not None]
        assert (read(back), read(forward)) == (expected, expected)
        assert (back.read_whole, forward.read_whole) == ((), ())
        # What leads on from the events of these steps is still found.
        assert [step.operator for step in back.trace.steps_at(back.trace.start)] == ["e"]


@pytest.mark.parametrize(
    ("ask", "settings"),
    [
        (two_alike, {}),
        (with_names, {"deterministic": True, "lookups": {"names": lookup([{"k": 1, "name": "one"}], key="k")}}),
    ],
    ids=["not declared deterministic", "asks by a lookup too"],
)
def test_where_it_is_not_known_what_was_read_for_a_record_that_is_said(
    tmp_path: Path, url: str, ask: Any, settings: dict[str, Any]
) -> None:
    graph = enriched(tmp_path, ask, **settings)
    run(graph, log=url, engine="inline")
    found = trace_record(graph, "e#2", 3, log=url)
    assert len(read(found)) == (10 if settings else 5)
    assert found.read_whole == (("e", 2),)


def test_a_function_that_asks_for_something_else_now_does_not_tell_what_was_read(tmp_path: Path, url: str) -> None:
    what = ["item"]
    graph = enriched(tmp_path, lambda record: f"{what[0]} {record['n']}", deterministic=True)
    run(graph, log=url, engine="inline")
    assert read(trace_record(graph, "e#2", 3, log=url)) == ["item 13"]
    what[0] = "thing"
    found = trace_record(graph, "e#2", 3, log=url)
    assert (len(read(found)), found.read_whole) == (10, (("e", 2),))


def test_a_record_that_asking_failed_on_does_not_hide_what_was_read_for_others(tmp_path: Path, url: str) -> None:
    def picky(record: dict[str, Any]) -> Any:
        if record["n"] == 12:
            raise ValueError("not this one")
        return ["no text"] if record["n"] == 14 else f"item {record['n']}"

    graph = enriched(tmp_path, picky, deterministic=True, on_error="quarantine", attempts=1)
    run(graph, log=url, engine="inline")
    assert read(trace_record(graph, "e#2", 2, log=url)) == ["item 13"]
    assert read(trace_record(graph, "s#2", 2, log=url, direction="forward")) == []


READS = """
import pyarrow as pa
from clew import Connection, Operator, Pipeline, files, generator


class Prices(Connection):
    def describe(self):
        return "prices"

    def read(self, action):
        return pa.table({"price": [len(action)]})


class One(Operator):
    def assign(self, event, state):
        return [event.number]

    def ready(self, state, opened):
        return list(opened)

    def generate(self, input_set, context):
        context.read("prices", f"event {input_set.table()['n'][0]}")
        return input_set.table()


pipeline = Pipeline("reads")
source = pipeline.source("s", generator(lambda i: pa.table({"n": [10 * i + k for k in range(10)]}), 3))
made = source.enrich(Prices(), lambda record: f"item {record['n']}", name="e", deterministic=True)
made.sink(files("e"))
pipeline.general("g", One(), source, reads={"prices": Prices()}).sink(files("g"))
"""


def test_what_was_read_is_told_on_the_terminal(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "reads.py"
    file.write_text(READS)
    assert call("run", str(file), "--engine", "inline", "--log", url).exit_code == 0

    def asked(*words: str) -> str:
        return call("trace", *words, "--record", "8", "--log", url).stdout

    assert [line for line in asked("back", str(file), "e#2").splitlines() if "read e" in line] == [
        "  read e.asked#19: item 18"
    ]
    lines = asked("forward", str(file), "s#2").splitlines()
    assert "  read e.asked#19: item 18" in lines
    assert "  read g.prices#2 for its whole Input Set: event 10" in lines
    answer = json.loads(asked("forward", str(file), "s#2", "--json"))
    assert answer["reads_not_narrowed"] == [{"operator": "g", "input_set": 2}]
    # What a source reads is read for no Input Set.
    assert "read s.in#1: generator" in asked("back", str(file), "g#2")
    # Nor is that told of the trace of a whole event.
    assert "for its whole Input Set" not in call("trace", "back", str(file), "g#2", "--log", url).stdout
