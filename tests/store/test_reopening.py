"""What a log keeps when its process is gone (D1), and the logs that are not opened."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from clew.errors import NewerLog, StaleWriter, StoreFailed, UnexpectedRow, WrongLog
from clew.ids import InputSetId
from clew.protocol.rows import AsideRow, Own
from clew.protocol.step import AddReadAction, FixSchema, LogReadEvent, ResolveAside, SetAside, StoreState
from clew.store.sqlite import SqliteStore
from tests.store.conftest import Place
from tests.store.logs import (
    MAPPER_IN,
    MAPPER_OUT,
    READER_OUT,
    SINK_IN,
    TOPOLOGY,
    Pen,
    ack,
    events,
    finish,
    inline,
    lineage,
    opened,
    tables,
    writes,
    written,
)

ROOT = Path(__file__).resolve().parents[2]


def make_as_of_5(place: Place) -> None:
    """Take from a log what version 6 has added."""
    place.execute("DROP INDEX aside_set")
    place.execute("DROP INDEX aside_retried")
    place.execute("UPDATE meta SET value = '5' WHERE key = 'schema_version'")


def make_as_of_4(place: Place) -> None:
    """Take from a log what versions 5 and 6 have added."""
    make_as_of_5(place)
    place.execute("DROP VIEW EVENT_LINEAGE")
    place.execute("DROP TABLE ordered_lineage")
    place.execute("CREATE VIEW EVENT_LINEAGE AS SELECT * FROM lineage")
    place.execute("DROP TABLE process")
    place.execute("UPDATE meta SET value = '4' WHERE key = 'schema_version'")


def test_a_reopened_log_tells_the_same_and_goes_on(place: Place) -> None:
    store = place.declared()
    pen = Pen(store)
    pen("reader", AddReadAction("reader", "files", 1, "a"), LogReadEvent("reader", "files", 1, inline(1, 1)))
    pen("reader", events(READER_OUT, 1, 5), FixSchema(READER_OUT, b"s"), StoreState("reader", 1, {"n": 5}, {}))
    pen("mapper", ack(MAPPER_IN, 1, 3, Own(InputSetId(1))), finish("mapper", 2), opened("mapper", (1, ("main", None))))
    pen("mapper", events(MAPPER_OUT, 1, 1), lineage(MAPPER_OUT, 1, 2, (1, 1)))
    pen("sink", writes(1, (), ()), written(2))
    before, run_id, members = tables(store), store.run_id, store.members("mapper")
    store.close()

    again = place.declared()
    assert again.run_id == run_id
    assert tables(again) == before
    assert again.members("mapper") == members
    pen = Pen(again)
    with pytest.raises(UnexpectedRow):
        pen("mapper", finish("mapper", 2))
    pen("mapper", ack(MAPPER_IN, 4, 2, Own(InputSetId(4))), finish("mapper", 3))
    pen("sink", written(1))


def test_a_log_of_an_older_clew_is_brought_up_to_date(place: Place) -> None:
    store = place.declared()
    pen = Pen(store)
    pen("mapper", events(MAPPER_OUT, 1, 5))
    pen("sink", ack(SINK_IN, 1, 3, Own(InputSetId(1))), finish("sink", 1, 3))
    assert store.collect().events == 3
    assert store.worn("sink").taken == {"in": 3}
    before = tables(store)
    store.close()

    make_as_of_4(place)
    place.execute("DROP TABLE worn")
    place.execute("UPDATE meta SET value = '3' WHERE key = 'schema_version'")
    again = place.declared()
    assert tables(again) == before
    # It does not say how far its Input Sets were worn, so that all may be.
    assert again.worn("sink").taken == {"in": 3}
    pen = Pen(again)
    pen("sink", ack(SINK_IN, 4, 2, Own(InputSetId(4))), finish("sink", 4, 2))
    again.collect()
    assert again.worn("sink").taken == {"in": 5}


def test_what_was_set_aside_before_there_were_indexes_is_found_by_them(place: Place) -> None:
    store = place.declared()
    row = AsideRow(1, InputSetId(7), ("f", None), None, (("in", 1, 1, 1),), None, {"kind": "E"})
    Pen(store)("mapper", SetAside("mapper", (row,)), ResolveAside("mapper", 1, 9))
    before = store.asides("mapper")
    store.close()

    make_as_of_5(place)
    again = place.declared()
    assert again.asides_of("mapper", InputSetId(7), 1) == before
    assert again.retried_as("mapper", InputSetId(9)) == before[0]
    # They are there again.
    place.execute("DROP INDEX aside_set")
    place.execute("DROP INDEX aside_retried")


def test_lineage_from_before_it_was_kept_in_order_is_told_with_what_comes_after(place: Place) -> None:
    store = place.declared()
    pen = Pen(store)
    pen("mapper", events(MAPPER_OUT, 1, 2), lineage(MAPPER_OUT, 1, 7, (1, 2)))
    before = tables(store)
    store.close()

    place.execute("INSERT INTO lineage SELECT * FROM ordered_lineage")
    make_as_of_4(place)
    again = place.declared()
    assert tables(again) == before
    pen = Pen(again)
    pen("mapper", events(MAPPER_OUT, 3, 2), lineage(MAPPER_OUT, 3, 9, (2, 1)))
    assert again.origins(MAPPER_OUT, 1, 4) == [(1, 7), (2, 8), (3, 9), (4, 9)]
    assert again.outputs_of("mapper", InputSetId(8), 2) == [(MAPPER_OUT, 2, 8), (MAPPER_OUT, 3, 9), (MAPPER_OUT, 4, 9)]


def test_o1_input_sets_that_close_late_are_found_and_leave_the_others_in_order(place: Place) -> None:
    store = place.declared()
    pen = Pen(store)
    for first, input_set in ((1, 5), (3, 2), (5, 8), (7, 6), (9, 10)):
        pen("mapper", events(MAPPER_OUT, first, 2), lineage(MAPPER_OUT, first, input_set, (2, 1)))
    store.close()
    # What is in order is known again from the log.
    again = place.declared()
    pen = Pen(again)
    for first, input_set in ((11, 9), (13, 11)):
        pen("mapper", events(MAPPER_OUT, first, 2), lineage(MAPPER_OUT, first, input_set, (2, 1)))
    made = {input_set: again.outputs_of("mapper", InputSetId(input_set), 1) for input_set in range(1, 13)}
    firsts = {5: 1, 2: 3, 8: 5, 6: 7, 10: 9, 9: 11, 11: 13}
    assert {s: [number for _, number, _ in found] for s, found in made.items() if found} == {
        s: [first, first + 1] for s, first in firsts.items()
    }
    assert [s for _, s in again.origins(MAPPER_OUT, 1, 14)] == [5, 5, 2, 2, 8, 8, 6, 6, 10, 10, 9, 9, 11, 11]


def test_a_closed_store_cannot_be_used(place: Place) -> None:
    store = place.declared()
    store.close()
    store.close()
    with pytest.raises(StoreFailed, match="closed"):
        store.take_over("reader")
    with pytest.raises(StoreFailed, match="closed"):
        store.state("reader")


def test_two_logs_have_two_identities(place: Place, tmp_path: Path) -> None:
    other = SqliteStore(tmp_path / "other.db")
    assert place.open().run_id != other.run_id
    other.close()


def test_a_log_made_by_a_newer_clew_is_refused_and_left_alone(place: Place) -> None:
    place.declared().close()
    place.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    with pytest.raises(NewerLog, match="99"):
        place.open()


def test_scenario_15_a_log_with_events_but_no_identity_is_refused(place: Place) -> None:
    store = place.declared()
    Pen(store)("reader", events(READER_OUT, 1, 1))
    store.close()
    place.execute("DELETE FROM meta WHERE key = 'run_id'")
    for _ in range(2):
        with pytest.raises(WrongLog, match="identity"):
            place.open()


def test_a_log_with_events_that_names_no_pipeline_is_refused(place: Place) -> None:
    store = place.declared()
    Pen(store)("reader", events(READER_OUT, 1, 1))
    place.execute("DELETE FROM meta WHERE key = 'pipeline'")
    with pytest.raises(WrongLog):
        store.declare(TOPOLOGY)


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()
    with pytest.raises(WrongLog, match="not a log"):
        SqliteStore(tmp_path / "other.db")
    (tmp_path / "text").write_text("hello, this is no database at all, whatever its name says" * 50)
    with pytest.raises(StoreFailed, match="not a log"):
        SqliteStore(tmp_path / "text")


def test_two_stores_on_one_log_see_each_other(place: Place) -> None:
    one, two = place.declared(), place.declared()
    pen = Pen(one)
    pen("reader", events(READER_OUT, 1, 2))
    two.commit("reader", pen.incarnations["reader"], [events(READER_OUT, 3, 2)])
    pen("reader", events(READER_OUT, 5, 1))
    with pytest.raises(UnexpectedRow):
        two.commit("reader", pen.incarnations["reader"], [events(READER_OUT, 5, 1)])
    two.take_over("reader")
    with pytest.raises(StaleWriter):
        pen("reader", events(READER_OUT, 6, 1))
    assert len(one.events(READER_OUT, 1, 9)) == 3


def test_d1_what_a_killed_process_committed_is_there(place: Place) -> None:
    place.declared().close()
    script = f"""
        import os, signal
        from clew.store.postgres import PostgresStore
        from clew.store.sqlite import SqliteStore
        from tests.store.logs import *
        pen = Pen({place.expression})
        pen("reader", events(READER_OUT, 1, 3), durable=False)
        pen("reader", events(READER_OUT, 4, 2))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    store = place.declared()
    assert [len(run.headers) for run in store.events(READER_OUT, 1, 9)] == [3, 2]
    assert {row.operator: row.incarnation for row in store.operators()}["reader"] == 1


def test_s1_a_process_killed_inside_a_commit_leaves_nothing_of_it(place: Place) -> None:
    place.declared().close()
    script = f"""
        from clew.faultpoint import arm
        from clew.store.postgres import PostgresStore
        from clew.store.sqlite import SqliteStore
        from tests.store.logs import *
        pen = Pen({place.expression})
        arm("inside-commit:kill")
        pen("reader", events(READER_OUT, 1, 3))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert place.declared().table("EVENT_LOG") == []


def test_a_log_in_a_missing_directory_is_told_with_a_cure(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match=r"does not exist; create it"):
        SqliteStore(tmp_path / "missing" / "log.db")


def test_a_log_that_cannot_be_written_is_told_with_a_cure() -> None:
    with TemporaryDirectory() as directory:
        os.chmod(directory, 0o555)
        with as_nobody(), pytest.raises(StoreFailed, match="give write permission"):
            SqliteStore(Path(directory) / "log.db")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write anywhere, so be someone else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
