"""docs/lineage.md: what it shows of the README's pipeline is what is printed."""

import json
from pathlib import Path

import pytest

from tests.app.pipelines import call
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "lineage.md"


def test_the_examples_are_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, records, _ = blocks(PAGE, "")
    (code,) = blocks(ROOT / "README.md", "python")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.py").write_text(code)
    assert call("run", "first.py", "--engine", "inline").exit_code == 0
    assert call("trace", "back", "first.py", "totals.out#2").stdout == trace
    told = call("trace", "back", "first.py", "totals.out#2", "--record", "0", "--to", "paid").stdout
    assert told == records
    for command in (
        ("trace", "forward", "first.py", "orders.out#30", "--to", "totals"),
        ("replay", "first.py", "totals", "--event", "totals.out#2"),
        ("diff", "first.py", "totals"),
    ):
        assert call(*command).exit_code == 0


def test_the_facet_is_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks(ROOT / "README.md", "python")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.py").write_text(code)
    assert call("run", "first.py", "--engine", "inline", "--set", "openlineage=file:events.jsonl").exit_code == 0
    sent = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    (event,) = [e for e in sent if e["eventType"] == "COMPLETE" and e["job"]["name"].endswith(".totals")]
    facet = event["outputs"][0]["facets"]["clew_events"]
    told = [f'"{name}": {json.dumps(facet[name])}' for name in sorted(facet) if name != "run" and name[0] != "_"]
    assert told == blocks(PAGE, "")[2].splitlines()
