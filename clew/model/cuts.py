"""Where the events of a source end, against where they are to end."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from clew.model.compare import number_of


class Cut(NamedTuple):
    """The first event that ends elsewhere than it is to: its place among all, its records, and how many it is to have.

    `fact` says why it is wrong whatever the source's settings are; without, another setting would explain it.
    """

    event: int
    records: int | None
    expected: int | None
    fact: str = ""


def as_given(sizes: Iterable[int], given: Iterable[int]) -> Cut | None:
    """Hold events against those that the source gives."""
    for event, (size, expected) in enumerate(zip_longest(sizes, given), 1):
        if size != expected:
            return Cut(event, size, expected, "does not end where the source ends it")
    return None


def in_files(sizes: Iterable[int], files: Iterable[int], rows: int) -> Cut | None:
    """Hold events against files of so many records each: each event has `rows` of them, fewer at the end of a file."""
    first: Cut | None = None
    left, lengths = 0, (length for length in files if length)
    for event, size in enumerate(sizes, 1):
        if not size:
            return Cut(event, size, None, "has no record, and no file gives such an event")
        left = left or next(lengths)
        if size > left:
            return Cut(event, size, min(rows, left), "has records of two files")
        if first is None and size != min(rows, left):
            first = Cut(event, size, min(rows, left))
        left -= size
    return first


def in_rows(sizes: Iterable[int], rows: int) -> Cut | None:
    """Hold events against rows that may have become more while they were read: none has more than `rows`.

    An event that had fewer ended where the rows did then; what came later begins another one.
    """
    first: Cut | None = None
    for event, size in enumerate(sizes, 1):
        if not size:
            return Cut(event, size, None, "has no record, and no query gives such an event")
        if first is None and size > rows:
            first = Cut(event, size, rows)
    return first


def numbered(numbers: Sequence[int], sizes: Iterable[int]) -> "array[int]":
    """Number events, by the numbers of their records."""
    events: array[int] = array("Q")
    at = 0
    for size in sizes:
        events.append(number_of(tuple(numbers[at : at + size])))
        at += size
    return events


def cut_at(length: int, rows: int) -> list[int]:
    """Return how many records each event of a file has."""
    return [min(rows, length - at) for at in range(0, length, rows)]
