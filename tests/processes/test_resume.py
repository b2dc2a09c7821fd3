"""What a second run makes of the first one's log."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.nursery import FINAL, PIPELINES, ROOT, Nursery
from tests.processes.place import Place, place


@pytest.fixture
def where(directory: Path) -> Iterator[Place]:
    with place("sales", directory, None) as made:
        yield made


def test_facts_are_computed_anew_when_the_declaration_of_a_window_changed(
    where: Place, nursery: Nursery, directory: Path
) -> None:
    """The events wait with facts for windows of one hour; the second run wants windows of two."""
    ending = nursery.run(where.job("before-running@hourly:sleep=20", "after-end@paid:kill"))
    assert ending.killed
    assert ending.fired == ("before-running@hourly", "after-end@paid")
    where.finish(nursery, WINDOW="2 hours")
    with place("sales", directory, None) as fresh:
        fresh.finish(nursery, WINDOW="2 hours")
        assert where.table("hourly") == fresh.table("hourly")
    with place("sales", directory, None) as other:
        other.finish(nursery)
        assert where.table("hourly") != other.table("hourly")


def test_a_finished_log_is_final_for_every_later_process(where: Place, nursery: Nursery) -> None:
    assert where.finish(nursery).code == 0
    held = where.table("totals")
    assert where.finish(nursery).code == FINAL
    assert where.table("totals") == held


def test_windows_are_flushed_once_when_the_crash_falls_between_the_last_event_and_the_flush(
    where: Place, nursery: Nursery, directory: Path
) -> None:
    """Killed before the flush, after it, and once more before it in the recovered run."""
    for fault in ("before-flush@totals:kill", "before-flush@totals:kill", "after-end@totals:kill"):
        assert nursery.run(where.job(fault)).killed
    where.finish(nursery)
    with place("sales", directory, None) as fresh:
        fresh.finish(nursery)
        assert where.table("totals") == fresh.table("totals")
        assert where.table("hourly") == fresh.table("hourly")


DRIVER = """
import sys
from clew.pipeline.load import load
from clew.run import run
run(load(sys.argv[1]), log=sys.argv[2], engine="inline")
"""


def test_a_fault_in_the_environment_kills_a_process_that_knows_nothing_of_it(
    where: Place, nursery: Nursery, directory: Path
) -> None:
    mark = directory / "fired"
    env = {
        **os.environ, **where.job().env, "PYTHONPATH": str(ROOT), "CLEW_FAULTS_FIRED": str(mark),
        "CLEW_FAULTS": "after-commit@totals#2:kill",
    }  # fmt: skip
    command = [sys.executable, "-c", DRIVER, str(PIPELINES / "sales.py"), where.log]
    died = subprocess.run(command, env=env, cwd=directory, capture_output=True, text=True, timeout=60)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert mark.read_text() == "after-commit@totals\n"
    del env["CLEW_FAULTS"]
    ended = subprocess.run(command, env=env, cwd=directory, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    with place("sales", directory, None) as fresh:
        fresh.finish(nursery)
        assert where.table("totals") == fresh.table("totals")
        assert where.files("paid") == fresh.files("paid")
