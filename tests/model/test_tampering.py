"""One thing changed by hand in the log, in a source or in a sink is found, and told as small as it is."""

import json
import os
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew import Count, Pipeline, Sink
from clew.connectors import files, generator, postgres, sqlite
from clew.ids import Port
from clew.model.read import opened_log
from tests.model.pipelines import (
    batch,
    each,
    from_csv,
    from_keyset,
    general,
    several_ports,
    to_files,
    to_upsert,
    tumbling,
)
from tests.model.runs import Finished, change, explained, finished, first, only

# Tables.


def test_a_row_dropped_from_a_table(singles: Finished, tmp_path: Path) -> None:
    change(tmp_path / "sink.db", "DELETE FROM doubled WHERE n = 62")
    found = only(singles.verify())
    assert (found.operator, found.event) == ("doubled_sink", "doubled.out#11")
    assert found.input_set == _set_of(singles, "doubled_sink", 11)
    assert "is not in table doubled" in found.fact
    assert found.expected.startswith("n 62, x ")
    assert found.found == "no record"


def test_a_row_doubled_in_a_table(singles: Finished, tmp_path: Path) -> None:
    change(tmp_path / "sink.db", "INSERT INTO doubled SELECT * FROM doubled WHERE n = 62")
    found = only(singles.verify())
    assert (found.operator, found.event) == ("doubled_sink", "doubled.out#11")
    assert found.input_set == _set_of(singles, "doubled_sink", 11)
    assert "1 record of write action #" in found.fact
    assert "more often than written" in found.fact


def test_a_row_that_nobody_wrote(singles: Finished, tmp_path: Path) -> None:
    change(tmp_path / "sink.db", "INSERT INTO doubled VALUES (61, 0.5)")
    found = only(singles.verify())
    assert found.operator == "doubled_sink"
    assert found.fact == "table doubled holds 1 record that nobody wrote"
    assert found.found == "n 61, x 0.5"


def test_rows_of_a_table_to_which_nothing_was_written(tmp_path: Path) -> None:
    made = finished(several_ports(tmp_path), tmp_path)
    assert explained(made.verify())
    change(tmp_path / "sink.db", "CREATE TABLE empty (n INTEGER, x REAL)", "INSERT INTO empty VALUES (1, 0.5), (2, 1)")
    found = only(made.verify())
    assert (found.operator, found.fact) == ("split_none_sink", "table empty holds 2 records that nobody wrote")
    change(tmp_path / "sink.db", "INSERT INTO clew_writes SELECT 'another', operator, connection, incarnation, 1, "
           "'\"empty\"' FROM clew_writes LIMIT 1")  # fmt: skip
    found = only(made.verify(), "undecided")
    assert found.fact == "table empty holds 2 records more than this run wrote; other runs have written there too"
    change(tmp_path / "sink.db", "DELETE FROM empty")
    assert explained(made.verify())


def test_a_value_that_is_of_no_such_type(singles: Finished, tmp_path: Path) -> None:
    change(tmp_path / "sink.db", "UPDATE doubled SET n = 'sixty-two' WHERE n = 62")
    found = only(singles.verify())
    assert "holds what nobody can have written: column n holds a value that is no int64" in found.fact


def test_a_cent(tmp_path: Path) -> None:
    made = finished(from_csv(tmp_path), tmp_path)
    change(tmp_path / "sink.db", "UPDATE orders SET price = '0.13' WHERE id = 12")
    found = only(made.verify())
    assert (found.operator, found.event) == ("orders_sink", "orders.out#2")
    assert "price 0.12" in found.expected
    assert "price 0.13" in found.found


@pytest.mark.parametrize(("column", "to"), [("at", "2024-01-01 00:00:12.000013"), ("paid", "0"), ("day", "2024-01-14")])
def test_a_microsecond_a_flag_a_day(tmp_path: Path, column: str, to: str) -> None:
    made = finished(from_csv(tmp_path), tmp_path)
    change(tmp_path / "sink.db", f"UPDATE orders SET {column} = :to WHERE id = 12", to=to)
    assert only(made.verify()).event == "orders.out#2"


def test_a_float_is_compared_to_nine_digits(sevens: Finished, tmp_path: Path) -> None:
    change(tmp_path / "sink.db", "UPDATE sums SET x = x * (1 + 1e-12) WHERE rowid = 4")
    assert explained(sevens.verify())
    change(tmp_path / "sink.db", "UPDATE sums SET x = x * (1 + 1e-6) WHERE rowid = 4")
    found = only(sevens.verify())
    assert (found.operator, found.event) == ("sums_sink", "sums.out#4")


def test_floats_are_compared_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More records differ in the last digits of a float than are held at once."""
    for module in ("holdings", "sinks"):
        monkeypatch.setattr(f"clew.model.{module}.MOST", 20)
    made = finished(each(tmp_path), tmp_path)
    change(tmp_path / "sink.db", "UPDATE doubled SET x = x * (1 + 3e-11)")
    assert explained(made.verify())
    monkeypatch.setattr("clew.model.sinks.MOST_BUCKETS", 1)
    assert "too many to be held against each other" in only(made.verify(), "undecided").fact
    monkeypatch.setattr("clew.model.sinks.MOST_BUCKETS", 32)
    change(tmp_path / "sink.db", "UPDATE doubled SET x = x * (1 + 1e-6) WHERE n = 62")
    assert only(made.verify()).expected.startswith("n 62, x ")


def test_floats_of_records_that_have_nothing_else_may_be_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("holdings", "sinks"):
        monkeypatch.setattr(f"clew.model.{module}.MOST", 20)
    pipeline = Pipeline("floats")
    source = pipeline.source("floats", generator(lambda index: pa.table({"x": [index / 7 + 1, index / 3 + 1]}), 40))
    pipeline.sink(source, sqlite(tmp_path / "sink.db", table="floats"))
    made = finished(pipeline, tmp_path)
    change(tmp_path / "sink.db", "UPDATE floats SET x = x * (1 + 3e-11)")
    assert "differ in their floats alone" in only(made.verify(), "undecided").fact


def test_zero_is_one_key_whatever_its_sign(tmp_path: Path) -> None:
    pipeline = Pipeline("zeros")
    source = pipeline.source(
        "zeros", generator(lambda index: pa.table({"k": [-0.0 if index % 2 else 0.0], "n": [index]}), 4)
    )
    pipeline.sink(source, sqlite(tmp_path / "sink.db", table="zeros", key="k"))
    assert explained(finished(pipeline, tmp_path).verify())


def _two_sinks(one: Sink, other: Sink) -> Pipeline:
    pipeline = Pipeline("two")
    source = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), 10))
    pipeline.sink(source, one, name="one")
    pipeline.sink(source, other, name="other")
    return pipeline


@pytest.mark.parametrize("other", ["Numbers", "main.numbers", "MAIN.Numbers"])
def test_two_sinks_that_name_one_table_otherwise_are_judged_together(tmp_path: Path, other: str) -> None:
    sinks = [sqlite(tmp_path / "sink.db", table=name) for name in ("numbers", other)]
    made = finished(_two_sinks(*sinks), tmp_path)
    assert explained(made.verify())
    change(tmp_path / "sink.db", "INSERT INTO numbers VALUES (3)")
    assert "more often than written" in only(made.verify()).fact
    change(tmp_path / "sink.db", "UPDATE clew_writes SET run = 'another' WHERE operator = 'other'")
    assert "other runs have written there too" in only(made.verify(), "undecided").fact


def test_a_database_that_is_reached_by_two_paths_is_one(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "sink.db")
    sinks = [sqlite(tmp_path / name, table="numbers") for name in ("sink.db", "link.db")]
    made = finished(_two_sinks(*sinks), tmp_path)
    assert explained(made.verify())
    os.rename(tmp_path / "sink.db", tmp_path / "elsewhere.db")
    assert "is not there, and 20 records are to be in it" in only(made.verify()).fact


def test_a_table_of_a_server_that_is_reached_by_two_names_is_one(tmp_path: Path, postgres_url: str) -> None:
    assert "127.0.0.1" in postgres_url
    other = postgres_url.replace("127.0.0.1", "localhost").replace("postgresql://", "postgres://")
    sinks = [postgres(postgres_url, table="numbers"), postgres(other, table="public.numbers")]
    made = finished(_two_sinks(*sinks), tmp_path)
    assert explained(made.verify())
    with psycopg.connect(postgres_url) as connection:
        connection.execute("INSERT INTO numbers VALUES (3)")
    assert "more often than written" in only(made.verify()).fact


def test_a_float_in_a_body_is_compared_to_nine_digits(sevens: Finished) -> None:
    _change_records(sevens, "sums", 4, lambda row: {**row, "x": row["x"] * (1 + 1e-12)})
    assert explained(sevens.verify())
    _change_records(sevens, "sums", 4, lambda row: {**row, "x": row["x"] * (1 + 1e-6)})
    found = first(sevens.verify())
    assert (found.operator, found.event, found.input_set) == ("sums", "sums.out#4", 4)


def test_a_row_that_was_replaced_by_an_older_one(tmp_path: Path) -> None:
    made = finished(to_upsert(tmp_path), tmp_path)
    change(tmp_path / "sink.db", "UPDATE keyed SET n = n - 24 WHERE key = 3 AND shop = 'a'")
    found = only(made.verify())
    assert found.operator == "keyed_sink"
    assert found.expected.startswith("key 3, shop 'a', n ")
    assert found.event.startswith("keyed.out#")


# Files.


def _files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        ("csv", lambda path: path.write_text(path.read_text().replace("0.31", "0.32"))),
        ("jsonl", lambda path: path.write_text(path.read_text().replace('"0.31"', '"0.32"'))),
        ("jsonl", lambda path: path.write_text(path.read_text()[:-40])),
        ("parquet", lambda path: pq.write_table(pq.read_table(path).slice(1), path)),
        ("parquet", lambda path: path.write_bytes(b"no longer")),
        ("csv", lambda path: path.unlink()),
    ],
)
def test_a_file_that_was_changed_or_removed(tmp_path: Path, kind: str, edit: Callable[[Path], None]) -> None:
    made = finished(to_files(tmp_path), tmp_path)
    number, events = next(
        (number, json.loads(events))
        for number, events in made.ask(f"SELECT number, events FROM write_action WHERE operator = 'to_{kind}'")
        if any(start <= 4 < start + rows for _, _, start, rows in json.loads(events))
    )
    edit(_files(tmp_path / kind)[number - 1])
    found = only(made.verify())
    assert (found.operator, found.input_set) == (f"to_{kind}", number)
    assert found.event in [f"orders.out#{n}" for _, _, start, rows in events for n in range(start, start + rows)]
    assert f"{number:09d}.{kind} of write action #{number} " in found.fact


def test_a_file_that_was_added_under_the_runs_name(tmp_path: Path) -> None:
    made = finished(to_files(tmp_path), tmp_path)
    last = _files(tmp_path / "csv")[-1]
    last.with_name(last.name.replace("00000", "00009")).write_text("id\n1\n")
    (tmp_path / "csv" / "somebody-elses.csv").write_text("id\n1\n")
    found = only(made.verify())
    assert found.operator == "to_csv"
    assert "1 file in " in found.fact
    assert "is of no write action" in found.fact


def test_a_copy_of_a_file_under_its_own_name(tmp_path: Path) -> None:
    made = finished(to_files(tmp_path), tmp_path)
    last = _files(tmp_path / "csv")[-1]
    last.with_name(f"{last.name}.bak").write_bytes(last.read_bytes())
    found = only(made.verify())
    assert (found.operator, found.found) == ("to_csv", f"{last.name}.bak")


@pytest.mark.parametrize("by", [(), ("g",)])
def test_files_of_another_run_in_the_same_directory_are_undecided(by: tuple[str, ...], tmp_path: Path) -> None:
    """As a run whose log was lost leaves them: all is there twice."""
    pipeline = Pipeline("again")
    source = pipeline.source("source", generator(lambda index: pa.table({"n": [index], "g": ["a"]}), 3))
    pipeline.sink(source, files(tmp_path / "out", partition_by=by), name="sink")
    (tmp_path / "first").mkdir()
    (tmp_path / "again").mkdir()
    assert explained(finished(pipeline, tmp_path / "first").verify())
    written = [*(tmp_path / "out").rglob("*.parquet")]
    made = finished(pipeline, tmp_path / "again")
    found = only(made.verify(), "undecided")
    assert found.fact.endswith("more than this run wrote; other runs have written there too")
    assert found.found in {path.name for path in written}
    # What no run has named is nobody's.
    for path in written:
        path.rename(path.with_name(f"kept-{path.name}"))
    assert explained(made.verify())


def test_files_of_a_sink_whose_name_begins_as_that_of_another_are_its_own(tmp_path: Path) -> None:
    pipeline = Pipeline("names")
    source = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), 4))
    for name in ("a", "a-out", "a-out-000000001"):
        pipeline.sink(source, files(tmp_path / "out"), name=name)
    made = finished(pipeline, tmp_path)
    assert explained(made.verify())
    (path,) = (tmp_path / "out").glob("*-a-out-000000001.parquet")
    path.with_name(path.name.replace("000000001", "000090001")).write_bytes(path.read_bytes())
    assert only(made.verify()).operator == "a"


# Events and their bodies.


def test_two_events_of_a_port_swapped(singles: Finished) -> None:
    _swap_bodies(singles, "doubled", 11, 12)
    found = first(singles.verify())
    assert (found.operator, found.event, found.input_set) == ("doubled", "doubled.out#11", 11)
    assert found.expected.startswith("n 60, ")
    assert found.found.startswith("n 66, ")


def test_two_events_of_a_source_swapped(singles: Finished) -> None:
    _swap_bodies(singles, "numbers", 11, 12)
    found = first(singles.verify())
    assert (found.operator, found.event) == ("numbers", "numbers.out#11")
    assert found.expected.startswith("n 30, ")
    assert found.found.startswith("n 33, ")


def test_the_bytes_of_a_body_changed(singles: Finished) -> None:
    for operator in ("doubled", "numbers"):
        _change_bytes(singles, operator, 11)
        found = first(singles.verify())
        assert (found.operator, found.event) == (operator, f"{operator}.out#11")
        assert "is damaged" in found.fact
        assert found.expected.split(" of ")[0] == found.found.split(" of ")[0]
        assert found.expected != found.found


def test_a_body_that_holds_no_records(singles: Finished) -> None:
    _edit_body(singles, "doubled", 11, b"no records, and a checksum of its own")
    found = first(singles.verify())
    assert (found.operator, found.event) == ("doubled", "doubled.out#11")
    assert found.fact.startswith("its body holds no records of its schema: ")


@pytest.mark.parametrize("operator", ["numbers", "doubled"])
def test_a_header_that_tells_of_other_records_than_the_body_holds(singles: Finished, operator: str) -> None:
    _edit_header(singles, operator, 11, 77)
    found = first(singles.verify())
    assert (found.operator, found.event) == (operator, f"{operator}.out#11")
    assert found.fact == "its header tells of another number of records than its body holds"
    assert (found.expected, found.found) == ("3 in its header", "77")


@pytest.mark.parametrize("operator", ["numbers", "rates"])
def test_a_header_that_tells_of_other_records_where_nothing_can_be_computed_again(
    tmp_path: Path, operator: str
) -> None:
    pipeline = Pipeline("observed")
    seen = generator(lambda index: pa.table({"n": [index, index]}), 20, replayable=False)

    @pipeline.operator(pipeline.source("numbers", seen))
    def rates(table: pa.Table) -> pa.Table:
        return table

    pipeline.sink(rates, sqlite(tmp_path / "sink.db", table="rates"))
    made = finished(pipeline, tmp_path)
    assert explained(made.verify())
    _edit_header(made, operator, 11, 77)
    found = first(made.verify())
    assert (found.operator, found.event) == (operator, f"{operator}.out#11")
    assert (found.expected, found.found) == ("2 in its header", "77")


@pytest.mark.parametrize(
    ("statement", "fact"),
    [
        ("DELETE FROM read_event", "the log has no answer of read action #1 on rates"),
        ("DELETE FROM read_event WHERE action = 3", "the log has no answer of read action #3 on rates"),
        ("UPDATE read_event SET data = zeroblob(length(data)) WHERE action = 3", "its body in the log is damaged"),
    ],
)
def test_an_answer_that_is_gone_or_damaged_where_nothing_can_be_computed_again(
    tmp_path: Path, statement: str, fact: str
) -> None:
    made = finished(general(tmp_path, deterministic=False), tmp_path)
    assert explained(made.verify())
    made.change(statement)
    found = only(made.verify())
    assert (found.operator, found.fact) == ("rates", fact)


def test_an_event_that_lineage_tells_of_and_that_was_never_sent(singles: Finished) -> None:
    singles.change("DELETE FROM sent WHERE operator = 'doubled' AND first >= 11")
    found = first(singles.verify())
    assert found.operator == "doubled"
    assert found.fact == "lineage tells of it, and it was never sent"


def test_the_bytes_of_a_body_that_no_function_explains_changed(tmp_path: Path) -> None:
    made = finished(general(tmp_path, deterministic=False), tmp_path)
    assert explained(made.verify())
    _change_bytes(made, "rates", 3)
    found = first(made.verify())
    assert (found.operator, found.event) == ("rates", "rates.out#3")


@pytest.mark.parametrize(
    ("edit", "fact"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9] + b"damaged!!"), "is damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:100]), "is damaged"),
        (lambda path: path.unlink(), "cannot be read: No such file or directory"),
    ],
)
def test_a_file_of_bodies_changed_or_removed(tmp_path: Path, edit: Callable[[Path], None], fact: str) -> None:
    pipeline = Pipeline("wide")
    wide = pipeline.source("wide", generator(lambda index: pa.table({"n": range(index, index + 2000)}), 5))
    pipeline.sink(wide, sqlite(tmp_path / "sink.db", table="wide"))
    made = finished(pipeline, tmp_path)
    assert explained(made.verify())
    edit(min((made.bodies / "wide").iterdir()))
    found = first(made.verify())
    assert (found.operator, found.event) == ("wide", "wide.out#1")
    assert fact in found.fact


def test_a_body_removed(singles: Finished) -> None:
    singles.change("DELETE FROM body WHERE operator = 'doubled' AND first <= 11 AND first + count > 11")
    found = first(singles.verify())
    assert found.operator == "doubled"
    assert found.fact == "the log has no body of it"
    assert int(found.event.removeprefix("doubled.out#")) <= 11


def test_a_body_in_the_place_of_another(tmp_path: Path) -> None:
    pipeline = Pipeline("moved")
    given = generator(lambda index: pa.table({"n": [index]}), 8, replayable=False)
    pipeline.source("source", given, max_turn_events=3).sink(sqlite(tmp_path / "sink.db", table="t"), name="sink")
    made = finished(pipeline, tmp_path)
    assert explained(made.verify())
    ((row, number),) = made.ask("SELECT rowid, first FROM body WHERE operator = 'source' AND first > 1 LIMIT 1")
    made.change("UPDATE body SET first = first + 1 WHERE rowid = :row", row=row)
    found = first(made.verify())
    assert (found.event, found.fact) == (f"source.out#{number}", "the log has no body of it")


def test_bodies_with_too_few_checksums(singles: Finished) -> None:
    singles.change("UPDATE body SET checksums = '[]' WHERE operator = 'numbers' AND first = 1")
    assert "table body of the log holds what cannot be read, of numbers.out: ValueError" in first(singles.verify()).fact


def test_a_record_of_a_source_dropped_from_the_log(singles: Finished) -> None:
    _change_records(singles, "numbers", 11, lambda row: None if row["n"] == 31 else row)
    found = first(singles.verify())
    assert (found.operator, found.event) == ("numbers", "numbers.out#11")
    assert found.expected.startswith("n 31, ")
    assert found.found.startswith("n 32, ")


def test_an_event_removed_from_the_log(singles: Finished) -> None:
    row = singles.ask("SELECT min(first) FROM sent WHERE operator = 'numbers' AND first > 5")[0][0]
    singles.change("DELETE FROM sent WHERE operator = 'numbers' AND first = :row", row=row)
    found = first(singles.verify())
    assert found.operator == "numbers"
    assert found.fact == "ids are not consecutive"
    assert found.expected == f"numbers.out#{row}"


def test_the_end_of_a_stream_removed(singles: Finished) -> None:
    ((first_, headers),) = singles.ask(
        "SELECT first, headers FROM sent WHERE operator = 'doubled' ORDER BY first DESC LIMIT 1"
    )
    singles.change(
        "UPDATE sent SET headers = :headers, count = count - 1 WHERE operator = 'doubled' AND first = :first",
        headers=json.dumps(json.loads(headers)[:-2]), first=first_,
    )  # fmt: skip
    found = first(singles.verify())
    assert found.operator == "doubled"
    assert found.found == "40 events and no end"


# Input Sets, lineage, state.


def test_an_event_moved_to_another_input_set(sevens: Finished) -> None:
    _split_ack(sevens, "sums", 10)
    sevens.change("UPDATE ack SET input_set = 1, size = 0, skip = 0 WHERE operator = 'sums' AND first = 10")
    found = first(sevens.verify())
    assert (found.operator, found.event, found.input_set) == ("sums", "numbers.out#10", 1)
    assert (found.expected, found.found) == ("2", "1")


def test_an_event_that_was_never_taken(sevens: Finished) -> None:
    _split_ack(sevens, "sums", 10)
    sevens.change("DELETE FROM ack WHERE operator = 'sums' AND first = 10")
    found = first(sevens.verify())
    assert (found.operator, found.event) == ("sums", "numbers.out#10")
    assert found.found == "sent #10, taken #11"


def test_lineage_renumbered(sevens: Finished) -> None:
    sevens.change("UPDATE ordered_lineage SET input_set = input_set + 1 WHERE operator = 'sums'")
    found = first(sevens.verify())
    assert (found.operator, found.event, found.input_set) == ("sums", "numbers.out#1", 1)
    assert found.found == "no event"


def test_lineage_renumbered_where_no_function_explains_it(tmp_path: Path) -> None:
    made = finished(general(tmp_path, deterministic=False), tmp_path)
    made.change("UPDATE ordered_lineage SET input_set = input_set + 1 WHERE operator = 'rates' AND first = 1")
    found = first(made.verify())
    assert found.operator == "rates"
    assert f"{found.event} is out of order, or made twice" in found.fact
    assert found.found == f"{found.event} of Input Set {found.input_set}"


def test_a_done_interval_removed(sevens: Finished) -> None:
    row = sevens.ask("SELECT max(first) FROM done WHERE operator = 'sums'")[0][0]
    sevens.change("DELETE FROM done WHERE operator = 'sums' AND first = :row", row=row)
    found = only(sevens.verify())
    assert (found.operator, found.input_set) == ("sums", row)
    assert found.fact == f"Input Set {row} was never set to done"


def test_a_state_snapshot_changed(tmp_path: Path) -> None:
    made = finished(general(tmp_path), tmp_path)
    number, text = made.ask("SELECT input_set, state FROM state_event ORDER BY state_id")[2]
    state = json.loads(text)
    made.change(
        "UPDATE state_event SET state = :state WHERE operator = 'rates' AND input_set = :number",
        state=json.dumps({**state, "total": state["total"] + 1}), number=number,
    )  # fmt: skip
    found = first(made.verify())
    assert (found.operator, found.input_set) == ("rates", number)
    assert found.fact == "saw another global state"
    assert f"'total': {state['total']}" in found.expected
    assert f"'total': {state['total'] + 1}" in found.found


def test_an_answer_of_a_read_on_the_side_changed(tmp_path: Path) -> None:
    made = finished(general(tmp_path), tmp_path)
    ((number,),) = made.ask("SELECT input_set FROM read_event WHERE operator = 'rates' AND action = 3")
    body = _stream(pa.table({"rate": [2.5]}))
    made.change(
        "UPDATE read_event SET data = :data, lengths = :lengths, checksums = :checksums "
        "WHERE operator = 'rates' AND action = 3",
        data=body, lengths=f"[{len(body)}]", checksums=f"[{zlib.crc32(body)}]",
    )  # fmt: skip
    found = first(made.verify())
    assert (found.operator, found.input_set) == ("rates", number)
    made.change("DELETE FROM read_event WHERE operator = 'rates' AND action = 3")
    assert "it reads rates more often than the log says" in first(made.verify()).fact


# Write actions.


def test_a_write_action_removed(singles: Finished) -> None:
    rows = singles.ask("SELECT number FROM write_action WHERE operator = 'doubled_sink'")
    for (number,) in (rows[-1], rows[0]):
        singles.change("DELETE FROM write_action WHERE operator = 'doubled_sink' AND number = :number", number=number)
        found = first(singles.verify())
        assert (found.operator, found.input_set) == ("doubled_sink", number)
        assert found.fact == f"write action doubled_sink.out#{number} was never logged"
        assert found.event.startswith("doubled.out#")


def test_a_write_action_of_other_events(singles: Finished) -> None:
    singles.change("UPDATE write_action SET events = replace(events, ',1,', ',2,') WHERE number = 1")
    found = first(singles.verify())
    assert (found.operator, found.input_set, found.event) == ("doubled_sink", 1, "doubled.out#1")
    assert "writes other events than its Input Set has" in found.fact


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_write_action_of_a_function_removed(tmp_path: Path, deterministic: bool) -> None:
    made = finished(general(tmp_path, deterministic), tmp_path)
    made.change("DELETE FROM write_action WHERE operator = 'rates' AND number = 3")
    found = first(made.verify())
    assert found.operator == "rates"
    assert found.fact == "write action rates.report#3 was never logged"


def test_a_write_action_of_a_function_changed(tmp_path: Path) -> None:
    made = finished(general(tmp_path), tmp_path)
    body = _stream(pa.table({"key": ["1"], "events": [77]}))
    made.change(
        "UPDATE write_body SET data = :data, lengths = :lengths, checksums = :checksums "
        "WHERE operator = 'rates' AND number = 3",
        data=body, lengths=f"[{len(body)}]", checksums=f"[{zlib.crc32(body)}]",
    )  # fmt: skip
    found = first(made.verify())
    assert found.operator == "rates"
    assert found.fact == "write action rates.report#3 is not what the function writes"
    assert "events 77" in found.found
    assert found.input_set is not None


def test_a_write_that_is_not_marked_as_done_leaves_the_run_unfinished(singles: Finished) -> None:
    singles.change("DELETE FROM done_write WHERE operator = 'doubled_sink' AND first = 1")
    found = only(singles.verify(), "undecided")
    assert "the run has not finished (doubled_sink)" in found.fact


# Sources.


def test_a_source_file_changed(tmp_path: Path) -> None:
    made = finished(from_csv(tmp_path), tmp_path)
    path = tmp_path / "csv" / "part-0.csv"
    path.write_text(path.read_text().replace("0.12", "0.13"))
    found = only(made.verify())
    assert (found.operator, found.event) == ("orders", "orders.out#2")
    assert found.fact == "record 13 is not the one that the source gives, or the source has changed since"
    assert "price 0.13" in found.expected
    assert "price 0.12" in found.found


def test_a_row_of_a_queried_table_changed(tmp_path: Path) -> None:
    made = finished(from_keyset(tmp_path), tmp_path)
    change(tmp_path / "source.db", "DELETE FROM orders WHERE id = 12")
    found = only(made.verify())
    assert (found.operator, found.event) == ("orders", "orders.out#2")


def test_a_source_that_has_grown_is_undecided(tmp_path: Path) -> None:
    made = finished(from_keyset(tmp_path), tmp_path)
    change(tmp_path / "source.db", "INSERT INTO orders (id) VALUES (1000)")
    found = only(made.verify(), "undecided")
    assert found.operator == "orders"
    assert "has sent 80 records and the source has more" in found.fact
    assert found.expected.startswith("id 1000, ")


def _move_last_record(made: Finished, source: str, number: int) -> None:
    """Move the last record of an event to the beginning of the one after it."""
    ((data,),) = made.ask(f"SELECT schema FROM port_schema WHERE operator = '{source}'")
    schema = pa.ipc.read_schema(pa.py_buffer(data))
    one, other = (
        pa.ipc.read_record_batch(pa.py_buffer(_body(made, source, event)), schema).to_pylist()
        for event in (number, number + 1)
    )
    for event, rows in ((number, one[:-1]), (number + 1, one[-1:] + other)):
        _edit_body(made, source, event, pa.RecordBatch.from_pylist(rows, schema).serialize().to_pybytes())
        _edit_header(made, source, event, len(rows))


def test_events_of_a_generator_that_end_elsewhere(tmp_path: Path) -> None:
    """A window of events would give sums that no run without failures gives."""
    pipeline = Pipeline("cut")
    source = pipeline.source("numbers", generator(lambda i: pa.table({"n": [2 * i + 1, 2 * i + 2]}), 4))
    sums = source.window(Count(2)).aggregate(total=("n", "sum"), name="sums")
    pipeline.sink(sums, sqlite(tmp_path / "sink.db", table="sums"))
    made = finished(pipeline, tmp_path)
    assert explained(made.verify())
    _move_last_record(made, "numbers", 2)
    _change_records(made, "sums", 1, lambda row: {"total": 6})
    _change_records(made, "sums", 2, lambda row: {"total": 30})
    change(tmp_path / "sink.db", "UPDATE sums SET total = 16 - total WHERE total = 10")
    change(tmp_path / "sink.db", "UPDATE sums SET total = 30 WHERE total = 26")
    found = only(made.verify())
    assert (found.operator, found.event) == ("numbers", "numbers.out#2")
    assert found.fact == "its event does not end where the source ends it"
    assert (found.expected, found.found) == ("2 records", "1 record")


@pytest.mark.parametrize("make", [from_csv, from_keyset])
def test_events_that_end_elsewhere_than_their_setting_says_are_undecided(tmp_path: Path, make: Any) -> None:
    """The log does not tell whether the setting was another one, which may be changed in the course of a run."""
    made = finished(make(tmp_path), tmp_path)
    _move_last_record(made, "orders", 2)
    found = only(made.verify(), "undecided")
    assert (found.operator, "does not end where rows_per_event= says" in found.fact) == ("orders", True)


def test_an_event_of_two_files(tmp_path: Path) -> None:
    made = finished(_of_files(tmp_path), tmp_path)
    _move_last_record(made, "orders", 1)
    _move_last_record(made, "orders", 2)
    found = only(made.verify())
    assert (found.event, found.fact) == ("orders.out#3", "its event has records of two files")


def test_events_of_files_that_came_and_end_elsewhere(tmp_path: Path) -> None:
    made = finished(_of_files(tmp_path, follow=True, until="1 millisecond", settle=0), tmp_path)
    assert explained(made.verify())
    _move_last_record(made, "orders", 2)
    assert only(made.verify(), "undecided").event == "orders.out#2"


@pytest.mark.parametrize("kind", ["files", "query"])
def test_an_event_without_records_that_nobody_gave(tmp_path: Path, kind: str) -> None:
    made = finished(_of_files(tmp_path) if kind == "files" else _of_query(tmp_path), tmp_path)
    for _ in range(2):
        _move_last_record(made, "orders", 1)
    found = only(made.verify())
    assert (found.event, "has no record" in found.fact) == ("orders.out#1", True)


def test_what_a_query_gave_before_its_table_grew_ends_where_the_table_did(tmp_path: Path) -> None:
    made = finished(_of_query(tmp_path), tmp_path)
    # An event that ends early is one after which rows came, if none is longer than it may be.
    _change_records(made, "orders", 3, lambda row: row if row["n"] == 4 else None)
    change(tmp_path / "in.db", "DELETE FROM orders WHERE n = 5")
    change(tmp_path / "sink.db", "DELETE FROM orders WHERE n = 5")
    _move_last_record(made, "orders", 2)
    assert explained(made.verify())
    _move_last_record(made, "orders", 1)
    _move_last_record(made, "orders", 2)
    assert only(made.verify(), "undecided").event == "orders.out#3"


def _of_files(directory: Path, **how: Any) -> Pipeline:
    """Read two files of three records, two to an event."""
    (directory / "in").mkdir()
    for name in "ab":
        (directory / "in" / f"{name}.csv").write_text(f"n,of\n1,{name}\n2,{name}\n3,{name}\n")
    pipeline = Pipeline("cut")
    source = pipeline.source("orders", files(directory / "in", rows_per_event=2, **how))
    pipeline.sink(source, sqlite(directory / "sink.db", table="orders"))
    return pipeline


def _of_query(directory: Path) -> Pipeline:
    """Read six rows, two to an event."""
    with closing(sqlite3.connect(directory / "in.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (n INTEGER PRIMARY KEY)")
        connection.executemany("INSERT INTO orders VALUES (?)", [(n,) for n in range(6)])
    pipeline = Pipeline("cut")
    query = sqlite(directory / "in.db", query="SELECT n FROM orders", unique="n", rows_per_event=2)
    pipeline.sink(pipeline.source("orders", query), sqlite(directory / "sink.db", table="orders"))
    return pipeline


# Windows.


def test_an_event_moved_to_another_turn_is_explained_only_where_it_moves_whole(tmp_path: Path) -> None:
    made = finished(batch(tmp_path), tmp_path)
    row = made.ask("SELECT first FROM ack WHERE operator = 'sums' AND first > 1 AND count > 2")[0][0]
    _split_ack(made, "sums", row + 1)
    made.change("UPDATE ack SET input_set = input_set - 1 WHERE operator = 'sums' AND first = :at", at=row + 1)
    assert first(made.verify()).event == f"numbers.out#{row + 1}"


def test_an_event_in_a_window_too_many(tmp_path: Path) -> None:
    made = finished(tumbling(tmp_path), tmp_path)
    row, part, seq, rows = made.ask(
        "SELECT first, max(part), seq, count FROM ack WHERE operator = 'hourly' AND port = 'left' GROUP BY first"
    )[0]
    made.change(
        "INSERT INTO ack VALUES ('hourly', 'left', :row, :part, :rows, :seq, 9, 0, 0)",
        row=row, part=part + 1, seq=seq, rows=rows,
    )  # fmt: skip
    found = first(made.verify())
    assert (found.operator, found.event, found.input_set) == ("hourly", f"left.out#{row}", 9)


def test_one_of_two_writers_to_one_table_is_named(tmp_path: Path) -> None:
    made = finished(several_ports(tmp_path), tmp_path)
    change(tmp_path / "sink.db", "DELETE FROM split WHERE rowid = (SELECT max(rowid) FROM split)")
    found = only(made.verify())
    assert found.event.startswith(("split.even#", "split.odd#"))


# How things are changed.


def _set_of(made: Finished, operator: str, number: int) -> int:
    """Return the Input Set of a sink that an event is in."""
    row = made.ask(
        f"SELECT input_set FROM ack WHERE operator = '{operator}' AND first <= {number} AND first + count > {number}"
    )
    return int(row[0][0])


def _edit_body(made: Finished, operator: str, number: int, body: bytes, checksum: int | None = None) -> None:
    """Give an event another body, with its own checksum or with another."""
    with closing(sqlite3.connect(made.path)) as connection, connection:
        first_, lengths, checksums, data = connection.execute(
            "SELECT first, lengths, checksums, data FROM body WHERE operator = ? AND first <= ? AND first + count > ?",
            (operator, number, number),
        ).fetchone()
        sizes, sums, index = json.loads(lengths), json.loads(checksums), number - first_
        start, stop = sum(sizes[:index]), sum(sizes[: index + 1])
        sizes[index], sums[index] = len(body), zlib.crc32(body) if checksum is None else checksum
        connection.execute(
            "UPDATE body SET lengths = ?, checksums = ?, data = ? WHERE operator = ? AND first = ?",
            (json.dumps(sizes), json.dumps(sums), data[:start] + body + data[stop:], operator, first_),
        )


def _body(made: Finished, operator: str, number: int) -> bytes:
    with opened_log(made.url, made.pipeline.name, str(made.bodies)) as log:
        ((_, checksum, data, *_),) = [astuple(body) for body in log.bodies(Port(operator, "out"), number, 1)]
    assert zlib.crc32(data) == checksum
    return bytes(data)


def _swap_bodies(made: Finished, operator: str, one: int, other: int) -> None:
    bodies = _body(made, operator, one), _body(made, operator, other)
    _edit_body(made, operator, one, bodies[1])
    _edit_body(made, operator, other, bodies[0])


def _change_bytes(made: Finished, operator: str, number: int) -> None:
    """Change a byte of a body, and not its checksum."""
    body = _body(made, operator, number)
    _edit_body(made, operator, number, body[:-1] + bytes([body[-1] ^ 1]), zlib.crc32(body))


def _change_records(made: Finished, operator: str, number: int, edit: Callable[[dict], dict | None]) -> None:
    """Change the records of an event, with its checksum and its header."""
    ((data,),) = made.ask(f"SELECT schema FROM port_schema WHERE operator = '{operator}'")
    schema = pa.ipc.read_schema(pa.py_buffer(data))
    rows = pa.ipc.read_record_batch(pa.py_buffer(_body(made, operator, number)), schema).to_pylist()
    kept = [new for row in rows if (new := edit(row)) is not None]
    _edit_body(made, operator, number, pa.RecordBatch.from_pylist(kept, schema).serialize().to_pybytes())
    _edit_header(made, operator, number, len(kept))


def _edit_header(made: Finished, operator: str, number: int, rows: int) -> None:
    """Let the header of an event tell of so many records."""
    of_event = f"operator = '{operator}' AND first <= {number} AND first + count > {number}"
    ((first_, headers),) = made.ask(f"SELECT first, headers FROM sent WHERE {of_event}")
    flat = json.loads(headers)
    flat[2 * (number - first_)] = rows
    made.change(f"UPDATE sent SET headers = :headers WHERE {of_event}", headers=json.dumps(flat))


def _split_ack(made: Finished, operator: str, number: int) -> None:
    """Give one acknowledged event a row of its own, which changes nothing that the log says."""
    with closing(sqlite3.connect(made.path)) as connection, connection:
        columns = connection.execute(
            "SELECT port, first, part, count, seq, input_set, size, skip FROM ack "
            "WHERE operator = ? AND first <= ? AND first + count > ?",
            (operator, number, number),
        ).fetchone()
        port, first_, part, rows, seq, input_set, size, skip = columns
        connection.execute("DELETE FROM ack WHERE operator = ? AND first = ?", (operator, first_))
        at = number - first_
        for start, stop in ((0, at), (at, at + 1), (at + 1, rows)):
            if start < stop:
                connection.execute(
                    "INSERT INTO ack VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (operator, port, first_ + start, part, stop - start, seq + start, input_set, size, skip + start),
                )
    assert explained(made.verify())


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


# Read actions.


def test_a_read_action_that_is_missing(singles: Finished, tmp_path: Path) -> None:
    singles.change("UPDATE action SET action = 2")
    found = only(singles.verify())
    assert (found.operator, found.fact) == ("numbers", "read action 1 is missing")


def test_a_read_action_that_was_never_completed(singles: Finished, tmp_path: Path) -> None:
    singles.change("UPDATE action SET complete = 0")
    found = only(singles.verify())
    assert (found.operator, found.fact) == ("numbers", "has finished, but its read action 1 is incomplete")
