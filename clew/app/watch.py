"""Shows a run while it goes on: a live table on a terminal, plain lines anywhere else."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live

from clew.app.figures import line, picture
from clew.app.terminal import notices
from clew.pipeline.graph import Graph
from clew.run import OperatorProgress, Progress

#: Seconds between two looks at the figures.
_LOOK = 0.2
#: Seconds between two lines of an operator to which nothing happens.
_EVERY = 5.0

Rows = Mapping[str, OperatorProgress]


class Display(Protocol):
    """Where the figures of a run appear."""

    #: Whether the last figures stay to be seen when it is closed.
    stays: bool

    def say(self, text: str) -> None:
        """Show one line that stays."""

    def show(self, rows: Rows) -> None:
        """Show the figures as they are now."""

    def close(self, rows: Rows) -> None:
        """Show the figures for the last time; there are none if the run could not be started."""


class LiveTable:
    """A table that is drawn again in its place."""

    stays = True

    def __init__(self, pipeline: str, console: Console) -> None:
        self._pipeline = pipeline
        self._console = console
        self._began = time.monotonic()
        # Drawn by the watching thread alone, so that no thread of rich's own outlives an interrupted run.
        self._live = Live(console=console, auto_refresh=False)
        self._started = False

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def show(self, rows: Rows) -> None:
        if not self._started:
            self._live.start()
            self._started = True
        seconds = time.monotonic() - self._began
        self._live.update(picture(self._pipeline, seconds, rows.values()), refresh=True)

    def close(self, rows: Rows) -> None:
        if rows:
            # The last picture stays on the screen, all of it.
            self._live.vertical_overflow = "visible"
            self.show(rows)
        else:
            self._live.transient = True
        self._live.stop()


class Lines:
    """A line per operator from time to time, and when something happened to it."""

    stays = False

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: dict[str, OperatorProgress] = {}
        self._next = time.monotonic() + _EVERY

    def say(self, text: str) -> None:
        self._console.print(f"{time.strftime('%H:%M:%S')} {text}")

    def show(self, rows: Rows) -> None:
        due = time.monotonic() >= self._next
        if due:
            self._next = time.monotonic() + _EVERY
        for name, row in rows.items():
            if due or happened(self._seen.get(name), row):
                self.say(line(row))
            self._seen[name] = row

    def close(self, rows: Rows) -> None:
        # Without the figures of time: the summary that follows has them.
        self._next = time.monotonic() + _EVERY
        self.show(rows)


def happened(before: OperatorProgress | None, now: OperatorProgress) -> bool:
    """Say whether something is worth a line at once.

    Waiting, blocked and running alternate with every turn; only the first turn, an end, a failure and a restart do not.
    """
    if before is None:
        return now.phase in ("finished", "failed", "restarting") or now.turns > 0
    if now.restarts > before.restarts or (now.turns > 0 and before.turns == 0):
        return True
    return now.phase != before.phase and now.phase in ("finished", "failed")


def display_for(pipeline: str) -> Display:
    """Return the display that suits where stderr goes."""
    console = notices()
    return LiveTable(pipeline, console) if console.is_terminal and not console.is_dumb_terminal else Lines(console)


@contextmanager
def watching(display: Display, graph: Graph, progress: Progress) -> Iterator[None]:
    """Show a run's figures for as long as the block lasts."""
    stop = threading.Event()

    def rows() -> Rows:
        # Until the engine is up the supervisor has not named the operators.
        early = {spec.name: OperatorProgress(spec.name, spec.group) for spec in graph.operators.values()}
        return {**early, **progress.rows()}

    def look() -> None:
        while not stop.wait(_LOOK):
            display.show(rows())

    thread = threading.Thread(target=look, name="display", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        display.close(progress.rows())
