"""Sets of numbers as intervals behave as sets."""

from hypothesis import given
from hypothesis import strategies as st

from clew.store.intervals import Intervals

ranges = st.tuples(st.integers(1, 30), st.integers(1, 6))


def numbers(intervals: Intervals) -> set[int]:
    return {number for first, count in intervals for number in range(first, first + count)}


@given(st.lists(ranges), ranges)
def test_adding_a_range_tells_which_rows_change(before: list[tuple[int, int]], new: tuple[int, int]) -> None:
    old = Intervals.of(before)
    growth = old.add(*new)
    assert numbers(growth.intervals) == numbers(old) | set(range(new[0], new[0] + new[1]))
    rows = dict(old)
    for first in growth.swallowed:
        del rows[first]
    rows[growth.first] = growth.count
    assert rows == dict(growth.intervals)


@given(st.lists(ranges), ranges)
def test_gaps_and_overlaps_are_those_of_the_set(before: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    intervals, wanted = Intervals.of(before), set(range(asked[0], asked[0] + asked[1]))
    gaps = {number for first, count in intervals.gaps(*asked) for number in range(first, first + count)}
    assert gaps == wanted - numbers(intervals)
    assert intervals.overlaps(*asked) == bool(wanted & numbers(intervals))
    assert (asked[0] in intervals) == (asked[0] in numbers(intervals))
    assert intervals.last == max(numbers(intervals), default=0)
