"""Groups as threads: one fails alone, the others keep going; the run ends when all have."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from clew import Count, Pipeline
from clew.connectors import generator
from clew.errors import RunStopped
from clew.faultpoint import Fault, arm
from clew.run import run
from clew.runtime.progress import OperatorProgress, Progress
from clew.supervisor.threads import Policy
from tests.simulation.outside import Transactional, World

GAP = 5.0


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm()


def _pipeline(world: World, events: int, pause: float) -> Pipeline:
    pipeline = Pipeline("groups")
    source = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), events), max_turn_events=2)

    # With little room before it, the source goes as slowly as this, and lasts as long as the run.
    @pipeline.operator(source, max_turn_events=2, capacity=4)
    def slow(table: pa.Table) -> pa.Table:
        time.sleep(pause)
        return table

    @pipeline.operator(slow, window=Count(3), max_turn_events=2)
    def threes(table: pa.Table) -> pa.Table:
        return pa.table({"first": table["n"].slice(0, 1)})

    pipeline.sink(threes, Transactional(world, "threes"), max_turn_events=2)
    pipeline.sink(slow, Transactional(world, "all"), max_turn_events=2)
    return pipeline


def test_while_one_group_is_down_for_five_seconds_the_others_keep_committing(tmp_path: Path) -> None:
    events = 260
    world, progress, samples = World(), Progress(), []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            samples.append((time.time(), progress.rows()))

    (fault,) = arm("after-generate@threes#2:raise")
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        log = f"sqlite:///{tmp_path / 'log.db'}"
        run(
            _pipeline(world, events, pause=0.03), log=log, engine="inline", policy=Policy(first_delay=GAP),
            progress=progress,
        )  # fmt: skip
    finally:
        done.set()
        watcher.join()
    assert fault.fired
    down = [(at, rows) for at, rows in samples if "threes" in rows and rows["threes"].phase == "restarting"]
    assert down[-1][0] - down[0][0] > GAP - 0.5
    for name in ("numbers", "slow", "slow_sink"):
        assert _commits(down, name) >= 3, f"{name} stood still while threes was down"
    assert _commits(down, "threes") == 0
    assert progress.rows()["threes"].restarts == 1
    assert all(progress.rows()[name].restarts == 0 for name in ("numbers", "slow", "slow_sink", "threes_sink"))
    assert world.rows["all"] == [(n,) for n in range(events)]
    assert world.rows["threes"] == [(n,) for n in range(0, events, 3)]


def _commits(samples: list[tuple[float, dict[str, OperatorProgress]]], name: str) -> int:
    """Count the commits between the first and the last sample."""
    return samples[-1][1][name].turns - samples[0][1][name].turns


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 1, 3)])
def test_a_fault_counts_the_visits_that_another_one_ended(order: tuple[int, ...], tmp_path: Path) -> None:
    world = World()
    faults = arm(*(f"after-take-over@threes#{nth}:raise" for nth in order))
    policy = Policy(first_delay=0.01, give_up_after=5)
    # It fires never, and counts.
    visits = Fault("after-take-over", "threes", nth=5)
    arm(*faults, visits)
    run(_pipeline(world, 12, 0), log=f"sqlite:///{tmp_path / 'log.db'}", engine="inline", policy=policy)
    assert all(fault.fired for fault in faults)
    assert visits.seen == 4


def test_a_group_that_fails_again_and_again_without_a_commit_stops_the_run(tmp_path: Path) -> None:
    world = World()
    faults = arm(*(f"after-take-over@threes#{nth}:raise" for nth in (4, 3, 2, 1)))
    policy = Policy(first_delay=0.01, give_up_after=3)
    log = f"sqlite:///{tmp_path / 'log.db'}"
    with pytest.raises(RunStopped) as stopped:
        run(_pipeline(world, 12, 0), log=log, engine="inline", policy=policy)
    assert (stopped.value.group, stopped.value.restarts) == ("threes", 3)
    assert "after-take-over" in stopped.value.cause
    assert [fault.fired for fault in faults] == [False, True, True, True]
    arm()
    run(_pipeline(world, 12, 0), log=log, engine="inline")
    assert world.rows["all"] == [(n,) for n in range(12)]
    assert world.rows["threes"] == [(0,), (3,), (6,), (9,)]


def test_operators_of_one_group_restart_together(tmp_path: Path) -> None:
    world, progress = World(), Progress()
    pipeline = Pipeline("together")
    source = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), 9), max_turn_events=2)

    @pipeline.operator(source, group="pair", max_turn_events=2)
    def one(table: pa.Table) -> pa.Table:
        return table

    @pipeline.operator(one, group="pair", max_turn_events=2)
    def two(table: pa.Table) -> pa.Table:
        return table

    pipeline.sink(two, Transactional(world, "sink"))
    (fault,) = arm("after-commit@two#2:raise")
    run(pipeline, log=f"sqlite:///{tmp_path / 'log.db'}", engine="inline", policy=Policy(0.01), progress=progress)
    assert fault.fired
    assert {name: row.restarts for name, row in progress.rows().items()} == {
        "numbers": 0, "one": 1, "two": 1, "two_sink": 0,
    }  # fmt: skip
    assert world.rows["sink"] == [(n,) for n in range(9)]


@pytest.mark.parametrize("log", ["sqlite", "memory"])
def test_scenario_16_sender_and_receiver_fail_at_once_and_all_the_others_too(tmp_path: Path, log: str) -> None:
    """Every group crashes in its second turn, and again while it recovers, each in a thread of its own."""
    world, progress = World(), Progress()
    faults = arm(
        "after-source-commit@numbers#2:raise", "after-source-restore@numbers#2:raise",
        "after-commit@slow#2:raise", "after-restore@slow#2:raise",
        "after-generate@threes#2:raise", "after-recovered-input@threes#2:raise",
        "sink-after-commit@slow_sink#2:raise", "before-write-check@slow_sink#1:raise",
        "before-write@threes_sink#2:raise", "after-resend@threes_sink#2:raise",
    )  # fmt: skip
    url = f"sqlite:///{tmp_path / 'log.db'}" if log == "sqlite" else "memory:"
    run(_pipeline(world, 40, 0.001), log=url, engine="inline", policy=Policy(0.02), progress=progress)
    assert [fault for fault in faults if not fault.fired] == []
    assert {name: row.restarts for name, row in progress.rows().items()} == dict.fromkeys(progress.rows(), 2)
    assert world.rows["all"] == [(n,) for n in range(40)]
    assert world.rows["threes"] == [(n,) for n in range(0, 40, 3)]
