"""Outside systems that cannot be reached, and for how long they are waited for."""

import threading
import time

from clew.errors import SinkFailed, SourceFailed

#: Seconds between two questions to a system that is away.
_AWAY = 0.5


class Stopped(Exception):
    """The run is being stopped: an operator ends where it is, as after a crash."""


class Absence:
    """How long a system has been away. One that only comes back late has not failed, so its attempts do not count."""

    def __init__(self, patience: float, stop: threading.Event) -> None:
        self._patience, self._stop = patience, stop
        #: When it was first missed, by the monotonic clock.
        self._since: float | None = None

    def awaited(self, error: BaseException | None) -> bool:
        """Wait a little where an error says that a system is away; False where it does not, or it was for too long.

        Raises Stopped where the run is stopped meanwhile.
        """
        if not (isinstance(error, SinkFailed | SourceFailed) and error.away):
            return False
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since >= self._patience:
            return False
        if self._stop.wait(_AWAY):
            raise Stopped
        return True

    def over(self) -> None:
        """Learn that it is there."""
        self._since = None
