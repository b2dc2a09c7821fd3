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
    printed = explained(tmp_path, monkeypatch)
    assert named(shown) == named(printed), "\n" + printed


def named(text: str) -> str:
    """Leave operators' fingerprints out: the same code is other bytecode in every version of Python."""
    found = re.compile(r"(?<=^  fingerprint: )[0-9a-f]{12}$", re.MULTILINE)
    assert len(set(found.findall(text))) == text.count("  fingerprint: ")
    return found.sub("", text)
