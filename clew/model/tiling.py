"""Whether a sequence is made of whole pieces, each used once at most, in some order."""

from array import array
from collections.abc import Iterator, Mapping, Sequence

from clew.errors import ClewError

#: How many records may be taken back before the search is given up, besides ten for each record of the whole.
MOST_BACK = 200_000

#: What a piece holds: how many records, and their hash.
_Content = tuple[int, int]

#: Hashes are polynomials of the records, so that those of parts come from those of beginnings.
_BASE = 0x1F3D5B79A6C8E421
_MODULUS = (1 << 61) - 1


class Tangled(ClewError):
    """There are too many ways to put the pieces together for anybody to try them all."""


def tiled(whole: Sequence[int], pieces: Sequence[Sequence[int]]) -> tuple[list[int] | None, int]:
    """Return the pieces that make up the whole, in order, and its length; or None, and how far any of them come.

    Pieces of the same content are the same, so one of them is tried. Longer ones are tried first; where one piece
    begins as another does, what was tried is taken back, and that no way leads on with the same pieces left is
    remembered. Raises Tangled where too much was taken back.
    """
    spare = _spare(pieces)
    lengths = _lengths(pieces)
    parts = _Parts(whole, max(map(len, pieces), default=0))
    used: list[tuple[_Content, int]] = []
    tries: list[Iterator[_Content]] = []
    at = furthest = state = back = 0
    failed: set[int] = set()
    while at < len(whole):
        if len(tries) == len(used):
            tries.append(_fitting(parts, at, lengths.get(whole[at], ()), spare))
        content = next((one for one in tries[-1] if state + hash(one) not in failed), None)
        if content is not None:
            used.append((content, spare[content].pop()))
            at, state = at + content[0], state + hash(content)
            furthest = max(furthest, at)
            continue
        failed.add(state)
        tries.pop()
        if not used:
            return None, furthest
        content, index = used.pop()
        spare[content].append(index)
        at, state, back = at - content[0], state - hash(content), back + content[0]
        if back > MOST_BACK + 10 * len(whole):
            raise Tangled("its files hold equal records, and there are too many ways to put them together")
    return [index for _, index in used], at


def _spare(pieces: Sequence[Sequence[int]]) -> dict[_Content, list[int]]:
    """Return the pieces by what they hold; the first of them is taken first."""
    spare: dict[_Content, list[int]] = {}
    for index in reversed(range(len(pieces))):
        spare.setdefault(content_of(pieces[index]), []).append(index)
    return spare


def _lengths(pieces: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Return, by the record that pieces begin with, how long they are, the longest first."""
    found: dict[int, set[int]] = {}
    for piece in pieces:
        if len(piece):
            found.setdefault(piece[0], set()).add(len(piece))
    return {start: sorted(lengths, reverse=True) for start, lengths in found.items()}


def _fitting(
    parts: "_Parts", at: int, lengths: Sequence[int], spare: Mapping[_Content, Sequence[int]]
) -> Iterator[_Content]:
    """Yield what pieces that are left hold, and the whole holds from here on."""
    for length in lengths:
        content = parts.content(at, length)
        if content is not None and spare.get(content):
            yield content


class _Parts:
    """What the parts of a sequence hold: each is known at once, however long it is, for many are asked for."""

    def __init__(self, whole: Sequence[int], longest: int) -> None:
        self._beginnings = array("Q", [0])
        for number in whole:
            self._beginnings.append(_hash(self._beginnings[-1], number))
        self._powers = array("Q", [1])
        for _ in range(min(longest, len(whole))):
            self._powers.append(self._powers[-1] * _BASE % _MODULUS)

    def content(self, at: int, length: int) -> _Content | None:
        """Return what so many records from here on hold; None where there are not so many."""
        if at + length >= len(self._beginnings):
            return None
        before = self._beginnings[at] * self._powers[length]
        return length, (self._beginnings[at + length] - before) % _MODULUS


def content_of(piece: Sequence[int]) -> _Content:
    """Return what a piece holds."""
    value = 0
    for number in piece:
        value = _hash(value, number)
    return len(piece), value


def _hash(before: int, number: int) -> int:
    return (before * _BASE + number + 1) % _MODULUS
