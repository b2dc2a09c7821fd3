"""What `make demo` shows, run as a newcomer runs it, on a directory of the test's own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SALES = Path(__file__).parents[2] / "examples" / "sales"


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short path: Spark makes sockets in it."""
    with tempfile.TemporaryDirectory(prefix="demo-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.mark.timeout(900)
def test_the_demo_survives_a_killed_operator_and_a_killed_process(tmp_path: Path, short: Path) -> None:
    environment = {**os.environ, "SALES_DATA": str(tmp_path / "data"), "TMPDIR": str(short)}
    environment.pop("SALES_DATABASE", None)
    done = subprocess.run(
        [sys.executable, str(SALES / "demo.py")], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for sign in ("hourly was killed", "hourly was restarted", "kill -9", "resuming", "Equal to the cent"):
        assert sign in done.stdout, done.stdout
    assert "DIFFERENT" not in done.stdout
    assert list(short.iterdir()) == [], "the demonstration leaves something behind"
