"""docs/sources.md: every source that the project has is named there."""

from clew import connectors
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "sources.md"
SINKS = (ROOT / "docs" / "sinks.md").read_text()


def test_every_connector_has_its_line() -> None:
    text = PAGE.read_text() + SINKS
    assert [name for name in connectors.__all__ if f"`{name}(" not in text] == []
