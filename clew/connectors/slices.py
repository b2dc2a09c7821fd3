"""How a source's turn is cut into slices that are read in parallel."""

from collections.abc import Iterator

#: More slices than this cost more in scheduling than they gain.
MOST_SLICES = 8


def cut(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut the events from `start` up to `stop` into at most MOST_SLICES ranges, none of them empty."""
    size = max(1, -(-(stop - start) // MOST_SLICES))
    for first in range(start, stop, size):
        yield first, min(first + size, stop)
