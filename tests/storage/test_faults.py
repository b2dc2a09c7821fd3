"""Disks that fail, and disks that are full.

Whatever call fails, a run either comes to its end in spite of it or stops with an error that says what is wrong; and
when it is resumed on a disk that works, its sinks hold what an undisturbed run leaves.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.figures import lacking
from tests.storage import strace
from tests.storage.launcher import GROUP, LOG, MAIN, Ending, Launcher
from tests.storage.place import BOTH, FILES, TABLE, WINDOWS, Place, Scene, differences
from tests.storage.strace import NAMES, SIZES, SYNCS, WRITES, Call
from tests.storage.syscalls import LIMIT, SOAK, Undisturbed, each, fail, kill, kinds, spread

SCENES = (FILES, TABLE, WINDOWS) if SOAK else (BOTH,)
#: How many calls of each kind fail, one in each run; with all the time in the world, all.
OF_A_KIND = 100_000 if SOAK else 3
#: How many, where one tells nearly all: of a thousand writes to one file each is the first to fail for ever.
SOME_OF_A_KIND = 40 if SOAK else 1
PARTS = 24 if SOAK else 2

#: What needs room.
GROWING = (*WRITES, "mkdir")

Watch = Callable[[Scene], Undisturbed]
Check = Callable[["Case"], tuple[Ending, list[Call]]]

pytestmark = pytest.mark.timeout(LIMIT)
sweep = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.name))
parts = pytest.mark.parametrize("part", range(PARTS))


@dataclass(frozen=True)
class Case:
    """One call that fails, or the first of those that fail."""

    call: Call
    error: str
    ever: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.call} fails with {self.error}{', and all after it' if self.ever else ''}"


def _survives(expected: Undisturbed, launcher: Launcher, home: Path) -> Check:
    """Returns what runs a case and judges it; it returns how the disturbed run ended, and the calls it made."""

    def check(case: Case) -> tuple[Ending, list[Call]]:
        place = expected.scene.at(home / "disturbed")
        try:
            ending, calls = fail(place, launcher, expected.before(case.call), case.call, case.error, case.ever)
            judge(expected, place, launcher, ending)
            return ending, calls
        finally:
            place.remove()

    return check


def judge(expected: Undisturbed, place: Place, launcher: Launcher, ending: Ending) -> None:
    """Hold a disturbed run against an undisturbed one: as it ended, and when it is resumed."""
    if ending.code == 0:
        wrong = differences(place.held(), expected.held)
        assert not wrong, f"it said that it had finished, but {wrong}"
    else:
        assert ending.explained, f"this is no clear error ({ending.code}): {ending.said}"
    expected.judge(place, launcher)


def _cases(expected: Undisturbed, names: Sequence[str], error: str, of_a_kind: int = OF_A_KIND) -> list[Case]:
    chosen = [spread(kind, of_a_kind) for kind in kinds(expected.calls) if kind[0].name in names]
    return [Case(call, error) for kind in chosen for call in kind]


@parts
@sweep
def test_scenario_11_a_disk_that_is_full_at_any_write(
    scene: Scene, part: int, undisturbed: Watch, launcher: Launcher, home: Path
) -> None:
    expected = undisturbed(scene)
    check = _survives(expected, launcher, home)
    each(_cases(expected, GROWING, "ENOSPC")[part::PARTS], check)


@parts
@sweep
def test_scenario_11_a_disk_that_is_full_from_any_write_on(
    scene: Scene, part: int, undisturbed: Watch, launcher: Launcher, home: Path
) -> None:
    expected = undisturbed(scene)
    survives, given_up = _survives(expected, launcher, home), _giving_up(expected.calls)

    def check(case: Case) -> None:
        ending, _ = survives(Case(case.call, case.error, _made(expected, case.call, GROWING)))
        # Who opens the log also closes it, when all is done; and what Clew says of a run is not worth to stop it.
        needless = case.call.thread == MAIN or case.call.path.endswith("run.log") or case.call in given_up
        assert needless or ending.code == 1, "it needs no room"

    each(_cases(expected, GROWING, "ENOSPC", SOME_OF_A_KIND)[part::PARTS], check)


def _giving_up(calls: Sequence[Call]) -> list[Call]:
    """Return the writes by which a run that has ended gives up its role: without them it is to be had a little later.

    They are two transactions, the last ones, of a page each, which is written behind a header of its own.
    """
    return [call for call in calls if call.thread == LOG and call.path.endswith("-wal") and call.name in WRITES][-4:]


def _made(expected: Undisturbed, call: Call, names: Sequence[str]) -> tuple[str, ...]:
    """Return which of these calls the thread makes here: others are about the terminal."""
    return tuple({found.name for found in expected.calls if found.thread == call.thread}.intersection(names))


@parts
@sweep
def test_scenario_10_a_sync_that_fails_once(
    scene: Scene, part: int, undisturbed: Watch, launcher: Launcher, home: Path
) -> None:
    expected = undisturbed(scene)
    survives = _survives(expected, launcher, home)

    def check(case: Case) -> None:
        ending, calls = survives(case)
        if case.call.thread == LOG and _unsynced(calls):
            assert ending.code == 1, "it goes on with a log of which nobody knows what the disk holds"
            later = calls[[call.injected for call in calls].index(True) + 1 :]
            assert not [call for call in later if call.path.endswith("-wal")], "it writes to that log"

    each(_cases(expected, SYNCS, "EIO")[part::PARTS], check)


def _unsynced(calls: Sequence[Call]) -> bool:
    """Say whether there was something to sync when the sync of the write-ahead log failed."""
    unsynced = False
    for call in calls:
        if call.path.endswith("-wal"):
            if call.injected:
                return unsynced
            unsynced = call.name in WRITES
    return False


@parts
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "for ever"])
@sweep
def test_scenario_12_an_error_at_a_commit_point_is_never_swallowed(
    scene: Scene, lasting: bool, part: int, undisturbed: Watch, launcher: Launcher, home: Path
) -> None:
    """What fails once is done again, or the run stops; what fails for ever stops it."""
    expected = undisturbed(scene)
    survives = _survives(expected, launcher, home)

    def check(case: Case) -> None:
        ending, calls = survives(case)
        again = _successes(calls, case.call) >= _successes(expected.calls, case.call)
        assert ending.code == 1 or (again and not lasting), "the error was swallowed"

    points = kinds(_commit_points(expected.calls))
    chosen = [call for kind in points for call in spread(kind, OF_A_KIND if SOAK else 2)][part::PARTS]
    each([Case(call, "EIO", _made(expected, call, _alike(call)) if lasting else ()) for call in chosen], check)


def _alike(call: Call) -> tuple[str, ...]:
    """Return the names of calls with the same effect: a sync is a sync by either name."""
    return SYNCS if call.name in SYNCS else (call.name,)


def _commit_points(calls: Sequence[Call]) -> Iterator[Call]:
    """Yield the calls that make something count: for the log, for bodies, for files and for tables."""
    last: dict[str, Call] = {}
    for call in calls:
        before, last[call.thread] = last.get(call.thread), call
        if call.thread == LOG:
            # The sync of a commit follows its writes; that of a checkpoint has nothing left to sync.
            yes = call.name in SYNCS and call.path.endswith("-wal") and before is not None and before.name in WRITES
        elif call.path.startswith("table"):
            # The name of a journal is synced when it is made, which SQLite does not insist on, and when it is gone.
            gone = before is not None and before.name == "unlink"
            yes = call.name == "unlink" or (call.name in SYNCS and (call.path != "table" or gone))
        else:
            yes = call.thread == GROUP and call.name in (*SYNCS, "rename")
        if yes:
            yield call


def _successes(calls: Sequence[Call], like: Call) -> int:
    """Count the calls that had the effect of this one, on files of its kind."""
    made = [replace(call, name=like.name) for call in calls if call.succeeded and call.name in _alike(like)]
    return next((len(kind) for kind in kinds([like, *made]) if like in kind), 0)


@parts
@sweep
def test_scenario_12_any_other_call_that_fails(
    scene: Scene, part: int, undisturbed: Watch, launcher: Launcher, home: Path
) -> None:
    expected = undisturbed(scene)
    cases = _cases(expected, (*WRITES, *NAMES, *SIZES), "EIO", SOME_OF_A_KIND)
    each(cases[part::PARTS], _survives(expected, launcher, home))


@pytest.fixture
def small_disk(home: Path) -> Iterator[Callable[[int], Path]]:
    """Returns what gives a file system so many bytes; a directory on it is where it can be used."""
    disk = home / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("only root may mount a small file system")

    def resize(size: int) -> Path:
        subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)
        return disk / "run"

    yield resize
    subprocess.run(["umount", "-l", disk], check=True)


def test_scenario_11_a_disk_that_is_really_full_and_has_room_again(
    small_disk: Callable[[int], Path], undisturbed: Watch, launcher: Launcher
) -> None:
    """Whatever the size of the disk, the run stops when that is used up, and goes on when there is more."""
    expected, plenty = undisturbed(BOTH), 64 << 20
    place = BOTH.at(small_disk(plenty))
    place.finish(launcher)
    usage = shutil.disk_usage(place.home).used
    place.remove()

    def check(pages: int) -> None:
        place = BOTH.at(small_disk(pages * os.sysconf("SC_PAGE_SIZE")))
        try:
            ending = launcher.run(place.job())
            assert ending.code == 1, f"the disk was not full: {ending}"
            small_disk(plenty)
            judge(expected, place, launcher, ending)
        finally:
            place.remove()

    # Less than half of a page would be no disk at all.
    all_sizes = range(2, usage // os.sysconf("SC_PAGE_SIZE"))
    each(spread(all_sizes, 10_000 if SOAK else 20), check)


@pytest.fixture(scope="module")
def short_writer(_strace: None, pytestconfig: pytest.Config) -> Iterator[Launcher]:
    """Launches runs whose writes can be made short: of what is to be written only some is, as write(2) may do."""
    if shutil.which("fiu-run") is None:
        lacking(pytestconfig, "fiu-run is missing: make tools")
    running = Launcher("fiu-run", "-x", "-f", "")
    yield running
    running.close()


#: Of each write some part is done, and the rest is left to the next.
SHORT = ("posix/io/rw/pwrite/reduce", "posix/io/rw/write/reduce")


def test_short_writes_are_completed(undisturbed: Watch, short_writer: Launcher, home: Path) -> None:
    for scene in (BOTH, WINDOWS):
        place = scene.at(home / scene.name)
        calls = strace.record(short_writer, place.job(MAIN, SHORT), place.home)
        assert not differences(place.held(), undisturbed(scene).held)
        for name in ("write", "pwrite64"):
            writes = [sum(call.name == name for call in made) for made in (calls, undisturbed(scene).calls)]
            assert writes[0] > 2 * writes[1], "the writes were not short"


def test_killed_between_the_parts_of_a_short_write(undisturbed: Watch, short_writer: Launcher, home: Path) -> None:
    """Pages of the log and of a table are left torn."""
    expected, torn = undisturbed(BOTH), SHORT[:1]
    place = BOTH.at(home / "torn")
    calls = strace.record(short_writer, place.job(MAIN, torn), place.home)
    place.remove()

    def check(call: Call) -> None:
        place = BOTH.at(home / "torn")
        try:
            kill(place, short_writer, call, torn)
            expected.judge(place, short_writer)
        finally:
            place.remove()

    assert len(calls) > 2 * len(expected.calls)
    each(spread([call for call in calls if call.name in WRITES], 300 if SOAK else 16), check)
