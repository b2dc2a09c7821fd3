"""docs/testing.md: the schedule that it replays is one."""

import re
from collections import Counter
from typing import Any

from tests.docs.pages import ROOT, blocks
from tests.figures import table
from tests.simulation import machine

PAGE = ROOT / "docs" / "testing.md"


def test_the_replay_runs_as_it_is_printed(monkeypatch: Any) -> None:
    (code,) = blocks(PAGE, "python")
    calls: list[Any] = []
    simulate = machine.simulate
    monkeypatch.setattr(machine, "simulate", lambda *given: calls.append((*given, simulate(*given))))
    exec(compile(code, str(PAGE), "exec"), {"__name__": "page"})
    ((scene, schedule, _),) = calls
    # The line is what a failure would say.
    assert f"simulate({scene.replay}, {schedule})" in code.replace('"', "'")


def test_the_table_has_the_figures_that_are_printed() -> None:
    (shown,) = blocks(PAGE, "")
    named = [re.split(r"\s{3,}", line)[0] for line in shown.splitlines()]
    assert named == [line.figure for line in table(Counter(), False, 0)]
