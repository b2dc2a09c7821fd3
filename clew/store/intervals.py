"""Sets of whole numbers as intervals: which Input Sets and write actions are done."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Growth:
    """What adding a range did: the new set, the interval that now holds the range, and the starts it swallowed."""

    intervals: "Intervals"
    first: int
    count: int
    swallowed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Intervals:
    """An immutable set of numbers, as disjoint intervals that do not touch, in order.

    Immutable, so that a refused commit is undone by forgetting the new one.
    """

    starts: tuple[int, ...] = ()
    #: One past the last number of each interval.
    ends: tuple[int, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> "Intervals":
        """Build from (first, count) pairs that may touch or overlap."""
        starts: list[int] = []
        ends: list[int] = []
        for first, count in sorted(ranges):
            if ends and first <= ends[-1]:
                ends[-1] = max(ends[-1], first + count)
            else:
                starts.append(first)
                ends.append(first + count)
        return cls(tuple(starts), tuple(ends))

    def __contains__(self, number: int) -> bool:
        return self.overlaps(number, 1)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (first, count) of each interval."""
        return ((start, end - start) for start, end in zip(self.starts, self.ends))

    @property
    def last(self) -> int:
        """The largest number, or 0."""
        return self.ends[-1] - 1 if self.ends else 0

    def overlaps(self, first: int, count: int) -> bool:
        """Return whether any of `count` numbers from `first` on is in the set."""
        index = bisect_right(self.ends, first)
        return index < len(self.starts) and self.starts[index] < first + count

    def add(self, first: int, count: int) -> Growth:
        """Return the set with the range added, and how its intervals changed."""
        low = bisect_left(self.ends, first)
        high = bisect_right(self.starts, first + count)
        start, end = first, first + count
        if low < high:
            start, end = min(start, self.starts[low]), max(end, self.ends[high - 1])
        grown = Intervals(
            (*self.starts[:low], start, *self.starts[high:]),
            (*self.ends[:low], end, *self.ends[high:]),
        )
        swallowed = tuple(s for s in self.starts[low:high] if s != start)
        return Growth(grown, start, end - start, swallowed)

    def gaps(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield (first, count) of the stretches of a range that are not in the set."""
        at, stop = first, first + count
        for index in range(bisect_right(self.ends, first), len(self.starts)):
            if self.starts[index] >= stop:
                break
            if self.starts[index] > at:
                yield at, self.starts[index] - at
            at = self.ends[index]
        if at < stop:
            yield at, stop - at
