"""From events one by one to runs: the log's cost falls with the size of the turn (design, Section 4)."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from clew.ids import InputSetId, Port
from clew.protocol.log.context import Span
from clew.protocol.rows import Assignment, Every, Lineage, Listed, Own
from clew.protocol.step import Acknowledge, FinishSets, Rejoin


class Taken(NamedTuple):
    """An event that was taken, and the Input Sets it was assigned to."""

    port: str
    number: int
    seq: int
    sets: tuple[InputSetId, ...]


class _Group(NamedTuple):
    """Consecutive events of one port with the same Input Sets."""

    port: str
    first: int
    length: int
    seq: int
    sets: tuple[InputSetId, ...]


def acknowledgements(operator: str, taken: Sequence[Taken], known: int = 0) -> Iterator[Acknowledge]:
    """Yield the assignments as runs, in the order in which the events were taken.

    `known` is the last Input Set id before the turn.

    R1: an Input Set is in one run at most without being the first of it. So those that hold a given one are found by
    their first ones alone, however long runs are.
    """
    groups = _groups(taken)
    begun = _begun(groups, known)
    at = 0
    while at < len(groups):
        end = _stretch(groups, begun, at)
        first = groups[at]
        count = sum(group.length for group in groups[at:end])
        yield Acknowledge(Port(operator, first.port), first.first, count, first.seq, _assignment(groups[at:end]))
        at = end


def _groups(taken: Sequence[Taken]) -> list[_Group]:
    groups: list[_Group] = []
    for event in taken:
        last = groups[-1] if groups else None
        if last and last.port == event.port and last.sets == event.sets and last.first + last.length == event.number:
            groups[-1] = last._replace(length=last.length + 1)
        else:
            groups.append(_Group(event.port, event.number, 1, event.seq, event.sets))
    return groups


def _begun(groups: Sequence[_Group], known: int) -> list[bool]:
    """Say of each group whether all its Input Sets begin with it."""
    begun = []
    for group in groups:
        begun.append(min(group.sets, default=0) > known)
        known = max((known, *group.sets))
    return begun


def _stretch(groups: Sequence[_Group], begun: Sequence[bool], at: int) -> int:
    """Return the end of the longest stretch from `at` on that is one `Own` or one `Every`."""
    end = at + 1
    if len(groups[at].sets) != 1:
        return end
    while end < len(groups) and begun[end] and _continues(groups, at, end):
        end += 1
    return end


def _continues(groups: Sequence[_Group], at: int, end: int) -> bool:
    """Say whether the group at `end` goes on with consecutive Input Sets of one size."""
    before, group = groups[end - 1], groups[end]
    follows = (
        group.port == before.port
        and len(group.sets) == 1
        and group.sets[0] == before.sets[0] + 1
        and group.first == before.first + before.length
        and group.seq == before.seq + before.length
    )
    if not follows:
        return False
    if end == at + 1:
        return True
    # Only the first and the last Input Set of a stretch may be shorter than the others.
    size = max(groups[at].length, groups[at + 1].length)
    return before.length == size and group.length <= size


def _assignment(groups: Sequence[_Group]) -> Assignment:
    if len(groups) == 1:
        return Listed(groups[0].sets)
    first = groups[0].sets[0]
    size = max(group.length for group in groups)
    if size == 1:
        return Own(first)
    return Every(first, size, size - groups[0].length)


#: R2: no run of events that join a further Input Set is longer, so that those that hold an event are near it.
REJOINED_AT_MOST = 1_024


def rejoins(operator: str, rejoined: Iterable[tuple[Span, InputSetId]]) -> Iterator[Rejoin]:
    """Yield the further Input Sets of events that were taken before."""
    for span, input_set in rejoined:
        for at in range(0, span.count, REJOINED_AT_MOST):
            count = min(REJOINED_AT_MOST, span.count - at)
            yield Rejoin(Port(operator, span.port), span.first + at, count, span.seq + at, input_set)


def finished(operator: str, numbers: Iterable[InputSetId]) -> Iterator[FinishSets]:
    """Yield the Input Sets that are done, as runs."""
    for first, count in consecutive(sorted(numbers)):
        yield FinishSets(operator, InputSetId(first), count)


def consecutive(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, count) for each stretch of consecutive numbers."""
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in group]
        yield members[0], len(members)


def lineages(
    port: Port, first: int, sets: Sequence[InputSetId], counts: Sequence[int], left_out: Collection[InputSetId] = ()
) -> Iterator[Lineage]:
    """Yield the lineage of events from `first` on: `counts[i]` of them came from `sets[i]`.

    Nothing is recorded of those in `left_out`.
    """
    at, event = 0, first
    for start, length in _ascending(sets, left_out):
        part = counts[at : at + length]
        if any(part) and start not in left_out:
            yield Lineage(port, event, InputSetId(start), _coded(part))
        event += sum(part)
        at += length


def _coded(counts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return counts run-length coded."""
    if counts.count(counts[0]) == len(counts):  # As it is of nearly all turns.
        return ((counts[0], len(counts)),)
    return tuple((count, len(list(group))) for count, group in groupby(counts))


def _ascending(sets: Sequence[InputSetId], apart: Collection[InputSetId]) -> Iterator[tuple[InputSetId, int]]:
    """Yield (first, count) for each stretch of `sets` that ascends by one, in the order given; some are kept apart."""
    if sets and not apart and list(sets) == list(range(sets[0], sets[0] + len(sets))):  # As it is of nearly all turns.
        yield sets[0], len(sets)
        return
    start = 0
    for at in range(1, len(sets) + 1):
        if at == len(sets) or sets[at] != sets[at - 1] + 1 or sets[at] in apart or sets[at - 1] in apart:
            yield sets[start], at - start
            start = at
