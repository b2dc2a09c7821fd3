"""What only `make soak` does in full: CLEW_SOAK chooses."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

SOAK = bool(os.environ.get("CLEW_SOAK"))
ROOT = Path(__file__).resolve().parent.parent


class Kept:
    """What a long session has shown so far, in a directory: the tests that passed, and what all tests have counted.

    It holds for one state of the code: the directory has the name of what all files of code and tests contain.
    """

    def __init__(self, directory: str) -> None:
        # Absolute: tests, and processes that they start, work in directories of their own and count all the same.
        self._directory = Path(directory).resolve() / _fingerprint()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._passed = self._directory / "passed"
        self.figures = self._directory / "figures"
        self.figures.mkdir(exist_ok=True)

    def forget_others(self) -> None:
        """Forget what tests have counted that did not pass, or were interrupted: they are made again."""
        passed = {"", *self.passed()}
        for file in self.figures.iterdir():
            lines = file.read_text().splitlines(keepends=True)
            file.write_text("".join(line for line in lines if passed.issuperset(json.loads(line)[2:])))

    def passed(self) -> set[str]:
        return set(self._passed.read_text().splitlines()) if self._passed.exists() else set()

    def keep(self, test: str) -> None:
        with open(self._passed, "a") as out:
            out.write(f"{test}\n")


def _fingerprint() -> str:
    """Name the state of the code; what is not Python, such as a template, counts too."""
    found = hashlib.sha256()
    for path in sorted(path for tree in ("clew", "tests", "pyspark_clew") for path in (ROOT / tree).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def every(step: int, cases: Sequence[Any]) -> list[Any]:
    """Return all cases as parameters, of which `make test` takes every so manieth."""
    return [
        case if index % step == 0 else pytest.param(case, marks=pytest.mark.soak) for index, case in enumerate(cases)
    ]
