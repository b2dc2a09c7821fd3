"""Finished runs that several files tamper with."""

from pathlib import Path

import pytest

from tests.model.pipelines import count, each
from tests.model.runs import Finished, finished


@pytest.fixture
def singles(tmp_path: Path) -> Finished:
    """Each event alone: `numbers` -> `doubled` -> table `doubled`."""
    return finished(each(tmp_path), tmp_path)


@pytest.fixture
def sevens(tmp_path: Path) -> Finished:
    """Every seven events: `numbers` -> `sums` -> table `sums`, with floats."""
    return finished(count(tmp_path), tmp_path)
