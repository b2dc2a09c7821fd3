"""Algorithm 4: side-effect read actions."""

from clew.ids import InputSetId
from clew.pipeline.windows import Each
from clew.protocol.log.alg2_update import update
from clew.protocol.log.alg3_generate import Productions, generate
from clew.protocol.log.alg4_read import SideRead, log_reads
from clew.protocol.step import AddReadAction, LogReadEvent, StoreState
from tests.protocol.scene import Log, arrivals, bodies, started, unchanged, windowed, writes_of

EACH = windowed(f=Each())


def read(input_set: int, connection: str = "Cx", effect: str = "effect") -> SideRead:
    return SideRead(InputSetId(input_set), connection, "SELECT", bodies(effect))


def test_each_read_action_takes_a_new_id_on_its_connection() -> None:
    """Algorithm 4, Step 1: "assign a new action_ID r to A"."""
    context = started(EACH).numbering()
    events = list(log_reads(context, [read(1), read(1), read(2, "Cy")]))
    assert [(event.connection, event.action) for event in events] == [("Cx", 1), ("Cx", 2), ("Cy", 1)]


def test_a_read_action_joins_the_input_set_it_served() -> None:
    """Algorithm 4, Step 1: "assign to r the InSet_ID of the Input Set for F"."""
    (event,) = log_reads(started(EACH).numbering(), [read(5)])
    assert event == LogReadEvent("OP", "Cx", 1, bodies("effect"), InputSetId(5), "SELECT")


def test_the_effect_is_stored_replayable_or_not() -> None:
    """Algorithm 4, Steps 2 and 3: both store the effect; the log refers to it."""
    log = Log("S.out > OP.in")
    log.send("S.out", None)
    log.turn(started(EACH), EACH, make=lambda done: [Productions((InputSetId(1),), reads=(read(1),))])
    assert log.rows("EVENT_DATA", "event_id", "send_p", "body", send_op="OP") == [(1, "Cx", b"effect")]


def test_a_read_action_is_logged_only_with_the_output_set_it_served() -> None:
    """Algorithm 4, Steps 2 and 3: before that, a failed action leaves nothing in READ_ACTION or EVENT_LOG."""
    done = update(started(EACH), EACH, arrivals(1))
    _, step = generate(done, [Productions((InputSetId(1),), reads=(read(1),))])
    assert writes_of(step, AddReadAction) == []
    assert len(writes_of(step, LogReadEvent)) == 1


def test_ids_go_on_after_a_restart() -> None:
    """Algorithm 4, Step 1; C2: the counter is in STATE, in the same transaction."""
    log = Log("S.out > OP.in")
    log.send("S.out", None, None)
    first = log.waiting(started(EACH))[:1]
    log.turn(started(EACH), EACH, first, make=lambda done: [Productions((InputSetId(1),), reads=(read(1),))])
    recovered = log.recover(started(EACH), EACH)
    log.turn(recovered, EACH, make=lambda done: [Productions((InputSetId(2),), reads=(read(2),))])
    assert log.rows("EVENT_LOG", "event_id", "inset_id", send_p="Cx") == [(1, 1), (2, 2)]


def test_reads_of_a_turn_that_fails_take_no_ids() -> None:
    """Algorithm 4, Step 2: "discard the store for A, replay A"; the ids of the turn come again."""
    done = update(started(EACH), EACH, arrivals(1))
    made = [Productions((InputSetId(1),), reads=(read(1),))]
    with unchanged(done):
        after, step = generate(done, made)
    assert generate(done, made) == (after, step)
    (stored,) = writes_of(step, StoreState)
    assert stored.context["actions"] == {"Cx": 1}
