"""One Spark session for the whole tree: a session costs seconds, a job milliseconds.

Only one SparkContext may exist in a process, so whatever needs another kind of session, or kills one, runs in a
process of its own (`scripts/`).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from clew.spark.session import make_session


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """A session with two cores that tries a failed task again, as Clew's own do."""
    session = make_session("local[2,4]")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs and Java stacks go where the test's other files are."""
    monkeypatch.chdir(tmp_path)
