"""How many events a turn takes: so many that it lasts about its target (design, Section 1)."""

_FASTEST_GROWTH = 16.0


class Pace:
    """Follows the measured cost of an operator.

    A turn that was full and short lets the next one be larger, two to sixteen times; one that was too long makes the
    next one smaller in proportion. A slow operator thus commits event by event, a fast one thousands at once. It starts
    with one event, because nothing is known yet of what an event costs.
    """

    def __init__(self, target: float, most: int, start: int = 1) -> None:
        self._target = target
        self._most = most
        self.limit = min(start, most)

    def took(self, events: int, seconds: float) -> None:
        """Learn how long the work on so many events took, without the engine's own overhead."""
        if events == 0:
            return
        if seconds > 1.5 * self._target:
            self.limit = max(1, int(events * self._target / seconds))
        elif events >= self.limit and seconds < self._target:
            # Half of what would fit, so that one lucky measurement does not make a turn that lasts for ever.
            growth = 0.5 * self._target / max(seconds, 1e-6)
            self.limit = min(self._most, int(self.limit * min(max(growth, 2.0), _FASTEST_GROWTH)))

    def one_by_one(self) -> None:
        """After a failure whose culprit is not known: take events one by one, and grow from there."""
        self.limit = 1
