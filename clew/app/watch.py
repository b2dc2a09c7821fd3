"""Shows a run while it goes on: a live table on a terminal, plain lines anywhere else."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live

from clew.app.figures import line, picture, restarted
from clew.app.stray import StrayOutput
from clew.app.terminal import console_on, notices
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

    def open(self) -> None:
        """Begin to show figures."""

    def show(self, rows: Rows) -> None:
        """Show the figures as they are now."""

    def close(self, rows: Rows) -> None:
        """Show the figures for the last time; there are none if the run could not be started."""


class LiveTable:
    """A table that is drawn again in its place."""

    stays = True

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._stray = StrayOutput()
        self._console = console_on(self._stray.terminal)
        self._began = time.monotonic()
        # Drawn by the watching thread alone, so that no thread of rich's own outlives an interrupted run.
        self._live = Live(console=self._console, auto_refresh=False)

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def open(self) -> None:
        self._stray.start(self.say)
        self._live.start()

    def show(self, rows: Rows) -> None:
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
        self._stray.stop()


class Lines:
    """A line per operator from time to time, and when something happened to it."""

    stays = False

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: dict[str, OperatorProgress] = {}
        self._next = time.monotonic() + _EVERY

    def say(self, text: str) -> None:
        self._console.print(f"{time.strftime('%H:%M:%S')} {text}")

    def open(self) -> None:
        self._next = time.monotonic() + _EVERY

    def show(self, rows: Rows) -> None:
        due = time.monotonic() >= self._next
        if due:
            self._next = time.monotonic() + _EVERY
        for name, row in rows.items():
            before = self._seen.get(name, OperatorProgress(name, row.group))
            if row.restarts > before.restarts:
                # Told apart from the phase, which may be over before anyone looks.
                self.say(restarted(row))
            if due or happened(before, row):
                self.say(line(row))
            self._seen[name] = row

    def close(self, rows: Rows) -> None:
        # Without the figures of time: the summary that follows has them.
        self._next = time.monotonic() + _EVERY
        self.show(rows)


def happened(before: OperatorProgress, now: OperatorProgress) -> bool:
    """Say whether something is worth a line at once: the first turn, an end or a failure.

    Waiting, blocked and running alternate with every turn.
    """
    begun = now.turns > 0 and before.turns == 0
    return begun or (now.phase != before.phase and now.phase in ("finished", "failed"))


def display_for(pipeline: str) -> Display:
    """Return the display that suits where stderr goes."""
    console = notices()
    return LiveTable(pipeline) if console.is_terminal and not console.is_dumb_terminal else Lines(console)


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
    display.open()
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        display.close(progress.rows())
