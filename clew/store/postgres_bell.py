"""Wakes receivers in other processes: a log's channel of NOTIFY, on which names of operators are called.

A bell only says that the log may have something new. It may ring too often, and a ring may be lost, so who waits for
one looks into the log from time to time all the same.
"""

import hashlib
import json
import logging
import os
import selectors
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import psycopg
from psycopg import sql

from clew.store.postgres_session import Connection, explain

_LOG = logging.getLogger(__name__)

#: What a listener hears when any operator may have something new.
EVERYTHING: Final[Collection[str]] = frozenset()

#: Seconds between two calls on the channel, at least.
_PAUSE = 0.005
#: PostgreSQL takes payloads of less than 8000 bytes, and names of at most 63.
_LARGEST, _LONGEST = 7900, 63
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 2.0

Callback = Callable[[Collection[str]], None]


class PostgresBell:
    """Rings for operators, and hears others ring; what this bell itself rings, it does not hear.

    Each direction has a thread and a connection of its own, made when it is first used. A connection that is lost is
    made again, for as long as the bell is not closed; nothing of that disturbs who rings.
    """

    def __init__(self, url: str, schema: str = "clew") -> None:
        self._url = url
        self._channel = channel(schema)
        self._lock = threading.Lock()
        self._rung: set[str] = set()
        self._news = threading.Event()
        self._closed = threading.Event()
        self._ringer: threading.Thread | None = None
        self._listeners: list[threading.Thread] = []
        #: The session that rings, as the server numbers it.
        self._own = 0
        #: Closed at its one end when the bell is, so that who waits at the other wakes up.
        self._end, self._open_end = os.pipe()

    def ring(self, names: Iterable[str]) -> None:
        """Ask that these operators look into the log; returns at once, and never fails."""
        with self._lock:
            if self._closed.is_set():
                return
            self._rung.update(names)
            if self._ringer is None:
                self._ringer = self._started("clew-bell", self._call)
        self._news.set()

    def listen(self, callback: Callback) -> None:
        """Call back, in a thread of its own, with the names of operators that others ring for.

        An empty collection, EVERYTHING, says that any of them may have something new: it comes whenever the bell has
        begun to listen, the first time too, since nobody knows what was rung before.
        """
        with self._lock:
            work = _Listener(self._channel, self._end, self._closed, callback, lambda: self._own)
            self._listeners.append(self._started("clew-bell-listener", work.hear))

    def close(self) -> None:
        """Ring what was asked for before, if the server is there, and end."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        self._news.set()
        os.close(self._open_end)
        threads = [*self._listeners, *([self._ringer] if self._ringer else [])]
        for thread in threads:
            # One that is just connecting ends by itself.
            thread.join(timeout=2)
        if not any(thread.is_alive() for thread in threads):
            os.close(self._end)

    def _started(self, name: str, work: Callable[[Connection], None]) -> threading.Thread:
        thread = threading.Thread(target=self._keep_up, args=(name, work), name=name, daemon=True)
        thread.start()
        return thread

    def _keep_up(self, name: str, work: Callable[[Connection], None]) -> None:
        """Work on a connection, and on another one when that is lost, until the bell is closed."""
        delay = _FIRST_DELAY
        while True:
            try:
                # What is silent for half a minute is given up, and not after hours.
                with psycopg.connect(
                    self._url, autocommit=True, connect_timeout=10, keepalives_idle=15, keepalives_interval=5,
                    keepalives_count=3,
                ) as connection:  # fmt: skip
                    if delay > _FIRST_DELAY:
                        _LOG.info("bell works again", extra={"bell": name})
                    delay = _FIRST_DELAY
                    work(connection)
                    return
            except Exception as error:
                if delay == _FIRST_DELAY:
                    _LOG.warning("bell fails", extra={"bell": name, "error": explain(self._url, error).what})
            if self._closed.wait(delay):
                return
            delay = min(2 * delay, _LONGEST_DELAY)

    def _call(self, connection: Connection) -> None:
        """Ring for whoever is asked for, until the bell is closed."""
        self._own = connection.info.backend_pid
        while True:
            self._news.wait()
            self._news.clear()
            # Before it is looked at what was asked for: after that nobody can ask any more.
            closed = self._closed.is_set()
            self._send(connection)
            if closed:
                return
            self._closed.wait(_PAUSE)

    def _send(self, connection: Connection) -> None:
        with self._lock:
            names, self._rung = self._rung, set()
        try:
            if names:
                statement = "SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload"
                connection.execute(statement, (self._channel, payloads(sorted(names))))
        except BaseException:
            with self._lock:
                self._rung |= names
            self._news.set()
            raise


class _Listener:
    """Hears what is called on a channel."""

    def __init__(
        self, channel: str, end: int, closed: threading.Event, callback: Callback, own: Callable[[], int]
    ) -> None:
        self._channel, self._end, self._closed, self._callback, self._own = channel, end, closed, callback, own

    def hear(self, connection: Connection) -> None:
        """Call back for what is heard, until the bell is closed."""
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        self._tell(EVERYTHING)
        with selectors.DefaultSelector() as either:
            either.register(connection.fileno(), selectors.EVENT_READ)
            either.register(self._end, selectors.EVENT_READ)
            while not self._closed.is_set():
                others = [heard.payload for heard in connection.notifies(timeout=0) if heard.pid != self._own()]
                if others:
                    self._tell(called(others))
                else:
                    either.select()

    def _tell(self, names: Collection[str]) -> None:
        try:
            self._callback(names)
        except Exception:
            _LOG.exception("who listens to the bell failed")


def channel(schema: str) -> str:
    """Return the name of the channel of a log; a schema whose name leaves no room for more is told by its digest."""
    name = f"{schema}_bell"
    return name if len(name.encode()) <= _LONGEST else f"clew_bell_{hashlib.sha256(schema.encode()).hexdigest()[:40]}"


def payloads(names: Sequence[str]) -> list[str]:
    """Return names as texts that a channel takes; where one has no room in any, that everything may be new."""
    if any(len(json.dumps([name])) > _LARGEST for name in names):
        return [json.dumps([])]
    found: list[list[str]] = [[]]
    for name in names:
        if len(json.dumps([*found[-1], name])) > _LARGEST:
            found.append([])
        found[-1].append(name)
    return [json.dumps(part) for part in found]


def called(texts: Iterable[str]) -> Collection[str]:
    """Return the names that are in such texts; EVERYTHING where one of them says so, or nothing that is known."""
    names: set[str] = set()
    for text in texts:
        try:
            part = json.loads(text)
        except ValueError:
            return EVERYTHING
        if not part or not isinstance(part, list) or not all(isinstance(name, str) for name in part):
            return EVERYTHING
        names.update(part)
    return frozenset(names)


__all__ = ["EVERYTHING", "PostgresBell", "called", "channel", "payloads"]
