"""A run is killed at any system call that changes something on a disk, and resumed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.figures import CALLS, CALLS_PLANNED, tally
from tests.storage import strace
from tests.storage.launcher import GROUP, LOG, MAIN, Launcher
from tests.storage.place import BOTH, JOINED, WINDOWS, Scene
from tests.storage.strace import Call
from tests.storage.syscalls import LIMIT, SOAK, Undisturbed, each, kill, snapshot, spread

#: How many calls are tried; with all the time in the world, all of three pipelines.
KILLS = 100
KILLS_IN_RECOVERY = 20
SCENES = (BOTH, WINDOWS, JOINED) if SOAK else (BOTH,)
#: Into how many tests they are cut, so that several processes can share them.
PARTS = 24 if SOAK else 4

pytestmark = pytest.mark.timeout(LIMIT)

Watch = Callable[[Scene], Undisturbed]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.name))
def test_killed_at_any_call_a_run_leaves_what_an_undisturbed_one_leaves(
    scene: Scene, part: int, undisturbed: Watch, launcher: Launcher, home: Path
) -> None:
    expected = undisturbed(scene)
    calls = list(expected.calls) if SOAK else spread(expected.calls, KILLS)
    if part == 0:
        # Once for all parts, so that one that is not run is missed.
        tally(CALLS_PLANNED, scene.name, len(calls))

    def check(call: Call) -> None:
        place = scene.at(home / "killed")
        try:
            kill(place, launcher, call)
            expected.judge(place, launcher)
            tally(CALLS, scene.name)
        finally:
            place.remove()

    each(calls[part::PARTS], check)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.name))
def test_scenario_14_killed_again_while_it_recovers(
    scene: Scene, undisturbed: Watch, launcher: Launcher, home: Path
) -> None:
    """It is killed in the middle, and then at the calls that its resumption makes until it works again and after."""
    expected = undisturbed(scene)
    place = scene.at(home / "killed")
    kill(place, launcher, expected.calls[len(expected.calls) // 2])
    restore = snapshot(place)
    calls = strace.record(launcher, place.job(MAIN), place.home)

    def check(call: Call) -> None:
        restore()
        kill(place, launcher, call)
        expected.judge(place, launcher)

    each(spread(calls, 200 if SOAK else KILLS_IN_RECOVERY), check)


def test_three_pipelines_have_no_declaration_in_common(undisturbed: Watch, launcher: Launcher, home: Path) -> None:
    """The sweep in full is over all of them; here the one that has no other test is killed a few times."""
    assert len({scene.pipeline for scene in (BOTH, WINDOWS, JOINED)}) == 3
    expected = undisturbed(JOINED)

    def check(call: Call) -> None:
        place = JOINED.at(home / "killed")
        try:
            kill(place, launcher, call)
            expected.judge(place, launcher)
        finally:
            place.remove()

    each(spread(expected.calls, 5), check)


def test_an_undisturbed_run_does_all_that_is_to_be_disturbed(undisturbed: Watch) -> None:
    """Every thread and every kind of call is there, on the log, the bodies and the sinks."""
    calls = undisturbed(BOTH).calls
    done = {(call.thread, call.name, call.path.partition("/")[0]) for call in calls}
    log = {(LOG, "pwrite64", "log"), (LOG, "fdatasync", "log"), (MAIN, "mkdir", "log"), (MAIN, "fsync", "log")}
    bodies = {(GROUP, name, "bodies") for name in ("mkdir", "write", "fsync")}
    files = {(GROUP, name, "files") for name in ("mkdir", "write", "fsync", "rename")}
    table = {(GROUP, name, "table") for name in ("pwrite64", "fdatasync", "unlink")}
    assert (log | bodies | files | table) - done == set()
    # The log is copied from its write-ahead log into its file while the run goes on.
    assert any(call.thread == LOG and call.path == "log/log.db" for call in calls)
