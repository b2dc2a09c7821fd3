"""docs/sinks.md: its enrichment runs, against a server that loses an answer, and asks no more often than it says."""

import json
from pathlib import Path
from typing import Any

from clew.run import run, verify
from tests.connectors.http_server import Page, serving
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "sinks.md"


def test_the_enrichment_runs_and_is_judged(tmp_path: Path) -> None:
    (code,) = blocks(PAGE, "python")
    with serving() as server:
        assert code.count("https://shop.example.com") == 1
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(code.replace("https://shop.example.com", server.url("")), str(PAGE), "exec"), names)
        server.pages["/rates"] = Page(json.dumps({"rate": 1.095}))
        server.writes = ["lose"]
        place = {"log": f"sqlite:///{tmp_path / 'log.db'}", "bodies": str(tmp_path / "bodies"), "engine": "inline"}
        run(names["pipeline"], **place)
        assert server.happened["lose"] == 1
        assert sorted(row["euros"] for row in server.records()) == list(range(30))
        assert {row["rate"] for row in server.records()} == {"1.095000"}
        assert server.count("GET", "/rates") == 3
        server.pages["/orders"] = Page(json.dumps(server.records()))
        assert verify(names["pipeline"], **place).word == "explained"
