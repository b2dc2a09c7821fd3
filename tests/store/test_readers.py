"""A log can be read beside its run, and who reads changes nothing; what is told is in `test_backends_agree`."""

import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from clew.errors import NewerLog, StoreFailed, WrongLog
from clew.ids import Port
from clew.store.postgres_reader import PostgresReader
from clew.store.sqlite_reader import SqliteReader
from clew.store.sqltables import SqlTables
from tests.store.conftest import Place
from tests.store.logs import MAPPER_IN, READER_OUT, Pen, ack, events, finish, listed

Reads = Callable[[], SqlTables]


@pytest.fixture
def reader(place: Place) -> Iterator[Reads]:
    """Opens the log of `place` for reading, as often as it is called."""
    opened: list[SqlTables] = []

    def opens() -> SqlTables:
        opened.append(
            SqliteReader(place.where) if place.kind == "sqlite" else PostgresReader(place.where, place.schema)
        )
        return opened[-1]

    yield opens
    for one in opened:
        one.close()


def test_a_reader_sees_each_commit_of_a_run_that_goes_on(place: Place, reader: Reads) -> None:
    pen = Pen(place.declared())
    reading = reader()
    assert reading.extent(READER_OUT) == (0, 0)
    pen("reader", events(READER_OUT, 1, 4))
    assert reading.extent(READER_OUT) == (0, 4)
    pen("mapper", ack(MAPPER_IN, 1, 3, listed(1)), finish("mapper", 1))
    told = [entry for entry in reading.entries(READER_OUT, 1, 9) if entry.receiver == MAPPER_IN]
    assert [(entry.number, entry.input_set, entry.status) for entry in told] == [
        (1, 1, "done"), (2, 1, "done"), (3, 1, "done"), (4, None, "undone"),
    ]  # fmt: skip
    assert reading.owner() == "shop"
    assert Port("reader", "out") in reading.ports()


def test_many_read_while_one_writes(place: Place, reader: Reads) -> None:
    pen = Pen(place.declared())
    readers = [reader() for _ in range(5)]
    for number in range(1, 20):
        pen("reader", events(READER_OUT, number, 1))
        for one in readers:
            assert one.headers(READER_OUT, number, 1)[0].first == number


def test_a_reader_cannot_write(place: Place, reader: Reads) -> None:
    place.declared()
    with pytest.raises(StoreFailed, match=r"cannot be written|read-only"), reader()._snapshot() as log:
        log.run("DELETE FROM meta")


def test_what_a_killed_run_has_left_is_read_without_its_recovery(tmp_path: Path) -> None:
    """The write-ahead log of a process that is gone holds commits, and nobody has copied them into the database."""
    place = Place("sqlite", os.fspath(tmp_path / "log.db"))
    pen = Pen(place.declared())
    pen("reader", events(READER_OUT, 1, 4))
    left = tmp_path / "left"
    left.mkdir()
    for name in ("log.db", "log.db-wal"):
        (left / name).write_bytes((tmp_path / name).read_bytes())
    place.close()
    before = (left / "log.db").read_bytes()
    reading = SqliteReader(left / "log.db")
    assert reading.extent(READER_OUT) == (0, 4)
    reading.close()
    assert (left / "log.db").read_bytes() == before


def test_a_log_of_another_version_is_refused_and_left_alone(place: Place, reader: Reads) -> None:
    place.declared()
    place.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    with pytest.raises(NewerLog, match="has schema version 99, this Clew knows up to"):
        reader()
    place.execute("UPDATE meta SET value = '2' WHERE key = 'schema_version'")
    with pytest.raises(
        StoreFailed, match=r"schema version 2, and who only reads it does not bring it to .*clew status"
    ):
        reader()


def test_what_is_no_log_is_refused(place: Place, reader: Reads, tmp_path: Path) -> None:
    with pytest.raises((WrongLog, StoreFailed), match=r"is not a log of Clew|cannot be opened"):
        reader()
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE orders (id)").connection.close()
    with pytest.raises(WrongLog, match=r"other\.db is not a log of Clew; name one that `clew run` has made"):
        SqliteReader(other)
    (tmp_path / "text.db").write_text("no database, but long enough to look at" * 50)
    with pytest.raises(StoreFailed, match=r"text\.db is not a log; use another --log"):
        SqliteReader(tmp_path / "text.db")


def test_a_server_that_does_not_answer_is_told() -> None:
    with pytest.raises(StoreFailed, match="cannot be reached"):
        PostgresReader("postgresql://nobody@127.0.0.1:1/none")


def test_a_role_that_may_only_read_is_enough(store_database: str) -> None:
    place = Place("postgres", store_database, f"s{uuid.uuid4().hex[:12]}")
    Pen(place.declared())("reader", events(READER_OUT, 1, 2))
    role = f"r{uuid.uuid4().hex[:12]}"
    with psycopg.connect(store_database, autocommit=True) as session:
        for statement in (
            f"CREATE ROLE {role} LOGIN",
            f"GRANT USAGE ON SCHEMA {place.schema} TO {role}",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {place.schema} TO {role}",
        ):
            session.execute(statement.encode())
    reading = PostgresReader(psycopg.conninfo.make_conninfo(store_database, user=role), place.schema)
    assert reading.extent(READER_OUT) == (0, 2)
    reading.close()
    place.close()
    with psycopg.connect(store_database, autocommit=True) as session:
        session.execute(f"DROP SCHEMA {place.schema} CASCADE; DROP OWNED BY {role}; DROP ROLE {role}".encode())
