"""A crash at every crash point, in every operator, the first and the second time it is reached."""

from collections.abc import Iterator

import pytest

from clew.faultpoint import POINTS
from tests.figures import POINT_IN_RECOVERY, tally
from tests.simulation.machine import Schedule, baseline, rehearse, show, visit
from tests.simulation.pipelines import SCENES, Scene
from tests.soak import SOAK

RECOVERY = ("after-take-over", "after-resend", "after-restore", "after-source-restore", "after-recovered-input",
            "before-running", "before-write-check")  # fmt: skip
SEED = 3

each_scene = pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())


@each_scene
def test_a_group_that_crashes_anywhere_leaves_what_a_run_without_failures_leaves(scene: Scene) -> None:
    for (point, operator), count in rehearse(scene, Schedule(SEED)).reached.items():
        for nth in range(1, min(count, 2) + 1):
            show(scene, Schedule(SEED, (visit(point, operator, nth),)))


@each_scene
def test_a_machine_that_loses_power_anywhere_leaves_what_a_run_without_failures_leaves(scene: Scene) -> None:
    for (point, operator), count in rehearse(scene, Schedule(SEED)).reached.items():
        show(scene, Schedule(SEED, (visit(point, operator, (count + 1) // 2),), ("machine",)))


@each_scene
def test_scenario_14_a_crash_during_recovery_and_another_during_that_recovery(scene: Scene) -> None:
    """Every recovery point of every operator, twice in a row, after a crash in the middle of the run."""
    for operator in baseline(scene).reached_operators:
        first = _first_crash(scene, operator)
        reached = rehearse(scene, Schedule(SEED, (first,)))
        for point in RECOVERY:
            before = reached.reached_at_crash.get((point, operator), 0)
            if reached.reached.get((point, operator), 0) > before:
                again = (visit(point, operator, before + 1), visit(point, operator, before + 2))
                show(scene, Schedule(SEED, (first, *again)))


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_anywhere_and_another_while_it_is_recovered_from(point: str) -> None:
    """Whatever an operator died of, it may die again before it has recovered from that."""
    shown = 0
    for scene in SCENES.values():
        for before in _crashes_at(scene, point):
            again = _next_recovery(scene, before)
            if again:
                show(scene, Schedule(SEED, (*before, again), ("machine",)))
                shown += 1
                if not SOAK:
                    break
        if shown and not SOAK:
            break
    assert shown, f"no pipeline recovers from a crash at {point}"
    tally(POINT_IN_RECOVERY, point, shown)


def _crashes_at(scene: Scene, point: str) -> Iterator[tuple[str, ...]]:
    """Yield a crash at this point for each operator that reaches it; some are reached only after another crash."""
    for (name, operator), count in rehearse(scene, Schedule(SEED)).reached.items():
        if name == point:
            yield (visit(point, operator, (count + 1) // 2),)
        elif name == "before-write" and point == "before-write-check":
            yield visit(name, operator, (count + 1) // 2), visit(point, operator, 1)


def _next_recovery(scene: Scene, crashes: tuple[str, ...]) -> str | None:
    """Return a visit of a recovery point after the last crash, of the operator that died where that has one."""
    result = rehearse(scene, Schedule(SEED, crashes, ("machine",)))
    operator = crashes[-1].partition("@")[2].partition("#")[0]
    for (point, where), count in result.reached.items():
        before = result.reached_at_crash.get((point, where), 0)
        if point in RECOVERY and count > before and where == (operator or where):
            return visit(point, where, before + 1)
    return None


def test_every_crash_point_is_reached_by_some_pipeline() -> None:
    reached = {
        point
        for scene in SCENES.values()
        for result in (
            baseline(scene),
            *(rehearse(scene, Schedule(SEED, (_first_crash(scene, o),))) for o in baseline(scene).reached_operators),
        )
        for point, _ in result.reached
    }
    assert sorted(set(POINTS) - reached) == []


def _first_crash(scene: Scene, operator: str) -> str:
    """Return a crash of this operator in the middle of the run, with a write pending where it has any."""
    reached = rehearse(scene, Schedule(SEED)).reached
    points = ("before-write", "after-generate", "after-source-read")
    point = next(point for point in points if (point, operator) in reached)
    return visit(point, operator, min(2, reached[point, operator]))
