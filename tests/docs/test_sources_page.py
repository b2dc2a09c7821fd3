"""docs/sources.md: its pipelines can be declared, and every source that the project has is named there."""

from typing import Any

from clew import connectors
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "sources.md"
SINKS = (ROOT / "docs" / "sinks.md").read_text()


def test_the_pipelines_of_the_page_can_be_declared() -> None:
    for code in blocks(PAGE, "python"):
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(code, str(PAGE), "exec"), names)
        assert names["pipeline"].graph().operators


def test_every_connector_has_its_line() -> None:
    text = PAGE.read_text() + SINKS
    assert [name for name in connectors.__all__ if f"`{name}(" not in text] == []
