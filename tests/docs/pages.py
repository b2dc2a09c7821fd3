"""The project's pages, and what is in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page that are in this language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


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
