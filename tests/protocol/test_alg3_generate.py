"""Algorithm 3: generation of Output Sets."""

from copy import deepcopy
from dataclasses import replace

import pytest

from clew.ids import Capture, InputSetId, Port
from clew.pipeline.operators import OperatorLogic
from clew.pipeline.timewindows import Tumbling
from clew.pipeline.windows import Count, Each
from clew.protocol.log.alg2_update import Update, update
from clew.protocol.log.alg3_generate import Productions, generate
from clew.protocol.log.alg4_read import SideRead
from clew.protocol.log.context import Arrival
from clew.protocol.rows import DROPPED, END, Lineage
from clew.protocol.step import (
    Acknowledge,
    FinishSets,
    FixSchema,
    LogEvents,
    LogLineage,
    LogStateEvent,
    LogWrites,
    OpenSets,
    SetOperator,
    StoreState,
)
from tests.protocol.scene import (
    Choosy,
    Log,
    Pairs,
    arrivals,
    bodies,
    end,
    one_each,
    output,
    panes,
    started,
    unchanged,
    windowed,
    writes_of,
)

EACH = windowed(f=Each())
PAIRS = windowed(f=Count(2))


def sets(*numbers: int) -> tuple[InputSetId, ...]:
    return tuple(InputSetId(number) for number in numbers)


def test_global_state_is_logged_as_an_event_of_the_input_set_that_used_it() -> None:
    """Algorithm 3, Step 2 and Step 4 (3): the event has null ports, and is done with its Input Set."""
    log, logic = Log("S.out > OP.in"), OperatorLogic(Pairs())
    log.send("S.out", *[None] * 5)
    after = log.turn(started(logic), logic)
    assert log.rows("EVENT_LOG", send_op="OP", send_p=None) == [
        (1, "done", "OP", None, None, None, 1),
        (2, "done", "OP", None, None, None, 2),
    ]
    assert log.rows("STATE")[:2] == [(1, "OP", '{"total":2}'), (2, "OP", '{"total":4}')]
    assert after.state_id == 3


def test_no_state_event_is_logged_where_the_function_does_not_use_the_state() -> None:
    """Algorithm 3, Step 2: "If F uses a global state"."""
    done = update(started(EACH), EACH, arrivals(1))
    _, step = generate(done, one_each(done))
    assert writes_of(step, LogStateEvent) == []


def test_output_events_are_numbered_on_from_the_last_of_their_port() -> None:
    """Algorithm 3, Step 3: "assign a new event_ID (SSN) to each output event"."""
    context = replace(started(EACH), sent={"out": 7})
    done = update(context, EACH, arrivals(1, 2))
    after, step = generate(done, one_each(done))
    assert [write.run.first for write in writes_of(step, LogEvents)] == [8]
    assert after.sent == {"out": 9}


def test_each_port_numbers_its_own_events() -> None:
    """Algorithm 3, Step 3: an event_ID is unique for each output port."""
    context = started(EACH, "out", "late")
    done = update(context, EACH, arrivals(1, 2))
    made = Productions(sets(1, 2), {"out": output("x", "y"), "late": output("z", counts=[0, 1])})
    after, step = generate(done, [made])
    assert after.sent == {"out": 2, "late": 1}
    assert [(write.run.port.name, write.run.last) for write in writes_of(step, LogEvents)] == [("out", 2), ("late", 1)]


def test_an_output_set_may_be_several_events_or_none() -> None:
    """Algorithm 3, Step 3: "the number of output events generated from an Output Set" is the operator's."""
    log = Log("S.out > OP.in", "OP.out > T.in")
    log.send("S.out", None, None, None)
    made = Productions(sets(1, 2, 3), {"out": output("p", "q", "r", counts=[2, 0, 1])})
    log.turn(started(EACH), EACH, make=lambda done: [made])
    assert log.rows("EVENT_LINEAGE") == [(1, "OP", "out", 1), (2, "OP", "out", 1), (3, "OP", "out", 3)]
    assert log.rows("EVENT_LOG", "event_id", "status", "inset_id", rec_op="OP") == [(n, "done", n) for n in (1, 2, 3)]


def test_output_events_are_logged_undone_with_their_data() -> None:
    """Algorithm 3, Step 4 (1) and (2)."""
    log = Log("S.out > OP.in", "OP.out > T.in")
    log.send("S.out", None)
    log.turn(started(EACH), EACH)
    assert log.rows("EVENT_LOG", send_op="OP") == [(1, "undone", "OP", "out", "T", "in", None)]
    assert log.rows("EVENT_DATA", "event_id", "body", send_op="OP") == [(1, b"of 1")]


def test_state_is_stored_with_every_turn() -> None:
    """Algorithm 3, Step 4 (3); in Clew with acknowledgements too, so that STATE holds all that EVENT_LOG does."""
    done = update(started(PAIRS), PAIRS, arrivals(1))
    after, step = generate(done, [])
    (stored,) = writes_of(step, StoreState)
    assert (stored.state_id, stored.state) == (1, {"f": {"k": 0, "n": 1}})
    assert stored.context["latest"] == {"in": 1}
    assert after.state_id == 1


def test_the_input_set_is_done_when_its_output_set_is_logged() -> None:
    """Algorithm 3, Step 4 (4), in the transaction of Step 4 (1)."""
    done = update(started(PAIRS), PAIRS, arrivals(1, 2, 3, 4, 5))
    _, step = generate(done, one_each(done))
    assert writes_of(step, FinishSets) == [FinishSets("OP", InputSetId(1), 2)]
    assert len(writes_of(step, LogEvents)) == 1


def test_an_event_in_two_input_sets_is_done_in_each_by_itself() -> None:
    """Algorithm 3, Step 4 (4): "all events of the Input Set", and only as entries of it."""
    log, logic = Log("S.out > OP.in"), windowed(f=Tumbling(1, on="hour"))
    log.send("S.out", {"f": panes(10, 11)})
    log.turn(started(logic), logic)
    assert log.rows("EVENT_LOG", "event_id", "status", "inset_id", send_op="S") == [(1, "done", 1), (1, "undone", 2)]


def test_an_event_in_no_input_set_is_done_at_once() -> None:
    """Algorithm 3, Step 4 (4); in Clew, in the Input Set 0, without waiting for any Output Set."""
    log, logic = Log("S.out > OP.in"), windowed(f=Tumbling(1, on="hour"))
    log.send("S.out", {"f": panes()}, {"f": panes(10)})
    log.turn(started(logic), logic)
    assert log.rows("EVENT_LOG", "event_id", "status", "inset_id", send_op="S") == [(1, "done", 0), (2, "undone", 1)]


def test_lineage_pairs_each_output_event_with_its_input_set() -> None:
    """Algorithm 3, Step 4 (5b)."""
    done = update(started(PAIRS), PAIRS, arrivals(1, 2, 3, 4))
    _, step = generate(done, one_each(done))
    lineage = Lineage(Port("OP", "out"), 1, InputSetId(1), ((1, 2),))
    assert writes_of(step, LogLineage) == [LogLineage(lineage)]


def test_output_sets_may_come_in_parts() -> None:
    """Algorithm 3, Step 4: parts of a turn, made by several jobs, are one transaction in their order."""
    done = update(started(EACH), EACH, arrivals(1, 2, 3))
    parts = [Productions(sets(1), {"out": output("x")}), Productions(sets(2, 3), {"out": output("y", "z")})]
    assert generate(done, parts) != generate(done, one_each(done))
    _, step = generate(done, parts)
    (events,) = writes_of(step, LogEvents)
    assert (events.run.first, events.run.last) == (1, 3)
    pairs = [pair for write in writes_of(step, LogLineage) for pair in write.lineage.pairs()]
    assert pairs == [(1, 1), (2, 2), (3, 3)]


def test_a_set_without_a_place_on_a_port_takes_no_number_there() -> None:
    """Algorithm 3, Step 4 (5b): two generative functions, each with a port of its own."""
    logic = windowed(f=Each(), g=Each())
    done = update(started(logic, "out", "late"), logic, arrivals(1, 2))
    by_set = {1: "out", 2: "late", 3: "out", 4: "late"}
    parts = [Productions(sets(number), {port: output("x")}) for number, port in by_set.items()]
    _, step = generate(done, parts)
    found = {w.lineage.port.name: [] for w in writes_of(step, LogLineage)}
    for write in writes_of(step, LogLineage):
        found[write.lineage.port.name] += write.lineage.pairs()
    assert found == {"out": [(1, 1), (2, 3)], "late": [(1, 2), (2, 4)]}


def test_side_effect_reads_are_logged_done_in_their_input_set() -> None:
    """Algorithm 3, Step 4 (5a)."""
    log = Log("S.out > OP.in")
    log.send("S.out", None, None)
    reads = tuple(SideRead(InputSetId(n), "Cx", "SELECT", bodies(f"effect {n}")) for n in (1, 2))
    after = log.turn(started(EACH), EACH, make=lambda done: [Productions(sets(1, 2), reads=reads)])
    assert log.rows("EVENT_LOG", send_p="Cx") == [(n, "done", "OP", "Cx", None, None, n) for n in (1, 2)]
    assert log.rows("EVENT_DATA", "body", send_p="Cx") == [(b"effect 1",), (b"effect 2",)]
    assert after.actions == {"Cx": 2}


def test_output_events_are_sent_after_the_transaction() -> None:
    """Algorithm 3, Step 5; S2."""
    done = update(started(EACH), EACH, arrivals(1))
    _, step = generate(done, one_each(done))
    assert step.sends == tuple(write.run for write in writes_of(step, LogEvents))


def test_write_actions_are_logged_undone_with_a_null_sender_port() -> None:
    """Algorithm 3, Steps 3, 4 (1) and 6: a write action is an output event on a connection."""
    log = Log("S.out > OP.in")
    log.send("S.out", None, None)
    made = Productions(sets(1, 2), writes={"Cx": output("w1", "w2", "w3", counts=[1, 2])})
    after = log.turn(started(EACH), EACH, make=lambda done: [made])
    assert log.rows("EVENT_LOG", rec_p="Cx") == [(n, "undone", "OP", None, "OP", "Cx", None) for n in (1, 2, 3)]
    assert log.rows("EVENT_DATA", "event_id", "body", send_op="OP") == [(1, b"w1"), (2, b"w2"), (3, b"w3")]
    assert after.writes == {"Cx": 3}


def test_write_actions_count_on_per_connection() -> None:
    """Algorithm 3, Step 3: the event_ID of a write action is unique for its connection within OP."""
    done = update(replace(started(EACH), writes={"Cx": 4}), EACH, arrivals(1, 2))
    parts = [
        Productions(sets(1), writes={"Cx": output("w1"), "Cy": output("v1")}),
        Productions(sets(2), writes={"Cx": output("w2"), "Cy": output(counts=[0])}),
    ]
    after, step = generate(done, parts)
    assert [(w.port.name, [row.number for row in w.writes]) for w in writes_of(step, LogWrites)] == [
        ("Cx", [5]),
        ("Cy", [1]),
        ("Cx", [6]),
    ]
    assert after.writes == {"Cx": 6, "Cy": 1}


def test_a_sink_writes_the_events_of_each_input_set_as_one_write_action() -> None:
    """Algorithm 3, Step 4 (1), for an operator without a function of its own: the data is the events' own."""
    log = Log("S.out > OP.in")
    log.send("S.out", *[None] * 5)
    after = log.turn(started(PAIRS, "out"), PAIRS, sink="Cx")
    assert [(row.number, row.events) for row in log.store.undone_writes(Port("OP", "Cx"), 10)] == [
        (1, ((Port("S", "out"), 1, 2),)),
        (2, ((Port("S", "out"), 3, 2),)),
    ]
    assert after.writes == {"Cx": 2}


def test_a_sink_keeps_the_order_of_events_from_several_ports() -> None:
    """Algorithm 3, Step 4 (1): a write action names its events in the order in which they were taken."""
    logic = windowed("left", "right", f=Count(4))
    context = started(logic, left="S.out", right="T.out")
    events = [*arrivals(1, port="right"), *arrivals(1, 2, port="left"), *arrivals(2, port="right")]
    _, step = generate(update(context, logic, events), [], "Cx")
    s, t = Port("S", "out"), Port("T", "out")
    assert writes_of(step, LogWrites)[0].writes[0].events == ((t, 1, 1), (s, 1, 2), (t, 2, 1))


def test_with_nothing_ready_a_turn_only_acknowledges() -> None:
    """Algorithm 2, Step 2: "Use a transaction to update the InSet_ID(s)"; lost, it is done again."""
    done = update(started(PAIRS), PAIRS, arrivals(1))
    _, step = generate(done, [])
    assert [type(write) for write in step.writes] == [Acknowledge, OpenSets, StoreState]
    assert not step.durable
    assert step.sends == ()


def test_a_turn_that_produces_is_durable_even_if_it_sends_nothing() -> None:
    """Algorithm 3, Step 4: an Input Set that is done must stay done before a write action is performed."""
    done = update(started(EACH), EACH, arrivals(1))
    _, step = generate(done, [Productions(sets(1))])
    assert step.sends == ()
    assert step.durable


def test_labels_are_logged_once_and_only_for_input_sets_that_stay_open() -> None:
    """Algorithm 3, Step 4, for Algorithm 9, Step 2."""
    first = update(started(PAIRS), PAIRS, arrivals(1, 2, 3))
    context, step = generate(first, one_each(first))
    assert writes_of(step, OpenSets) == [OpenSets("OP", ((InputSetId(2), ("f", 1)),))]
    second = update(context, PAIRS, arrivals(4, 5))
    _, step = generate(second, one_each(second))
    assert writes_of(step, OpenSets) == [OpenSets("OP", ((InputSetId(3), ("f", 2)),))]


def test_labels_of_input_sets_that_were_open_before_are_not_logged_again() -> None:
    """Algorithm 3, Step 4: they are in the log since the turn that opened them."""
    logic = windowed(f=Count(3))
    context, _ = generate(update(started(logic), logic, arrivals(1)), [])
    _, step = generate(update(context, logic, arrivals(2)), [])
    assert writes_of(step, OpenSets) == []


def test_schemas_are_fixed_with_the_first_output_events() -> None:
    """Algorithm 3, Step 4 (2), with the port's schema in the same transaction."""
    done = update(started(EACH), EACH, arrivals(1))
    fix = FixSchema(Port("OP", "out"), b"schema")
    made = replace(one_each(done)[0], schemas=(fix,))
    _, step = generate(done, [made])
    assert step.writes.index(fix) < step.writes.index(writes_of(step, LogEvents)[0])


def test_the_flush_and_the_operators_own_end_are_one_step() -> None:
    """Algorithm 3, Step 4: the last Output Sets, the end of every port and the state `finished`."""
    context = started(PAIRS, "out", "late")
    done = update(context, PAIRS, [*arrivals(1, 2, 3), end(4)])
    _, step = generate(done, one_each(done))
    headers = {write.run.port.name: write.run.headers for write in writes_of(step, LogEvents)}
    assert [header.end for header in headers["out"]] == [False, False, True]
    assert headers["late"] == (END,)
    assert writes_of(step, FinishSets) == [FinishSets("OP", InputSetId(1), 2)]
    assert writes_of(step, SetOperator) == [SetOperator("OP", "finished")]
    assert step.durable


def test_the_end_has_no_lineage() -> None:
    """Algorithm 3, Step 4 (5b): lineage is of output events that came from an Input Set."""
    done = update(started(PAIRS), PAIRS, [end(1)])
    _, step = generate(done, [])
    assert len(writes_of(step, LogEvents)) == 1
    assert writes_of(step, LogLineage) == []


def test_an_operator_sends_its_end_exactly_once() -> None:
    """Algorithm 3, Step 4: a turn that comes after the end adds no second one."""
    done = update(started(PAIRS), PAIRS, [*arrivals(1), end(2)])
    context, _ = generate(done, one_each(done))
    late = update(context, PAIRS, [end(2)])
    _, step = generate(late, [])
    assert [type(write) for write in step.writes] == [StoreState]


def test_dropped_input_sets_are_done_without_an_output_set() -> None:
    """Algorithm 3, Step 4 (4), for Input Sets that a flush leaves out."""
    log, logic = Log("S.out > OP.in", "OP.out > T.in"), OperatorLogic(Choosy())
    log.send("S.out", {"keys": ["kept", "dropped"]}, END)
    log.turn(started(logic), logic)
    assert log.rows("EVENT_LOG", "event_id", "status", "inset_id", send_op="S") == [
        (1, "done", 1),
        (1, "done", 2),
        (2, "done", 0),
    ]
    assert log.rows("EVENT_LINEAGE", "event_id", "inset_id") == [(1, 1)]
    assert log.store.members("OP") == []
    # They can be told from those whose Output Set is empty.
    assert log.store.label("OP", InputSetId(2)) == DROPPED


def test_nothing_is_remembered_of_dropped_input_sets_without_capture() -> None:
    """Algorithm 3, Step 4 (5b): what lineage alone needs is written where it is captured."""
    logic = OperatorLogic(Choosy())
    done = update(started(logic), logic, [Arrival("in", 1, facts={"keys": ["kept", "dropped"]}), end(2)])
    _, step = generate(done, one_each(done), capture=Capture())
    assert writes_of(step, OpenSets) == []


@pytest.mark.parametrize("numbers", [(1,), (2, 1), (1, 2, 3), ()])
def test_output_sets_must_be_those_of_the_input_sets_that_closed(numbers: tuple[int, ...]) -> None:
    """Algorithm 3, Step 4 (4); G1: no Input Set is set to done without its Output Set."""
    done = update(started(EACH), EACH, arrivals(1, 2))
    with pytest.raises(AssertionError, match="G1"):
        generate(done, [Productions(sets(*numbers))])


@pytest.mark.parametrize(
    "outputs",
    [{"typo": output("x", "y")}, {"out": output("x", "y", counts=[1])}, {"out": output("x", "y", counts=[1, 0])}],
)
def test_every_output_event_has_a_port_and_an_input_set(outputs: dict) -> None:  # type: ignore[type-arg]
    """Algorithm 3, Step 4 (1) and (5b); G2: no output event is lost on the way to the log."""
    done = update(started(EACH), EACH, arrivals(1, 2))
    with pytest.raises(AssertionError, match="G2"):
        generate(done, [Productions(sets(1, 2), outputs)])


def everything() -> tuple[Update, list[Productions]]:
    """Return a turn that uses all that a turn can hold."""
    logic = OperatorLogic(Pairs())
    done = update(started(logic), logic, [*arrivals(1, 2, 3), end(4)])
    reads = (SideRead(InputSetId(1), "Cx", "SELECT", bodies("effect")),)
    return done, [Productions(sets(1, 2), {"out": output("x", "y")}, {"Cy": output("w", counts=[1, 0])}, reads)]


def test_generation_changes_nothing_that_it_is_given() -> None:
    """Algorithm 3 as a pure function: a commit that fails can be tried again with the same numbers."""
    done, made = everything()
    with unchanged(done, made):
        once = generate(done, made)
        assert generate(done, made) == once


def test_a_step_shares_nothing_with_the_turns_after_it() -> None:
    """Algorithm 3, Step 4: what is to be logged stays what it was when it was decided."""
    logic = OperatorLogic(Pairs())
    done = update(started(logic), logic, arrivals(1, 2, 3))
    context, step = generate(done, one_each(done))
    decided = deepcopy(step)
    later = update(context, logic, [*arrivals(4, 5), end(6)])
    generate(later, one_each(later))
    assert step == decided
