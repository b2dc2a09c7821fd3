"""The columns of inputs on which nothing has come: asked for while they can become known, and remembered then."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from clew import Each, Pipeline
from clew.connectors import generator
from clew.ids import Port
from clew.pipeline.graph import Graph
from clew.run import topology
from clew.runtime.channels import Channels
from clew.runtime.engine import InlineEngine
from clew.runtime.progress import Progress
from clew.runtime.runner import Runner, Surroundings
from clew.store.memory import MemoryStore
from clew.supervisor.threads import make_runner
from tests.simulation.outside import Transactional, World


@dataclass
class Stepped:
    """A pipeline whose operators work when they are told to: `made` takes events of `busy`, `idle` and `none`."""

    #: The columns that the function saw of `idle`, turn by turn.
    seen: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        pipeline = Pipeline("idle")
        busy = pipeline.source("busy", generator(lambda i: pa.table({"n": [i]}), 20), max_turn_events=1)
        source = pipeline.source("source", generator(lambda i: pa.table({"n": [i], "m": [i]}), 3))
        idle = source.filter(lambda record: record["n"] > 1, name="idle", max_turn_events=1)
        none = pipeline.source("none", generator(lambda i: pa.table({"n": [i]}), 0))

        @pipeline.operator(busy, idle, none, window=Each(), max_turn_events=1)
        def made(some: pa.Table, other: pa.Table, nothing: pa.Table) -> pa.Table:
            self.seen.append(other.schema.names)
            return some.select(["n"]) if some.num_rows else other.select(["n"])

        pipeline.sink(made, Transactional(World(), "made"))
        graph = pipeline.graph()
        store = MemoryStore()
        store.declare(topology(graph))
        around = Surroundings(graph, store, InlineEngine(graph), Channels(graph, store), Progress())
        self.runners: dict[str, Runner] = {}
        for name, spec in graph.operators.items():
            around.progress.add(name, name)
            self.runners[name] = make_runner(spec, around)
            self.runners[name].recover()

    def step(self, *names: str) -> None:
        for name in names:
            self.runners[name].step()

    def finish(self, *names: str) -> None:
        for name in names:
            while not self.runners[name].finished:
                self.step(name)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the columns of each port were asked for."""
    found: Counter[str] = Counter()
    schema = Graph.schema

    def counted(self: Graph, port: Port, logged: Callable[[Port], pa.Schema | None]) -> pa.Schema | None:
        found[str(port)] += 1
        return schema(self, port, logged)

    monkeypatch.setattr(Graph, "schema", counted)
    return found


def test_columns_are_asked_for_until_they_are_known(asked: Counter[str]) -> None:
    run = Stepped()
    run.step(*["busy"] * 4, "made", "made")
    assert run.seen == [[], []]
    assert asked["idle.out"] == 2
    # The source has read something, so it is known what the filter would pass on.
    run.step("source", "source", *["busy"] * 8, *["made"] * 6)
    assert run.seen[2:] == [["n", "m"]] * 6
    assert asked["idle.out"] == 3


def test_what_nobody_knows_is_asked_for_once_more_after_the_end(asked: Counter[str]) -> None:
    run = Stepped()
    run.step(*["busy"] * 14, *["made"] * 3)
    assert asked["none.out"] == 3
    run.finish("none")
    while len(run.runners["made"].context.ended) < 1:
        run.step("made")
    before = asked["none.out"]
    run.step(*["made"] * 4)
    assert asked["none.out"] == before + 1


def test_columns_of_what_has_come_are_those_of_the_log(asked: Counter[str]) -> None:
    run = Stepped()
    run.finish("source", "idle")
    run.step(*["busy"] * 6, *["made"] * 7)
    assert run.runners["made"].context.latest["other"] > 0
    assert set(map(tuple, run.seen)) == {("n", "m")}
    assert asked["idle.out"] <= 1
