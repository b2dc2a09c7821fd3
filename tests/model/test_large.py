"""Many events are verified in time linear in their number, and in memory that hardly grows with it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.model.large import WINDOW

#: How much memory a verification may take, in megabytes, however many events there are.
MOST_MEMORY = 500


def measured(what: str, directory: Path, events: int) -> dict[str, Any]:
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.model.large", what, str(directory), str(events)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def run_and_verify(directory: Path, events: int) -> dict[str, Any]:
    _show("run", measured("run", directory, events))
    return verified_on("inline", directory, events)


def verified_on(engine: str, directory: Path, events: int) -> dict[str, Any]:
    verified = measured(engine, directory, events)
    assert verified["verdict"] == "explained", verified["findings"]
    assert verified["logged"] >= events
    source = events * WINDOW // (2 * WINDOW + 1)
    assert verified["counts"]["source records"] == 2 * source
    assert verified["counts"]["sink records"] == -(-source // WINDOW)
    assert verified["counts"]["Output Sets"] == source + -(-source // WINDOW)
    assert verified["megabytes"] < MOST_MEMORY
    _show(f"verification of {verified['logged']:,} events ({engine})", verified)
    return verified


def _show(what: str, figures: dict[str, Any]) -> None:
    print(f"{what}: {figures['seconds']} s, {figures['cpu']} s of CPU, {figures['megabytes']} MB")


def test_twenty_thousand_events_are_explained(tmp_path: Path) -> None:
    run_and_verify(tmp_path / "small", 20_000)


if os.environ.get("CLEW_SOAK"):

    @pytest.mark.timeout(0)
    def test_a_million_events_are_explained_in_linear_time_and_bounded_memory(tmp_path: Path) -> None:
        few = run_and_verify(tmp_path / "few", 100_000)
        many = run_and_verify(tmp_path / "many", 1_000_000)
        verified_on("spark", tmp_path / "many", 1_000_000)
        assert many["cpu"] < 2 * 10 * few["cpu"]
        assert many["megabytes"] < 2 * few["megabytes"]
