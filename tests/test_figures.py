"""The table of figures says what was shown, and marks what was not."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.figures import (
    CALLS,
    CALLS_PLANNED,
    CAUGHT,
    FIRED,
    FOUND_BY,
    PLANTED,
    SCHEDULES,
    UNDECIDED,
    Line,
    lacking,
    table,
    write,
)
from tests.soak import Kept


def line(figure: str, figures: Counter[str], soak: bool = False, failed: int = 0) -> Line:
    (found,) = [line for line in table(figures, soak, failed) if line.figure.startswith(figure)]
    return found


def test_outputs_are_whole_only_where_faults_fired_and_no_test_failed() -> None:
    fired = Counter({FIRED: 5})
    assert line("outputs", fired).reached
    assert line("outputs", fired).seen == "0 / 0 / 0 / 0"
    failed = line("outputs", fired, failed=2)
    assert (failed.seen, failed.reached) == ("unknown, 2 failed", False)
    assert not line("outputs", Counter()).reached


def test_system_calls_are_counted_against_those_that_were_planned() -> None:
    planned = {f"{CALLS_PLANNED}: {name}": 40 for name in ("one", "two", "three")}
    hit = {f"{CALLS}: {name}": 40 for name in ("one", "two", "three")}
    whole = line("system-call", Counter({**planned, **hit}), soak=True)
    assert (whole.seen, whole.reached) == ("120 of 120", True)
    assert not line("system-call", Counter({**planned, **hit, f"{CALLS}: two": 39}), soak=True).reached
    two = {name: by for name, by in {**planned, **hit}.items() if not name.endswith("three")}
    assert not line("system-call", Counter(two), soak=True).reached
    assert line("system-call", Counter(hit)).reached
    assert not line("system-call", Counter({f"{CALLS}: one": 99})).reached


def test_of_most_schedules_everything_is_decided() -> None:
    assert line("  undecided", Counter({SCHEDULES: 4_000, UNDECIDED: 1_000})).reached
    assert not line("  undecided", Counter({SCHEDULES: 4_000, UNDECIDED: 1_001})).reached


def test_a_canary_is_told_with_those_who_found_it() -> None:
    counted = {f"{PLANTED}: eats": 9, f"{CAUGHT}: eats": 5, f"{PLANTED}: eats twice": 3, f"{CAUGHT}: eats twice": 1}
    by = {"eats, a guard": 3, "eats, the checker": 2, "eats twice, a guard": 1}
    found = {f"{FOUND_BY}: {who}": times for who, times in by.items()}
    said: list[str] = []
    write(Counter({**counted, **found}), False, 0, said.append)
    assert "  eats: found in 5 of 9 schedules, 3 by a guard, 2 by the checker" in said
    assert "  eats twice: found in 1 of 3 schedules, 1 by a guard" in said


def test_a_tool_that_is_missing_fails_where_figures_are_asked_for(pytestconfig: pytest.Config) -> None:
    class Asked:
        def getoption(self, name: str) -> str:
            return "test"

    with pytest.raises(pytest.fail.Exception):
        lacking(Asked(), "no tool")  # type: ignore[arg-type]


def test_make_soak_goes_on_where_it_was(tmp_path: Path) -> None:
    """Its own command, with a test of its own: a directory that is there must not be taken for one of tests."""
    (words,) = re.findall(r"pytest (.*--resume=.*)", Path("Makefile").read_text())
    kept = tmp_path / "kept"
    given = words.replace("--resume=.soak tests", f"--resume={kept} --rootdir . tests/test_trace.py").split()
    said = [_pytest(*given), _pytest(*given)]
    assert "6 passed" in said[0]
    assert "figures of make soak" in said[0]
    assert "passed" not in said[1]
    assert "no tests ran" in said[1]


def test_what_a_soak_counts_is_found_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Kept("kept").figures.is_absolute()


def test_what_was_counted_by_a_test_that_was_interrupted_is_forgotten(tmp_path: Path) -> None:
    kept = Kept(str(tmp_path))
    kept.keep("passed")
    lines = ['["faults", 1, "passed"]', '["faults", 1, "interrupted"]', '["scenario", 1, ""]', '["message", 1]']
    (kept.figures / "1").write_text("\n".join(lines))
    kept.forget_others()
    assert (kept.figures / "1").read_text().splitlines() == [lines[0], *lines[2:]]


def _pytest(*words: str) -> str:
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "CLEW"))}
    return subprocess.run([sys.executable, "-m", "pytest", *words], env=outside, capture_output=True, text=True).stdout
