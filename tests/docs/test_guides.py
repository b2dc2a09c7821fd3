"""The code of the guides runs, page by page, and what it leaves is judged."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from clew.run import run, verify
from tests.docs.pages import ROOT, blocks

GUIDES = ["windows.md", "operators.md"]


@pytest.mark.parametrize("page", GUIDES)
def test_the_code_of_a_page_runs_and_is_judged(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for code in blocks(ROOT / "docs" / page, "python"):
        exec(compile(code, page, "exec"), names)
    log = f"sqlite:///{tmp_path}/log.db"
    run(names["pipeline"], log=log, engine="inline")
    verdict = verify(names["pipeline"], log=log, engine="inline")
    assert verdict.word == "explained", verdict.findings
    for sink in os.listdir("out"):
        assert any(Path("out", sink).glob("*.parquet")), f"{sink} is empty: {json.dumps(verdict.counts)}"
