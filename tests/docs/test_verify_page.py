"""docs/verify.md: its sink can be read, its examples are what is printed, its exit codes are the ones there are."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from clew import Pipeline
from clew.app.terminal import FAILED, UNDECIDED
from clew.app.verdict import exit_code
from clew.connectors import generator
from clew.model.certificate import Verdict, undecided, wrong
from clew.run import run, verify
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


def test_the_verdicts_have_the_exit_codes_that_the_page_says() -> None:
    said = dict(re.findall(r"^\| `([a-z ]+)` \| (\d) \|", PAGE.read_text(), re.MULTILINE))
    verdicts = [Verdict(), Verdict([wrong("a", "b")]), Verdict([undecided("a", "b")])]
    assert said == {verdict.word: str(exit_code(verdict)) for verdict in verdicts}
    assert (FAILED, UNDECIDED) == (1, 4)
