"""What was set aside and decided on is followed by the judge, and computed again as all else is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Batch, Pipeline
from clew.connectors import generator, sqlite
from clew.run import decide_quarantined, quarantine_of
from tests.model.runs import Finished, explained, finished


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
