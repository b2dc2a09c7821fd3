"""Bodies of more than 1 MB never travel with a task or its result, where there is a directory for them."""

from pathlib import Path

import pytest

from clew.protocol.rows import Bodies
from clew.runtime.bodies import INLINE_BODY, BodyPlace, load
from clew.runtime.operator import _within_limits
from clew.runtime.task import Part

LARGE, SMALL = b"x" * (INLINE_BODY + 1), b"y"


@pytest.fixture
def place(tmp_path: Path) -> BodyPlace:
    return BodyPlace(str(tmp_path), "op", 1, 1, durable=False)


def test_one_large_body_among_many_small_ones_goes_to_a_file(place: BodyPlace) -> None:
    (stored,) = place.store([[SMALL] * 1000 + [LARGE]])
    assert stored.data is None
    assert [len(body) for body in load(place.root, [stored])] == [1] * 1000 + [len(LARGE)]
    (small,) = place.store([[SMALL] * 1000 + [LARGE[:-1]]])
    assert small.data is not None, "all of them small enough, and small on average"


def test_without_a_directory_all_are_inline() -> None:
    (stored,) = BodyPlace(None, "op", 1, 1).store([[LARGE]])
    assert stored.data == LARGE


def test_a_large_body_that_the_log_has_inline_is_spilt_for_the_task(place: BodyPlace) -> None:
    def part(body: bytes) -> tuple[Part, ...]:
        (run,) = BodyPlace(None, "op", 1, 1).store([[body]])
        return (Part("in", 1, (run,)),)

    small, large, after = _within_limits([part(SMALL), part(LARGE), part(SMALL)], place)
    assert [p[0].bodies[0].data for p in (small, large, after)] == [SMALL, None, SMALL]
    (spilt,) = large[0].bodies
    assert isinstance(spilt, Bodies)
    assert [bytes(body) for body in load(place.root, [spilt])] == [LARGE]
