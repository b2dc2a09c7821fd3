"""A sequence is made of whole pieces, each once at most, in some order; or it is told how far they come."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.model import tiling
from clew.model.tiling import Tangled, _Parts, tiled

PIECES = st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=6)


def numbers(values: list[int]) -> "array[int]":
    return array("Q", values)


@given(PIECES, st.randoms(use_true_random=False))
def test_whole_pieces_in_any_order_are_found(pieces: list[list[int]], random: object) -> None:
    order = random.sample(range(len(pieces)), len(pieces))  # type: ignore[attr-defined]
    whole = [value for index in order for value in pieces[index]]
    found, upto = tiled(numbers(whole), [numbers(piece) for piece in pieces])
    assert found is not None
    assert upto == len(whole)
    assert [value for index in found for value in pieces[index]] == whole
    assert len(set(found)) == len(found)


@given(PIECES)
def test_a_record_that_is_in_no_piece_is_where_they_end(pieces: list[list[int]]) -> None:
    whole = [value for piece in pieces for value in piece]
    assert tiled(numbers([*whole, 9]), [numbers(piece) for piece in pieces]) == (None, len(whole))


def test_a_piece_is_used_once_and_whole() -> None:
    assert tiled(numbers([1, 2, 1, 2]), [numbers([1, 2])]) == (None, 2)
    assert tiled(numbers([1]), [numbers([1, 2])]) == (None, 0)


def test_a_piece_that_begins_as_another_does_is_taken_back() -> None:
    # The longer one first would leave nothing for the end.
    assert tiled(numbers([1, 2, 1, 2, 3]), [numbers([1, 2, 1]), numbers([1, 2]), numbers([1, 2, 3])])[0] == [1, 2]


@pytest.mark.parametrize("most", [6, 12])
def test_what_was_tried_in_vain_is_not_tried_again(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = counted(monkeypatch)
    pieces = [numbers([7] * size) for size in range(1, most + 1)]
    total = sum(map(len, pieces))
    assert tiled(numbers([7] * (total + 1)), pieces) == (None, total)
    # Each selection of pieces once, and each length after it; not each order of each.
    assert len(looks) <= most * 2**most + most


@pytest.mark.parametrize("pieces", [50, 100, 200])
def test_pieces_that_begin_with_the_same_record_are_looked_up(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = counted(monkeypatch)
    found, _ = tiled(
        numbers([value for last in range(pieces) for value in (7, last)]), [numbers([7, n]) for n in range(pieces)]
    )
    assert found == list(range(pieces))
    assert len(looks) == 2 * pieces


def test_pieces_that_go_together_in_too_many_ways_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = counted(monkeypatch)
    monkeypatch.setattr("clew.model.tiling.MOST_BACK", 10_000)
    pieces = [numbers([7] * size) for size in range(1, 41)]
    with pytest.raises(Tangled, match="too many ways"):
        tiled(numbers([7] * (sum(map(len, pieces)) + 1)), pieces)
    assert len(looks) <= 40 * 20_000


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how long each piece, and each part of the whole, is that is looked at."""
    looks: list[int] = []

    def content_of(piece: "array[int]") -> tuple[int, int]:
        looks.append(len(piece))
        return made(piece)

    def content(parts: _Parts, at: int, length: int) -> tuple[int, int] | None:
        looks.append(length)
        return of_part(parts, at, length)

    made, of_part = tiling.content_of, _Parts.content
    monkeypatch.setattr(tiling, "content_of", content_of)
    monkeypatch.setattr(_Parts, "content", content)
    return looks
