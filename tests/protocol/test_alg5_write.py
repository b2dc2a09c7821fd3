"""Algorithm 5: side-effect write actions."""

import pytest

from clew.errors import UnexpectedRow
from clew.ids import InputSetId, Port
from clew.pipeline.windows import Each
from clew.protocol.log.alg3_generate import Productions
from clew.protocol.log.alg5_write import write_done
from clew.protocol.step import FinishWrites, Step
from tests.protocol.scene import Log, output, started, windowed

EACH = windowed(f=Each())
CX = Port("OP", "Cx")


@pytest.fixture
def log() -> Log:
    """A log with three write actions."""
    log = Log("S.out > OP.in")
    log.send("S.out", None)
    made = Productions((InputSetId(1),), writes={"Cx": output("w1", "w2", "w3", counts=[3])})
    log.turn(started(EACH), EACH, make=lambda done: [made])
    return log


def test_write_actions_wait_in_the_order_of_their_ids(log: Log) -> None:
    """Algorithm 5, input: undone output events with a null sender port."""
    assert [(row.number, row.bodies[0].data) for row in log.store.undone_writes(CX, 10)] == [
        (1, b"w1"),
        (2, b"w2"),
        (3, b"w3"),
    ]


def test_a_write_action_that_succeeded_is_done(log: Log) -> None:
    """Algorithm 5, Step 3."""
    log.commit("OP", write_done(CX, 1, 1))
    assert log.rows("EVENT_LOG", "event_id", "status", rec_p="Cx") == [(1, "done"), (2, "undone"), (3, "undone")]


def test_a_group_of_write_actions_is_done_together(log: Log) -> None:
    """Section 3.5.3: "If they are executed as a group, we require [...] acknowledgment for the group"."""
    assert write_done(CX, 1, 3) == Step((FinishWrites(CX, 1, 3),), durable=False)
    log.commit("OP", write_done(CX, 1, 3))
    assert log.store.undone_writes(CX, 10) == []


def test_a_write_action_that_failed_stays_undone(log: Log) -> None:
    """Algorithm 5, Step 2: without Step 3 it is there to be replayed, with the same id and data."""
    before = log.store.undone_writes(CX, 10)
    log.recover(started(EACH), EACH)
    assert log.store.undone_writes(CX, 10) == before


def test_a_write_action_is_done_once(log: Log) -> None:
    """Algorithm 5, Step 3: the transaction expects it undone."""
    log.commit("OP", write_done(CX, 1, 1))
    with pytest.raises(UnexpectedRow):
        log.commit("OP", write_done(CX, 1, 2))
    assert [row.number for row in log.store.undone_writes(CX, 10)] == [2, 3]
