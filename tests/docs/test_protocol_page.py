"""docs/protocol.md names all that the code names: crash points, invariants, algorithms, files."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.faultpoint import POINTS
from tests.docs.pages import ROOT, blocks

PAGE = (ROOT / "docs" / "protocol.md").read_text()
CODE = sorted((ROOT / "clew").rglob("*.py"))
#: A capital and a digit, as S1, where prose or an assertion names it. C1 is also a compiler of Java's.
_INVARIANT = re.compile(r"\b([A-Z][1-9])\b(?!-only)")


def named_in_code() -> dict[str, Path]:
    """Return the names of invariants in comments, docstrings and messages, with a file that has them."""
    return {name: path for path in CODE for line in _prose(path) for name in _INVARIANT.findall(line)}


def _prose(path: Path) -> Iterator[str]:
    """Yield the lines that may name an invariant: all but those that only compute."""
    for line in path.read_text().splitlines():
        if not re.match(r"\s*(from|import) ", line):
            yield line


def defined() -> list[str]:
    return re.findall(r"^\| \*\*([A-Z]\d)\*\* \|", PAGE, re.MULTILINE)


def test_every_invariant_that_the_code_names_is_defined_once() -> None:
    missing = {name: str(path.relative_to(ROOT)) for name, path in named_in_code().items() if name not in defined()}
    assert missing == {}
    assert len(defined()) == len(set(defined()))


def test_every_invariant_that_is_defined_is_named_by_the_files_it_is_bound_in() -> None:
    rows = re.findall(r"^\| \*\*([A-Z]\d)\*\* \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == len(defined())
    for name, places in rows:
        for place in re.findall(r"`([^`]+)`", places):
            text = (ROOT / "clew" / place).read_text()
            assert re.search(rf"\b{name}\b", text), f"{place} does not name {name}"


def test_every_crash_point_has_its_line_and_no_other_has() -> None:
    table = PAGE[PAGE.index("## Crash points") :]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == list(POINTS)


@pytest.mark.parametrize("number", range(1, 10))
def test_every_algorithm_has_its_function_and_file(number: int) -> None:
    rows = re.findall(rf"^\| {number},[^|]*\| `(\w+)` \| `(\w+\.py)` \|", PAGE, re.MULTILINE)
    assert rows, f"Algorithm {number} is not in the table"
    for function, file in rows:
        assert f"def {function}(" in (ROOT / "clew" / "protocol" / "log" / file).read_text()


def test_the_methods_of_the_papers_tables_are_all_mapped() -> None:
    methods = (
        "GetActionID GetStateID BeginTransaction InitializeReadAction CompleteReadAction DropReadAction LogStateEvent "
        "UpdateContext GetWriteActions CheckEvent AssignInSets Commit LogSourceEvent LogOutputEvents DoneEvent "
        "StoreState FetchAckEvents FetchResendEvent GetProcState"
    )
    assert [name for name in methods.split() if not re.search(rf"^\| `{name}` \|", PAGE, re.MULTILINE)] == []


def test_the_rooms_of_the_architecture_are_those_that_there_are() -> None:
    (shown,) = blocks(ROOT / "docs" / "architecture.md", "")
    named = set(re.findall(r"(?<=\s)(\w+\.py|\w+(?=/\s))", shown))
    there = {path.name for path in (ROOT / "clew").iterdir()} | {"log"}
    assert named <= there
    assert there - named <= {"__init__.py", "__pycache__"}, "a room is not in the picture"


def test_every_file_of_the_code_that_the_pages_name_exists() -> None:
    for page in ("protocol.md", "architecture.md", "recovery.md", "sinks.md", "sources.md"):
        text = (ROOT / "docs" / page).read_text()
        for path in re.findall(r"`((?:clew/|tests/)?\w+/[\w/]+\.py)", text):
            assert (ROOT / path).exists() or (ROOT / "clew" / path).exists() or "NAME" in path, f"{page}: {path}"
