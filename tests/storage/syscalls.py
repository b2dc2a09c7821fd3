"""A run is killed at any of its system calls, or that call fails; then it is resumed, and its sinks are read."""

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.figures import FIRED, SCHEDULED, tally
from tests.storage import strace
from tests.storage.launcher import MAIN, Ending, Launcher
from tests.storage.place import Held, Place, Scene, differences
from tests.storage.strace import Call

T = TypeVar("T")

#: Whether there is all the time in the world: every call of every pipeline.
SOAK = os.environ.get("CLEW_SOAK") == "1"
#: Seconds that one test may take.
LIMIT = 3600 if SOAK else 300


@dataclass(frozen=True)
class Undisturbed:
    """What a run with no fault does, and what it leaves."""

    scene: Scene
    calls: tuple[Call, ...]
    held: Held

    @classmethod
    def watch(cls, scene: Scene, launcher: Launcher, directory: Path) -> "Undisturbed":
        place = scene.at(directory / "undisturbed")
        place.finish(launcher)
        held = place.held()
        place.remove()
        assert sorted(held) == sorted(scene.sinks)
        traced = scene.at(place.home)
        calls = strace.record(launcher, traced.job(MAIN), traced.home)
        assert not differences(traced.held(), held)
        traced.remove()
        return cls(scene, tuple(calls), held)

    def before(self, call: Call) -> Sequence[Call]:
        """Return the calls that were made before this one."""
        return self.calls[: self.calls.index(call)]

    def judge(self, place: Place, launcher: Launcher) -> None:
        """Resume the run with no fault: then the sinks hold what they would hold if nothing had happened."""
        place.finish(launcher)
        wrong = differences(place.held(), self.held)
        assert not wrong, wrong


def kill(place: Place, launcher: Launcher, call: Call, failing: tuple[str, ...] = ()) -> None:
    """Kill a run as it enters a call; `failing` are failure points that are enabled in it."""
    tally(SCHEDULED)
    fault = f"inject={call.name}:signal=SIGKILL:when={call.nth}"
    ending, calls = strace.run(launcher, place.job(call.thread, failing), place.home, "-e", fault)
    assert ending.killed, f"it was to be killed: {ending}"
    assert calls[-1].what == call.what, f"it was killed at {calls[-1]}"
    tally(FIRED)


def fail(
    place: Place, launcher: Launcher, before: Sequence[Call], call: Call, error: str, ever: Collection[str] = ()
) -> tuple[Ending, list[Call]]:
    """Let a call fail, or from it on all calls of these names in its thread; `before` are the calls of the run so far.

    Returns also all calls of that thread.
    """
    tally(SCHEDULED)
    faults = [f"inject={name}:error={error}:when={nth}" for name, nth in _first_to_fail(before, call, ever)]
    options = [word for fault in faults for word in ("-e", f"{fault}+" if ever else fault)]
    ending, calls = strace.run(launcher, place.job(call.thread), place.home, *options)
    hit = next((found for found in calls if found.injected), None)
    assert hit is not None, f"the fault did not fire: {ending}"
    assert hit.what == call.what, f"the fault fired at {hit}"
    tally(FIRED)
    return ending, calls


def _first_to_fail(before: Sequence[Call], call: Call, ever: Collection[str]) -> Iterator[tuple[str, int]]:
    """Yield per name which call is the first to fail: strace counts each name apart."""
    yield call.name, call.nth
    for name in {*ever} - {call.name}:
        yield name, 1 + max((c.nth for c in before if (c.thread, c.name) == (call.thread, name)), default=0)


def snapshot(place: Place) -> Callable[[], None]:
    """Remember a place as it is on the disk; returns what puts it back."""
    copy = place.home.with_suffix(".copy")
    shutil.copytree(place.home, copy)

    def restore() -> None:
        shutil.rmtree(place.home)
        shutil.copytree(copy, place.home)

    return restore


def each(cases: Iterable[T], check: Callable[[T], object]) -> None:
    """Check all cases; report all that fail."""
    checked, failures = 0, []
    for case in cases:
        checked += 1
        try:
            check(case)
        except AssertionError as error:
            failures.append(f"{case}: {error}")
    assert not failures, f"{len(failures)} of {checked} cases:\n" + "\n".join(failures)


def spread(calls: Sequence[T], count: int) -> list[T]:
    """Choose so many, evenly: the first and the last are among them, or one from the middle."""
    if len(calls) <= count:
        return list(calls)
    if count == 1:
        return [calls[len(calls) // 2]]
    return [calls[index * (len(calls) - 1) // (count - 1)] for index in range(count)]


def kinds(calls: Iterable[Call]) -> list[list[Call]]:
    """Put calls of one kind together: the same of a thread, on files that differ in their number alone."""
    found: dict[tuple[str, str, str], list[Call]] = {}
    for call in calls:
        found.setdefault((call.thread, call.name, re.sub(r"\d+", "#", call.path)), []).append(call)
    return list(found.values())
