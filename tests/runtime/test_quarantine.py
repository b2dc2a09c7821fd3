"""What functions fail on is set aside, alone, until somebody decides; the rest is exact."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from clew import Connection, Count, Pipeline, Tumbling
from clew.connectors import files, generator, sqlite
from clew.errors import AnswerRefused, GraphErrors, SourceFailed, UserFunctionFailed
from clew.faultpoint import arm
from clew.retrace import replay, step_back
from clew.run import decide_quarantined, gc, quarantine_of, quarantined_records, run, status, verify
from tests.spark.outside import held, rows

POISON = 67_891


class Mended:
    """Whether functions fail no more."""

    yes = False


@pytest.fixture(autouse=True)
def _broken() -> None:
    Mended.yes = False


def numbers(index: int) -> pa.Table:
    return pa.table({"n": range(1000 * index, 1000 * index + 1000)})


def per_record(tmp_path: Path, **settings: Any) -> Pipeline:
    """A hundred thousand records, one of which is poison."""
    pipeline = Pipeline("poison")

    @pipeline.map(pipeline.source("numbers", generator(numbers, 100)), on_error="quarantine", **settings)
    def inverse(record: dict[str, Any]) -> dict[str, Any]:
        if record["n"] == POISON and not Mended.yes:
            raise ValueError(f"cannot invert {record['n']}")
        return {"n": record["n"], "inverse": -record["n"]}

    pipeline.sink(inverse, files(tmp_path / "out"))
    return pipeline


def place(tmp_path: Path) -> dict[str, Any]:
    return {"log": f"sqlite:///{tmp_path}/log.db"}


def found(tmp_path: Path) -> Counter[int]:
    return Counter(row["n"] for row in rows(tmp_path / "out"))


def explained(pipeline: Pipeline, tmp_path: Path) -> None:
    verdict = verify(pipeline, **place(tmp_path), engine="inline")
    assert verdict.word == "explained", verdict.findings


def test_one_poison_record_in_a_hundred_thousand(tmp_path: Path) -> None:
    pipeline = per_record(tmp_path, deterministic=True)
    ended = run(pipeline, **place(tmp_path), engine="inline")
    assert ended.quarantined == 1
    assert found(tmp_path) == Counter(n for n in range(100_000) if n != POISON)
    (one,) = quarantine_of(pipeline.graph(), **place(tmp_path))
    assert (one.id, one.events) == ("inverse#1", "numbers.out#68 record 891")
    assert (one.row.error["kind"], one.row.error["message"]) == ("ValueError", f"cannot invert {POISON}")
    assert one.row.error["record"] == str({"n": POISON})
    assert "in inverse" in one.row.error["frames"]
    assert quarantined_records(pipeline.graph(), one, **place(tmp_path))["in"].to_pylist() == [{"n": POISON}]

    # Nothing changes until somebody decides, and what is held is not collected.
    gc(pipeline.graph(), **place(tmp_path))
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 1
    Mended.yes = True
    assert decide_quarantined(pipeline.graph(), [one], "retry", **place(tmp_path)) == 1
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 0
    assert found(tmp_path) == Counter(range(100_000))


def test_a_run_that_was_completed_is_explained(tmp_path: Path) -> None:
    pipeline = per_record(tmp_path, deterministic=True)
    run(pipeline, **place(tmp_path), engine="inline")
    assert verify(pipeline, **place(tmp_path), engine="inline").word == "undecided"
    Mended.yes = True
    graph = pipeline.graph()
    decide_quarantined(graph, quarantine_of(graph, **place(tmp_path)), "retry", **place(tmp_path))
    run(pipeline, **place(tmp_path), engine="inline")
    explained(pipeline, tmp_path)


def test_what_is_dropped_is_given_up(tmp_path: Path) -> None:
    pipeline = per_record(tmp_path, deterministic=True)
    run(pipeline, **place(tmp_path), engine="inline")
    graph = pipeline.graph()
    decide_quarantined(graph, quarantine_of(graph, **place(tmp_path)), "drop", **place(tmp_path))
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 0
    assert found(tmp_path) == Counter(n for n in range(100_000) if n != POISON)
    assert [one.row.status for one in quarantine_of(graph, **place(tmp_path))] == ["dropped"]
    explained(pipeline, tmp_path)


def test_what_fails_again_is_set_aside_again(tmp_path: Path) -> None:
    pipeline = per_record(tmp_path)
    run(pipeline, **place(tmp_path), engine="inline")
    graph = pipeline.graph()
    decide_quarantined(graph, quarantine_of(graph, **place(tmp_path)), "retry", **place(tmp_path))
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 1
    first, second = quarantine_of(graph, **place(tmp_path))
    assert (first.row.status, second.row.status) == ("retried", "held")
    assert second.row.records == (891,)
    assert first.row.retried_as == second.row.input_set
    Mended.yes = True
    decide_quarantined(graph, [second], "retry", **place(tmp_path))
    run(pipeline, **place(tmp_path), engine="inline")
    assert found(tmp_path) == Counter(range(100_000))


def windows(tmp_path: Path, on_error: str = "quarantine") -> Pipeline:
    """Windows, one of which its function fails on; and operators after it."""
    pipeline = Pipeline("windows")
    source = pipeline.source("numbers", generator(lambda i: pa.table({"n": range(10 * i, 10 * i + 10)}), 20))

    @pipeline.operator(source, window=Tumbling(25, on="n"), deterministic=True, on_error=on_error, attempts=2)
    def sums(table: pa.Table) -> pa.Table:
        start = table["window_start"][0].as_py()
        if start in (50, 125) and not Mended.yes:
            raise KeyError(start)
        return pa.table({"start": [start], "sum": [pc.sum(table["n"]).as_py()]})

    @pipeline.operator(sums, window=Count(3), deterministic=True)
    def threes(table: pa.Table) -> pa.Table:
        return pa.table({"sum": [pc.sum(table["sum"]).as_py()]})

    pipeline.sink(sums, sqlite(tmp_path / "sink.db", table="sums"))
    pipeline.sink(threes, sqlite(tmp_path / "sink.db", table="threes"))
    return pipeline


SUMS = {start: sum(range(start, min(start + 25, 200))) for start in range(0, 200, 25)}


@pytest.mark.parametrize("point", ["", "after-generate@sums#3", "after-commit@sums#4", "inside-commit@sums#5"])
def test_whole_input_sets_are_set_aside_and_the_end_waits_for_them(point: str, tmp_path: Path) -> None:
    pipeline = windows(tmp_path)
    if point:
        # The supervisor restarts the group; what was set aside before the crash stays so.
        faults = arm(f"{point}:raise")
    run(pipeline, **place(tmp_path), engine="inline")
    if point:
        assert all(fault.fired for fault in faults)
        arm()
    expected = Counter((start, total) for start, total in SUMS.items() if start not in (50, 125))
    assert held(tmp_path / "sink.db", "SELECT start, sum FROM sums") == expected
    assert sum(held(tmp_path / "sink.db", "SELECT sum FROM threes").values()) == 2
    graph = pipeline.graph()
    assert [(row.operator, row.quarantined) for row in status(graph, **place(tmp_path)).operators][1] == ("sums", 2)
    one, other = quarantine_of(graph, **place(tmp_path))
    assert (one.row.error["kind"], one.row.error["attempts"], one.row.records) == ("KeyError", 2, None)
    decide_quarantined(graph, [one], "drop", **place(tmp_path))
    Mended.yes = True
    decide_quarantined(graph, [other], "retry", **place(tmp_path))
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 0
    expected[125, SUMS[125]] += 1
    assert held(tmp_path / "sink.db", "SELECT start, sum FROM sums") == expected
    assert sum(held(tmp_path / "sink.db", "SELECT sum FROM threes").values()) == 3
    # The function fails no more on what was given up.
    (finding,) = verify(pipeline, **place(tmp_path), engine="inline").findings
    assert (finding.weight, finding.operator) == ("undecided", "sums")
    assert finding.fact.startswith("it was set aside and dropped, and the function does not fail on it now")


@pytest.mark.parametrize("point", ["after-generate", "inside-commit", "after-end", "after-wake"])
def test_a_crash_while_it_is_tried_again_does_not_try_it_twice(point: str, tmp_path: Path) -> None:
    pipeline = windows(tmp_path)
    run(pipeline, **place(tmp_path), engine="inline")
    graph = pipeline.graph()
    Mended.yes = True
    decide_quarantined(graph, quarantine_of(graph, **place(tmp_path)), "retry", **place(tmp_path))
    (fault,) = arm(f"{point}@sums:raise")
    run(pipeline, **place(tmp_path), engine="inline")
    assert fault.fired
    arm()
    assert held(tmp_path / "sink.db", "SELECT start, sum FROM sums") == Counter(SUMS.items())
    explained(pipeline, tmp_path)


def test_without_quarantine_the_run_stops(tmp_path: Path) -> None:
    with pytest.raises(UserFunctionFailed, match="KeyError: 50"):
        run(windows(tmp_path, "stop"), **place(tmp_path), engine="inline")


def test_data_that_a_port_cannot_carry_is_set_aside_too(tmp_path: Path) -> None:
    pipeline = Pipeline("types")
    source = pipeline.source("numbers", generator(lambda i: pa.table({"n": [i]}), 5))

    @pipeline.operator(source, on_error="quarantine")
    def mixed(table: pa.Table) -> pa.Table:
        return pa.table({"n": ["three"]}) if table["n"][0].as_py() == 3 else table

    pipeline.sink(mixed, files(tmp_path / "out"))
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 1
    assert found(tmp_path) == Counter([0, 1, 2, 4])
    (one,) = quarantine_of(pipeline.graph(), **place(tmp_path))
    assert one.row.error["kind"] == "SchemaChanged"


@dataclass
class Priced:
    n: int
    v: int


def returned(unusable: Any, verb: str = "map", annotated: bool = False, poison: int = 14, **settings: Any) -> Pipeline:
    """Three events of ten records; of one record the function returns something else than of the others."""
    pipeline = Pipeline("returned")
    source = pipeline.source("numbers", generator(lambda i: pa.table({"n": range(10 * i, 10 * i + 10)}), 3))

    def one(record: dict[str, Any]) -> Any:
        bad = record["n"] == poison and not Mended.yes
        return unusable if bad and isinstance(unusable, dict) else {"n": record["n"], "v": unusable if bad else 1}

    def many(record: dict[str, Any]) -> Any:
        return [{"n": record["n"], "v": 1}, one(record)]

    def declared(record: dict[str, Any]) -> Priced:
        return Priced(**one(record))

    function = many if verb == "flat_map" else declared if annotated else one
    getattr(source, verb)(function, name="priced", deterministic=True, **settings)
    return pipeline


@pytest.mark.parametrize("annotated", [False, True])
@pytest.mark.parametrize("poison", [0, 3, 14])
@pytest.mark.parametrize("unusable", ["n/a", 1.5, 2**70, True])
def test_a_record_of_which_something_unusable_is_returned_is_set_aside_alone(
    unusable: Any, poison: int, annotated: bool, tmp_path: Path
) -> None:
    if unusable == 1.5 and poison < 10 and not annotated:
        pytest.skip("what is a float in the first event makes the column one of floats")
    pipeline = returned(unusable, annotated=annotated, poison=poison, on_error="quarantine")
    pipeline.sink("priced", files(tmp_path / "out"))
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 1
    assert found(tmp_path) == Counter(n for n in range(30) if n != poison)
    graph = pipeline.graph()
    (one,) = quarantine_of(graph, **place(tmp_path))
    assert one.events == f"numbers.out#{poison // 10 + 1} record {poison % 10}"
    assert one.row.error["record"] == f"{{'n': {poison}}}"
    assert one.row.error["message"] == (
        f"it returned {unusable!r} ({type(unusable).__name__}) in column v, expected int64 there"
    )
    Mended.yes = True
    decide_quarantined(graph, [one], "retry", **place(tmp_path))
    run(pipeline, **place(tmp_path), engine="inline")
    assert found(tmp_path) == Counter(range(30))
    explained(pipeline, tmp_path)


def test_a_record_with_a_column_that_the_port_does_not_have_is_set_aside_alone(tmp_path: Path) -> None:
    pipeline = returned({"n": 14, "w": 1}, on_error="quarantine")
    pipeline.sink("priced", files(tmp_path / "out"))
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 1
    (one,) = quarantine_of(pipeline.graph(), **place(tmp_path))
    assert one.row.error["message"] == "it returned a column 'w', expected only n, v"
    assert found(tmp_path) == Counter(n for n in range(30) if n != 14)


def test_of_a_record_that_makes_several_all_are_set_aside_or_none(tmp_path: Path) -> None:
    pipeline = returned("n/a", "flat_map", on_error="quarantine")
    pipeline.sink("priced", files(tmp_path / "out"))
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 1
    assert found(tmp_path) == Counter({n: 2 for n in range(30) if n != 14})


def test_without_quarantine_the_error_names_the_record_that_something_unusable_was_returned_of(tmp_path: Path) -> None:
    with pytest.raises(UserFunctionFailed) as error:
        run(returned("n/a"), **place(tmp_path), engine="inline")
    assert str(error.value) == (
        "operator priced failed on numbers.out#2, record 4 {'n': 14} (1 attempt): RecordRefused: it returned 'n/a' "
        "(str) in column v, expected int64 there\nmend the function and run again: the run resumes at this event"
    )


def test_whole_numbers_and_columns_that_are_lacking_are_no_mistake_of_a_record(tmp_path: Path) -> None:
    """Which records stand in one event must not decide whether they are carried."""
    pipeline = Pipeline("returned")
    source = pipeline.source("numbers", generator(lambda i: pa.table({"n": range(10 * i, 10 * i + 10)}), 3))

    @pipeline.map(source, deterministic=True)
    def halves(record: dict[str, Any]) -> dict[str, Any]:
        n = record["n"]
        return {"n": n, "half": n / 2} if n < 10 else {"n": n, "half": n} if n < 20 else {"n": n}

    pipeline.sink(halves, files(tmp_path / "out"))
    run(pipeline, **place(tmp_path), engine="inline")
    assert {row["n"]: row["half"] for row in rows(tmp_path / "out")} == {
        n: n / 2 if n < 10 else float(n) if n < 20 else None for n in range(30)
    }
    explained(pipeline, tmp_path)


def test_a_word_that_means_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphErrors, match='on_error=\'skip\'; it is "stop" or "quarantine"'):
        windows(tmp_path, "skip").graph()


def branched(tmp_path: Path, **settings: Any) -> Pipeline:
    """Twenty records in two events; the predicates of two ports fail on some of them."""
    pipeline = Pipeline("branched")

    def even(record: dict[str, Any]) -> bool:
        return not refused(record, 3, 14) and record["n"] % 2 == 0

    def thrice(record: dict[str, Any]) -> bool:
        return not refused(record, 1) and record["n"] % 3 == 0

    def refused(record: dict[str, Any], *poison: int) -> bool:
        if record["n"] in poison and not Mended.yes:
            raise ValueError(f"cannot tell of {record}")
        return False

    source = pipeline.source("numbers", generator(lambda i: pa.table({"n": range(10 * i, 10 * i + 10)}), 2))
    ports = source.branch(
        even=even, thrice=thrice, large=pc.field("n") > 15, rest="others", name="sorted",
        settings={"deterministic": True, "attempts": 1, **settings},
    )  # fmt: skip
    for port in ("even", "thrice", "large", "others"):
        pipeline.sink(ports[port], files(tmp_path / port), name=port)
    return pipeline


def test_a_branch_sets_aside_the_records_that_a_predicate_fails_on(tmp_path: Path) -> None:
    pipeline = branched(tmp_path, on_error="quarantine")
    graph = pipeline.graph()
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 3
    held = quarantine_of(graph, **place(tmp_path))
    assert [one.events for one in held] == [
        "numbers.out#1 record 1", "numbers.out#1 record 3", "numbers.out#2 record 4",
    ]  # fmt: skip
    assert [one.row.error["record"] for one in held] == [str({"n": n}) for n in (1, 3, 14)]
    assert held[0].row.error["message"] == "cannot tell of {'n': 1}"
    of_ports = {
        port: sorted(row["n"] for row in rows(tmp_path / port)) for port in ("even", "thrice", "large", "others")
    }
    assert of_ports == {
        "even": [0, 2, 4, 6, 8, 10, 12, 16, 18], "thrice": [9, 15], "large": [17, 19], "others": [5, 7, 11, 13],
    }  # fmt: skip

    Mended.yes = True
    decide_quarantined(graph, held, "retry", **place(tmp_path))
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 0
    assert sorted(row["n"] for row in rows(tmp_path / "even")) == list(range(0, 20, 2))
    assert sorted(row["n"] for row in rows(tmp_path / "thrice")) == [3, 9, 15]
    assert sorted(row["n"] for row in rows(tmp_path / "others")) == [1, 5, 7, 11, 13]
    explained(pipeline, tmp_path)


def test_without_quarantine_the_error_names_the_record_that_a_predicate_fails_on(tmp_path: Path) -> None:
    with pytest.raises(UserFunctionFailed, match=r"numbers\.out#1.*record 3 \{'n': 3\}"):
        run(branched(tmp_path), **place(tmp_path), engine="inline")


class Book(Connection):
    """Knows what some letters stand for, and counts who asks."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def describe(self) -> str:
        return "a book"

    def read(self, action: str) -> pa.Table:
        with self.path.open("a") as out:
            out.write(action)
        if action == "down" and not Mended.yes:
            raise SourceFailed("book", "it is closed", "come again")
        if action == "x" and not Mended.yes:
            raise AnswerRefused("book", "x stands for nothing", "ask for another one")
        return pa.table({"stands": [ord(action[0])]})


def enriched(tmp_path: Path, letters: Sequence[str], **settings: Any) -> Pipeline:
    """Records that ask for letters; of some the answer cannot be added."""
    pipeline = Pipeline("enriched")

    def add(record: dict[str, Any], answer: pa.Table) -> dict[str, Any]:
        if record["n"] == 2 and not Mended.yes:
            raise ValueError("not two")
        return {"n": record["n"], "stands": answer["stands"][0].as_py()}

    source = pipeline.source(
        "letters", generator(lambda i: pa.table({"n": range(6), "letter": letters}), 1, schema=None)
    )
    made = source.enrich(
        Book(tmp_path / "asked"), lambda record: str(record["letter"]), add=add, name="told", deterministic=True,
        attempts=1, **settings,
    )  # fmt: skip
    pipeline.sink(made, files(tmp_path / "out"), name="out")
    return pipeline


@pytest.mark.parametrize("point", ["after-generate", "inside-commit", "after-commit"])
def test_an_enrichment_sets_aside_the_records_that_it_fails_on(point: str, tmp_path: Path) -> None:
    # What the third asks for, a later one asks for too; the answers of those that stay are logged as they ask.
    pipeline = enriched(tmp_path, ["a", "x", "c", "b", "c", "a"], on_error="quarantine")
    (fault,) = arm(f"{point}@told:raise")
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 2
    arm()
    assert fault.fired
    graph = pipeline.graph()
    held = quarantine_of(graph, **place(tmp_path))
    assert [(one.events, one.row.error["kind"]) for one in held] == [
        ("letters.out#1 record 1", "AnswerRefused"), ("letters.out#1 record 2", "ValueError"),
    ]  # fmt: skip
    assert [(row["n"], chr(row["stands"])) for row in rows(tmp_path / "out")] == [
        (0, "a"),
        (3, "b"),
        (4, "c"),
        (5, "a"),
    ]
    (again,) = replay(graph, "told", "told#1", **place(tmp_path))
    assert again.same, again
    (step,) = step_back(graph, "told#1", **place(tmp_path))
    assert [read.description for read in step.reads] == ["a", "b", "c"]

    Mended.yes = True
    decide_quarantined(graph, held, "retry", **place(tmp_path))
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 0
    assert Counter(row["n"] for row in rows(tmp_path / "out")) == Counter(range(6))
    explained(pipeline, tmp_path)


def test_a_system_that_cannot_be_asked_is_no_records_fault(tmp_path: Path) -> None:
    pipeline = enriched(tmp_path, ["a", "x", "down", "b", "c", "a"], on_error="quarantine")
    with pytest.raises(SourceFailed, match="it is closed"):
        run(pipeline, **place(tmp_path), engine="inline")
    assert quarantine_of(pipeline.graph(), **place(tmp_path)) == []
    Mended.yes = True
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 0
    assert found(tmp_path) == Counter(range(6))
    explained(pipeline, tmp_path)


def test_an_event_all_records_of_which_are_set_aside_makes_nothing(tmp_path: Path) -> None:
    pipeline = enriched(tmp_path, ["x"] * 6, on_error="quarantine")
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 6
    Mended.yes = True
    graph = pipeline.graph()
    decide_quarantined(graph, quarantine_of(graph, **place(tmp_path)), "retry", **place(tmp_path))
    assert run(pipeline, **place(tmp_path), engine="inline").quarantined == 0
    assert found(tmp_path) == Counter(range(6))
    explained(pipeline, tmp_path)
