"""Algorithm 8: recovery of a Writer operator's pending write actions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.ids import Port
from clew.pipeline.windows import Each
from clew.protocol.log.alg8_writer import settle
from clew.protocol.rows import WriteRow
from clew.protocol.step import FinishWrites, Step
from tests.protocol.scene import Log, started, unchanged, windowed, writes_of

EACH = windowed(f=Each())
CX = Port("OP", "Cx")


def undone(*numbers: int) -> list[WriteRow]:
    return [WriteRow(number, ()) for number in numbers]


def test_writes_are_settled_in_the_order_of_their_ids() -> None:
    """Algorithm 8, Step 1: "in increasing event_ID order", status undone."""
    log = Log("S.out > OP.in")
    log.send("S.out", None, None, None)
    log.turn(started(EACH), EACH, sink="Cx")
    rows = log.store.undone_writes(CX, 10)
    step, replay = settle(CX, rows, [True, True, False])
    log.commit("OP", step)
    assert [row.number for row in replay] == [3]
    assert log.rows("EVENT_LOG", "event_id", "status", rec_p="Cx") == [(1, "done"), (2, "done"), (3, "undone")]


def test_a_write_that_was_applied_is_set_to_done_and_not_replayed() -> None:
    """Algorithm 8, Step 2.a."""
    assert settle(CX, undone(4), [True]) == (Step((FinishWrites(CX, 4, 1),), durable=False), ())


def test_a_write_that_was_not_applied_is_replayed() -> None:
    """Algorithm 8, Step 2.b."""
    assert settle(CX, undone(4, 5), [False, False]) == (Step(), tuple(undone(4, 5)))


def test_a_sink_that_cannot_be_checked_replays_all() -> None:
    """Algorithm 8, Step 2.b: "if the write action is idempotent, a correct rollback recovery is still possible"."""
    _, replay = settle(CX, undone(1, 2, 3), [False] * 3)
    assert replay == tuple(undone(1, 2, 3))


def test_nothing_pending_is_nothing_to_do() -> None:
    """Algorithm 8, Step 1."""
    assert settle(CX, [], []) == (Step(), ())


def test_a_write_applied_before_an_earlier_one_is_a_bug() -> None:
    """Algorithm 8, Step 2; W2: writes of a connection are performed in the order of their ids."""
    with pytest.raises(AssertionError, match=r"W2: write OP\.Cx#7 was applied before OP\.Cx#6"):
        settle(CX, undone(5, 6, 7), [True, False, True])


@given(st.integers(1, 100), st.integers(0, 10), st.integers(0, 10))
def test_every_pending_write_is_either_done_or_replayed(first: int, applied: int, rest: int) -> None:
    """Algorithm 8, Step 2: no write is forgotten, none is both."""
    rows = undone(*range(first, first + applied + rest))
    flags = [True] * applied + [False] * rest
    with unchanged(rows, flags):
        step, replay = settle(CX, rows, flags)
    done = [n for write in writes_of(step, FinishWrites) for n in range(write.first, write.first + write.count)]
    assert done + [row.number for row in replay] == [row.number for row in rows]
