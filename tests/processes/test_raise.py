"""A group that fails at any crash point is restarted alone, within the process, and the run ends right."""

from collections import Counter

import pytest

from tests.processes.cases import RECOVERY, SOAK, Case, mark_of, once, one_each, operator_of, twice, uncovered
from tests.processes.sweep import Sweep, Trial


def _in_the_middle(server: bool) -> list[Case]:
    """Return the cases with one failure; a recovery is tried where there is something to recover."""
    return [case for case in once(server) if SOAK or case.point not in RECOVERY]


@pytest.mark.parametrize("pipeline", ["sales", "drawn"])
def test_a_group_that_fails_is_restarted_alone_and_the_run_ends_right(sweep: Sweep, pipeline: str) -> None:
    sweep.each((case for case in _in_the_middle(sweep.on_a_server) if case.pipeline == pipeline), _fail)


def _again(server: bool) -> list[Case]:
    cases = twice("raise", server)
    return (
        one_each(case for case in cases if case.point in (*RECOVERY, "before-write-check"))
        if server and not SOAK
        else cases
    )


def test_a_group_that_fails_again_while_it_recovers_is_recovered(sweep: Sweep) -> None:
    sweep.each(_again(sweep.on_a_server), _fail)


def _fail(trial: Trial) -> None:
    """Run once; each fault of the case fails its group, which alone is restarted, and no other."""
    case = trial.case
    faults = [f"{fault}:raise" for fault in case.faults]
    ending = trial.nursery.run(trial.where.job(*faults, collect_every=0.01 if case.collects else None))
    assert ending.fired == tuple(mark_of(fault) for fault in case.faults), f"a fault did not fire: {ending}"
    assert ending.code == 0, f"the run did not end right: {ending}"
    # Garbage collection is no group: it ends where it failed, and the run goes on without it.
    expected = {} if case.collects else Counter(operator_of(fault) for fault in case.faults)
    restarted = {name: times for name, times in ending.restarts.items() if times}
    assert restarted == expected, f"restarted {restarted}, expected {expected}"
    trial.judge()
    if case.collects:
        assert trial.where.collected() > 0, "what the failed collection left could not be collected"
        trial.judge()


@pytest.mark.parametrize("server", [False, True], ids=["sqlite", "postgres"])
def test_a_group_fails_at_every_crash_point_in_some_case(server: bool) -> None:
    assert uncovered([*_in_the_middle(server), *_again(server)]) == []
