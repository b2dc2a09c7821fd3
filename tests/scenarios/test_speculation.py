"""Scenario 5 on a real cluster: Spark makes two attempts of one task, and both come to their end."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.scenarios.scripts.speculation import EVENTS, SLOW, WAITS
from tests.spark.outside import held, rows

SCRIPT = Path(__file__).parent / "scripts" / "speculation.py"


@pytest.mark.timeout(600)
def test_scenario_5_of_two_attempts_that_speculation_made_one_counts(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if "WARN" not in line)[:6000]
    assert json.loads(done.stdout.strip().splitlines()[-1]) == dict.fromkeys(WAITS, 2), "both attempts were to finish"
    written = held(tmp_path / "sink.db", "SELECT n, part, token FROM drawn")
    assert written == Counter((row["n"], row["part"], row["token"]) for row in rows(tmp_path / "files"))
    assert Counter((n, part) for n, part, _ in written.elements()) == Counter(
        (n, part) for n in range(EVENTS) for part in (1, 2)
    )
    assert len({token for _, _, token in written}) == EVENTS, "a mix of two computations"
    assert len({token for n, _, token in written if n == SLOW}) == 1
