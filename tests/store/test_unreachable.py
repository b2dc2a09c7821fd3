"""A server that is away for a while, and one that is there and does not let us in."""

import logging
import threading
from collections.abc import Iterator

import psycopg
import pytest

from clew.errors import StoreFailed, StoreUnreachable, WrongLog
from clew.store.base import KeptStore
from clew.store.memory import MemoryStore
from clew.store.postgres import PostgresStore
from clew.store.postgres_session import explain
from clew.store.reopening import reopened
from tests.postgres_server import PostgresServer
from tests.store.logs import READER_OUT, TOPOLOGY, Pen, events

NOWHERE = "postgresql://clew@127.0.0.1:1/clew"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.remove()


def test_a_store_whose_server_went_is_unreachable_until_it_is_opened_again(server: PostgresServer) -> None:
    store = PostgresStore(server.url)
    store.declare(TOPOLOGY)
    pen = Pen(store)
    pen("reader", events(READER_OUT, 1, 2))
    server.stop()
    for _ in range(2):
        with pytest.raises(StoreUnreachable, match="cannot be reached"):
            pen("reader", events(READER_OUT, 3, 1))
    back = threading.Timer(0.3, server.start)
    back.start()
    again = reopened(lambda: PostgresStore(server.url), 60, threading.Event())
    back.join()
    assert sum(len(run.headers) for run in again.events(READER_OUT, 1, 9)) == 2
    # It may be there again; the store that lost it does not go on.
    with pytest.raises(StoreUnreachable):
        pen("reader", events(READER_OUT, 3, 1))
    store.close()
    again.close()


class Hurried(threading.Event):
    """Waits for nothing, and notes how long it was to."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        return False


def test_it_is_tried_again_ever_more_slowly_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store, stop = MemoryStore(), Hurried()

    def open() -> KeptStore:
        if len(stop.pauses) < 7:
            raise StoreUnreachable("the log cannot be reached")
        return store

    assert reopened(open, 600, stop) is store
    assert stop.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert [record.message for record in caplog.records] == ["log cannot be reached", "log is reached again"]


def test_patience_ends() -> None:
    with pytest.raises(StoreUnreachable, match=r"cannot be reached: .*; start PostgreSQL or mend the URL, then run"):
        reopened(lambda: PostgresStore(NOWHERE), 0.2, threading.Event())


def test_who_is_told_to_stop_waits_no_longer() -> None:
    stop = threading.Event()
    stop.set()
    tries: list[None] = []

    def open() -> KeptStore:
        tries.append(None)
        raise StoreUnreachable("the log cannot be reached")

    with pytest.raises(StoreUnreachable):
        reopened(open, 600, stop)
    assert len(tries) == 1


def test_other_failures_are_not_waited_for() -> None:
    def open() -> KeptStore:
        raise WrongLog("this log is of another pipeline")

    with pytest.raises(WrongLog):
        reopened(open, 600, threading.Event())


@pytest.mark.parametrize(
    ("wrong", "said"), [("clew@{}/none", 'database "none" does not exist'), ("none@{}/postgres", 'role "none" does')]
)
def test_a_server_that_does_not_let_us_in_is_not_waited_for(
    postgres_server: PostgresServer, wrong: str, said: str
) -> None:
    url = f"postgresql://{wrong.format(f'127.0.0.1:{postgres_server.port}')}"
    with pytest.raises(
        StoreFailed, match=rf"is refused: .*{said}.*; create the database and the role there"
    ) as refused:
        reopened(lambda: PostgresStore(url), 600, threading.Event())
    assert not isinstance(refused.value, StoreUnreachable)


@pytest.mark.parametrize("error", [psycopg.errors.AdminShutdown, psycopg.errors.CannotConnectNow])
def test_a_server_that_ends_or_starts_is_away(error: type[psycopg.Error]) -> None:
    assert isinstance(explain(NOWHERE, error("not now")), StoreUnreachable)


@pytest.mark.parametrize("error", [psycopg.errors.DeadlockDetected, psycopg.errors.QueryCanceled])
def test_a_server_that_fails_at_something_is_there(error: type[psycopg.Error]) -> None:
    assert type(explain(NOWHERE, error("not so"))) is StoreFailed
