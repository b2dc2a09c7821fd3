"""docs/verify.md: its sink can be read, its examples are what is printed, its exit codes are the ones there are."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Pipeline
from clew.app.terminal import FAILED, UNDECIDED
from clew.app.verdict import exit_code, print_verdict
from clew.connectors import generator
from clew.model.certificate import Verdict, undecided, wrong
from clew.run import run, verify
from tests.app.pipelines import call
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "verify.md"


def test_the_sink_of_ones_own_is_judged(tmp_path: Path) -> None:
    (code,) = blocks(PAGE, "python")
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(PAGE), "exec"), names)
    pipeline = Pipeline("page")
    source = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), 10))
    pipeline.sink(source, names["Folder"](str(tmp_path / "out")))
    place = {"log": f"sqlite:///{tmp_path / 'log.db'}", "engine": "inline"}
    run(pipeline, **place)
    assert verify(pipeline, **place).word == "explained"
    next((tmp_path / "out").iterdir()).write_text("[]")
    assert verify(pipeline, **place).word == "not explained"


def verdict() -> str:
    """Return what `clew verify` prints of the README's pipeline; how many writes its sink made is a matter of time."""
    return timeless(call("verify", "first.py").stdout)


def timeless(text: str) -> str:
    return re.sub(r"\d+ Input Sets", "some Input Sets", text)


def test_the_examples_are_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    explained, counted, as_logged, changed, collected = [timeless(text) for text in blocks(PAGE, "")]
    (code,) = blocks(ROOT / "README.md", "python")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.py").write_text(code)
    assert call("run", "first.py", "--engine", "inline").exit_code == 0
    assert verdict() == explained
    told = code.replace('name="totals")', 'name="totals", settings={"deterministic": False})')
    (tmp_path / "first.py").write_text(told)
    assert verdict() == counted
    (tmp_path / "first.py").write_text(code)
    with closing(sqlite3.connect(tmp_path / "first.db")) as database, database:
        database.execute("UPDATE totals SET total = total + 1 WHERE rowid = 1")
    assert verdict() == changed
    assert call("gc", "first.py").exit_code == 0
    assert verdict() == collected
    print_verdict(Verdict(as_logged=["chance"]))
    assert capsys.readouterr().out.endswith(as_logged)


def test_the_verdicts_have_the_exit_codes_that_the_page_says() -> None:
    said = dict(re.findall(r"^\| `([a-z ]+)` \| (\d) \|", PAGE.read_text(), re.MULTILINE))
    verdicts = [Verdict(), Verdict([wrong("a", "b")]), Verdict([undecided("a", "b")])]
    assert said == {verdict.word: str(exit_code(verdict)) for verdict in verdicts}
    assert (FAILED, UNDECIDED) == (1, 4)
