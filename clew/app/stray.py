"""Brings what child processes write to stderr, the JVM above all, out of the way of a live table."""

import os
import threading
from collections.abc import Callable

_STDERR = 2


class StrayOutput:
    """Stands between stderr and the terminal: whoever writes to the one is heard here, line by line.

    Children inherit stderr when they are started, so it is replaced before the session is made. They may
    write even after `stop`; the lines then still reach `show`, for as long as this process lives.
    """

    def __init__(self) -> None:
        #: The terminal itself, for the one who draws on it.
        self.terminal = os.fdopen(os.dup(_STDERR), "w", encoding="utf-8", errors="replace")

    def start(self, show: Callable[[str], None]) -> None:
        out, into = os.pipe()
        os.dup2(into, _STDERR)
        os.close(into)
        threading.Thread(target=_pass_on, args=(out, show), name="stray-output", daemon=True).start()

    def stop(self) -> None:
        os.dup2(self.terminal.fileno(), _STDERR)


def _pass_on(out: int, show: Callable[[str], None]) -> None:
    # Ends when the last writer is gone; until then it must keep reading, or a writer would block.
    with os.fdopen(out, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            show(line.rstrip("\n"))
