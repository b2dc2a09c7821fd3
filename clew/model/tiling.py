"""Whether a sequence is made of whole pieces, each used once at most, in some order."""

from collections.abc import Iterator, Mapping, Sequence

from clew.errors import ClewError

#: How many records may be taken back before the search is given up, besides ten for each record of the whole.
MOST_BACK = 200_000

#: What a piece holds: how many records, and their hash.
_Content = tuple[int, int]


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
    used: list[tuple[_Content, int]] = []
    tries: list[Iterator[_Content]] = []
    at = furthest = state = back = 0
    failed: set[int] = set()
    while at < len(whole):
        if len(tries) == len(used):
            tries.append(_fitting(whole, at, lengths.get(whole[at], ()), spare))
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
    whole: Sequence[int], at: int, lengths: Sequence[int], spare: Mapping[_Content, Sequence[int]]
) -> Iterator[_Content]:
    """Yield what pieces that are left hold, and the whole holds from here on."""
    for length in lengths:
        content = content_of(whole[at : at + length])
        if spare.get(content):
            yield content


def content_of(piece: Sequence[int]) -> _Content:
    return len(piece), hash(tuple(piece))
