"""Figures that tests add up over all their processes, and the table that `make test` and `make soak` end with."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from clew.faultpoint import POINTS
from tests.messages import MESSAGE, Site, note, sites

SCENARIOS = 18
#: How many pipelines the sweep over system calls is to be of.
PIPELINES = 3

#: What tests count; a name with a colon is one of several, each counted for itself.
SCHEDULES = "simulated schedules"
SEVERAL = "simulated schedules with two faults or more"
UNDECIDED = "simulated schedules that could not be decided"
SCHEDULED = "faults scheduled"
FIRED = "faults fired"
POINT = "crash point hit and recovered"
POINT_IN_RECOVERY = "crash point hit again during recovery"
CALLS = "system-call killed at"
CALLS_PLANNED = "system-call to be killed at"
PLANTED = "canary planted"
CAUGHT = "canary caught"
FOUND_BY = "canary found by"
SCENARIO = "scenario"


def tally(figure: str, of: str = "", by: int = 1) -> None:
    """Add to a figure of the table, or to one of those that it is made of; the test that does so is noted."""
    if by:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        note([f"{figure}: {of}" if of else figure, by, test])


def total(place: str) -> Counter[str]:
    """Add everything up."""
    figures: Counter[str] = Counter()
    for file in Path(place).iterdir():
        for line in file.read_text().splitlines():
            figure, by, *_ = json.loads(line)
            figures[figure] += by
    return figures


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    figure: str
    seen: str
    wanted: str
    reached: bool


def lacking(config: pytest.Config, what: str) -> NoReturn:
    """Skip a test for want of a tool; where figures are asked for, fail it: they would be those of fewer tests."""
    (pytest.fail if config.getoption("--figures") else pytest.skip)(what)


def table(figures: Counter[str], soak: bool, failed: int) -> Iterator[Line]:
    """Yield the lines of the table, with what was wanted of each; `failed` tests have found something."""
    schedules = 200_000 if soak else 3_000
    points = len(POINTS)
    yield _least("simulated schedules", figures[SCHEDULES], schedules)
    yield _least("  half of them with two faults or more", figures[SEVERAL], schedules // 2)
    yield _undecided(figures)
    yield _all("crash points hit and recovered, of those listed", _distinct(figures, POINT), points)
    yield _all("  and again during recovery", _distinct(figures, POINT_IN_RECOVERY), points)
    yield _calls(figures, soak)
    yield _all("scheduled faults that really fired", figures[FIRED], figures[SCHEDULED])
    yield _outputs(figures, failed)
    yield _all("canaries caught", _distinct(figures, CAUGHT), _distinct(figures, PLANTED))
    yield _all("scenarios", _distinct(figures, SCENARIO), SCENARIOS)
    yield _all("error messages produced", len(sites()) - len(silent(figures)), len(sites()))


def silent(figures: Counter[str]) -> list[Site]:
    """Return the error messages that no test has produced."""
    return [site for site in sites() if not figures[f"{MESSAGE}: {site.name}"]]


def _outputs(figures: Counter[str], failed: int) -> Line:
    """A test that finds an output lost, or too much, fails: so there is none where faults fired and no test failed."""
    none = "0 / 0 / 0 / 0"
    seen = f"unknown, {failed} failed" if failed else none if figures[FIRED] else "nothing judged"
    return Line("outputs lost / duplicated / reordered / retracted", seen, none, seen == none)


def _undecided(figures: Counter[str]) -> Line:
    """Where lineage is not captured the checker cannot decide on everything: that is to be so of few schedules."""
    seen, run = figures[UNDECIDED], figures[SCHEDULES]
    return Line("  undecided of an operator without lineage", f"{seen:,}", "at most a quarter of them", 4 * seen <= run)


def _calls(figures: Counter[str], soak: bool) -> Line:
    planned = {name: by for name, by in figures.items() if name.startswith(f"{CALLS_PLANNED}: ")}
    seen, wanted = sum(by for name, by in figures.items() if name.startswith(f"{CALLS}: ")), sum(planned.values())
    if not soak:
        return _least("system-call kill points", seen, 100)
    reached = 0 < wanted == seen and len(planned) == PIPELINES
    return Line("system-call kill points", f"{seen:,} of {wanted:,}", "every write and fsync of 3 pipelines", reached)


def _least(figure: str, seen: int, wanted: int) -> Line:
    return Line(figure, f"{seen:,}", f"{wanted:,}", seen >= wanted)


def _all(figure: str, seen: int, wanted: int) -> Line:
    return Line(figure, f"{seen:,} of {wanted:,}", "all", 0 < wanted == seen)


def _distinct(figures: Counter[str], figure: str) -> int:
    return sum(1 for name in figures if name.startswith(f"{figure}: "))


def _by(figures: Counter[str], canary: str) -> str:
    """Say who has found a canary, and how often."""
    found = {name.rpartition(", ")[2]: by for name, by in figures.items() if name.startswith(f"{FOUND_BY}: {canary}, ")}
    return "".join(f", {times} by {finder}" for finder, times in sorted(found.items()))


def write(figures: Counter[str], soak: bool, failed: int, say: Callable[[str], None]) -> None:
    """Write the table, how often and by whom each canary was caught, and the error messages that nobody produced."""
    lines = list(table(figures, soak, failed))
    width = max(len(line.figure) for line in lines)
    for line in lines:
        say(f"{line.figure:<{width}}  {line.seen:>15}  wanted {line.wanted}{'' if line.reached else '  NOT REACHED'}")
    for name in sorted(name for name in figures if name.startswith(f"{CAUGHT}: ")):
        canary = name.partition(": ")[2]
        schedules = f"{figures[name]} of {figures[f'{PLANTED}: {canary}']} schedules"
        say(f"  {canary}: found in {schedules}{_by(figures, canary)}")
    for site in silent(figures):
        say(f"  not produced: {site.name}  {site.text[:100]}")
