"""Algorithm 7: recovery of output events."""

from clew.ids import Port
from clew.pipeline.windows import Each
from clew.protocol.log.alg2_update import update
from clew.protocol.log.alg7_output import recover_output
from clew.protocol.step import Step
from tests.protocol.scene import Log, started, windowed

EACH = windowed(f=Each())
OUT = Port("OP", "out")


def test_every_port_is_sent_again() -> None:
    """Algorithm 7, Step 1: "for each operator OP' in Succ(OP)"."""
    ports = [OUT, Port("OP", "late")]
    assert recover_output(iter(ports)).resends == tuple(ports)


def test_resending_writes_nothing() -> None:
    """Algorithm 7, Step 1: the events are in the log already, and the channel is the log."""
    step = recover_output([OUT])
    assert step.writes == ()
    assert step.sends == ()


def test_an_operator_without_outputs_sends_nothing_again() -> None:
    """Algorithm 7, Step 1."""
    assert recover_output([]) == Step()


def test_what_was_not_acknowledged_is_found_again_in_order() -> None:
    """Algorithm 7, Step 1: "with increasing event_ID value"."""
    log = Log("OP.out > T.in")
    log.send("OP.out", None, None, None)
    log.store.take_over("OP")
    assert [event.number for event in log.waiting(started(EACH, operator="T", **{"in": "OP.out"}))] == [1, 2, 3]


def test_what_was_acknowledged_is_not_found_again() -> None:
    """Algorithm 7, Step 1: only events with InSet_ID = null."""
    log = Log("OP.out > T.in")
    log.send("OP.out", None, None)
    context = started(EACH, operator="T", **{"in": "OP.out"})
    context = log.turn(context, EACH, log.waiting(context)[:1])
    log.store.take_over("OP")
    assert [event.number for event in log.waiting(context)] == [2]


def test_an_event_acknowledged_meanwhile_is_obsolete_at_its_receiver() -> None:
    """Algorithm 7, Step 1, and Algorithm 2, Step 1: "OP may send an obsolete event"."""
    log = Log("OP.out > T.in")
    log.send("OP.out", None)
    context = started(EACH, operator="T", **{"in": "OP.out"})
    resent = log.waiting(context)
    context = log.turn(context, EACH)
    assert update(context, EACH, resent).nothing
