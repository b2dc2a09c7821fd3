"""Clew's own log of a run: JSON lines in a file beside the log of events.

The rooms speak by Python's `logging`, to the logger `clew`, and know nothing of files; here their lines get a place and
a form. Nothing is said per event.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from clew.app.settings import Level

#: What every record has by itself; all else was given as `extra`.
_OWN = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime"))


def own_log() -> logging.Logger:
    """Return the logger of the command line itself."""
    return logging.getLogger("clew.app")


class _JsonLines(logging.Formatter):
    """Writes a record as a line of JSON, with what every line is to have."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        super().__init__()
        self._about = about

    def format(self, record: logging.LogRecord) -> str:
        line = {**self._about, **{name: value for name, value in vars(record).items() if name not in _OWN}}
        line |= {"event": record.getMessage(), "level": record.levelname.lower(), "logger": record.name}
        line["time"] = f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Patient(logging.FileHandler):
    """Leaves out what cannot be written: a disk that is full is for the log of events to report, and stops the run."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


class _Handed(QueueHandler):
    """Hands records on as they are: they stay in this process."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record


@contextmanager
def logged_to(path: Path | None, level: Level, **about: Any) -> Iterator[None]:
    """Append what the package says to a file, each line with `about`; nowhere where there is no path."""
    if path is None:
        yield
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _Patient(path, encoding="utf-8", delay=True)
    except OSError:
        # The log of events is in the same place, and says what is wrong with it.
        yield
        return
    handler.setFormatter(_JsonLines(about))
    # Written by a thread of its own: nothing that a run does waits for the disk because of what it says.
    lines: SimpleQueue[Any] = SimpleQueue()
    handed, writer = _Handed(lines), QueueListener(lines, handler)
    logger = logging.getLogger("clew")
    before = logger.level
    writer.start()
    logger.addHandler(handed)
    logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handed)
        writer.stop()
        with suppress(OSError):
            handler.close()


@contextmanager
def heard(say: Callable[[str], None]) -> Iterator[None]:
    """Let a person hear at once what a session waits for, which nothing else shows."""
    handler = _Aloud(logging.WARNING)
    handler.say = say
    logger = logging.getLogger("clew.spark.session")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Aloud(logging.Handler):
    say: Callable[[str], None]

    def emit(self, record: logging.LogRecord) -> None:
        self.say(record.getMessage())
