"""A sequence is made of whole pieces, each once at most, in some order; or it is told how far they come."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from clew.model.tiling import tiled

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
