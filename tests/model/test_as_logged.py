"""Where chance decides on Input Sets, they are what the log says; what any decision comes to must be so."""

import json
import random
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Operator, Pipeline
from clew.connectors import generator, sqlite
from clew.pipeline.operators import Context, InputSet
from clew.pipeline.windows import Header
from clew.run import decide_quarantined, quarantine_of
from tests.app.pipelines import call, log_url, write
from tests.model.runs import Finished, change, explained, finished, first, only

EVENTS = 40


class Chance(Operator):
    """Cuts what comes into Input Sets of one to three events, as chance has it; writes each, and gives two events."""

    broken = False
    seed: int | None = None

    def initial(self) -> dict[str, Any]:
        return {"k": 0, "left": 1}

    def assign(self, event: Header, state: dict[str, Any]) -> Sequence[Any]:
        state["left"] -= 1
        return [state["k"]]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        if state["left"] > 0:
            return []
        full = state["k"]
        state["k"], state["left"] = full + 1, self.drawn(full)
        return [full]

    def drawn(self, full: int) -> int:
        return random.randint(1, 3) if self.seed is None else 1 + (full + self.seed) % 3

    def generate(self, input_set: InputSet, context: Context) -> Any:
        table = input_set.table()
        if Chance.broken and 6 in table["n"].to_pylist():
            raise ValueError("broken")
        context.write("kept", table)
        return [table, table.slice(0, 1)]


@pytest.fixture(autouse=True)
def _whole() -> None:
    Chance.broken, Chance.seed = False, None


def pipeline(directory: Path, **settings: Any) -> Pipeline:
    made = Pipeline("chance")
    source = made.source("source", generator(lambda index: pa.table({"n": [index]}), EVENTS), max_turn_events=7)
    kept = {"kept": sqlite(directory / "sink.db", table="kept")}
    chance = made.general("chance", Chance(), source, writes=kept, max_turn_events=6, **settings)
    made.sink(chance, sqlite(directory / "sink.db", table="given"), name="sink")
    return made


@pytest.fixture
def made(tmp_path: Path) -> Finished:
    return finished(pipeline(tmp_path), tmp_path)


def test_input_sets_that_chance_has_made_are_taken_as_logged(made: Finished) -> None:
    verdict = made.verify()
    assert explained(verdict)
    assert (verdict.as_logged, verdict.counted) == (["chance"], ["chance"])
    assert verdict.counts["Input Sets"] == sum(count for (count,) in made.ask("SELECT count FROM done"))


def test_the_command_says_whose_input_sets_were_taken_as_logged(tmp_path: Path) -> None:
    source = (
        "import random\nimport pyarrow as pa\nfrom clew import Operator, Pipeline, generator, sqlite\n"
        "class Chance(Operator):\n"
        "    def assign(self, event, state): return [random.randint(1, 3)]\n"
        "    def ready(self, state, opened): return list(opened)[random.randint(0, 1):]\n"
        "    def generate(self, input_set, context): return input_set.table()\n"
        "pipeline = Pipeline('chance')\n"
        "numbers = pipeline.source('numbers', generator(lambda index: pa.table({'n': [index]}), 30))\n"
        f"pipeline.general('chance', Chance(), numbers).sink(sqlite({str(tmp_path / 'sink.db')!r}, table='t'))\n"
    )
    file = write(tmp_path, "by_chance.py", source)
    assert call("run", file, "--engine", "inline", "--log", log_url(tmp_path)).exit_code == 0
    done = call("verify", file, "--log", log_url(tmp_path))
    assert done.exit_code == 0, done.output
    assert "taken as logged: Input Sets of chance, which decides on them anew each time it is asked" in done.output
    told = json.loads(call("verify", file, "--log", log_url(tmp_path), "--json").output)
    assert told["as_logged"] == ["chance"]


def test_one_that_is_declared_deterministic_is_named(tmp_path: Path) -> None:
    found = only(finished(pipeline(tmp_path, deterministic=True), tmp_path).verify())
    assert found.operator == "chance"
    assert found.fact == "is declared deterministic and is not: its assign or ready decides something else each time"


def test_one_that_decides_the_same_twice_and_not_what_the_log_says_is_not_explained(tmp_path: Path) -> None:
    """As where an engine has lost its state: nothing hangs on chance then, so what was logged is wrong."""
    Chance.seed = 0
    made = finished(pipeline(tmp_path), tmp_path)
    verdict = made.verify()
    assert explained(verdict)
    assert verdict.as_logged == []
    Chance.seed = 1
    assert first(made.verify()).operator == "chance"


@pytest.mark.parametrize("word", ["retry", "drop"])
def test_what_was_set_aside_and_decided_on_is_followed(word: str, tmp_path: Path) -> None:
    Chance.broken = True
    declared = pipeline(tmp_path, on_error="quarantine", attempts=1)
    made = finished(declared, tmp_path)
    place = {"log": made.url, "bodies": str(made.bodies)}
    (aside,) = quarantine_of(declared.graph(), **place)
    Chance.broken = False
    assert decide_quarantined(declared.graph(), [aside], word, **place) == 1
    verdict = finished(declared, tmp_path).verify()
    assert explained(verdict)
    assert verdict.as_logged == ["chance"]
    assert verdict.counts.get("set aside and dropped", 0) == (word == "drop")


@pytest.mark.parametrize(
    ("statement", "fact"),
    [
        ("DELETE FROM ack WHERE operator = 'chance' AND first > 20", "was sent to it and never taken"),
        ("UPDATE done SET first = first + 1, count = count - 1 WHERE operator = 'chance'", "was never set to done"),
        ("UPDATE done SET count = count + 1 WHERE operator = 'chance'", "has more Input Sets than it should"),
        ("UPDATE ack SET input_set = input_set + 1 WHERE operator = 'chance' AND first = 1", "other Input Sets"),
    ],
)
def test_what_any_decision_comes_to_must_be_so(made: Finished, statement: str, fact: str) -> None:
    made.change(statement)
    assert any(fact in finding.fact for finding in made.verify().findings), made.verify().findings


def test_an_output_set_of_an_input_set_that_had_not_all_its_events_then(made: Finished) -> None:
    """Two Input Sets, one after the other, change their places in what was taken, and not in what was made."""
    rows = made.ask("SELECT first, input_set FROM ack WHERE operator = 'chance' AND input_set > 1 ORDER BY first")
    (one, number), (other, later) = next((a, b) for a, b in pairwise(rows) if a[1] < b[1])
    where = "WHERE operator = 'chance' AND first ="
    made.change(
        f"UPDATE ack SET input_set = {later} {where} {one}", f"UPDATE ack SET input_set = {number} {where} {other}"
    )
    assert first(made.verify()).operator == "chance"


def test_a_record_that_its_sink_lost_is_found(made: Finished, tmp_path: Path) -> None:
    change(tmp_path / "sink.db", "DELETE FROM given WHERE n = 9 AND rowid = (SELECT min(rowid) FROM given WHERE n = 9)")
    assert "is not in table given" in only(made.verify()).fact
    change(tmp_path / "sink.db", "INSERT INTO kept SELECT * FROM kept WHERE n = 9")
    assert {finding.operator for finding in made.verify().findings} == {"chance", "sink"}
