"""What only `make soak` does in full: CLEW_SOAK chooses."""

import os
from collections.abc import Sequence
from typing import Any

import pytest

SOAK = bool(os.environ.get("CLEW_SOAK"))


def every(step: int, cases: Sequence[Any]) -> list[Any]:
    """Return all cases as parameters, of which `make test` takes every so manieth."""
    return [
        case if index % step == 0 else pytest.param(case, marks=pytest.mark.soak) for index, case in enumerate(cases)
    ]
