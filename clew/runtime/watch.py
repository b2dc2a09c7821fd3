"""What control knows of the time outside the records."""

from collections.abc import Callable, Iterable, Sequence


class Watch:
    """Tells an operator's logic what time it is, and for how long its inputs have been quiet.

    It forgets with the process: an input counts as quiet from the restart on. What was decided by it is in STATE.
    """

    def __init__(self, clock: Callable[[], int], ports: Sequence[str]) -> None:
        self._clock = clock
        self.now = clock()
        #: When it last made the operator decide.
        self.decided: int | None = None
        #: Whether events wait to be taken.
        self.waiting = False
        self._heard = dict.fromkeys(ports, self.now)

    def tick(self, ports: Iterable[str]) -> None:
        """Look at the clock, when something waits on these ports; a clock that was set back stands still."""
        self.now = max(self.now, self._clock())
        self.waiting = False
        for port in ports:
            self._heard[port] = self.now
            self.waiting = True

    def quiet(self, port: str) -> int:
        """Return for how many microseconds nothing has come on a port."""
        return self.now - self._heard[port]
