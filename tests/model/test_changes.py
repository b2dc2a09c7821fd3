"""A run in whose course the pipeline was changed: what earlier code made is undecided, and the rest is judged."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from clew import Count, Pipeline
from clew.model.certificate import Verdict
from clew.model.verify import verify
from tests.model.runs import change
from tests.scenarios.shop import MADE, Shop
from tests.scenarios.test_changes import kept


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, None)


def judged(shop: Shop, pipeline: Pipeline) -> Verdict:
    return verify(pipeline.graph(), shop.log, shop.bodies)


def facts(verdict: Verdict, weight: str = "undecided") -> dict[str, str]:
    assert {finding.weight for finding in verdict.findings} <= {weight}, [str(found) for found in verdict.findings]
    return {finding.operator: finding.fact for finding in verdict.findings}


def changed(shop: Shop, accept: tuple[str, ...] = ("all",), **how: Any) -> Pipeline:
    """Cut a run off, and end it with a pipeline that was changed."""
    shop.cut_off(deterministic=True)
    pipeline = shop.pipeline(deterministic=True, **how)
    shop.run(pipeline, accept=accept)
    return pipeline


def test_what_earlier_code_made_is_undecided_and_what_the_code_makes_is_judged(shop: Shop) -> None:
    pipeline = changed(shop, version=2)
    verdict = judged(shop, pipeline)
    assert facts(verdict) == {
        "doubled": f"its code changed in the course of the run: {MADE} Output Sets may be the earlier code's, and were "
        "not computed again"
    }
    # Of doubled those after it, and all of sums.
    assert verdict.counts["Output Sets"] == 12 - MADE + 3


def test_what_the_code_did_not_make_is_still_found(shop: Shop) -> None:
    pipeline = changed(shop, version=2)
    change(shop.directory / "sink.db", "DELETE FROM numbers WHERE n = 11")
    assert judged(shop, pipeline).word == "not explained"


@pytest.mark.parametrize(
    ("how", "part"),
    [({"window": Count(3)}, "its window"), ({"sums_read": "orders"}, "its inputs"), ({"extra": True}, "")],
    ids=["window", "inputs", "new"],
)
def test_input_sets_that_were_formed_in_two_ways_are_undecided(shop: Shop, how: dict[str, Any], part: str) -> None:
    told = facts(judged(shop, changed(shop, **how)))
    operator = "sums" if part else "extra_sink"
    fact = "changed in the course of the run, so that its Input Sets cannot be followed"
    assert told.pop(operator) == f"{part or 'its inputs'} {fact}"
    # What forms its Input Sets is the same, but not what it is called with.
    assert all("its code changed" in text for text in told.values())


def test_a_place_that_was_written_to_later_is_undecided(shop: Shop) -> None:
    told = facts(judged(shop, changed(shop, table="moved")))
    assert told["numbers_sink"] == (
        "numbers_sink.out was written to elsewhere before, so that what is there cannot be held against all that was "
        "written"
    )


def test_a_table_that_a_renamed_sink_wrote_to_before_is_undecided(shop: Shop) -> None:
    told = judged(shop, changed(shop, numbers="copies"))
    assert told.word == "undecided"
    assert any("sinks that are gone, or wrote elsewhere before, may have written there too" in found.fact
               for found in told.findings)  # fmt: skip


def test_a_source_of_two_versions_is_undecided(shop: Shop) -> None:
    shop.cut_off(deterministic=True)
    pipeline = shop.pipeline(deterministic=True)
    shop.run(pipeline)
    with closing(sqlite3.connect(shop.directory / "log.db")) as log, log:
        done = log.execute(
            "UPDATE meta SET value = replace(value, '\"mixed\":0', '\"mixed\":3') WHERE key = 'version:orders'"
        ).rowcount
    assert done == 1
    told = facts(judged(shop, pipeline))
    assert told["orders"] == (
        "its code changed in the course of the run, so that what it gave cannot be held against what it gives"
    )


def test_the_writes_of_a_general_operator_of_two_versions_are_undecided(shop: Shop) -> None:
    shop.crash(kept(shop, deterministic=True), "before-write@ledger#2")
    pipeline = kept(shop, "journal", deterministic=True)
    shop.run(pipeline, accept=["ledger"])
    assert [finding.fact for finding in judged(shop, pipeline).findings] == [
        "its code changed in the course of the run, so that its writes and reads cannot be followed",
        "ledger.journal was written to elsewhere before, so that what is there cannot be held against all that was "
        "written",
    ]
