"""Opens a log again whose server has gone for a while."""

import logging
import threading
import time
from collections.abc import Callable

from clew.errors import StoreUnreachable
from clew.store.base import KeptStore

_LOG = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


def reopened(open: Callable[[], KeptStore], patience: float, stop: threading.Event) -> KeptStore:
    """Open a log, and try again while its server cannot be reached, at most for so many seconds.

    Whatever else fails is raised at once. Raises StoreUnreachable when the time is over, or when `stop` is set.
    """
    deadline = time.monotonic() + patience
    pause, waits = _FIRST_PAUSE, False
    while True:
        try:
            store = open()
        except StoreUnreachable as error:
            left = deadline - time.monotonic()
            if not waits:
                _LOG.warning("log cannot be reached", extra={"what": error.what, "patience": patience})
                waits = True
            if left <= 0 or stop.wait(min(pause, left)):
                raise
            pause = min(2 * pause, _LONGEST_PAUSE)
        else:
            if waits:
                _LOG.info("log is reached again")
            return store


__all__ = ["reopened"]
