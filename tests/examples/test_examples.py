"""Each example does what its README says: it dies, resumes, is verified, and its sinks hold what they should."""

import shutil
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.examples.expected import EXAMPLES, Example
from tests.terminal import KILLED, terminal


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_that_was_killed_leaves_what_its_records_come_to(example: Example, tmp_path: Path) -> None:
    place = tmp_path / example.name
    shutil.copytree(ROOT / "examples" / example.name, place, ignore=shutil.ignore_patterns("data", "out", ".clew"))
    (commands,) = blocks(place / "README.md", "sh")
    assert "CLEW_FAULTS" in commands, "its README must show a crash"
    with terminal(place, CLEW_ENGINE="inline", CLEW_FAULTS_FIRED=str(tmp_path / "fired")) as shell:
        for command in commands.splitlines():
            code, said = shell.run(command)
            assert code == (KILLED if "CLEW_FAULTS" in command else 0), f"{command}\n{said}"
        # The last one is `clew verify`.
        assert said.startswith("explained: a run without failures could have left what is there\ngone through"), said
        held = example.held(place, shell.environment["BANK_PORT"])
    point = commands.partition("CLEW_FAULTS=")[2].partition("#")[0].partition(" ")[0]
    assert (tmp_path / "fired").read_text() == f"{point}\n"
    assert held == example.expected(place)
    assert all(held.values()), f"a sink is empty: {held}"


def test_every_example_is_judged() -> None:
    shown = {path.parent.name for path in (ROOT / "examples").glob("*/pipeline.py")}
    # Its own demonstration shows the sales: `make demo`, and tests/spark/test_demo.py.
    assert shown - {"sales"} == {example.name for example in EXAMPLES}
