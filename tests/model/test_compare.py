"""What a finding shows of two sequences of records that differ."""

import pytest

from clew.model.compare import shown_apart

FIVE = [(number,) for number in range(5)]


@pytest.mark.parametrize(
    ("found", "expected_told", "found_told"),
    [
        ([(9,), *FIVE[1:]], "n 0; n 1; n 2 and 2 more", "n 9; n 1; n 2 and 2 more"),
        ([*FIVE[:4], (9,)], "from record 5 on: n 4", "from record 5 on: n 9"),
        (FIVE[:3], "from record 4 on: n 3; n 4", "from record 4 on: no record"),
        ([], "n 0; n 1; n 2 and 2 more", "no record"),
    ],
)
def test_a_finding_begins_with_the_first_record_that_differs(
    found: list[tuple[int]], expected_told: str, found_told: str
) -> None:
    """Of many records, the first ones are the same, and would tell nothing."""
    assert shown_apart(FIVE, found, ["n"]) == (expected_told, found_told)
