"""A full connection stops its sender's next turn, and never loses an event."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from clew import Capacity, Pipeline, WriteAction
from clew.connectors import generator
from clew.ids import Port
from clew.protocol.step import Write
from clew.run import topology
from clew.runtime.channels import Channels
from clew.runtime.engine import InlineEngine
from clew.runtime.progress import Progress
from clew.runtime.runner import Surroundings
from clew.store.memory import MemoryStore
from clew.supervisor.threads import Policy, Supervisor
from tests.simulation.outside import Transactional, World


class Slow(Transactional):
    """A sink that takes its time."""

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        time.sleep(0.004)
        super().write(action, tables, schema)


@dataclass
class Watched:
    """The most that ever waited on each connection."""

    events: dict[Port, int] = field(default_factory=dict)
    bytes: dict[Port, int] = field(default_factory=dict)


class WatchedStore(MemoryStore):
    """A log that looks at its connections after every commit."""

    def __init__(self, receivers: Sequence[Port]) -> None:
        super().__init__()
        self.most = Watched(dict.fromkeys(receivers, 0), dict.fromkeys(receivers, 0))

    def commit(self, operator: str, incarnation: int, writes: Sequence[Write], durable: bool = True) -> None:
        with self._lock:
            super().commit(operator, incarnation, writes, durable)
            for receiver in self.most.events:
                backlog = self.backlog(receiver)
                self.most.events[receiver] = max(self.most.events[receiver], backlog.events)
                self.most.bytes[receiver] = max(self.most.bytes[receiver], backlog.bytes)


def _run(pipeline: Pipeline) -> tuple[WatchedStore, Progress]:
    graph = pipeline.graph()
    store = WatchedStore([link.receiver for link in graph.links])
    store.declare(topology(graph))
    progress = Progress()
    around = Surroundings(graph, store, InlineEngine(graph), Channels(graph, store), progress)
    Supervisor(around, Policy(poll=0.2)).run()
    return store, progress


def _numbers(index: int) -> pa.Table:
    return pa.table({"n": [index]})


@pytest.mark.parametrize(("capacity", "turn"), [(1, 1), (2, 3), (5, 2)])
def test_a_backlog_never_exceeds_its_capacity_by_more_than_one_turn(capacity: int, turn: int) -> None:
    world = World()
    pipeline = Pipeline("full")
    source = pipeline.source("numbers", generator(_numbers, 40), max_turn_events=turn)

    @pipeline.operator(source, capacity=capacity, max_turn_events=turn)
    def twice(table: pa.Table) -> list[pa.Table]:
        return [table, table]

    pipeline.sink(twice, Slow(world, "slow"), capacity=capacity, max_turn_events=1)
    store, _ = _run(pipeline)
    # One less than the capacity may wait when a turn begins; the end of the stream may come with it.
    assert 0 < store.most.events[Port("twice", "in")] <= capacity - 1 + turn + 1
    assert 0 < store.most.events[Port("twice_sink", "in")] <= capacity - 1 + 2 * turn + 1
    assert world.rows["slow"] == [(n,) for n in range(40) for _ in range(2)]


def test_a_capacity_in_bytes_holds_the_sender_back_too() -> None:
    world = World()
    pipeline = Pipeline("bytes")
    wide = generator(lambda index: pa.table({"n": [index], "text": ["x" * 1_000]}), 30)
    source = pipeline.source("numbers", wide, max_turn_events=2)
    pipeline.sink(source, Slow(world, "slow"), capacity=Capacity(events=1_000, bytes=4_000), max_turn_events=1)
    store, _ = _run(pipeline)
    one = store.most.bytes[Port("numbers_sink", "in")] / store.most.events[Port("numbers_sink", "in")]
    assert store.most.bytes[Port("numbers_sink", "in")] <= 4_000 + 2 * 2 * one
    assert [row[0] for row in world.rows["slow"]] == list(range(30))


def test_an_event_larger_than_the_capacity_still_passes() -> None:
    world = World()
    pipeline = Pipeline("large")
    wide = generator(lambda index: pa.table({"n": [index], "text": ["x" * 10_000]}), 5)
    source = pipeline.source("numbers", wide)
    pipeline.sink(source, Slow(world, "slow"), capacity=Capacity(events=10, bytes=100))
    _run(pipeline)
    assert [row[0] for row in world.rows["slow"]] == list(range(5))


def test_a_slow_branch_holds_back_the_operator_that_feeds_it_and_loses_nothing_on_the_other() -> None:
    world = World()
    pipeline = Pipeline("branches")
    source = pipeline.source("numbers", generator(_numbers, 30), max_turn_events=2)
    pipeline.sink(source, Slow(world, "slow"), name="slow", capacity=2, max_turn_events=1)
    pipeline.sink(source, Transactional(world, "fast"), name="fast")
    store, _ = _run(pipeline)
    assert store.most.events[Port("slow", "in")] <= 2 - 1 + 2 + 1
    assert world.rows["slow"] == world.rows["fast"] == [(n,) for n in range(30)]
