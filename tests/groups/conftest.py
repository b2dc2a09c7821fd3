"""A database of its own for each run, on a server that may be stopped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.groups.runs import Apart


@pytest.fixture
def apart(tmp_path: Path, postgres_url: str) -> Iterator[Apart]:
    """A run of the diamond, not yet started."""
    run = Apart(tmp_path, postgres_url)
    yield run
    run.close()
