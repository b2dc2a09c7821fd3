"""The power fails, and what was not synced is gone: acknowledged work is not."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

import pytest

from tests.figures import CAUGHT, FIRED, PLANTED, SCHEDULED, tally
from tests.storage import strace
from tests.storage.launcher import LOG, MAIN, Launcher
from tests.storage.place import BOTH, FILES, HASTY, TABLE, WINDOWS, Place, Scene
from tests.storage.planted import BUGS
from tests.storage.power import Disk, Left, Told, Tree, record, restore
from tests.storage.strace import WRITES, Call
from tests.storage.syscalls import LIMIT, SOAK, Undisturbed, spread

SCENES = (FILES, TABLE, WINDOWS) if SOAK else (BOTH,)
PARTS = 24 if SOAK else 1

Watch = Callable[[Scene], Undisturbed]
#: Yields per case what is wrong after it, or nothing.
Search = Callable[[Undisturbed, Place, Launcher], Iterator[str]]

pytestmark = pytest.mark.timeout(LIMIT)
sweep = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.name))
parts = pytest.mark.parametrize("part", range(PARTS))


def _recorded(place: Place, launcher: Launcher, *options: str) -> list[Told]:
    ending, calls = record(launcher, place.job(MAIN), place.home.with_suffix(".strace"), *options)
    assert ending.code in (0, 1, 3), ending
    return calls


def _wrong(expected: Undisturbed, place: Place, launcher: Launcher, tree: Tree, when: object) -> str:
    """Say what is wrong when the run is resumed from this, if anything is."""
    restore(place.home, tree)
    try:
        expected.judge(place, launcher)
    except AssertionError as error:
        return f"the power fails after {when}: {error}"
    return ""


def _cut(left: Left, part: int = 0) -> Search:
    """The power fails in the middle of a run."""

    def search(expected: Undisturbed, place: Place, launcher: Launcher) -> Iterator[str]:
        disk = Disk(place.home)
        cuts = [(call, disk.left(left)) for call in disk.follow(_recorded(place, launcher))]
        assert disk.left("all") == _tree(place.home), "the model of the disk is not what the disk is"
        # Most calls change nothing that would be left.
        telling = [after for before, after in pairwise(cuts) if after[1] != before[1]]
        for call, tree in (telling if SOAK else spread(telling, 25))[part::PARTS]:
            yield _wrong(expected, place, launcher, tree, call)

    return search


def _tree(home: Path) -> Tree:
    return {str(path.relative_to(home)): None if path.is_dir() else path.read_bytes() for path in home.rglob("*")}


def _killed_and_cut(choose: Callable[[list[Told]], Sequence[Told]]) -> Search:
    """A run is killed, and resumed to its end; then the power fails."""

    def search(expected: Undisturbed, place: Place, launcher: Launcher) -> Iterator[str]:
        first = Disk(place.home)
        calls = _recorded(place, launcher)
        chosen = choose(list(deepcopy(first).follow(calls)))
        for call in first.follow(calls):
            if any(call is one for one in chosen):
                disk = deepcopy(first)
                restore(place.home, disk.left("all"))
                for _ in disk.follow(_recorded(place, launcher)):
                    pass
                yield _wrong(expected, place, launcher, disk.left("synced"), f"the end; it was killed after {call}")

    return search


def _telling(calls: list[Told], most: int, others: int) -> Sequence[Told]:
    """Choose calls: so many of those by which something comes to count, before that is synced, and so many others."""
    names = _names(calls)
    return [*spread(names, most), *spread([call for call in calls if call not in names], others)]


def _names(calls: list[Told]) -> list[Told]:
    return [call for call in calls if call.name in ("rename", "unlink")]


def _failed_and_cut(expected: Undisturbed, place: Place, launcher: Launcher) -> Iterator[str]:
    """A sync of the log fails, once, and pages are lost that look clean; then the power fails."""
    syncs = _of_the_log(strace.record(launcher, place.job(MAIN), place.home))
    for sync in syncs if SOAK else _to_fail(syncs):
        place.remove()
        place = place.scene.at(place.home, place.planted)
        disk = Disk(place.home)
        tally(SCHEDULED)
        fault = ("-e", f"inject=fdatasync:error=EIO:when={sync.nth}")
        ending, calls = record(launcher, place.job(MAIN), place.home.with_suffix(".strace"), *fault)
        cuts = [
            (call, disk.left("synced"), disk.left("all")) for call in disk.follow(calls) if call.name == "fdatasync"
        ]
        failed = [call.failed for call, *_ in cuts]
        assert sum(failed) == 1, "the fault did not fire"
        tally(FIRED)
        at = failed.index(True)
        for call, tree, kernels in spread(cuts[at + 1 :], 10 if SOAK else 3):
            # A run that stops acknowledges nothing more; one that goes on has acknowledged what it has synced.
            acknowledged = cuts[at - 1][2] if ending.code else kernels
            if not _logged(place, acknowledged) <= _logged(place, tree):
                yield f"the power fails after {call}, and the log has lost what it acknowledged; {sync} has failed"
            yield _wrong(expected, place, launcher, tree, f"{call}; {sync} has failed")


def _logged(place: Place, tree: Tree) -> set[tuple[object, ...]]:
    """Return the events of the log that is in a tree."""
    restore(place.home, tree)
    with closing(sqlite3.connect(place.home / "log" / "log.db")) as connection:
        return set(connection.execute("SELECT send_op, send_p, event_id, rec_op FROM EVENT_LOG"))


def _of_the_log(calls: Sequence[Call]) -> dict[Call, str]:
    """Return the syncs that the log's thread alone makes so many of, and what kind of sync each is.

    Strace counts the calls of each thread apart.
    """
    others = max(call.nth for call in calls if call.name == "fdatasync" and call.thread != LOG)
    own = [call for call in calls if call.thread == LOG]
    found = {}
    for before, call, after in zip(own, own[1:], own[2:]):
        if call.name == "fdatasync" and call.nth > others and call.path.endswith("-wal"):
            checkpoint = "checkpoint" if after.path == "log/log.db" else ""
            found[call] = f"{checkpoint} {'of what is new' if before.name in WRITES else ''}"
    return found


def _to_fail(syncs: dict[Call, str]) -> list[Call]:
    """Choose some syncs of each kind; when that of a checkpoint fails, SQLite tells nobody."""
    by_kind: dict[str, list[Call]] = {}
    for sync, kind in syncs.items():
        by_kind.setdefault(kind, []).append(sync)
    return [sync for kind in sorted(by_kind, reverse=True) for sync in spread(by_kind[kind], 3)]


@parts
@pytest.mark.parametrize("left", ["synced", "names"])
@sweep
def test_after_a_power_failure_a_run_leaves_what_an_undisturbed_one_leaves(
    scene: Scene, left: Left, part: int, undisturbed: Watch, launcher: Launcher, home: Path
) -> None:
    assert list(filter(None, _cut(left, part)(undisturbed(scene), scene.at(home / "run"), launcher))) == []


@parts
@sweep
def test_what_a_killed_run_left_unsynced_is_as_safe_as_what_the_resumed_one_writes(
    scene: Scene, part: int, undisturbed: Watch, launcher: Launcher, home: Path
) -> None:
    search = _killed_and_cut(
        lambda calls: _telling(calls, 10_000, 100)[part::PARTS] if SOAK else _telling(calls, 10, 4)
    )
    assert list(filter(None, search(undisturbed(scene), scene.at(home / "run"), launcher))) == []


def test_scenario_10_what_follows_a_sync_that_failed_does_not_rest_on_it(
    undisturbed: Watch, launcher: Launcher, home: Path
) -> None:
    assert list(filter(None, _failed_and_cut(undisturbed(HASTY), HASTY.at(home / "run"), launcher))) == []


#: Which search finds a planted bug, where it is not the power failure in the middle of a run. What is found to be there
#: matters most at the end: until then a later sync of the same directory comes to its help.
FOUND_BY: dict[str, tuple[Scene, Search]] = {
    "a file that is found counts, synced or not": (FILES, _killed_and_cut(lambda calls: _names(calls)[-4:])),
    "a row that is found counts, synced or not": (TABLE, _killed_and_cut(lambda calls: _names(calls)[-4:])),
    "a checkpoint syncs what no commit has synced": (HASTY, _failed_and_cut),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, undisturbed: Watch, launcher: Launcher, home: Path) -> None:
    scene, search = FOUND_BY.get(bug, (BOTH, _cut("synced")))
    for wrong in search(undisturbed(scene), scene.at(home / "run", bug), launcher):
        tally(PLANTED, bug)
        if wrong:
            tally(CAUGHT, bug)
            return
    pytest.fail(f"nobody notices that {bug}")
