"""Random schedules: who works next, who crashes where, which answers are lost; of known pipelines and of random ones.

A schedule is all there is to a run, so the one that a failure prints replays it exactly. CLEW_SCHEDULES=200000 looks
further than the suite does, and not twice at the same ones.
"""

import gc
import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.simulation.machine import NotFired, Schedule, discover, rehearse, show, show_drawn, simulate, visit
from tests.simulation.pipelines import SCENES, Scene
from tests.simulation.random_pipelines import KINDS, LINEAGE, SINKS, SOURCES, WINDOWS, Blueprint, Node
from tests.simulation.random_pipelines import scene as scene_of

ASKED = int(os.environ.get("CLEW_SCHEDULES", "0"))
#: Random pipelines are cut into parts, so that several processes share them.
PARTS = 8


#: The most examples of one search: what a search keeps of them grows, and each costs more than the one before.
MOST_EXAMPLES = 500


def searches(examples: int) -> pytest.MarkDecorator:
    """Parametrise a test by how far it looks: once as far as the suite does, or in as many searches as were asked for.

    Each is a test of its own, so that several processes share them, and those that were made need not be made again.
    """
    left = ASKED // (len(SCENES) + PARTS) + 1 if ASKED else examples
    cases = [(number, min(MOST_EXAMPLES, left - begun)) for number, begun in enumerate(range(0, left, MOST_EXAMPLES))]
    return pytest.mark.parametrize(("number", "examples"), cases, ids=[f"search{number}" for number, _ in cases])


def search(examples: int) -> settings:
    """Return how to look: always at the same schedules, or, where some were asked for, at others every time."""
    return settings(
        max_examples=examples,
        derandomize=not ASKED,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


each_scene = pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
SEEDS = st.integers(0, 15)
#: How many visits of crash points lie before each crash. Single faults are swept one by one in test_sweep.py.
GAPS = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 60), st.integers(0, 150)), min_size=2, max_size=4)
SCOPES = st.lists(st.sampled_from(("group", "machine")), min_size=1, max_size=3)
FAILING = st.lists(st.tuples(st.sampled_from(("lost", "refused")), st.integers(1, 20)), max_size=2)
NODES = st.builds(
    Node,
    st.sampled_from(KINDS),
    st.lists(st.integers(0, 9), min_size=1, max_size=2).map(tuple),
    st.sampled_from(sorted(WINDOWS)),
    st.integers(0, 2),
    st.sampled_from((1, 2, 100)),
)
BLUEPRINTS = st.builds(
    Blueprint,
    st.lists(st.sampled_from(SOURCES), min_size=1, max_size=2).map(tuple),
    st.lists(NODES, min_size=1, max_size=4).map(tuple),
    st.lists(st.sampled_from(sorted(SINKS)), min_size=1, max_size=3).map(tuple),
    st.integers(1, 8),
    st.booleans(),
    # Where lineage is not captured the checker can say less: so of most pipelines all is.
    st.sampled_from(("all", "all", *LINEAGE)),
)


@pytest.fixture(autouse=True, scope="module")
def seldom_collected() -> Iterator[None]:
    """Look for garbage less often: a schedule leaves little that is in cycles, and what was imported none."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@searches(45)
@each_scene
def test_whatever_crashes_the_sinks_hold_what_some_run_without_failures_leaves(
    scene: Scene, number: int, examples: int
) -> None:
    _look_at(st.just(scene), SEEDS, examples, number)


@searches(110)
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_pipeline_crashes_some_run_without_failures_explains_it(part: int, number: int, examples: int) -> None:
    # A seed of its own, or every part would draw the same pipelines.
    _look_at(BLUEPRINTS.map(scene_of), st.integers(16 * part, 16 * part + 15), examples, PARTS * number + part)


def _look_at(scenes: st.SearchStrategy[Scene], seeds: st.SearchStrategy[int], examples: int, begin: int) -> None:
    @seed(random.randrange(1 << 60) if ASKED else begin)
    @search(examples)
    @given(scene=scenes, seed=seeds, gaps=GAPS, scopes=SCOPES, failing=FAILING)
    def explained(scene: Scene, seed: int, gaps: list[int], scopes: list[str], failing: list[tuple[str, int]]) -> None:
        show_drawn(scene, wanted(seed, scopes, failing), gaps)

    explained()


def schedule(
    scene: Scene, seed: int, gaps: list[int], scopes: list[str], failing: list[tuple[str, int]]
) -> Schedule:  # fmt: skip
    """Make a schedule whose faults all fire."""
    return discover(scene, wanted(seed, scopes, failing), gaps)


def wanted(seed: int, scopes: list[str], failing: list[tuple[str, int]]) -> Schedule:
    """Make a schedule of failing writes alone, to which crashes are drawn."""
    lost, refused = _failing_writes(failing)
    return Schedule(seed, (), tuple(scopes), lost, refused)


def _failing_writes(failing: list[tuple[str, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose writes that fail, at most one of three neighbours: three failures of one write stop a run."""
    chosen = {number: kind for kind, number in failing}
    apart = [number for number in sorted(chosen) if not {number - 1, number - 2} & set(chosen)]
    lost = tuple(number for number in apart if chosen[number] == "lost")
    return lost, tuple(number for number in apart if chosen[number] == "refused")


@each_scene
def test_a_schedule_replays_exactly(scene: Scene) -> None:
    made = schedule(scene, 5, [40, 20], ["group"], [])
    one, other = simulate(scene, made), simulate(scene, made)
    assert one.reached == other.reached
    assert (one.steps, one.rounds) == (other.steps, other.rounds)
    assert one.world.holdings() == other.world.holdings()


@each_scene
def test_scenario_2_an_answer_that_is_lost_does_not_make_a_write_come_twice(scene: Scene) -> None:
    for number in range(1, rehearse(scene, Schedule(0)).world.writes + 1):
        show(scene, Schedule(0, lost=(number,)))


@pytest.mark.parametrize("scope", ["group", "machine"])
@each_scene
def test_scenario_2_a_write_whose_answer_nobody_lives_to_hear_is_the_same_write_after_the_restart(
    scene: Scene, scope: str
) -> None:
    for (point, operator), visits in rehearse(scene, Schedule(0)).reached.items():
        if point == "sink-after-commit":
            for number in range(1, visits + 1):
                show(scene, Schedule(0, (visit(point, operator, number),), (scope,)))


def test_an_answer_that_is_not_lost_since_the_writer_dies_first_is_no_fault_that_fired() -> None:
    crash = "sink-before-commit@sums_sink#1"
    alone = simulate(SCENES["linear"], Schedule(0, (crash,)))
    assert (alone.struck, alone.world.struck) == (1, set())
    # The first write is the one that it dies in: nobody is there to miss the answer.
    with pytest.raises(NotFired):
        simulate(SCENES["linear"], Schedule(0, (crash,), lost=(1,)))
    assert simulate(SCENES["linear"], Schedule(0, (crash,), lost=(2,))).struck == 2
