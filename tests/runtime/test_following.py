"""A source whose read actions follow each other looks as often as it says, and knows for how long nothing came."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pytest

from clew import Continuing, News, Piece, Pipeline, Plan
from clew.run import run, topology, verify
from clew.runtime.channels import Channels
from clew.runtime.engine import InlineEngine
from clew.runtime.following import FollowingRunner
from clew.runtime.progress import Progress
from clew.runtime.runner import Surroundings
from clew.store.memory import MemoryStore
from clew.supervisor.threads import make_runner
from tests.simulation.outside import Feed, Transactional, World

SECOND = 1_000_000


@dataclass(frozen=True)
class Letters(Continuing):
    """Gives what was put into its box; over when nothing has come for ten seconds."""

    box: list[str] = field(default_factory=list, hash=False)
    quiets: list[float] = field(default_factory=list, hash=False)
    poll = 2.0

    def describe(self) -> str:
        return "letters"

    def more(self, seen: Any, quiet: float) -> News | Literal["nothing", "over"]:
        self.quiets.append(quiet)
        new = self.box[seen or 0 :]
        return News(new, len(self.box)) if new else "over" if quiet >= 10 else "nothing"

    def plan(self, snapshot: Any, offset: Any, events: int) -> Plan:
        return Plan((snapshot,), last=True)

    def read(self, snapshot: Any, piece: Any) -> Iterator[Piece]:
        yield Piece(pa.table({"letter": piece}), 1)


@dataclass
class Time:
    now: int = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def runner(time: Time, letters: Letters) -> FollowingRunner:
    pipeline = Pipeline("letters")
    pipeline.sink(pipeline.source("letters", letters), Transactional(World(), "out"))
    graph = pipeline.graph()
    store = MemoryStore()
    store.declare(topology(graph))
    around = Surroundings(graph, store, InlineEngine(graph), Channels(graph, store), Progress(), now=time)
    for name in graph.operators:
        around.progress.add(name, name)
    made = make_runner(graph.operators["letters"], around)
    assert isinstance(made, FollowingRunner)
    made.recover()
    return made


def steps(runner: FollowingRunner) -> int:
    """Let it work until it has nothing to do; return how many steps that took."""
    count = 0
    while runner.step() == "worked":
        count += 1
    return count


def test_it_looks_again_only_after_its_time(runner: FollowingRunner, time: Time, letters: Letters) -> None:
    assert runner.step() == "idle"
    assert runner.patience() == 2.0
    time.now += SECOND // 2
    assert (runner.step(), runner.patience()) == ("idle", 1.5)
    assert letters.quiets == [0.0]
    time.now += 2 * SECOND
    assert (runner.patience(), runner.step()) == (0.0, "idle")
    assert letters.quiets == [0.0, 2.5]


def test_a_clock_that_is_set_back_holds_up_nobody(runner: FollowingRunner, time: Time, letters: Letters) -> None:
    steps(runner)
    time.now -= 3600 * SECOND
    assert runner.patience() == 0.0
    letters.box.append("a")
    assert runner.step() == "worked"


def test_after_something_came_it_looks_at_once(runner: FollowingRunner, letters: Letters) -> None:
    letters.box.extend(["a", "b"])
    # Added, stored, one turn of events, dropped.
    assert steps(runner) == 4
    assert letters.quiets == [0.0, 0.0]


def test_what_comes_starts_the_quiet_again(runner: FollowingRunner, time: Time, letters: Letters) -> None:
    for after, letter in ((0, ""), (9, "a"), (9, ""), (2, "")):
        time.now += after * SECOND
        letters.box.extend([letter] if letter else [])
        steps(runner)
    assert letters.quiets == [0.0, 9.0, 0.0, 9.0, 11.0]
    assert runner.finished
    assert runner.patience() is None
    assert [row[:2] for row in runner.around.store.table("READ_ACTION")] == [(1, "complete")]


def test_a_whole_run_reads_on_until_it_is_over_and_is_judged(tmp_path: Any) -> None:
    world = World()
    pipeline = Pipeline("fed")
    pipeline.sink(pipeline.source("feed", Feed(world, 20)), Transactional(world, "out"))
    place = {"log": f"sqlite:///{tmp_path / 'log.db'}", "engine": "inline"}
    run(pipeline, **place)
    assert [row[0] for row in world.rows["out"]] == list(range(20))
    assert verify(pipeline, **place).word == "explained"
