"""What `make demo` shows, run as a newcomer runs it, on a directory of the test's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SALES = Path(__file__).parents[2] / "examples" / "sales"


@pytest.mark.timeout(900)
def test_the_demo_survives_a_killed_operator_and_a_killed_process(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "SALES_DATA": str(tmp_path / "data"), "TMPDIR": str(temporary)}
    environment.pop("SALES_DATABASE", None)
    done = subprocess.run(
        [sys.executable, str(SALES / "demo.py")], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for sign in ("hourly was killed", "hourly was restarted", "kill -9", "resuming", "Equal to the cent"):
        assert sign in done.stdout, done.stdout
    assert "DIFFERENT" not in done.stdout
    assert list(temporary.iterdir()) == [], "the demonstration leaves something behind"
