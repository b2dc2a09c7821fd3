"""What is PostgreSQL's own: logs beside each other, takeover of a frozen process, and messages without secrets."""

import threading
import time
from pathlib import Path

import psycopg
import pytest

from clew.errors import StaleWriter, StoreFailed, UnexpectedRow, WrongLog
from clew.store import postgres
from clew.store.base import Topology
from clew.store.postgres import PostgresStore, drop_log
from clew.store.postgres_session import masked
from tests.postgres_server import PostgresServer
from tests.store.logs import READER_OUT, TOPOLOGY, Pen, events


def test_several_logs_live_in_one_database(postgres_url: str) -> None:
    one, two = PostgresStore(postgres_url, schema="clew_shop"), PostgresStore(postgres_url, schema='clew_"bank" x')
    one.declare(TOPOLOGY)
    two.declare(Topology("bank", "", ("reader",), ()))
    Pen(one)("reader", events(READER_OUT, 1, 2))
    assert one.run_id != two.run_id
    assert two.table("EVENT_LOG") == []
    two.close()
    drop_log(postgres_url, 'clew_"bank" x')
    assert len(one.events(READER_OUT, 1, 2)) == 1
    one.close()


def test_a_schema_of_something_else_is_left_alone(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    with pytest.raises(WrongLog, match="not a log"):
        PostgresStore(postgres_url, schema="public")


def test_scenario_6_a_process_frozen_inside_its_transaction_does_not_hold_up_takeover(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    store.declare(TOPOLOGY)
    pen = Pen(store)
    pen("reader", events(READER_OUT, 1, 1))
    with psycopg.connect(postgres_url) as frozen:
        frozen.execute("SET search_path TO clew")
        frozen.execute("SELECT fence('reader', 1, 1, true)")
        started = time.monotonic()
        assert store.take_over("reader") == 2
        assert time.monotonic() - started < 10
        with pytest.raises(psycopg.OperationalError):
            frozen.execute("SELECT 1")
    with pytest.raises(StaleWriter):
        pen("reader", events(READER_OUT, 2, 1))
    store.close()


def test_threads_that_write_for_one_operator_take_turns(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    store.declare(TOPOLOGY)
    pen = Pen(store)
    numbers = iter(range(1, 41))
    lock, failures = threading.Lock(), []

    def work() -> None:
        try:
            for _ in range(10):
                with lock:
                    pen("reader", events(READER_OUT, next(numbers), 1))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(store.events(READER_OUT, 1, 40)) == 40
    store.close()


def test_a_server_that_is_not_there_is_told_with_a_cure_and_without_secrets() -> None:
    with pytest.raises(StoreFailed, match="start PostgreSQL or mend the URL") as refused:
        PostgresStore("postgresql://clew:s3cret@127.0.0.1:1/log?sslpassword=s3cret")
    assert "s3cret" not in str(refused.value)
    assert "127.0.0.1" in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://clew:s3cret@db:5433/log",
        "postgresql://clew@db/log?password=s3cret",
        "host=db user=clew password=s3cret dbname=log",
        "postgresql://clew:s3cret@db:badport/log?what=is this",
        "postgresql://clew:s3cret@db/log?password=s3cret&nonsense=1",
    ],
)
def test_secrets_in_urls_are_masked(url: str) -> None:
    assert "s3cret" not in masked(url)
    assert "db" in masked(url)
    if "bad" in url or "nonsense" in url:
        with pytest.raises(StoreFailed) as refused:
            PostgresStore(url)
        assert "s3cret" not in str(refused.value)


def test_a_server_that_stops_poisons_the_store_and_loses_nothing(tmp_path: Path) -> None:
    server = PostgresServer()
    try:
        store = PostgresStore(server.url)
        store.declare(TOPOLOGY)
        pen = Pen(store)
        pen("reader", events(READER_OUT, 1, 2))
        server.stop()
        with pytest.raises(StoreFailed):
            pen("reader", events(READER_OUT, 3, 2))
        server.start()
        with pytest.raises(StoreFailed):
            pen("reader", events(READER_OUT, 3, 2))
        store.close()
        again = PostgresStore(server.url)
        again.declare(TOPOLOGY)
        assert len(again.table("EVENT_DATA")) == 2
        Pen(again)("reader", events(READER_OUT, 3, 2))
        again.close()
    finally:
        server.remove()


def test_an_operator_that_stays_locked_is_told_with_a_cure(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_TAKE_OVER_PATIENCE", "1ms")
    store = PostgresStore(postgres_url)
    store.declare(TOPOLOGY)
    with psycopg.connect(postgres_url) as somebody:
        # No row names the holder of a lock on the table, so it is not ended.
        somebody.execute("LOCK TABLE clew.operator IN EXCLUSIVE MODE")
        cure = "end that session, which pg_stat_activity lists, and run again"
        with pytest.raises(StoreFailed, match=rf"^operator reader of the log .* is locked by another session; {cure}"):
            store.take_over("reader")
    store.close()


def test_an_operator_that_another_process_writes_to_all_the_time_is_refused(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = PostgresStore(postgres_url), PostgresStore(postgres_url)
    store.declare(TOPOLOGY)
    pen = Pen(store)
    pen("reader", events(READER_OUT, 1, 1))
    other.commit("reader", pen.incarnations["reader"], [events(READER_OUT, 2, 1)])
    monkeypatch.setattr(postgres, "_ATTEMPTS", 1)
    with pytest.raises(UnexpectedRow) as refused:
        pen("reader", events(READER_OUT, 2, 1))
    assert str(refused.value) == (
        "operator reader is written to by another process all the time, expected ours alone; "
        "was this operator restarted elsewhere?"
    )
    other.close()
    store.close()


def test_a_disk_that_is_full_is_told_with_a_cure(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    store.declare(TOPOLOGY)
    pen = Pen(store)
    with psycopg.connect(postgres_url) as session:
        session.execute("CREATE FUNCTION fill_up() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE disk_full; END'")
        session.execute("CREATE TRIGGER fill_up BEFORE INSERT ON clew.sent EXECUTE FUNCTION fill_up()")
    for _ in range(2):
        with pytest.raises(
            StoreFailed, match=r"^the disk of the log .* is full; make room and run again: what was ack"
        ):
            pen("reader", events(READER_OUT, 1, 1))
    store.close()


def test_a_user_who_may_not_make_a_log_is_told_what_to_grant(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as session:
        session.execute("CREATE ROLE guest LOGIN")
    with pytest.raises(
        StoreFailed, match=r"^the log .* is refused: permission denied .*; grant this user CREATE on the database"
    ):
        PostgresStore(postgres_url.replace("clew@", "guest@"))
    with psycopg.connect(postgres_url) as session:
        session.execute("DROP ROLE guest")
