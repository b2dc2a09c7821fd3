"""Scenario 6: a process is frozen at a crash point, another takes over and goes on, and the first one wakes up."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from clew import faultpoint
from clew.errors import StaleWriter
from clew.faultpoint import arm
from clew.run import topology
from clew.runtime.writes import time as waiting
from tests.simulation.journal import Journal
from tests.simulation.outside import World
from tests.simulation.pipelines import SCENES, Scene
from tests.simulation.process import Process

#: Frozen inside a transaction, a process holds the log's lock; nobody can go on before it.
FENCED = ("after-gather", "after-assign", "after-generate", "after-commit", "after-wake", "before-write",
          "sink-before-rename", "sink-after-commit", "after-write", "after-write-done", "before-flush", "after-end",
          "before-action-logged", "after-action-logged", "after-effect-stored", "after-action-complete",
          "after-source-read", "after-source-commit", "before-effect-dropped", "after-take-over", "after-resend",
          "after-source-restore", "after-restore", "after-recovered-input", "before-running")  # fmt: skip
#: Sinks that are only checkable are not fenced, and the contract says so; these scenes have none.
SCENARIOS = [SCENES["linear"], SCENES["posted"]]


class Frozen:
    """A run in which one process is frozen at a point, another one finishes the work, and the first wakes up."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World()
        self.graph = scene.declare(self.world)
        self.log = Journal()
        self.log.declare(topology(self.graph))
        self.refused: list[StaleWriter] = []
        monkeypatch.setattr(faultpoint, "time", SimpleNamespace(sleep=self._take_over))
        monkeypatch.setattr(waiting, "sleep", lambda seconds: None)

    def freeze(self, fault: str) -> bool:
        """Run, frozen at `fault`; say whether the point was reached."""
        (armed,) = arm(f"{fault}:sleep=1")
        self.held: dict[str, list[tuple[object, ...]]] = {}
        try:
            Process(self.graph, self.log).run()
        except StaleWriter as error:
            self.refused.append(error)
        finally:
            arm()
        return armed.fired

    def _take_over(self, seconds: float) -> None:
        """Called in the middle of the frozen process's step: it goes on when this returns."""
        arm()
        Process(self.graph, self.log).run()
        self.held = {name: list(rows) for name, rows in self.world.holdings().items()}


@pytest.mark.parametrize("scene", SCENARIOS, ids=lambda scene: scene.name)
def test_scenario_6_a_zombie_changes_nothing_wherever_it_was_frozen(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _without_failures(scene, monkeypatch)
    points = [(point, operator) for point in FENCED for operator in scene.declare(World()).operators]
    frozen_at = set()
    for point, operator in points:
        run = Frozen(scene, monkeypatch)
        if run.freeze(f"{point}@{operator}#1"):
            frozen_at.add(point)
            assert run.held == expected, f"{point}@{operator}: the successor left {run.held}"
            assert run.world.holdings() == expected, f"{point}@{operator}: the zombie changed the sinks"
            assert run.refused, f"{point}@{operator}: the zombie was not refused"
    assert len(frozen_at) > 15


def test_scenario_6_a_zombie_with_a_write_in_hand_is_refused_by_the_sink_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor has written to the sink since, so the sink knows the newer incarnation."""
    run = Frozen(SCENES["linear"], monkeypatch)
    assert run.freeze("before-write@sums_sink#1")
    assert run.refused[0].operator == "sums_sink"
    assert next(iter(run.world.markers.values()))[0] == 2


def _without_failures(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[object, ...]]]:
    run = Frozen(scene, monkeypatch)
    Process(run.graph, run.log).run()
    return run.world.holdings()


def test_without_the_fence_the_zombie_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary: if the log took every writer for the current one, these tests would fail."""
    monkeypatch.setattr(Journal, "commit", _unfenced(Journal.commit))
    run = Frozen(SCENES["linear"], monkeypatch)
    with pytest.raises(Exception, match="expected"):
        run.freeze("after-generate@sums#1")


def _unfenced(commit: Callable[..., None]) -> Callable[..., None]:
    def unfenced(log: Journal, operator: str, incarnation: int, writes: object, durable: bool = True) -> None:
        commit(log, operator, log._rows.operators[operator].incarnation, writes, durable)

    return unfenced
