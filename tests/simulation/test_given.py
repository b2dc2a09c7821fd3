"""Kept lookups, and events without a place, under crashes: what a crash must not change."""

import pytest

from clew.model.read import UNPLACED
from tests.simulation.machine import Schedule, simulate
from tests.simulation.random_pipelines import Blueprint, Node, scene

FAULTS = ("after-assign@op1#1", "after-commit@op1#2", "before-running@op1#2")


@pytest.mark.parametrize("window", ["tumbling", "waiting", "keyed", "sessions"])
@pytest.mark.parametrize("seed", range(3))
def test_an_event_without_a_place_is_set_aside_whatever_crashes(window: str, seed: int) -> None:
    blueprint = Blueprint(
        ("generator",), (Node("timeless", (0,)), Node("sum", (1,), window)), ("transactional",), events=8
    )
    result = simulate(scene(blueprint), Schedule(seed, FAULTS, ("machine",)))
    # The judge has found everything explained; here it is seen that it had something to explain.
    assert {row.label[0] for row in result.journal.asides("op1")} == {UNPLACED}


@pytest.mark.parametrize("seed", range(3))
def test_a_lookup_that_is_another_one_at_every_read_is_kept_over_crashes(seed: int) -> None:
    blueprint = Blueprint(("generator",), (Node("looked", (0,)), Node("looked", (1,))), ("idempotent",), events=6)
    result = simulate(scene(blueprint), Schedule(seed, FAULTS, ("machine",)))
    kept = [row.digest for name in ("op0", "op1") for row in result.journal.lookups(name)]
    assert len(set(kept)) == 2
