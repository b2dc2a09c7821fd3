"""The census of error messages: it finds them, and knows which were produced, here and in processes."""

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from clew.faultpoint import Fault
from tests import messages
from tests.figures import silent, table
from tests.messages import MESSAGE, PACKAGE, PLACE, sites


def only(text: str) -> str:
    (found,) = [site.name for site in sites() if text in site.text]
    return found


def lines(place: Path) -> list[list[object]]:
    return [json.loads(line) for file in place.iterdir() for line in file.read_text().splitlines()]


def recorded(place: Path) -> set[str]:
    return {str(line[0]).removeprefix(f"{MESSAGE}: ") for line in lines(place)}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "figures").mkdir()
    monkeypatch.setenv(PLACE, str(tmp_path / "figures"))
    monkeypatch.setattr(messages, "_said", set())
    return tmp_path / "figures"


def test_a_message_that_is_produced_here_is_recorded_once(place: Path) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="is not a fault"):
            Fault.parse("nowhere")
    assert lines(place) == [[f"{MESSAGE}: {only('is not a fault')}", 1]]


def test_a_message_of_a_process_is_recorded_too(place: Path) -> None:
    code = "from clew.faultpoint import Fault; Fault.parse('nowhere')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "is not a fault" in done.stderr
    assert recorded(place) == {only("is not a fault")}
    # It is still said in the line that it is written in.
    assert f'faultpoint.py", line {only("is not a fault").partition(":")[2]}, in parse' in done.stderr


def test_a_process_that_does_not_inherit_it_is_left_alone(place: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    code = "import sys, clew.faultpoint; print([type(one).__name__ for one in sys.meta_path])"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert "_Finder" not in done.stdout


def test_errors_are_found_by_their_class_or_by_the_function_that_is_given_their_words() -> None:
    code = """
def refuse(self, what):
    self._wrong(f"{what} is wrong", where)
    raise SetupFailed("no", "yes")
    raise typer.Exit(1)
    raise KeyError
    return self._failed(error)
"""
    found = [ast.unparse(call) for call in messages._calls(ast.parse(code))]
    assert found == ["self._wrong(f'{what} is wrong', where)", "SetupFailed('no', 'yes')"]


def test_an_assertion_is_no_message() -> None:
    code = 'raise AssertionError("a DataFrame function was called on an executor")'
    assert list(messages._calls(ast.parse(code))) == []
    assert not [site for site in sites() if "AssertionError" in site.text]


def test_what_nobody_has_produced_is_counted_and_listed() -> None:
    every = Counter({f"{MESSAGE}: {site.name}": 1 for site in sites()})
    assert silent(every) == []
    missing = every - Counter({f"{MESSAGE}: {only('is not a fault')}": 1})
    assert [site.name for site in silent(missing)] == [only("is not a fault")]
    line = list(table(missing, False, 0))[-1]
    assert line.seen == f"{len(sites()) - 1:,} of {len(sites()):,}"
