"""Random schedules: who works next, who crashes where, which answers are lost.

A schedule is all there is to a run, so the one that a failure prints replays it exactly. CLEW_SCHEDULES=5000 looks
further than the suite does, and not twice at the same ones.
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.machine import Result, Schedule, rehearse, simulate
from tests.simulation.pipelines import SCENES, Scene

ASKED = int(os.environ.get("CLEW_SCHEDULES", "0"))
search = settings(
    max_examples=ASKED or 40,
    derandomize=not ASKED,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
each_scene = pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())


@each_scene
@search
@given(
    seed=st.integers(0, 15),
    picks=st.lists(st.integers(0, 9_999), min_size=1, max_size=3),
    scopes=st.lists(st.sampled_from(("group", "machine")), min_size=1, max_size=3),
    failing=st.lists(st.tuples(st.sampled_from(("lost", "refused")), st.integers(0, 99)), max_size=2),
)
def test_whatever_crashes_the_sinks_hold_what_some_run_without_failures_leaves(
    scene: Scene, seed: int, picks: list[int], scopes: list[str], failing: list[tuple[str, int]]
) -> None:
    simulate(scene, schedule(scene, seed, picks, scopes, failing))


def schedule(
    scene: Scene, seed: int, picks: list[int], scopes: list[str], failing: list[tuple[str, int]]
) -> Schedule:  # fmt: skip
    """Make a schedule whose faults all fire: each is picked from what is reached after the one before."""
    made = Schedule(seed, (), tuple(scopes), *_failing_writes(rehearse(scene, Schedule(seed)).world.writes, failing))
    for pick in picks:
        due = _occurrences(rehearse(scene, made))
        if due:
            made = Schedule(seed, (*made.faults, due[pick % len(due)]), made.scopes, made.lost, made.refused)
    return made


def _failing_writes(writes: int, failing: list[tuple[str, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose writes that fail, at most one of three neighbours: three failures of one write stop a run."""
    # A crash may cut turns, and so writes, anew: the later half of them may not come at all.
    chosen = {1 + index % (1 + writes // 2): kind for kind, index in failing}
    apart = [number for number in sorted(chosen) if not {number - 1, number - 2} & set(chosen)]
    lost = tuple(number for number in apart if chosen[number] == "lost")
    return lost, tuple(number for number in apart if chosen[number] == "refused")


def _occurrences(result: Result) -> list[str]:
    """List every visit of a crash point after the last crash."""
    return [
        f"{point}@{operator}#{nth}" if operator else f"{point}#{nth}"
        for (point, operator), count in result.reached.items()
        for nth in range(result.reached_at_crash.get((point, operator), 0) + 1, count + 1)
    ]


@each_scene
def test_a_schedule_replays_exactly(scene: Scene) -> None:
    made = schedule(scene, 5, [1234, 77], ["group"], [])
    one, other = simulate(scene, made), simulate(scene, made)
    assert one.reached == other.reached
    assert (one.steps, one.rounds) == (other.steps, other.rounds)
    assert one.world.holdings() == other.world.holdings()


@each_scene
def test_scenario_2_an_answer_that_is_lost_does_not_make_a_write_come_twice(scene: Scene) -> None:
    for number in range(1, rehearse(scene, Schedule(0)).world.writes + 1):
        simulate(scene, Schedule(0, lost=(number,)))
