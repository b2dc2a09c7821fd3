"""Algorithm 9: recovery of an operator's processing."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.ids import InputSetId, Port
from clew.pipeline.operators import OperatorLogic
from clew.pipeline.timewindows import Tumbling
from clew.pipeline.windows import Batch, Count, Each
from clew.protocol.log.alg2_update import update
from clew.protocol.log.alg3_generate import generate
from clew.protocol.log.alg5_write import write_done
from clew.protocol.log.alg9_processing import recover_processing
from clew.protocol.log.context import Arrival, Context, Logic, Span
from clew.protocol.rows import END, Member, StateRow, label_of
from tests.protocol.scene import Choosy, Log, Pairs, end, one_each, panes, started, unchanged, windowed, without_state

HOURLY = windowed(f=Tumbling(1, on="hour"))
CHOOSY = OperatorLogic(Choosy())
PAIRS = OperatorLogic(Pairs())


def hour(*windows: int) -> dict[str, Any]:
    return {"f": panes(*windows)}


def test_an_operator_that_never_ran_recovers_as_it_starts() -> None:
    """Algorithm 9, Step 1: there is no STATE."""
    log = Log("S.out > OP.in")
    assert log.recover(started(PAIRS), PAIRS) == started(PAIRS)


def test_global_state_and_counters_are_restored_from_state() -> None:
    """Algorithm 9, Step 1."""
    log = Log("S.out > OP.in", "OP.out > T.in")
    log.send("S.out", None, None, None)
    lost = log.turn(started(PAIRS), PAIRS)
    recovered = log.recover(started(PAIRS), PAIRS)
    assert recovered.state == {"total": 3}
    assert (recovered.latest, recovered.sent, recovered.state_id) == ({"in": 3}, {"out": 1}, 2)
    assert recovered == lost


def test_counters_do_not_come_from_rows() -> None:
    """Algorithm 9, Step 1; C2: read from EVENT_LOG, as the paper has it, they would start again at 1."""
    log, logic = Log("S.out > OP.in"), windowed(f=Each())
    log.send("S.out", None, None)
    log.turn(started(logic), logic, sink="Cx")
    log.commit("OP", write_done(Port("OP", "Cx"), 1, 2))
    assert log.store.collect().events == 2
    assert log.rows("EVENT_LOG") == []
    recovered = log.recover(started(logic), logic)
    assert (recovered.latest, recovered.writes, recovered.input_set, recovered.seq) == ({"in": 2}, {"Cx": 2}, 2, 2)


def test_acknowledged_undone_events_join_their_input_sets_again() -> None:
    """Algorithm 9, Step 2: "all events sent to OP with status undone and InSet_ID not null"."""
    log, logic = Log("S.out > OP.in"), windowed(f=Count(3))
    log.send("S.out", *[None] * 5)
    log.turn(started(logic), logic)
    recovered = log.recover(started(logic), logic)
    assert [(s.number, s.label, s.spans) for s in recovered.opened.values()] == [(2, ("f", 1), [Span("in", 4, 2)])]


def test_an_event_joins_only_the_input_set_that_is_undone() -> None:
    """Algorithm 9, Step 2.b: "Use e to only update the event state corresponding to Input Set I"."""
    log = Log("S.out > OP.in")
    log.send("S.out", hour(10), hour(10, 11))
    log.turn(started(HOURLY), HOURLY)
    recovered = log.recover(started(HOURLY), HOURLY)
    assert [(s.label, s.spans) for s in recovered.opened.values()] == [(("f", 11), [Span("in", 2, 1)])]


def test_events_of_several_ports_keep_the_order_in_which_they_were_taken() -> None:
    """Algorithm 9, Step 2: "an order that respects the deterministic logic of OP"; Clew records it."""
    logic = windowed("left", "right", f=Count(5))
    context = started(logic, left="S.out", right="T.out")
    log = Log("S.out > OP.left", "T.out > OP.right")
    log.send("S.out", None, None)
    log.send("T.out", None, None)
    waiting = {(event.port, event.number): event for event in log.waiting(context)}
    taken = [("right", 1), ("left", 1), ("left", 2), ("right", 2)]
    log.turn(context, logic, [waiting[key] for key in taken])
    (opened,) = log.recover(context, logic).opened.values()
    assert opened.spans == [Span("right", 1, 1), Span("left", 1, 2), Span("right", 2, 1)]


def test_members_that_a_store_keeps_as_runs_expand() -> None:
    """Algorithm 9, Step 2: a Member of n events is n events."""
    context = replace(started(CHOOSY), latest={"in": 3}, seq=3, input_set=2)
    row = StateRow(1, started(CHOOSY).store_state().context | {"latest": {"in": 3}, "seq": 3, "input_set": 2}, {})
    port = Port("OP", "in")
    members = [Member(1, port, 1, 3, InputSetId(1)), Member(2, port, 2, 1, InputSetId(2))]
    labels = {InputSetId(1): ("generate", "a"), InputSetId(2): ("generate", "b")}
    recovered = recover_processing(context, CHOOSY, row, members, labels)
    assert [s.spans for s in recovered.opened.values()] == [[Span("in", 1, 3)], [Span("in", 2, 1)]]


def test_a_label_without_undone_events_opens_nothing() -> None:
    """Algorithm 9, Step 2: an Input Set is what its undone events make it."""
    labels = {InputSetId(1): ("generate", "a")}
    assert not recover_processing(started(CHOOSY), CHOOSY, None, [], labels).opened


def test_labels_read_back_from_json_are_labels_again() -> None:
    """Algorithm 9, Step 2: JSON has lists where the operator had tuples."""
    members = [Member(1, Port("OP", "in"), 1, 1, InputSetId(1))]
    row = StateRow(1, started(CHOOSY).store_state().context | {"latest": {"in": 1}}, {})
    labels = {InputSetId(1): label_of('["generate", ["item", [1, 2]]]')}
    recovered = recover_processing(started(CHOOSY), CHOOSY, row, members, labels)
    assert list(recovered.opened) == [("generate", ("item", (1, 2)))]


def test_processing_goes_on_after_the_last_acknowledged_event() -> None:
    """Algorithm 9, Step 3: an event that was not acknowledged is still in the channel, and comes once."""
    log, logic = Log("S.out > OP.in", "OP.out > T.in"), windowed(f=Count(2))
    log.send("S.out", None, None, None, None)
    context = started(logic)
    log.turn(context, logic, log.waiting(context)[:3])
    recovered = log.recover(context, logic)
    log.turn(recovered, logic)
    assert log.rows("EVENT_LOG", "event_id", "status", "inset_id", send_op="S") == [
        (1, "done", 1),
        (2, "done", 1),
        (3, "done", 2),
        (4, "done", 2),
    ]


def test_an_operator_that_had_finished_stays_finished() -> None:
    """Algorithm 9, Step 3: nothing is flushed, and no end is sent, a second time."""
    log, logic = Log("S.out > OP.in", "OP.out > T.in"), windowed(f=Count(5))
    log.send("S.out", None, END)
    log.turn(started(logic), logic)
    before = log.rows("EVENT_LOG")
    recovered = log.recover(started(logic), logic)
    assert recovered.finished
    log.turn(recovered, logic)
    assert log.rows("EVENT_LOG") == before


def test_ports_that_had_ended_stay_ended() -> None:
    """Algorithm 9, Step 1: the end of a port is acknowledged and done, and is known from STATE."""
    logic = windowed("left", "right", f=Count(5))
    context = started(logic, left="S.out", right="T.out")
    log = Log("S.out > OP.left", "T.out > OP.right", "OP.out > U.in")
    log.send("S.out", None, END)
    log.turn(context, logic)
    log.send("T.out", END)
    recovered = log.recover(context, logic)
    assert recovered.ended == ["left"]
    assert log.turn(recovered, logic).finished
    assert log.rows("EVENT_LINEAGE", "event_id", "inset_id") == [(1, 1)]


# A log as the paper has it: Algorithm 2 acknowledges, and STATE is stored by Algorithm 3 only.


def acknowledge_only(log: Log, context: Context, logic: Logic, events: list[Arrival]) -> Context:
    done = update(context, logic, events)
    assert not done.closed
    after, step = generate(done, [])
    log.commit("OP", without_state(step))
    return after


def test_events_that_state_does_not_hold_yet_update_it() -> None:
    """Algorithm 9, Step 2.b: "Use e to update the global state and LOG.io context, if not already done"."""
    log, logic = Log("S.out > OP.in"), windowed(f=Count(4))
    log.send("S.out", *[None] * 7)
    context = started(logic)
    waiting = log.waiting(context)
    stored = log.turn(context, logic, waiting[:5])
    lost = acknowledge_only(log, stored, logic, waiting[5:])
    headers = {(event.port, event.number): event for event in waiting}
    recovered = log.recover(context, logic, headers)
    assert recovered.state == lost.state == {"f": {"k": 1, "n": 3}}
    assert recovered == replace(lost, state_id=stored.state_id, turn=stored.turn)


def test_events_that_state_holds_already_do_not_update_it_again() -> None:
    """Algorithm 2, Step 2: the array of latest ids says which; event 5 is in STATE, 6 and 7 are not."""
    log, logic = Log("S.out > OP.in"), windowed(f=Count(4))
    log.send("S.out", *[None] * 7)
    context = started(logic)
    waiting = log.waiting(context)
    stored = log.turn(context, logic, waiting[:5])
    acknowledge_only(log, stored, logic, waiting[5:])
    asked: list[int] = []

    class Spy:
        def __getattr__(self, name: str) -> object:
            return getattr(logic, name)

        def assign(self, event: Arrival, state: dict) -> object:  # type: ignore[type-arg]
            asked.append(event.number)
            return logic.assign(event, state)

    log.recover(context, Spy(), {(event.port, event.number): event for event in waiting})  # type: ignore[arg-type]
    assert asked == [6, 7]


def test_an_event_in_several_input_sets_updates_the_state_once() -> None:
    """Algorithm 9, Step 2.b: it has as many entries as Input Sets, but is one event."""
    log = Log("S.out > OP.in")
    facts = [{"keys": ["b", "a"]}, {"keys": ["c", "a"]}]
    log.send("S.out", *facts)
    context = started(CHOOSY)
    waiting = log.waiting(context)
    lost = acknowledge_only(log, context, CHOOSY, waiting)
    recovered = log.recover(context, CHOOSY, {(event.port, event.number): event for event in waiting})
    assert recovered == replace(lost, state_id=0, turn=0)
    assert [(s.number, s.label[1]) for s in recovered.opened.values()] == [(1, "b"), (2, "a"), (3, "c")]


def test_the_order_of_events_goes_on_after_a_run_that_state_does_not_hold() -> None:
    """Algorithm 9, Step 2.b: the last event of a Member of n events carries its last sequence number."""
    context, logic = started(windowed(f=Count(9))), windowed(f=Count(9))
    members = [Member(1, Port("OP", "in"), 1, 3, InputSetId(1))]
    headers = {("in", number): Arrival("in", number) for number in (1, 2, 3)}
    recovered = recover_processing(context, logic, None, members, {InputSetId(1): ("f", 0)}, headers=headers)
    assert (recovered.seq, recovered.latest, recovered.state) == (3, {"in": 3}, {"f": {"k": 0, "n": 3}})


def test_what_was_triggered_but_not_generated_is_generated() -> None:
    """Algorithm 9, Step 2.c: the crash was after Algorithm 2, Step 2 and before Algorithm 3, Step 4."""
    log, logic = Log("S.out > OP.in", "OP.out > T.in"), windowed(f=Count(2))
    log.send("S.out", None, None)
    context = started(logic)
    waiting = log.waiting(context)
    half = acknowledge_only(log, context, logic, waiting[:1])
    done = update(half, logic, waiting[1:])
    unfinished = replace(done, closed=())
    _, step = generate(unfinished, [])
    log.commit("OP", without_state(step))
    recovered = log.recover(context, logic, {(event.port, event.number): event for event in waiting})
    log.turn(recovered, logic, [])
    assert log.rows("EVENT_LOG", "event_id", "status", send_op="S") == [(1, "done"), (2, "done")]
    assert log.rows("EVENT_LINEAGE") == [(1, "OP", "out", 1)]


LOGICS = {
    "each": windowed("left", "right", f=Each()),
    "count": windowed("left", "right", f=Count(3)),
    "batch": windowed("left", "right", f=Batch()),
    "several": windowed("left", "right", f=Count(2), g=Count(3), h=Each()),
    "hours": windowed("left", "right", f=Tumbling(1, on="hour"), g=Tumbling(2, on="hour")),
    "state": OperatorLogic(Pairs()),
}


@pytest.mark.parametrize("name", LOGICS)
@settings(max_examples=40)
@given(data=st.data())
def test_a_recovered_context_is_the_one_that_was_lost(name: str, data: st.DataObject) -> None:
    """Algorithm 9, Steps 1 and 2, for any events in any turns: what a crash loses, the log holds."""
    logic = LOGICS[name]
    fresh = started(logic, left="S.out", right="T.out")
    log = Log("S.out > OP.left", "T.out > OP.right", "OP.out > U.in")
    hours = st.lists(st.integers(0, 1), max_size=2)
    for port in ("S.out", "T.out"):
        times = [[at + step for step in steps] for at, steps in enumerate(data.draw(st.lists(hours, max_size=8)))]
        log.send(port, *[{"f": panes(*found), "g": panes(*found, size=2)} for found in times], END)
    context = fresh
    while log.waiting(context):
        waiting = log.waiting(context)
        # Any order of the ports, each port in order.
        order = data.draw(st.permutations([event.port for event in waiting]))
        queues = {port: [e for e in waiting if e.port == port] for port in ("left", "right")}
        events = [queues[port].pop(0) for port in order][: data.draw(st.integers(1, 5))]
        context = log.turn(context, logic, events)
        if data.draw(st.booleans()):
            recovered = log.recover(fresh, logic)
            assert recovered == context
            assert recovered.opened.labels() == context.opened.labels()
            context = recovered
    assert context.finished
    assert log.store.members("OP") == []


def test_recovery_changes_nothing_that_it_is_given() -> None:
    """Algorithm 9 as a pure function: a crash during recovery is recovered from in the same way."""
    log = Log("S.out > OP.in")
    log.send("S.out", {"keys": ["a"]}, {"keys": ["a", "b"]})
    context = started(CHOOSY)
    waiting = log.waiting(context)
    acknowledge_only(log, context, CHOOSY, waiting)
    headers = {(event.port, event.number): event for event in waiting}
    members, labels = log.store.members("OP"), log.store.open_sets("OP")
    for row in (None, StateRow(0, started(CHOOSY).store_state().context, {"close": []})):
        with unchanged(context, row, members, labels, headers):
            once = recover_processing(context, CHOOSY, row, members, labels, (), headers)
        assert recover_processing(context, CHOOSY, row, members, labels, (), headers) == once


def test_a_recovered_context_shares_nothing_with_the_row_it_came_from() -> None:
    """Algorithm 9, Step 1: STATE is what was stored, whatever the operator does next."""
    log = Log("S.out > OP.in")
    log.send("S.out", None, None)
    context = log.turn(started(PAIRS), PAIRS, log.waiting(started(PAIRS))[:1])
    row = log.store.state("OP")
    recovered = log.recover(started(PAIRS), PAIRS)
    with unchanged(row):
        recovered.state["total"] = 99
        recovered.latest["in"] = 99
        done = update(context, PAIRS, [*log.waiting(context), end(3)])
        generate(done, one_each(done))
