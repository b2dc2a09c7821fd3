"""Schedules that once failed, each with what it had found."""

import pytest

from tests.simulation.machine import Schedule, simulate
from tests.simulation.pipelines import SCENES
from tests.simulation.random_pipelines import Blueprint, Node, scene


@pytest.mark.parametrize("seed", [15, 177, 198])
def test_a_source_releases_what_it_read_even_if_all_others_had_finished_before_the_crash(seed: int) -> None:
    """The log was taken for finished, and its stored effect was never dropped."""
    simulate(SCENES["observed"], Schedule(seed, ("before-effect-dropped@queue#1",), ("machine",)))


@pytest.mark.parametrize("number", [2, 3])
def test_a_write_whose_answer_was_lost_is_not_repeated_on_a_sink_that_is_only_checkable(number: int) -> None:
    """It was repeated without a question, and stood in the sink twice."""
    simulate(SCENES["diamond"], Schedule(0, lost=(number,)))


def test_late_records_of_a_session_keep_the_order_of_their_event() -> None:
    """They came by key and time, without any crash; no event had late records of several stretches in another order."""
    result = simulate(SCENES["timed"], Schedule(0))
    late = [row[0] for row in result.world.holdings()["sessions_late"]]
    assert late == sorted(late)
    assert len(late) >= 3


def test_a_body_file_of_a_write_that_may_come_again_is_not_collected() -> None:
    """The mark that the write is done is not durable by itself; a collection that removes its body must make it so."""
    simulate(SCENES["collected"], Schedule(3, ("after-gather@fives_sink#5",), ("machine",)))


def test_what_was_collected_since_a_receiver_died_is_not_asked_for_again() -> None:
    """The sender's channel still began with events that were done and gone, and the log in memory looked for them."""
    same = Node("same", (0,), "batch", group=0, capacity=1)
    collects = Blueprint(("generator", "queue"), (same,) * 3, ("checkable",), events=2, collects=True, lineage="all")
    faults = ("before-action-logged@source1#1", "after-commit@named1#1", "after-source-read@source1#2")
    simulate(scene(collects), Schedule(9, faults, ("group",), lost=(1,)))


def test_what_the_clock_decided_is_kept_as_long_as_all_events_are() -> None:
    """It was collected although a scope kept every event, and the run could not be followed from its start."""
    kinds = (("same", 0), ("same", 1), ("clocked", 0), ("same", 2))
    nodes = tuple(Node(kind, (before,), "batch", capacity=1) for kind, before in kinds)
    kept = Blueprint(("generator",), nodes, ("checkable",), events=1, collects=True, lineage="scope")
    simulate(scene(kept), Schedule(48, ("after-take-over@op2#1", "after-take-over@op2#2")))
