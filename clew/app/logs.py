"""Clew's own log of a run: JSON lines in a file beside the log of events.

The rooms speak by Python's `logging`, to the logger `clew`, and know nothing of files; here their lines get a place and
a form. Nothing is said per event.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import structlog

from clew.app.settings import Level

_SHARED: Sequence[Any] = (
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    structlog.processors.format_exc_info,
)


def own_log() -> Any:
    """Return the logger of the command line itself.

    It is wrapped here and not by `structlog.configure`, which is the user's: a pipeline may use structlog too.
    """
    return structlog.wrap_logger(
        logging.getLogger("clew.app"),
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


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
    handler.setFormatter(_formatter(about))
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


def _formatter(about: dict[str, Any]) -> logging.Formatter:
    def add(logger: Any, name: str, event: Any) -> Any:
        return {**about, **event}

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_SHARED, structlog.stdlib.ExtraAdder()],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            add,
            structlog.processors.JSONRenderer(default=str),
        ],
    )
