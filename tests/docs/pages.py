"""The project's pages, and what is in them."""

import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


@dataclass(frozen=True)
class Block:
    """A code block of a page: its language ("" where none is said), the line that it begins in, and its text."""

    page: Path
    language: str
    line: int
    text: str
    #: Why it is not run, where the page says so in the line above it.
    not_run: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def all_blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page, in order."""
    found, before = [], ""
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    for number, line in lines:
        if line.startswith("```"):
            inner = takewhile(lambda numbered: numbered[1] != "```", lines)
            text = "".join(f"{content}\n" for _, content in inner)
            found.append(Block(page, line[3:].strip(), number, text, before))
        if line:
            marked = re.fullmatch(r"\*Not run by the tests: (.+)\*", line)
            before = marked[1] if marked else ""
    return found


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page that are in this language."""
    return [block.text for block in all_blocks(page) if block.language == language]


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def links(page: Path) -> list[str]:
    """Return where the links of a page lead."""
    return re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose(page))


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings, as links call them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
