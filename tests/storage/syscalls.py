"""A run is killed at any of its system calls, or that call fails; then it is resumed, and its sinks are read."""

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.storage import strace
from tests.storage.launcher import MAIN, Ending, Launcher
from tests.storage.place import Held, Place, Scene, differences
from tests.storage.strace import Call

#: Whether there is all the time in the world: every call of every pipeline.
SOAK = os.environ.get("CLEW_SOAK") == "1"


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

    def judge(self, place: Place, launcher: Launcher) -> None:
        """Resume the run with no fault: then the sinks hold what they would hold if nothing had happened."""
        place.finish(launcher)
        wrong = differences(place.held(), self.held)
        assert not wrong, wrong


def kill(place: Place, launcher: Launcher, call: Call) -> None:
    """Kill a run as it enters a call."""
    fault = f"inject={call.name}:signal=SIGKILL:when={call.nth}"
    ending, calls = strace.run(launcher, place.job(call.thread), place.home, "-e", fault)
    assert ending.killed, f"it was to be killed: {ending}"
    assert calls[-1].what == call.what, f"it was killed at {calls[-1]}"


def fail(place: Place, launcher: Launcher, call: Call, error: str, *more: str) -> tuple[Ending, list[Call]]:
    """Let a call fail; `more` are further options of strace."""
    fault = f"inject={call.name}:error={error}:when={call.nth}"
    ending, calls = strace.run(launcher, place.job(call.thread), place.home, "-e", fault, *more)
    hit = next((found for found in calls if found.injected), None)
    assert hit is not None, f"the fault did not fire: {ending}"
    assert hit.what == call.what, f"the fault fired at {hit}"
    return ending, calls


def snapshot(place: Place) -> Callable[[], None]:
    """Remember a place as it is on the disk; returns what puts it back."""
    copy = place.home.with_suffix(".copy")
    shutil.copytree(place.home, copy)

    def restore() -> None:
        shutil.rmtree(place.home)
        shutil.copytree(copy, place.home)

    return restore


def each(cases: Iterable[Call], check: Callable[[Call], None]) -> None:
    """Check all cases; report all that fail."""
    checked, failures = 0, []
    for case in cases:
        checked += 1
        try:
            check(case)
        except AssertionError as error:
            failures.append(f"{case}: {error}")
    assert not failures, f"{len(failures)} of {checked} cases:\n" + "\n".join(failures)


def spread(calls: Sequence[Call], count: int) -> list[Call]:
    """Choose so many calls, evenly; the first and the last are among them."""
    if len(calls) <= count:
        return list(calls)
    return [calls[index * (len(calls) - 1) // (count - 1)] for index in range(count)]
