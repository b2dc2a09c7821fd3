"""A process is frozen at any crash point, another takes over and finishes the run, and the first one wakes up."""

import time

import pytest

from tests.processes.cases import SOAK, Case, mark_of, once, one_each, twice, uncovered
from tests.processes.nursery import FINAL, Child
from tests.processes.sweep import Sweep, Trial

#: Frozen there, a process holds the lock of a SQLite file: that of the log, or that of the sink's database.
HOLDING = ("inside-commit", "sink-before-commit")
#: Frozen there at the end of a run, a process may have nothing left to do that could be refused.
DONE = ("after-end", "after-wake", "after-write-done", "after-effect-dropped")
#: PostgreSQL's sessions that froze inside a transaction are ended after 2 to 5 s; left alone, those of sinks would hold
#: their locks for a minute, which is not longer than the patience of the runs here.
LONGEST_WAIT = 40.0


def _cases(server: bool) -> list[Case]:
    """Return the cases with one freeze, and those in which the process that recovers from a crash is frozen."""
    recovering = twice("freeze", server)
    # The check of an undone write is part of a recovery, and of nothing else.
    checks = [case for case in recovering if case.point == "before-write-check"]
    some = recovering if SOAK else [*checks[:4], *one_each(case for case in recovering if case not in checks)]
    return [*once(server, alike=False), *some]


def _held(server: bool) -> list[Case]:
    return [case for case in _cases(server) if not server and case.point in HOLDING]


def _followed(server: bool) -> list[Case]:
    return [case for case in _cases(server) if server or case.point not in HOLDING]


@pytest.mark.parametrize("pipeline", ["sales", "drawn"])
def test_a_process_that_wakes_up_after_another_has_finished_its_run_changes_nothing(
    sweep: Sweep, pipeline: str
) -> None:
    sweep.each((case for case in _followed(sweep.on_a_server) if case.pipeline == pipeline), _follow)


def _follow(trial: Trial) -> None:
    """Freeze one process, let another finish, wake up the first."""
    old = _frozen(trial)
    trial.look()
    start = time.monotonic()
    trial.where.finish(trial.nursery)
    assert time.monotonic() - start < LONGEST_WAIT, "the frozen process held up the one that took over"
    sinks, log = trial.judge(), trial.where.rows()
    ending = old.thaw()
    refused = any(words in ending.error for words in ("StaleWriter", "another process took over the run", "RoleLost"))
    assert refused or (ending.code == 0 and trial.case.point in DONE), f"it was not refused: {ending}"
    assert trial.judge() == sinks, "the sinks have changed"
    left = trial.where.rows()
    if not trial.case.collects:
        assert left == log, "the log has changed"
        return
    # Garbage collection is not fenced, for it takes away only what everybody is done with.
    gone = {table: set(rows) - set(left[table]) for table, rows in log.items()}
    assert all(set(left[table]) <= set(rows) for table, rows in log.items()), "the log has grown"
    assert {row[1] for row in gone["EVENT_LOG"]} <= {"done"}, "something that is not done was collected"
    assert trial.nursery.run(trial.where.job()).code == FINAL


def _frozen(trial: Trial) -> Child:
    """Run until the last fault of the case freezes the process; those before it are crashes."""
    *before, last = trial.case.faults
    for fault in before:
        assert trial.nursery.run(trial.where.job(f"{fault}:kill")).fired == (mark_of(fault),)
    collect_every = 0.01 if trial.case.collects else None
    old = trial.nursery.start(trial.where.job(f"{last}:freeze", collect_every=collect_every))
    old.freeze()
    assert old.fired() == (mark_of(last),)
    return old


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
@pytest.mark.parametrize("pipeline", ["sales", "drawn"])
def test_a_process_frozen_with_the_lock_of_a_sqlite_file_is_named_by_the_one_that_waits_for_it(
    sweep: Sweep, pipeline: str
) -> None:
    sweep.each((case for case in _held(sweep.on_a_server) if case.pipeline == pipeline), _wait_in_vain)


def _wait_in_vain(trial: Trial) -> None:
    """Nobody can break the lock of a live process: the second one waits as long as it may, and says why it stops."""
    old = _frozen(trial)
    waited = trial.nursery.run(trial.where.job(busy=0.3))
    assert waited.code == 1, f"it did not stop: {waited}"
    if trial.case.point == "inside-commit":
        assert "StoreFailed" in waited.error
        assert "is held by another process; end that process, or use another --log" in waited.error
        # Nothing was taken over, so the run is still the first one's.
        assert old.thaw().code == 0
    else:
        assert "SinkFailed" in waited.error
        assert "database is locked; let the process that holds the database's lock finish" in waited.error
        # The log has another writer since; what is in the sink's transaction already was logged before, and is right.
        assert "StaleWriter" in old.thaw().error
        trial.where.finish(trial.nursery)
    trial.judge()


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_process_that_wakes_up_in_time_is_followed_by_the_one_that_waits_for_its_lock(sweep: Sweep) -> None:
    points = {case.point: case for case in _held(sweep.on_a_server)}
    sweep.each(points.values(), _wait)


def _wait(trial: Trial) -> None:
    old = _frozen(trial)
    new = trial.nursery.start(trial.where.job())
    time.sleep(1)
    ended = old.thaw()
    assert "StaleWriter" in ended.error or ended.code == 0, f"it was not refused: {ended}"
    assert (ending := new.end()).finished, f"it did not finish: {ending}"
    trial.judge()


@pytest.mark.parametrize("server", [False, True], ids=["sqlite", "postgres"])
def test_a_process_is_frozen_at_every_point_of_a_recovery(server: bool) -> None:
    frozen = [*_followed(server), *_held(server)]
    recovery = {case.point for case in twice("freeze", server)}
    assert {case.point for case in frozen if len(case.faults) == 2} == recovery


@pytest.mark.parametrize("server", [False, True], ids=["sqlite", "postgres"])
def test_a_process_is_frozen_at_every_crash_point_in_some_case(server: bool) -> None:
    assert uncovered([*_followed(server), *_held(server)]) == []
    assert bool(_held(server)) is not server
