"""The tutorial: the code of each page is its file, its commands run, and they print what the page shows."""

import doctest
import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, all_blocks, blocks
from tests.terminal import KILLED, terminal

TUTORIAL = ROOT / "docs" / "tutorial"
PAGES = sorted(TUTORIAL.glob("[0-9]-*.md"))


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the commands of a page, each with what it is to print; `...` stands for anything."""
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed


def lines_of(code: str) -> list[str]:
    return [line for line in code.splitlines() if line.strip()]


def plain(text: str) -> str:
    """Return text without the spaces that tables have at the ends of lines."""
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def agrees(shown: str, printed: str) -> bool:
    """Say whether a command printed what a page shows."""
    if not shown:
        return not printed
    return doctest.OutputChecker().check_output(shown, plain(printed), doctest.ELLIPSIS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_is_its_file(page: Path) -> None:
    shown = [line for code in blocks(page, "python") for line in lines_of(code)]
    (name,) = set(re.findall(r"\]\((\w+\.py)\)", page.read_text()))
    assert shown == lines_of((TUTORIAL / name).read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    """From the first command to the last, as a reader types them; a crash is a real kill -9."""
    left_out = shutil.ignore_patterns(".clew", "out", "*.db*", "__pycache__")
    for part in ("docs/tutorial", "examples/payments"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=left_out)
    ran: list[str] = []
    with terminal(tmp_path / "docs" / "tutorial") as shell:
        for command, shown in commands(page):
            code, printed = shell.run(command)
            assert (code == KILLED) == ("CLEW_FAULTS" in command), f"{command}\n{printed}"
            assert agrees(shown, printed), f"$ {command}\nshows\n{shown}\nbut printed\n{printed}"
            ran.append(command)
    assert ran


def test_every_block_of_a_page_is_checked_here() -> None:
    assert {block.language for page in PAGES for block in all_blocks(page)} == {"python", "console", "json"}
    data = {line for file in (TUTORIAL / "data").iterdir() for line in file.read_text().splitlines()}
    for page in PAGES:
        for shown in blocks(page, "json"):
            assert set(shown.splitlines()) <= data


def test_there_are_six_steps_and_each_leads_to_the_next() -> None:
    index = (TUTORIAL / "README.md").read_text()
    assert len(PAGES) == 6
    assert re.findall(r"\]\((\d-[\w-]+\.md)\)", index) == [page.name for page in PAGES]
    for page, following in itertools.pairwise(PAGES):
        assert f"({following.name})" in page.read_text()
