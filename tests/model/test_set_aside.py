"""What was set aside and decided on is followed by the judge, and computed again as all else is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Batch, Pipeline
from clew.connectors import generator, sqlite
from clew.run import decide_quarantined, quarantine_of
from tests.model.runs import Finished, explained, finished, only


class Broken:
    """The numbers that functions fail on."""

    numbers: frozenset[int] = frozenset()


@pytest.fixture(autouse=True)
def _whole() -> Iterator[None]:
    yield
    Broken.numbers = frozenset()


def batched(tmp_path: Path) -> Pipeline:
    """`numbers` -> `picked`, which sets records aside -> `counted`, which sets batches aside."""
    pipeline = Pipeline("batched")

    def pick(record: dict[str, Any]) -> dict[str, Any]:
        if record["n"] in Broken.numbers - {5}:
            raise ValueError(record["n"])
        return record

    numbers = pipeline.source("numbers", generator(lambda i: pa.table({"n": [i]}), 6))
    picked = numbers.map(pick, name="picked", deterministic=True, on_error="quarantine", attempts=1)

    @pipeline.operator(picked, window=Batch(), deterministic=True, on_error="quarantine", attempts=1)
    def counted(table: pa.Table) -> pa.Table:
        if Broken.numbers.intersection(table["n"].to_pylist()):
            raise ValueError("broken")
        return pa.table({"rows": [table.num_rows]})

    pipeline.sink(counted, sqlite(tmp_path / "sink.db", table="counted"))
    return pipeline


def picky(tmp_path: Path, **settings: Any) -> Finished:
    """`numbers` -> `picked`, whose function fails on record 2."""
    pipeline = Pipeline("picky")

    def pick(record: dict[str, Any]) -> dict[str, Any]:
        if record["n"] in Broken.numbers:
            raise ConnectionError("the service is down")
        return record

    Broken.numbers = frozenset({2})
    numbers = pipeline.source("numbers", generator(lambda i: pa.table({"n": [2 * i, 2 * i + 1]}), 3))
    given = {"deterministic": True, "on_error": "quarantine", "attempts": 1} | settings
    numbers.map(pick, name="picked", **given).sink(sqlite(tmp_path / "sink.db", table="picked"), name="sink")
    return finished(pipeline, tmp_path)


def decided(made: Finished, decisions: dict[str, str]) -> Finished:
    """Decide on what is set aside, by its name, and run on."""
    graph, place = made.pipeline.graph(), {"log": made.url, "bodies": str(made.bodies)}
    asides = {aside.id: aside for aside in quarantine_of(graph, **place)}
    for name, word in decisions.items():
        assert decide_quarantined(graph, [asides[name]], word, **place) == 1
    return finished(made.pipeline, made.directory)


@pytest.mark.parametrize("word", ["retry", "drop"])
def test_events_that_come_after_a_decision_are_batches_of_their_own(word: str, tmp_path: Path) -> None:
    Broken.numbers = frozenset({2, 5})
    made = finished(batched(tmp_path), tmp_path)
    Broken.numbers = frozenset({5} if word == "drop" else ())
    assert explained(decided(made, {"picked#1": "retry", "counted#1": word}).verify())


def test_a_batch_is_over_before_the_next_decision(tmp_path: Path) -> None:
    Broken.numbers = frozenset({2, 4, 5})
    made = finished(batched(tmp_path), tmp_path)
    Broken.numbers = frozenset()
    # A batch that gives something, what was set aside before it, and a batch after both.
    decided(made, {"picked#1": "retry"})
    assert explained(decided(made, {"picked#2": "retry", "counted#1": "retry"}).verify())


def test_a_record_that_was_given_up_and_that_nothing_fails_on_is_undecided(tmp_path: Path) -> None:
    made = decided(picky(tmp_path), {"picked#1": "drop"})
    # Whoever fails on it still has lost nothing.
    assert explained(made.verify())
    Broken.numbers = frozenset()
    found = only(made.verify(), "undecided")
    assert (found.operator, found.event, found.input_set) == ("picked", "numbers.out#2", 2)
    assert found.fact == (
        "its record 0 was set aside and dropped, and the function does not fail on it now: either it is not "
        "deterministic, or its surroundings failed"
    )


def test_an_input_set_that_was_given_up_and_that_nothing_fails_on_is_undecided(tmp_path: Path) -> None:
    Broken.numbers = frozenset({5})
    made = decided(finished(batched(tmp_path), tmp_path), {"counted#1": "drop"})
    assert explained(made.verify())
    Broken.numbers = frozenset()
    found = only(made.verify(), "undecided")
    assert found.operator == "counted"
    assert found.fact.startswith("it was set aside and dropped, and the function does not fail on it now")


def test_what_a_port_cannot_carry_is_failed_on_now_as_it_was_then(tmp_path: Path) -> None:
    pipeline = Pipeline("unfit")

    @pipeline.operator(
        pipeline.source("numbers", generator(lambda i: pa.table({"n": [i]}), 4)), deterministic=True,
        on_error="quarantine", attempts=1,
    )  # fmt: skip
    def shaped(table: pa.Table) -> Any:
        match table["n"][0].as_py():
            case 0:
                return table.append_column("more", pa.nulls(1))
            case 2:
                return {"elsewhere": table}
            case 3:
                return pa.table({"n": ["three"]})
        return table.append_column("more", pa.array([1]))

    pipeline.sink(shaped, sqlite(tmp_path / "sink.db", table="shaped"))
    made = finished(pipeline, tmp_path)
    assert explained(decided(made, dict.fromkeys(("shaped#1", "shaped#2", "shaped#3"), "drop")).verify())


def test_what_was_cut_off_is_not_tried(tmp_path: Path) -> None:
    made = decided(picky(tmp_path), {"picked#1": "drop"})
    Broken.numbers = frozenset()
    made.change("UPDATE aside SET error = json_set(error, '$.kind', 'TurnTimedOut')")
    assert explained(made.verify())


def test_nothing_is_said_of_what_was_given_up_before_the_function_was_mended(tmp_path: Path) -> None:
    made = decided(picky(tmp_path), {"picked#1": "drop"})
    Broken.numbers = frozenset()
    made.change("UPDATE meta SET value = json_set(value, '$.parts.code', 'other') WHERE key = 'version:picked'")
    assert explained(made.verify())


def test_a_setup_hook_that_fails_now_is_undecided(tmp_path: Path) -> None:
    made = finished(hooked(tmp_path, []), tmp_path)
    assert explained(made.verify())
    found = only(Finished(hooked(tmp_path, ["down"]), tmp_path).verify(), "undecided")
    assert found.operator == "added"
    assert found.fact == (
        "its setup hook fails now, so that its Output Sets cannot be computed again: ConnectionError: nobody answers"
    )


def hooked(tmp_path: Path, down: list[str]) -> Pipeline:
    """`numbers` -> `added`, whose setup hook fails where something is down."""
    pipeline = Pipeline("hooked")

    def connect() -> int:
        if down:
            raise ConnectionError("nobody answers")
        return 1

    def add(record: dict[str, Any], resources: int) -> dict[str, Any]:
        return {"n": record["n"] + resources}

    numbers = pipeline.source("numbers", generator(lambda i: pa.table({"n": [i]}), 3))
    added = numbers.map(add, name="added", deterministic=True, setup=connect)
    pipeline.sink(added, sqlite(tmp_path / "sink.db", table="added"))
    return pipeline


@pytest.mark.parametrize(
    ("set_to", "told"),
    [("status = 'retried', retried_as = 4", "tried again as Input Set 4"), ("status = 'held'", "still set aside")],
)
def test_what_was_set_aside_must_have_come_to_what_was_decided(set_to: str, told: str, tmp_path: Path) -> None:
    made = decided(picky(tmp_path), {"picked#1": "drop"})
    made.change(f"UPDATE aside SET {set_to}")
    found = only(made.verify())
    assert found.fact == "picked#1, which was set aside, has not come to what was decided on it"
    assert (found.input_set, found.expected, found.found) == (2, "dropped", told)
