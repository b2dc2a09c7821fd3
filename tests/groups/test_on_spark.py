"""Groups as processes on Spark: the engine service, its workers and the groups are killed; the totals are right."""

import os
import random
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.groups.runs import SUPERVISOR, Apart, some_moment, wait_for
from tests.groups.standalone import Standalone
from tests.soak import SOAK

TIMES = 10 if SOAK else 2
GROUPS = ("orders", "paid", "hourly", "fives", "hours", "sums")


@pytest.fixture
def sales(tmp_path: Path, postgres_url: str) -> Iterator[Apart]:
    run = Apart(tmp_path, postgres_url, "sales", words=())
    yield run
    run.close()


def hours(events: int) -> list[tuple[int, str, int]]:
    """What plain Python makes of the same orders: the hour, the item, the sum."""
    totals: dict[tuple[int, str], int] = defaultdict(int)
    for n in range(3 * events):
        if n % 4:
            totals[3 * n // 60, f"item {n % 2}"] += n % 11
    return sorted((hour, item, total) for (hour, item), total in totals.items())


def fives(events: int) -> list[tuple[int, int]]:
    """The same by five events of what is paid: its first order, the sum."""
    found = []
    for first in range(0, events, 5):
        numbers = [n for n in range(3 * first, 3 * min(first + 5, events)) if n % 4]
        found.append((numbers[0], sum(n % 11 for n in numbers)))
    return found


def strike(run: Apart, what: str) -> None:
    """Kill a process of a kind, somewhere in its work."""
    if what == "engine":
        os.kill(run.engine(), signal.SIGKILL)
    elif what == "worker":
        os.kill(run.workers()[0], signal.SIGKILL)
    elif what == SUPERVISOR:
        killed = run.kill(SUPERVISOR)
        run.supervisors[-1].wait()
        run.start()
        run.replaced(killed)
    else:
        run.replaced(run.kill(f"group {what}"))


def test_whoever_is_killed_the_totals_are_right(sales: Apart) -> None:
    chance = random.Random(3)
    victims = ["engine", "worker", SUPERVISOR, *GROUPS] * TIMES
    chance.shuffle(victims)
    step = 4
    sales.events = step * (len(victims) + 1)
    sales.start()
    for number, what in enumerate(victims, 1):
        sales.let(step * number)
        wait_for(lambda: sales.sent("paid") > step * (number - 1), "the run does not go on")  # noqa: B023  asked at once
        some_moment(chance)
        strike(sales, what)
    sales.end()
    exact(sales, {name: 1 + victims.count(name) for name in GROUPS})


def test_on_a_standalone_cluster_an_executor_is_killed_and_the_totals_are_the_same(
    sales: Apart, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cluster = Standalone(tmp_path_factory.mktemp("cluster"))
    try:
        memory = ("--conf", "spark.executor.memory=512m", "--conf", "spark.cores.max=2")
        sales.events = 8 * (TIMES + 1)
        # Executors have the environment of their workers, which know nothing of this run.
        told = [word for name, value in sales.own.items() for word in ("--conf", f"spark.executorEnv.{name}={value}")]
        sales.words = ("--master", cluster.url, *memory, *told)
        sales.start()
        for number in range(1, TIMES + 1):
            sales.let(8 * number)
            wait_for(lambda: sales.sent("paid") > 8 * (number - 1), "the run does not go on")  # noqa: B023  asked at once
            os.kill(wait_for(cluster.executors, "there are no executors")[0], signal.SIGKILL)
        sales.end()
        exact(sales, dict.fromkeys(GROUPS, 1))
    finally:
        cluster.close()


def exact(sales: Apart, starts: dict[str, int]) -> None:
    """Compare what the sinks hold with what plain Python makes of the orders, and who was started how often."""
    since = "extract(epoch FROM window_start - TIMESTAMPTZ '2026-01-01 00:00:00+00')::BIGINT / 3600"
    assert sales.held(f"SELECT {since}, item, total::BIGINT FROM hourly") == hours(sales.events)
    assert sales.held("SELECT first, total::BIGINT FROM fives") == fives(sales.events)
    rows = sales.processes()
    assert {name: rows[f"group {name}"].starts for name in GROUPS} == starts
    sales.explained()
