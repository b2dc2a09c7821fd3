"""A log that contradicts itself, and what cannot be read again: each is told in words of its own."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew import Every, Operator, Pipeline
from clew.connectors import files, generator, sqlite
from clew.connectors.generator import Generator
from clew.errors import SetupFailed
from clew.model.certificate import Finding
from clew.model.read import opened_log
from clew.pipeline.contracts import Held
from clew.pipeline.operators import Context, InputSet
from clew.pipeline.windows import Header, Key, Memory, Opened, Window
from clew.run import decide_quarantined, quarantine_of
from tests.model.pipelines import EVENTS, PIPELINES, each, empty, general, start, to_files
from tests.model.runs import Finished, change, explained, finished, first, numbers, only

#: The number of the end of the stream of `numbers`.
END = EVENTS + 1


def found_of(made: Finished, operator: str) -> Finding:
    """Return the first finding about an operator."""
    return next(finding for finding in made.verify().findings if finding.operator == operator)


# What was taken.


def test_an_end_in_an_input_set(sevens: Finished) -> None:
    sevens.change("UPDATE ack SET input_set = 3, size = 0 WHERE operator = 'sums' AND first = :end", end=END)
    found = first(sevens.verify())
    assert (found.operator, found.event, found.found) == ("sums", f"numbers.out#{END}", "3")
    assert found.fact == "the end of a stream belongs to no Input Set"


def test_an_end_that_was_sent_and_never_taken(sevens: Finished) -> None:
    sevens.change("DELETE FROM ack WHERE operator = 'sums' AND first = :end", end=END)
    found = first(sevens.verify())
    assert (found.operator, found.event) == ("sums", f"numbers.out#{END}")
    assert found.fact == "was sent to it and never taken"


def test_a_stream_that_has_no_end_for_anybody(sevens: Finished) -> None:
    sevens.change("DELETE FROM ack WHERE operator = 'sums' AND first = :end", end=END)
    ((row, headers),) = sevens.ask(
        "SELECT first, headers FROM sent WHERE operator = 'numbers' ORDER BY first DESC LIMIT 1"
    )
    sevens.change(
        "UPDATE sent SET headers = :headers, count = count - 1 WHERE operator = 'numbers' AND first = :row",
        headers=json.dumps(json.loads(headers)[:-2]), row=row,
    )  # fmt: skip
    assert found_of(sevens, "sums").fact == "has not taken the end of numbers.out"


def test_a_place_in_the_order_that_nothing_was_taken_at(sevens: Finished) -> None:
    sevens.change("UPDATE ack SET seq = seq + 1 WHERE operator = 'sums'")
    found = first(sevens.verify())
    assert (found.operator, found.event) == ("sums", "numbers.out#1")
    assert found.fact == "took event number 2 where number 1 was due"


def test_an_input_set_that_was_passed_over(sevens: Finished) -> None:
    sevens.change("UPDATE done SET first = 2, count = count - 1 WHERE operator = 'sums' AND first = 1")
    found = only(sevens.verify())
    assert (found.operator, found.input_set) == ("sums", 1)
    assert found.fact == "Input Set 1 was never set to done"


def test_an_input_set_too_many(sevens: Finished) -> None:
    sets = -(-EVENTS // 7)
    sevens.change(f"INSERT INTO done VALUES ('sums', {sets + 1}, 2)")
    found = only(sevens.verify())
    assert (found.operator, found.fact) == ("sums", "has more Input Sets than it should")
    assert (found.expected, found.found) == (f"{sets}", f"{sets + 2} done")


def test_a_global_state_of_an_operator_that_has_none(sevens: Finished) -> None:
    sevens.change("INSERT INTO state_event VALUES ('sums', 1, 2, '{}')")
    found = only(sevens.verify())
    assert (found.operator, found.input_set) == ("sums", 2)
    assert found.fact == "a global state was logged for an Input Set that saw none"


# What the clock decided.


def test_a_decision_of_a_window_that_has_no_clock(sevens: Finished) -> None:
    sevens.change(f"INSERT INTO decision VALUES ('sums', {END + 1}, '{{\"sums\": 7}}')")
    found = only(sevens.verify())
    assert (found.operator, found.fact) == ("sums", "the clock made it decide what it cannot decide")
    assert found.found == "{'sums': 7}"


def test_an_event_taken_before_the_clock_was_looked_at(tmp_path: Path) -> None:
    pipeline, source = start("hourly")

    @pipeline.operator(source, window=Every("1 hour"), deterministic=True)
    def sums(table: pa.Table) -> pa.Table:
        return table.slice(0, 1)

    pipeline.sink(sums, sqlite(tmp_path / "sink.db", table="sums"))
    made = finished(pipeline, tmp_path)
    assert explained(made.verify())
    made.change(
        "DELETE FROM decision WHERE seq = 1", "UPDATE decision SET seq = seq - 1",
        "UPDATE ack SET seq = seq - 1 WHERE operator = 'sums'",
    )  # fmt: skip
    found = first(made.verify())
    assert (found.operator, found.event) == ("sums", "numbers.out#1")
    assert found.fact == "was taken before the clock had said what time it was"


# What was set aside.


@pytest.fixture
def retried(tmp_path: Path) -> Finished:
    """`numbers` -> `picky`, which set one event aside, and did it when it was tried again."""
    return _decided(tmp_path, "retry")


def test_something_decided_on_that_was_never_set_aside(retried: Finished) -> None:
    _redecide(retried, [[2, EVENTS + 1]])
    found = first(retried.verify())
    assert (found.operator, found.fact) == ("picky", "picky#2 was never set aside, or was decided on twice")


def test_something_decided_on_twice(retried: Finished) -> None:
    _redecide(retried, [[1, EVENTS + 1], [1, EVENTS + 2]])
    found = first(retried.verify())
    assert (found.operator, found.fact) == ("picky", "picky#1 was never set aside, or was decided on twice")


def test_something_tried_again_as_another_input_set(retried: Finished) -> None:
    _redecide(retried, [[1, 5]])
    found = first(retried.verify())
    assert found.fact == "picky#1, which was set aside, was tried again as another Input Set"
    assert (found.operator, found.expected, found.found) == ("picky", f"{EVENTS + 1}", "5")


def test_something_set_aside_that_nobody_decided_on(tmp_path: Path) -> None:
    made = _decided(tmp_path, "drop")
    made.change("DELETE FROM decision WHERE operator = 'picky'")
    found = only(made.verify())
    assert found.fact == "finished though nobody has decided on picky#1, which was set aside"


def _decided(tmp_path: Path, word: str) -> Finished:
    pipeline, source = start("picky")
    mended: list[bool] = []

    @pipeline.operator(source, deterministic=True, on_error="quarantine", attempts=1)
    def picky(table: pa.Table) -> pa.Table:
        if table["n"][0].as_py() == 30 and not mended:
            raise ValueError("not 30")
        return table

    pipeline.sink(picky, sqlite(tmp_path / "sink.db", table="picky"))
    made = finished(pipeline, tmp_path)
    graph, place = pipeline.graph(), {"log": made.url, "bodies": str(made.bodies)}
    if word == "retry":
        mended.append(True)
    assert decide_quarantined(graph, quarantine_of(graph, log=made.url), word, **place) == 1
    finished(pipeline, tmp_path)
    assert explained(made.verify())
    return made


def _redecide(made: Finished, resolved: list[list[int]]) -> None:
    made.change("UPDATE decision SET decision = :new WHERE operator = 'picky'", new=json.dumps({"": resolved}))


# Reads and writes on the side.


def test_an_answer_that_its_input_set_did_not_ask_for(tmp_path: Path) -> None:
    made = finished(general(tmp_path), tmp_path)
    action = _answer_again(made, 1000)
    found = only(made.verify())
    assert found.operator == "rates"
    assert found.fact == f"read action #{action} on rates served Input Set 1000, which did not ask for it"


def test_an_answer_too_many_for_its_input_set(tmp_path: Path) -> None:
    made = finished(general(tmp_path), tmp_path)
    ((last,),) = made.ask("SELECT input_set FROM read_event WHERE operator = 'rates' ORDER BY action DESC LIMIT 1")
    _answer_again(made, last)
    found = only(made.verify())
    assert (found.operator, found.input_set) == ("rates", last)
    assert found.fact.endswith("it reads rates less often than the log says")


def _answer_again(made: Finished, input_set: int) -> int:
    """Log the last answer once more, as that of another read action, for an Input Set."""
    ((last,),) = made.ask("SELECT max(action) FROM read_event WHERE operator = 'rates'")
    made.change(
        "INSERT INTO read_event SELECT operator, connection, action + 1, done, :input_set, count, size, lengths, "
        "checksums, file, start, data, description FROM read_event WHERE operator = 'rates' AND action = :last",
        input_set=input_set, last=last,
    )  # fmt: skip
    return int(last) + 1


def test_a_write_action_that_nobody_made(singles: Finished) -> None:
    ((last,),) = singles.ask("SELECT max(number) FROM write_action WHERE operator = 'doubled_sink'")
    singles.change(
        f"INSERT INTO write_action SELECT operator, connection, {last + 1}, events, at FROM write_action "
        "WHERE number = 1",
        f"INSERT INTO done_write VALUES ('doubled_sink', 'out', {last + 1}, 1)",
    )
    found = first(singles.verify())
    assert found.operator == "doubled_sink"
    assert found.fact == f"write action doubled_sink.out#{last + 1} was made by nobody"


# Code that fails when it is asked again.


class Pairs(Operator):
    """Pairs of events, while it works."""

    def __init__(self) -> None:
        self.broken: list[bool] = []

    def assign(self, event: Header, state: dict[str, Any]) -> Sequence[Any]:
        if self.broken:
            raise LookupError("no settings")
        return [event.number // 2]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        return [key for key in opened if key < max(opened)]

    def generate(self, input_set: InputSet, context: Context) -> Any:
        return pa.table({"events": [len(input_set.events)]})


def test_an_operator_that_cannot_place_events_any_more(tmp_path: Path) -> None:
    pipeline, source = start("pairs")
    pairs = Pairs()
    pipeline.sink(pipeline.general("pairs", pairs, source), sqlite(tmp_path / "sink.db", table="pairs"))
    made = finished(pipeline, tmp_path)
    assert explained(made.verify())
    pairs.broken.append(True)
    found = only(made.verify())
    assert (found.operator, found.fact) == ("pairs", "its Input Sets cannot be followed: LookupError: no settings")


def test_a_source_that_fails_when_it_is_read_again(tmp_path: Path) -> None:
    pipeline = Pipeline("failing")
    gone: list[bool] = []

    def make(index: int) -> pa.Table:
        if gone and index == 3:
            raise ConnectionError("the line is dead")
        return numbers(index)

    pipeline.sink(pipeline.source("numbers", generator(make, 5)), sqlite(tmp_path / "sink.db", table="numbers"))
    made = finished(pipeline, tmp_path)
    assert explained(made.verify())
    gone.append(True)
    found = only(made.verify(), "undecided")
    assert found.operator == "numbers"
    assert found.fact == "what the source holds cannot be read: ConnectionError: the line is dead"


class Unsettled(Generator):
    def holds(self) -> Held | None:
        raise OSError("no settings")


def test_a_source_that_cannot_say_where_it_is_read(tmp_path: Path) -> None:
    pipeline = Pipeline("unsettled")
    source = pipeline.source("numbers", Unsettled(numbers, 5))
    pipeline.sink(source, sqlite(tmp_path / "sink.db", table="numbers"))
    found = only(finished(pipeline, tmp_path).verify(), "undecided")
    assert found.operator == "numbers"
    assert found.fact == "what the source holds cannot be read: its holds() fails: OSError: no settings"


@dataclass(frozen=True)
class Whole(Window):
    """A window of one's own: everything is one Input Set."""

    def assign(self, event: Header, memory: Memory) -> Sequence[Key]:
        return (0,)

    def ready(self, memory: Memory, opened: Opened) -> Sequence[Key]:
        return ()


def test_a_window_that_the_model_does_not_know(tmp_path: Path) -> None:
    pipeline, source = start("whole")

    @pipeline.operator(source, window=Whole(), deterministic=True)
    def sizes(table: pa.Table) -> pa.Table:
        return pa.table({"rows": [table.num_rows]})

    pipeline.sink(sizes, sqlite(tmp_path / "sink.db", table="sizes"))
    found = only(finished(pipeline, tmp_path).verify(), "undecided")
    assert found.operator == "sizes"
    assert found.fact == "its window Whole has no meaning in the model; write its course in clew/model/windows.py"


# What is there and cannot be read.


def test_a_file_in_the_place_of_a_directory(tmp_path: Path) -> None:
    made = finished(empty(tmp_path), tmp_path)
    assert explained(made.verify())
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").touch()
    found = only(made.verify(), "undecided")
    assert found.operator == "copies"
    assert found.fact == f"what was written cannot be read: {tmp_path / 'out'} cannot be read: Not a directory"


def test_a_directory_in_the_place_of_a_file(tmp_path: Path) -> None:
    made = finished(to_files(tmp_path), tmp_path)
    path = min((tmp_path / "csv").glob("*.csv"))
    path.unlink()
    path.mkdir()
    found = only(made.verify(), "undecided")
    assert found.operator == "to_csv"
    assert found.fact == f"what was written cannot be read: {path} cannot be read: Is a directory"


def test_a_log_whose_path_is_too_long_for_sqlite(tmp_path: Path) -> None:
    directory = tmp_path.joinpath(*["d" * 100] * 8)
    directory.mkdir(parents=True)
    (directory / "log.db").touch()
    url = f"sqlite:///{directory / 'log.db'}"
    failed = pytest.raises(SetupFailed, match=r"log\.db: unable to open database file")
    with failed as raised, opened_log(url, "each", None):
        pass
    assert "name the log of a run with --log" in str(raised.value)


def test_a_log_that_lacks_what_names_its_run(singles: Finished) -> None:
    singles.change("DELETE FROM meta WHERE key = 'run_id'")
    with pytest.raises(SetupFailed, match="the log cannot be read: its table meta has no run_id"):
        singles.verify()


@pytest.mark.parametrize("name", ["each", "to_files", "general"])
def test_write_actions_with_the_lineage_of_another_input_set(tmp_path: Path, name: str) -> None:
    made = finished(PIPELINES[name](tmp_path), tmp_path)
    assert explained(made.verify())
    made.change("UPDATE ordered_lineage SET input_set = input_set + 1 WHERE port LIKE 'writes:%'")
    found = first(made.verify())
    assert found.fact.endswith("is not that of its Input Set")


def test_lineage_of_a_write_action_that_was_never_made(tmp_path: Path) -> None:
    made = finished(each(tmp_path), tmp_path)
    made.change(
        "INSERT INTO ordered_lineage SELECT operator, port, max(first) + 90, 1, max(input_set) + 90, '[[1,1]]' "
        "FROM ordered_lineage WHERE port LIKE 'writes:%' GROUP BY operator, port"
    )
    assert "lineage tells of write action" in only(made.verify()).fact


OF_WRITES = "FROM ordered_lineage WHERE port LIKE 'writes:%'"


@pytest.mark.parametrize("part", ["", " AND first = 1", " AND first > 1"])
@pytest.mark.parametrize("name", ["each", "general"])
def test_write_actions_without_their_lineage(tmp_path: Path, name: str, part: str) -> None:
    made = finished(PIPELINES[name](tmp_path), tmp_path)
    assert made.ask(f"SELECT count(*) {OF_WRITES}")[0][0] > 2
    made.change(f"DELETE {OF_WRITES}{part}")
    assert first(made.verify()).fact.endswith("is not that of its Input Set")


def test_write_actions_and_sources_without_lineage_where_an_earlier_clew_kept_none(tmp_path: Path) -> None:
    """What says when it was logged was logged with its lineage."""
    for name in ("each", "general"):
        (tmp_path / name).mkdir()
        made = finished(PIPELINES[name](tmp_path / name), tmp_path / name)
        ((early,),) = made.ask("SELECT first FROM ordered_lineage WHERE operator = 'numbers' LIMIT 1 OFFSET 2")
        for table, number in (("write_action", "number"), ("sent", "first")):
            made.change(f"UPDATE {table} SET at = NULL WHERE {number} < {early}")
        made.change(
            f"DELETE {OF_WRITES} AND first < {early}",
            f"DELETE FROM ordered_lineage WHERE operator = 'numbers' AND first < {early}",
        )
        assert explained(made.verify())
        made.change("DELETE FROM ordered_lineage WHERE operator = 'numbers'")
        assert first(made.verify()).operator == "numbers"


def test_a_log_of_an_earlier_clew_has_no_lineage_of_sources_and_write_actions(tmp_path: Path) -> None:
    made = finished(each(tmp_path), tmp_path)
    made.change(
        "INSERT INTO lineage SELECT * FROM ordered_lineage WHERE operator = 'doubled'", "DELETE FROM ordered_lineage",
        "UPDATE meta SET value = '2' WHERE key = 'schema_version'",
    )  # fmt: skip
    assert explained(made.verify())
    made.change("DELETE FROM lineage")
    assert first(made.verify()).operator == "doubled"


def test_write_actions_of_which_no_lineage_was_captured(tmp_path: Path) -> None:
    pipeline = Pipeline("uncaptured")
    source = pipeline.source("numbers", generator(numbers, EVENTS), max_turn_events=7)
    pipeline.sink(source, sqlite(tmp_path / "sink.db", table="numbers"), lineage=False)
    made = finished(pipeline, tmp_path)
    assert made.ask(f"SELECT count(*) {OF_WRITES}") == [(0,)]
    assert explained(made.verify())
    # Also where it is captured by now.
    made.change(
        'UPDATE meta SET value = \'{"numbers_sink": [["in"], ["writes:out"], false]}\' WHERE key = \'captures\''
    )
    assert explained(made.verify())
    made.change("DELETE FROM meta WHERE key = 'uncaptured'")
    assert first(made.verify()).fact.endswith("is not that of its Input Set")


# Write actions of functions that may write anything.


def undeclared(tmp_path: Path) -> Finished:
    made = finished(general(tmp_path, deterministic=False), tmp_path)
    assert explained(made.verify())
    return made


def test_a_write_action_left_out_where_nobody_knows_what_made_it(tmp_path: Path) -> None:
    made = undeclared(tmp_path)
    made.change(
        "UPDATE meta SET value = '[\"rates.writes:report\"]' WHERE key = 'uncaptured'",
        *(f"DELETE FROM {table} WHERE port = 'writes:report'" for table in ("lineage", "ordered_lineage")),
    )
    assert explained(made.verify())
    made.change("DELETE FROM write_action WHERE operator = 'rates' AND number = 3")
    found = first(made.verify())
    assert (found.operator, found.fact) == ("rates", "write action rates.report#3 was never logged")


def test_a_write_action_doubled_of_a_function_that_may_write_anything(tmp_path: Path) -> None:
    made = undeclared(tmp_path)
    ((last,),) = made.ask("SELECT max(number) FROM write_action WHERE operator = 'rates'")
    body = "part, count, size, lengths, checksums, file, start, data"
    made.change(
        f"INSERT INTO write_action SELECT operator, connection, {last + 1}, events, NULL FROM write_action "
        f"WHERE operator = 'rates' AND number = {last}",
        f"INSERT INTO write_body SELECT operator, connection, {last + 1}, {body} FROM write_body "
        f"WHERE operator = 'rates' AND number = {last}",
        f"INSERT INTO done_write VALUES ('rates', 'report', {last + 1}, 1)",
    )
    change(
        tmp_path / "report.db", "INSERT INTO report SELECT * FROM report WHERE rowid = (SELECT max(rowid) FROM report)"
    )
    found = only(made.verify())
    assert (found.operator, found.fact) == ("rates", f"write action rates.report#{last + 1} was made by nobody")


@pytest.mark.parametrize(
    ("statement", "fact"),
    [
        ("UPDATE {} SET input_set = input_set + 70", "which Input Set 71 did not make"),
        ("DELETE FROM {}", "write action rates.report#1 was made by nobody"),
        ("DELETE FROM {} WHERE first > 9", "was made by nobody"),
        ("DELETE FROM {} WHERE first = 1", "did not make"),
    ],
)
def test_write_actions_of_a_function_that_may_write_anything_with_other_lineage(
    tmp_path: Path, statement: str, fact: str
) -> None:
    made = undeclared(tmp_path)
    own = "operator = 'rates' AND port = 'writes:report'"
    for table in ("lineage", "ordered_lineage"):
        made.change(
            f"CREATE TABLE own AS SELECT * FROM {table} WHERE {own}", f"DELETE FROM {table} WHERE {own}",
            statement.format("own"), f"INSERT INTO {table} SELECT * FROM own", "DROP TABLE own",
            "UPDATE meta SET value = value",
        )  # fmt: skip
    found = only(made.verify())
    assert found.operator == "rates"
    assert found.fact.endswith(fact)


OF_SOURCE = "FROM ordered_lineage WHERE operator = 'numbers'"


@pytest.mark.parametrize(
    ("statement", "fact"),
    [
        (
            "UPDATE ordered_lineage SET input_set = input_set + 7 WHERE operator = 'numbers'",
            "its lineage leads to another read action than that which gave it",
        ),
        (f"DELETE {OF_SOURCE}", "has sent events that its lineage does not know, or fewer than it knows"),
        (f"DELETE {OF_SOURCE} AND first = 1", "its lineage leaves out an event, or has it twice"),
        (
            f"DELETE {OF_SOURCE} AND first = (SELECT max(first) {OF_SOURCE})",
            "has sent events that its lineage does not know, or fewer than it knows",
        ),
        (
            f"DELETE {OF_SOURCE} AND first = (SELECT min(first) {OF_SOURCE} AND first > 1)",
            "its lineage leaves out an event, or has it twice",
        ),
    ],
)
def test_lineage_of_a_source_that_is_not_that_of_its_read_actions(sevens: Finished, statement: str, fact: str) -> None:
    assert explained(sevens.verify())
    assert sevens.ask(f"SELECT count(*) {OF_SOURCE}")[0][0] > 2
    sevens.change(statement)
    assert only(sevens.verify()).fact == fact


def test_an_event_after_the_end_of_its_stream(sevens: Finished) -> None:
    columns = "count, bytes, headers, facts"
    sevens.change(
        f"INSERT INTO sent (operator, port, first, {columns}) SELECT operator, port, first + count, {columns} "
        "FROM sent WHERE operator = 'numbers' AND first = (SELECT max(first) FROM sent WHERE operator = 'numbers')"
    )
    assert first(sevens.verify()).fact == "was sent after the end of the stream"


def test_a_source_that_sent_nothing_and_holds_records(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for kind, text in (("csv", "n\n"), ("jsonl", "\n")):
        (tmp_path / "in" / f"a.{kind}").write_text(text)
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "in" / "a.parquet")
    change(tmp_path / "in.db", "CREATE TABLE orders (n INTEGER)", "INSERT INTO orders VALUES (1)", "DELETE FROM orders")
    pipeline = Pipeline("nothing")
    sources = {kind: files(tmp_path / "in" / f"*.{kind}") for kind in ("csv", "jsonl", "parquet")}
    sources["table"] = sqlite(tmp_path / "in.db", query="SELECT n FROM orders", unique="n")
    for name, source in sources.items():
        pipeline.sink(pipeline.source(name, source), sqlite(tmp_path / "sink.db", table=name))
    made = finished(pipeline, tmp_path)
    assert explained(made.verify())
    (tmp_path / "in" / "a.csv").write_text("n\n1\n2\n")
    (tmp_path / "in" / "a.jsonl").write_text('{"n": 1}\n\n')
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "in" / "a.parquet")
    change(tmp_path / "in.db", "INSERT INTO orders VALUES (1), (2), (3), (4)")
    verdict = made.verify()
    assert verdict.word == "undecided"
    assert {finding.operator: finding.expected for finding in verdict.findings} == {
        "csv": "2 records", "jsonl": "1 record", "parquet": "3 records", "table": "4 records",
    }  # fmt: skip
    assert {finding.fact for finding in verdict.findings} == {
        "has sent 0 records and the source has more: it has grown since, or they were lost"
    }


def test_a_source_whose_schema_was_removed(singles: Finished) -> None:
    singles.change("DELETE FROM port_schema WHERE operator = 'numbers'")
    assert found_of(singles, "numbers").fact == "the log has no schema of numbers.out, which has sent events"
