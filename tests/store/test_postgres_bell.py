"""The bell: names go from process to process, and nothing of it disturbs who rings."""

import json
import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from clew.store import postgres_bell
from clew.store.postgres_bell import EVERYTHING, PostgresBell, called, channel, payloads
from clew.store.postgres_session import Connection
from tests.postgres_server import PostgresServer

PATIENCE = 60


class Heard:
    """What a listener has heard, to be waited for."""

    def __init__(self) -> None:
        self.calls: list[Collection[str]] = []
        self._changed = threading.Condition()

    def __call__(self, names: Collection[str]) -> None:
        with self._changed:
            self.calls.append(names)
            self._changed.notify_all()

    def wait(self, enough: Callable[[list[Collection[str]]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self.calls), PATIENCE), self.calls

    def wait_for(self, *names: str) -> None:
        self.wait(lambda calls: set(names) <= {name for one in calls for name in one})

    def wait_to_begin(self, times: int = 1) -> None:
        self.wait(lambda calls: calls.count(EVERYTHING) >= times)


@contextmanager
def listening(url: str, schema: str = "clew") -> Iterator[Heard]:
    heard = Heard()
    with closing(PostgresBell(url, schema)) as bell:
        bell.listen(heard)
        heard.wait_to_begin()
        yield heard


def test_names_are_heard_by_others(postgres_url: str) -> None:
    with listening(postgres_url) as one, listening(postgres_url) as two, closing(PostgresBell(postgres_url)) as bell:
        bell.ring(["mapper", "sink"])
        one.wait_for("mapper", "sink")
        two.wait_for("mapper", "sink")


def test_it_does_not_hear_itself(postgres_url: str) -> None:
    own = Heard()
    with listening(postgres_url) as other, closing(PostgresBell(postgres_url)) as bell:
        bell.listen(own)
        own.wait_to_begin()
        bell.ring(["mine"])
        other.wait_for("mine")
        with closing(PostgresBell(postgres_url)) as third:
            third.ring(["theirs"])
            own.wait_for("theirs")
    assert {name for names in own.calls for name in names} == {"theirs"}


def test_logs_of_one_database_have_a_bell_each(postgres_url: str) -> None:
    long = f'clew_{"x" * 70} "quoted"'
    with listening(postgres_url, "clew_shop") as shop, listening(postgres_url, long) as other:
        with closing(PostgresBell(postgres_url, long)) as bell:
            bell.ring(["sink"])
        other.wait_for("sink")
        with closing(PostgresBell(postgres_url, "clew_shop")) as bell:
            bell.ring(["mapper"])
        shop.wait_for("mapper")
    assert {name for names in shop.calls for name in names} == {"mapper"}


def test_what_was_rung_is_sent_before_it_closes(postgres_url: str) -> None:
    with listening(postgres_url) as heard:
        bell = PostgresBell(postgres_url)
        bell.ring(["last"])
        bell.close()
        bell.close()
        bell.ring(["never"])
        heard.wait_for("last")


def test_many_rings_are_few_calls(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[str]] = []
    monkeypatch.setattr(postgres_bell, "payloads", lambda names: sent.append(names) or payloads(names))
    with listening(postgres_url) as heard, closing(PostgresBell(postgres_url)) as bell:
        bell.ring(["first"])
        heard.wait_for("first")
        for number in range(2000):
            bell.ring([f"operator{number % 10}"])
        bell.ring(["end"])
        heard.wait_for("end")
        # Those that came while others were sent went together.
        assert len(sent) < 1000


def test_more_names_than_one_call_takes_are_all_heard(postgres_url: str) -> None:
    names = [f"operator_{number}_{'x' * 100}" for number in range(200)]
    with listening(postgres_url) as heard, closing(PostgresBell(postgres_url)) as bell:
        bell.ring(names)
        heard.wait_for(*names)


def test_a_call_is_never_too_large() -> None:
    names = [f"operator_{number}_{'é' * 50}" for number in range(500)]
    texts = payloads(names)
    assert all(len(text.encode()) < 8000 for text in texts)
    assert called(texts) == frozenset(names)
    assert payloads(["x" * 9000, "short"]) == ["[]"]


@pytest.mark.parametrize("text", ["", "[]", "nonsense", '"mapper"', "[1]", "{}"])
def test_what_is_not_known_may_be_everything(text: str) -> None:
    assert called(['["mapper"]', text]) == EVERYTHING


def test_a_channel_has_a_name_that_postgresql_keeps_whole() -> None:
    assert channel("clew_shop") == "clew_shop_bell"
    for schema in ("x" * 58, "x" * 59, "é" * 40):
        assert len(channel(schema).encode()) <= 63
    assert channel("x" * 70) != channel("x" * 71)


def test_a_listener_that_fails_hears_what_comes_next(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()

    def fails(names: Collection[str]) -> None:
        heard(names)
        raise ValueError("who listens is broken")

    with closing(PostgresBell(postgres_url)) as bell, closing(PostgresBell(postgres_url)) as other:
        bell.listen(fails)
        heard.wait_to_begin()
        other.ring(["mapper"])
        heard.wait_for("mapper")
    assert "who listens to the bell failed" in caplog.text


def test_sessions_that_are_ended_are_made_again(postgres_url: str) -> None:
    with listening(postgres_url) as heard, closing(PostgresBell(postgres_url)) as bell:
        bell.ring(["before"])
        heard.wait_for("before")
        with psycopg.connect(postgres_url, autocommit=True) as session:
            session.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        # What was rung meanwhile is lost, so it is told that everything may be new.
        heard.wait_to_begin(2)
        bell.ring(["after"])
        heard.wait_for("after")


def test_a_server_that_goes_and_comes_disturbs_nobody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = PostgresServer()
    caplog.set_level(logging.INFO)
    try:
        with listening(server.url) as heard, closing(PostgresBell(server.url)) as bell:
            bell.ring(["before"])
            heard.wait_for("before")
            send = bell._send

            def send_later(connection: Connection) -> None:
                # What is rung before anybody listens again is heard by nobody, who is told EVERYTHING instead.
                heard.wait_to_begin(2)
                send(connection)

            monkeypatch.setattr(bell, "_send", send_later)
            server.stop()
            for _ in range(3):
                bell.ring(["meanwhile"])
            server.start()
            heard.wait_to_begin(2)
            bell.ring(["after"])
            # What could not be sent was kept.
            heard.wait_for("meanwhile", "after")
        server.stop()
        # Nobody waits for a server that is not there.
        with closing(PostgresBell(server.url)) as bell:
            bell.ring(["nobody"])
    finally:
        server.remove()
    assert any("cannot be reached" in str(vars(record).get("error")) for record in caplog.records)
    assert "bell works again" in caplog.text


def test_what_is_called_is_a_list_of_names(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute("LISTEN clew_bell")
        with closing(PostgresBell(postgres_url)) as bell:
            bell.ring(["mapper", "counter"])
        (one,) = session.notifies(timeout=PATIENCE, stop_after=1)
        assert json.loads(one.payload) == ["counter", "mapper"]
