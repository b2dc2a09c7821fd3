"""What nobody can decide is said to be undecided, with what it needs; and what is declared deterministic must be."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from clew import Pipeline, Sink, WriteAction
from clew.connectors import files, generator, sqlite
from clew.errors import RunStopped, SetupFailed, WrongLog
from clew.faultpoint import arm
from clew.model.verify import verify
from clew.pipeline.contracts import Held, RecordsHeld
from clew.run import Policy, gc, run
from tests.model.pipelines import all_postgres, count, each, general, start, to_files, to_upsert
from tests.model.runs import change, explained, finished, first, numbers, only, rows, wait_for


def noisy(directory: Path, deterministic: bool) -> Pipeline:
    pipeline, source = start("noisy")

    @pipeline.operator(source, deterministic=deterministic)
    def shaken(table: pa.Table) -> pa.Table:
        return table.append_column("noise", pa.array([random.random() for _ in range(table.num_rows)]))

    pipeline.sink(shaken, sqlite(directory / "sink.db", table="shaken"))
    return pipeline


def test_an_operator_that_is_declared_deterministic_and_is_not_is_named(tmp_path: Path) -> None:
    found = only(finished(noisy(tmp_path, deterministic=True), tmp_path).verify())
    assert (found.operator, found.event, found.input_set) == ("shaken", "shaken.out#1", 1)
    assert found.fact == "is declared deterministic and is not: it gives something else each time, on port out"


def test_the_same_operator_is_explained_where_it_is_not_declared_so(tmp_path: Path) -> None:
    assert explained(finished(noisy(tmp_path, deterministic=False), tmp_path).verify())


def test_a_function_that_was_changed_since_is_found(tmp_path: Path) -> None:
    made = finished(each(tmp_path), tmp_path)
    pipeline, source = start("each")

    @pipeline.operator(source, deterministic=True)
    def doubled(table: pa.Table) -> pa.Table:
        return table

    pipeline.sink(doubled, sqlite(tmp_path / "sink.db", table="doubled"))
    found = only(verify(pipeline.graph(), made.url, str(made.bodies)), "undecided")
    assert (found.operator, found.event, found.input_set) == ("doubled", "doubled.out#1", 1)
    assert "is not what the function gives" in found.fact
    assert found.fact.endswith("; its code is another one than the run had")
    # A log of an earlier Clew does not tell.
    made.change("DELETE FROM meta WHERE key = 'version:doubled'")
    assert "is not what the function gives" in only(verify(pipeline.graph(), made.url, str(made.bodies))).fact


def test_a_function_that_fails_now_is_found(tmp_path: Path) -> None:
    made = finished(each(tmp_path), tmp_path)
    pipeline, source = start("each")

    @pipeline.operator(source, deterministic=True)
    def doubled(table: pa.Table) -> pa.Table:
        raise ValueError("not today")

    pipeline.sink(doubled, sqlite(tmp_path / "sink.db", table="doubled"))
    found = only(verify(pipeline.graph(), made.url, str(made.bodies)), "undecided")
    assert found.fact == (
        "its Output Set cannot be computed again: ValueError: not today; its code is another one than the run had"
    )
    assert found.event == "numbers.out#1"


# What was collected.


def test_a_log_that_lost_its_write_actions_was_not_collected_where_several_take_the_same_events(tmp_path: Path) -> None:
    made = finished(to_files(tmp_path), tmp_path)
    made.change("DELETE FROM write_action WHERE operator = 'to_csv'")
    found = first(made.verify())
    assert (found.operator, found.input_set) == ("to_csv", 1)
    assert found.fact == "write action to_csv.out#1 was never logged"


@pytest.mark.parametrize("make", [each, count, general, to_upsert, to_files])
def test_a_collected_run_is_undecided(tmp_path: Path, make: Any) -> None:
    made = finished(make(tmp_path), tmp_path)
    gc(made.pipeline.graph(), made.url, str(made.bodies))
    verdict = made.verify()
    assert verdict.word == "undecided"
    assert "were collected" in first(verdict, "undecided").fact
    assert {finding.weight for finding in verdict.findings} == {"undecided"}


def test_a_run_that_was_collected_beside_it_is_undecided_and_not_wrong(tmp_path: Path) -> None:
    pipeline, source = start("beside", events=200)

    @pipeline.operator(source, deterministic=True, max_turn_events=9)
    def same(table: pa.Table) -> pa.Table:
        return table

    pipeline.sink(same, sqlite(tmp_path / "sink.db", table="same"), max_turn_events=9)
    pipeline.sink(source, files(tmp_path / "out"), name="slow", max_turn_events=1)
    made = finished(pipeline, tmp_path, policy=Policy(collect_every=0.02))
    assert {finding.weight for finding in made.verify().findings} <= {"undecided"}


def test_what_went_while_another_receiver_was_slow_is_undecided_and_not_wrong(tmp_path: Path) -> None:
    """Write actions and an operator's events are collected, and what they were made of is not."""
    pipeline, source = start("slow", events=30)
    url, bodies = f"sqlite:///{tmp_path / 'log.db'}", str(tmp_path / "bodies")

    def is_full(table: str) -> bool:
        return (tmp_path / f"{table}.db").exists() and len(rows(tmp_path / f"{table}.db", table)) == 90

    @pipeline.operator(source, deterministic=True)
    def fast(table: pa.Table) -> pa.Table:
        return table

    @pipeline.operator(source, deterministic=True, max_turn_events=1)
    def slow(table: pa.Table) -> pa.Table:
        if table["n"][0].as_py() == 0 and not gone:
            wait_for(lambda: is_full("fast") and is_full("copies"))
            gone.append(gc(pipeline.graph(), url, bodies))
        return table

    gone: list[Any] = []
    pipeline.sink(fast, sqlite(tmp_path / "fast.db", table="fast"))
    # Its events are there, for the slow one has not taken them.
    pipeline.sink(source, sqlite(tmp_path / "copies.db", table="copies"), name="copies", max_turn_events=3)
    pipeline.sink(slow, sqlite(tmp_path / "slow.db", table="slow"))
    made = finished(pipeline, tmp_path)
    verdict = made.verify()
    marks = made.ask("SELECT operator, port FROM collected ORDER BY operator")
    assert marks == [("copies", "writes:out"), ("fast", "out"), ("fast_sink", "writes:out")]
    assert {finding.operator: finding.weight for finding in verdict.findings} == {
        "fast": "undecided", "fast_sink": "undecided", "copies": "undecided",
    }  # fmt: skip
    copies = next(finding.fact for finding in verdict.findings if finding.operator == "copies")
    assert copies.startswith("write actions copies.out#1 to #")
    assert copies.endswith(" were collected; verify a run before it is collected")


def test_what_is_missing_of_a_collected_run_is_still_found(tmp_path: Path) -> None:
    pipeline, source = start("beside", events=100)
    pipeline.sink(source, sqlite(tmp_path / "sink.db", table="same"), max_turn_events=9)
    arm("before-write@numbers_sink#4:raise")
    try:
        with pytest.raises(RunStopped):
            finished(pipeline, tmp_path, policy=Policy(give_up_after=1))
    finally:
        arm()
    gc(pipeline.graph(), f"sqlite:///{tmp_path / 'log.db'}", str(tmp_path / "bodies"))
    made = finished(pipeline, tmp_path)
    assert made.verify().word == "undecided"
    change(tmp_path / "sink.db", "DELETE FROM same WHERE n = 299")
    assert made.verify().word == "not explained"


# What others have written, or nobody can read.


def test_a_table_that_another_run_has_written_to_is_undecided(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    made = finished(each(tmp_path), tmp_path / "one")
    finished(each(tmp_path), tmp_path / "other")
    found = only(made.verify(), "undecided")
    assert found.operator == "doubled_sink"
    assert found.fact == "table doubled holds 120 records more than this run wrote; other runs have written there too"
    # What is missing has not been written by anybody.
    change(tmp_path / "sink.db", "DELETE FROM doubled WHERE n = 62")
    assert "is not in table doubled" in only(made.verify()).fact


def test_rows_that_another_run_may_have_replaced_are_undecided(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    made = finished(to_upsert(tmp_path), tmp_path / "one")
    finished(to_upsert(tmp_path), tmp_path / "other")
    assert explained(made.verify())
    change(tmp_path / "sink.db", "UPDATE keyed SET n = 0 WHERE key = 3")
    found = only(made.verify(), "undecided")
    assert "other runs have written there too, and may have replaced it" in found.fact


def test_duplicates_are_no_less_wrong_where_another_run_wrote_to_another_table_of_the_database(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    made = finished(each(tmp_path), tmp_path / "one")
    finished(count(tmp_path), tmp_path / "other")
    assert explained(made.verify())
    change(tmp_path / "sink.db", "INSERT INTO doubled SELECT * FROM doubled WHERE n = 62")
    assert "more often than written" in only(made.verify()).fact
    # Markers of an older Clew do not say which table they are of.
    change(tmp_path / "sink.db", "UPDATE clew_writes SET target = NULL")
    assert "other runs have written there too" in only(made.verify(), "undecided").fact
    change(tmp_path / "sink.db", "UPDATE clew_writes SET last = last", "ALTER TABLE clew_writes DROP COLUMN target",
           "UPDATE clew_writes SET last = last")  # fmt: skip
    assert "other runs have written there too" in only(made.verify(), "undecided").fact


def test_a_table_or_a_database_that_is_gone_is_not_explained(tmp_path: Path) -> None:
    made = finished(each(tmp_path), tmp_path)
    change(tmp_path / "sink.db", "ALTER TABLE doubled RENAME TO elsewhere", "UPDATE clew_writes SET last = last")
    found = only(made.verify())
    assert found.operator == "doubled_sink"
    assert found.fact == "table doubled is not there, and 120 records are to be in it"
    os.rename(tmp_path / "sink.db", tmp_path / "elsewhere.db")
    assert only(made.verify()).fact == found.fact


def test_a_table_that_is_gone_from_a_server_is_not_explained_and_a_server_that_is_gone_is_undecided(
    tmp_path: Path, postgres_url: str
) -> None:
    made = finished(all_postgres(postgres_url), tmp_path)
    assert explained(made.verify())
    with psycopg.connect(postgres_url) as connection:
        connection.execute("INSERT INTO copies SELECT * FROM copies WHERE id = 7")
        connection.execute("INSERT INTO clew_writes SELECT 'another', operator, connection, 1, 1, target "
                           "FROM clew_writes WHERE target LIKE '%latest%'")  # fmt: skip
    assert "more often than written" in only(made.verify()).fact
    with psycopg.connect(postgres_url) as connection:
        connection.execute("UPDATE clew_writes SET target = '\"copies\"' WHERE run = 'another'")
    assert "other runs have written there too" in only(made.verify(), "undecided").fact
    with psycopg.connect(postgres_url) as connection:
        connection.execute("ALTER TABLE copies RENAME COLUMN weight TO heavy")
    found = only(made.verify(), "undecided")
    assert found.fact.startswith('what was written cannot be read: column "weight" does not exist')
    with psycopg.connect(postgres_url) as connection:
        connection.execute("DROP TABLE copies")
    assert only(made.verify()).fact.startswith("table public.copies is not there")


def test_a_directory_that_is_gone_is_undecided(tmp_path: Path) -> None:
    made = finished(to_files(tmp_path), tmp_path)
    os.rename(tmp_path / "csv", tmp_path / "elsewhere")
    found = only(made.verify(), "undecided")
    assert (found.operator, found.fact) == (
        "to_csv",
        f"what was written cannot be read: there is no directory {tmp_path / 'csv'}",
    )


def test_files_that_go_together_in_too_many_ways_are_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    for size in range(1, 7):
        (tmp_path / "in" / f"{size}.csv").write_text("status\n" + size * "ok\n")
    (tmp_path / "in" / "_DONE").touch()
    pipeline = Pipeline("statuses")
    source = files(tmp_path / "in", follow=True, settle=0, poll="10 milliseconds", until="_DONE")
    pipeline.sink(pipeline.source("statuses", source), sqlite(tmp_path / "sink.db", table="statuses"))
    made = finished(pipeline, tmp_path)
    assert explained(made.verify())
    (tmp_path / "in" / "3.csv").unlink()
    assert only(made.verify()).operator == "statuses"
    monkeypatch.setattr("clew.model.tiling.MOST_BACK", -1_000)
    found = only(made.verify(), "undecided")
    assert found.operator == "statuses"
    assert found.fact.endswith("its files hold equal records, and there are too many ways to put them together")


def test_a_source_that_is_gone_is_undecided(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("n\n1\n2\n")
    pipeline = Pipeline("gone")
    pipeline.sink(pipeline.source("orders", files(tmp_path / "in")), sqlite(tmp_path / "sink.db", table="orders"))
    made = finished(pipeline, tmp_path)
    assert explained(made.verify())
    os.rename(tmp_path / "in", tmp_path / "elsewhere")
    found = only(made.verify(), "undecided")
    assert found.fact == f"what the source holds cannot be read: there is no file at {tmp_path / 'in'}"


# A sink of one's own.


class Memory(Sink):
    """Keeps what was written in this process."""

    idempotent = True

    def __init__(self, holds: bool) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self._holds = holds

    def describe(self) -> str:
        return "memory"

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        self.rows[action.name] = [row for table in tables for row in table.to_pylist()]

    def holds(self) -> Held | None:
        return MemoryHeld(self) if self._holds else None


class MemoryHeld(RecordsHeld):
    def __init__(self, sink: Memory) -> None:
        self.sink = sink

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        for written in self.sink.rows.values():
            yield pa.Table.from_pylist(written, schema)


def own(sink: Sink) -> Pipeline:
    pipeline, source = start("own")
    pipeline.sink(source, sink, max_turn_events=7)
    return pipeline


def test_a_sink_of_ones_own_that_says_what_it_holds_is_judged(tmp_path: Path) -> None:
    sink = Memory(holds=True)
    made = finished(own(sink), tmp_path)
    assert explained(made.verify())
    next(iter(sink.rows.values())).pop()
    found = only(made.verify())
    assert found.fact == "a record of write action #1 is not in what numbers_sink.out writes to"


def test_a_sink_of_ones_own_that_does_not_is_undecided(tmp_path: Path) -> None:
    found = only(finished(own(Memory(holds=False)), tmp_path).verify(), "undecided")
    assert found.fact == "what memory holds cannot be read by anybody else"


def test_a_sink_or_a_source_that_cannot_say_where_it_is_read_is_undecided(tmp_path: Path) -> None:
    class Broken(Memory):
        def holds(self) -> Held | None:
            raise OSError("no settings")

    found = only(finished(own(Broken(holds=True)), tmp_path).verify(), "undecided")
    assert (found.operator, found.fact) == ("numbers_sink", "holds() of memory fails: OSError: no settings")


def test_a_sink_of_ones_own_that_fails_is_undecided(tmp_path: Path) -> None:
    sink = Memory(holds=True)
    made = finished(own(sink), tmp_path)
    sink.rows["broken"] = None  # type: ignore[assignment]
    assert "TypeError" in only(made.verify(), "undecided").fact


# The log itself.


def test_a_run_that_has_not_finished_is_undecided(tmp_path: Path) -> None:
    pipeline, url = each(tmp_path), f"sqlite:///{tmp_path / 'log.db'}"
    for point in ("after-commit@doubled#2", "before-write@doubled_sink#3"):
        arm(f"{point}:raise")
        try:
            with pytest.raises(RunStopped):
                run(pipeline, log=url, engine="inline", policy=Policy(give_up_after=1))
        finally:
            arm()
        found = only(verify(pipeline.graph(), url, f"{tmp_path / 'log.db'}.bodies"), "undecided")
        assert "the run has not finished" in found.fact
        assert "run it to its end, and verify it then" in found.fact


def test_a_log_of_another_graph_is_not_explained(tmp_path: Path) -> None:
    made = finished(each(tmp_path), tmp_path)
    pipeline, source = start("each")
    pipeline.sink(source, sqlite(tmp_path / "sink.db", table="doubled"))
    found = only(verify(pipeline.graph(), made.url, str(made.bodies)))
    assert found.fact == "the log is of another graph; it has doubled, doubled_sink, numbers"


def test_what_is_no_log_of_the_pipeline_is_refused(tmp_path: Path) -> None:
    made = finished(each(tmp_path), tmp_path)
    graph = count(tmp_path).graph()
    with pytest.raises(WrongLog, match="this log is of pipeline each, not count"):
        verify(graph, made.url, None)
    for url in ("memory:", f"sqlite:///{tmp_path / 'nowhere.db'}", f"sqlite:///{tmp_path / 'sink.db'}"):
        with pytest.raises(SetupFailed, match="name the log of a run with --log"):
            verify(graph, url, None)
    (tmp_path / "text.db").write_text("this is no database, and long enough to be taken for one" * 100)
    with pytest.raises(SetupFailed, match="not a database"):
        verify(graph, f"sqlite:///{tmp_path / 'text.db'}", None)


def test_a_generator_that_gives_something_else_is_found(tmp_path: Path) -> None:
    pipeline = Pipeline("shifting")
    shift: list[int] = []
    source = pipeline.source("numbers", generator(lambda index: numbers(index + len(shift)), 20))
    pipeline.sink(source, sqlite(tmp_path / "sink.db", table="numbers"))
    made = finished(pipeline, tmp_path)
    assert explained(made.verify())
    shift.append(1)
    assert only(made.verify()).fact.startswith("record 1 is not the one that the source gives")
