"""Whether a sequence is made of whole pieces, each used once at most, in some order."""

from collections.abc import Iterator, Sequence


def tiled(whole: Sequence[int], pieces: Sequence[Sequence[int]]) -> tuple[list[int] | None, int]:
    """Return the pieces that make up the whole, in order, and its length; or None, and how far any of them come.

    Pieces of the same content are the same, so one of them is tried. Longer ones are tried first; where one piece
    begins as another does, what was tried is taken back.
    """
    starts: dict[int, list[int]] = {}
    for long in sorted(range(len(pieces)), key=lambda index: -len(pieces[index])):
        if len(pieces[long]):
            starts.setdefault(pieces[long][0], []).append(long)
    used: list[int] = []
    taken: set[int] = set()
    at = furthest = 0
    tries: list[Iterator[int]] = []
    while at < len(whole):
        if len(tries) == len(used):
            tries.append(_fitting(whole, at, starts.get(whole[at], ()), pieces, taken))
        index = next(tries[-1], None)
        if index is not None:
            used.append(index)
            taken.add(index)
            at += len(pieces[index])
            furthest = max(furthest, at)
            continue
        tries.pop()
        if not used:
            return None, furthest
        last = used.pop()
        taken.remove(last)
        at -= len(pieces[last])
    return used, at


def _fitting(
    whole: Sequence[int], at: int, candidates: Sequence[int], pieces: Sequence[Sequence[int]], taken: set[int]
) -> Iterator[int]:
    tried: list[Sequence[int]] = []
    for index in [index for index in candidates if index not in taken]:
        piece = pieces[index]
        if piece not in tried and whole[at : at + len(piece)] == piece:
            tried.append(piece)
            yield index
