"""docs/check.md: its example is what is printed."""

import re
from pathlib import Path

import pytest

from tests.app.pipelines import call
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "check.md"


def explained(place: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (code,) = blocks(ROOT / "README.md", "python")
    (place / "first.py").write_text(code)
    monkeypatch.chdir(place)
    return call("check", "first.py", "--explain").stdout.strip()


def test_the_example_is_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = re.findall(r"^```\n(.*?)\n```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert shown == explained(tmp_path, monkeypatch), "\n" + explained(tmp_path, monkeypatch)
