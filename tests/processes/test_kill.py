"""Real processes, real kill -9, at every crash point, on SQLite and on PostgreSQL."""

import pytest

from tests.figures import FIRED, POINT, SCHEDULED, tally
from tests.processes.cases import RECOVERY, SOAK, Case, mark_of, once, twice, uncovered
from tests.processes.sweep import Sweep, Trial


def _in_the_middle(server: bool) -> list[Case]:
    """Return the cases with one crash; a recovery is tried where there is something to recover."""
    return [case for case in once(server) if SOAK or case.point not in RECOVERY]


@pytest.mark.parametrize("pipeline", ["sales", "drawn"])
def test_sinks_hold_what_a_run_without_failures_leaves(sweep: Sweep, pipeline: str) -> None:
    sweep.each((case for case in _in_the_middle(sweep.on_a_server) if case.pipeline == pipeline), _die)


def test_a_process_that_is_killed_while_it_recovers_is_recovered(sweep: Sweep) -> None:
    sweep.each(twice("kill", sweep.on_a_server), _die)


def _die(trial: Trial) -> None:
    """Run once per fault of the case; each run dies by SIGKILL, at that fault and at no other place."""
    for fault in trial.case.faults:
        tally(SCHEDULED)
        collect_every = 0.01 if trial.case.collects else None
        ending = trial.nursery.run(trial.where.job(f"{fault}:kill", collect_every=collect_every))
        assert ending.fired == (mark_of(fault),), f"the fault did not fire: {ending}"
        assert ending.killed, f"it was to die by SIGKILL: {ending}"
        tally(FIRED)
        trial.look()
    trial.where.finish(trial.nursery)
    trial.judge()
    for fault in trial.case.faults:
        tally(POINT, mark_of(fault).partition("@")[0])


@pytest.mark.parametrize("server", [False, True], ids=["sqlite", "postgres"])
def test_every_crash_point_is_killed_at_in_some_case(server: bool) -> None:
    assert uncovered([*_in_the_middle(server), *twice("kill", server)]) == []
