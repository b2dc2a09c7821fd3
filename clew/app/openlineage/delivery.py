"""Brings events to where they are wanted, in a thread of its own: whoever makes one never waits for a collector."""

import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from clew.errors import SetupFailed

#: Sends one event, or raises.
Send = Callable[[Any], object]

#: How many events wait for a collector that is slow; those that come when there are so many are lost.
MOST = 1000
#: Seconds for an answer, and before an event is sent again: at first, and at most.
_TIMEOUT, _FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 0.5, 30.0
#: Answers that ask to come again, though the fault is said to be ours.
_LATER = (408, 429)
_SLOW = "it did not answer in time"
_LOG = logging.getLogger(__name__)


def send_to(place: str, say: Callable[[str], None]) -> Send:
    """Return what sends events to `console`, which is to `say` them, to `file:PATH` or to an http(s) URL."""
    try:
        from openlineage.client.serde import Serde
        from openlineage.client.transport.file import FileConfig, FileTransport
    except ImportError as error:
        raise SetupFailed(
            f"OpenLineage needs the package openlineage-python, which is not there ({error})",
            'install it with pip install "clew[openlineage]", or take the setting openlineage back',
        ) from error
    if place == "console":
        return lambda event: say(Serde.to_json(event))
    if place.startswith("file:") and place != "file:":
        return FileTransport(FileConfig(place.removeprefix("file:"), append=True)).emit
    if place.startswith(("http://", "https://")) and urlsplit(place).netloc:
        return _http(place)
    raise SetupFailed(
        f"{shown(place)!r} is no place for OpenLineage events",
        "set openlineage to console, file:PATH, or a URL such as http://127.0.0.1:5000",
    )


def shown(text: str) -> str:
    """Return a text without what addresses in it may hold that nobody should see: users, passwords, queries."""
    return re.sub(r"(://[^\s?]*\?)\S*", r"\1***", re.sub(r"//[^/@\s]*@", "//***@", text))


def _http(url: str) -> Send:
    from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport

    config = HttpConfig(url, timeout=_TIMEOUT, retry={"total": 0})
    parts = urlsplit(url)
    if parts.path.strip("/"):
        # A path that is written out is the collector's own; without one it is the usual one.
        config.url = parts._replace(path="", query="", fragment="").geturl()
        config.endpoint = parts._replace(scheme="", netloc="", fragment="").geturl()
    # As other clients of OpenLineage are told.
    key = os.environ.get("OPENLINEAGE_API_KEY")
    if key:
        config.auth = ApiKeyTokenProvider({"api_key": key})
    return HttpTransport(config).emit


class Delivery:
    """Sends events one after the other, in order; what cannot be sent is sent again, until there are too many.

    Nothing is raised. The first failure is told in Clew's own log; how many events were lost is told at the end.
    """

    def __init__(self, send: Send, place: str, most: int = MOST) -> None:
        self._send = send
        self._place = shown(place)
        self._most = most
        self._waiting: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._error = ""
        self.sent = 0
        self.lost = 0
        # Nobody waits for a collector that hangs, not even the end of the process.
        self._thread = threading.Thread(target=self._deliver, name="openlineage-delivery", daemon=True)
        self._thread.start()

    def put(self, event: Any) -> None:
        """Take an event on; returns at once."""
        with self._changed:
            if len(self._waiting) >= self._most:
                self.lost += 1
                self._complain(_SLOW)
            else:
                self._waiting.append(event)
                self._changed.notify_all()

    def close(self, until: float) -> None:
        """Send what waits, up to this moment of the monotonic clock; what is left then is lost."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(max(0.0, until - time.monotonic()))
        with self._changed:
            if self._waiting:
                self.lost += len(self._waiting)
                self._waiting.clear()
                self._complain(_SLOW)

    @property
    def told(self) -> str:
        """What a person should know, if anything was lost."""
        if not self.lost:
            return ""
        return (
            f"{self.lost} of {self.sent + self.lost} OpenLineage events were lost on the way to {self._place} "
            f"({self._error}); the run is not affected: look at the collector, or take the setting openlineage back"
        )

    def _deliver(self) -> None:
        pause = _FIRST_PAUSE
        while (event := self._first()) is not None:
            error = self._attempt(event)
            with self._changed:
                if error is None or _refused(error):
                    self._settle(event, sent=error is None)
                    pause = _FIRST_PAUSE
                elif self._closing:
                    # That was the last attempt.
                    return
                else:
                    self._changed.wait_for(lambda: self._closing, pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)

    def _first(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closing)
            return self._waiting[0] if self._waiting else None

    def _attempt(self, event: Any) -> Exception | None:
        try:
            self._send(event)
        except Exception as error:
            self._complain(shown(f"{type(error).__name__}: {error}"))
            return error
        return None

    def _complain(self, why: str) -> None:
        """Tell of the first failure; those that follow would say the same."""
        if not self._error:
            self._error = why
            _LOG.warning("openlineage fails", extra={"place": self._place, "error": why})

    def _settle(self, event: Any, sent: bool) -> None:
        # After `close` it is counted already.
        if self._waiting and self._waiting[0] is event:
            self._waiting.popleft()
            self.sent += sent
            self.lost += not sent


def _refused(error: Exception) -> bool:
    """Say whether the collector does not want this event, so that it is of no use to send it again."""
    status = getattr(getattr(error, "response", None), "status_code", None) or 0
    return 400 <= status < 500 and status not in _LATER
