"""The examples of LOG.io, Sections 2 to 4, with their tables, row by row.

Names become numbers: a1 is event 1 of `OP1.out`, I1 is Input Set 1, r1 is read action 1; null is None. Hours are
whole numbers, H is 10. Clew stores STATE with every turn, and EVENT_DATA also holds the bodies of output events,
which the paper leaves out of its tables.
"""

from typing import Any

import pytest

from clew.ids import InputSetId
from clew.pipeline.timewindows import Tumbling
from clew.pipeline.windows import Count
from clew.protocol.log.alg1_source import complete_action, drop_effect, emit, start_action
from clew.protocol.log.alg2_update import Update, update
from clew.protocol.log.alg3_generate import Productions
from clew.protocol.log.alg7_output import recover_output
from clew.protocol.log.context import Context, Span, fresh
from tests.protocol.scene import Log, batch, bodies, output, panes, started, windowed

H = 10
HOURLY = windowed(generate=Tumbling(1, on="date"))


def sales(*hours: int) -> dict[str, Any]:
    """Return the facts of an event with sales records of these hours."""
    return {"generate": panes(*hours)}


def a(event: int, status: str, receiver: str, input_set: int | None) -> tuple[Any, ...]:
    """Return a row of EVENT_LOG for an event of OP1."""
    return (event, status, "OP1", "out", receiver, "in", input_set)


def b(event: int, status: str) -> tuple[Any, ...]:
    """Return a row of EVENT_LOG for an event of OP3 that OP4 has not acknowledged."""
    return (event, status, "OP3", "out", "OP4", "in", None)


# Example 3: operator OP2 of Figure 1, which sums up every 100 events.


def test_example_3_every_hundred_events_are_an_input_set() -> None:
    """Example 3: "the first 100 events are assigned InSet_ID 1, the next 100 events InSet_ID 2"."""
    logic = windowed(totals=Count(100))
    log = Log("OP1.out > OP2.in", "OP2.out > OP5.in")
    log.send("OP1.out", *[None] * 250)
    log.turn(started(logic, operator="OP2", **{"in": "OP1.out"}), logic)
    assert log.rows("EVENT_LOG", send_op="OP1") == [
        *[a(n, "done", "OP2", 1) for n in range(1, 101)],
        *[a(n, "done", "OP2", 2) for n in range(101, 201)],
        *[a(n, "undone", "OP2", 3) for n in range(201, 251)],
    ]
    assert log.rows("EVENT_LOG", send_op="OP2") == [(n, "undone", "OP2", "out", "OP5", "in", None) for n in (1, 2)]
    assert log.rows("EVENT_LINEAGE") == [(1, "OP2", "out", 1), (2, "OP2", "out", 2)]


def test_example_3_two_generative_functions_have_two_input_sets_for_each_hundred() -> None:
    """Example 3: "two InSet_IDs are needed for each set of 100 input events"."""
    logic = windowed(totals=Count(100), extremes=Count(100))
    log = Log("OP1.out > OP2.in", "OP2.out > OP5.in", "OP2.extremes > OP6.in")
    log.send("OP1.out", *[None] * 250)
    ports = {"totals": "out", "extremes": "extremes"}

    def make(done: Update) -> list[Productions]:
        return [Productions((closed.number,), {ports[closed.label[0]]: output("c")}) for closed in done.closed]

    log.turn(started(logic, "out", "extremes", operator="OP2", **{"in": "OP1.out"}), logic, make=make)
    assert log.rows("EVENT_LOG", send_op="OP1") == [
        *[a(n, "done", "OP2", s) for n in range(1, 101) for s in (1, 2)],
        *[a(n, "done", "OP2", s) for n in range(101, 201) for s in (3, 4)],
        *[a(n, "undone", "OP2", s) for n in range(201, 251) for s in (5, 6)],
    ]
    assert log.rows("EVENT_LINEAGE") == [
        (1, "OP2", "extremes", 2),
        (1, "OP2", "out", 1),
        (2, "OP2", "extremes", 4),
        (2, "OP2", "out", 3),
    ]


# Examples 4, 7 and 8: operator OP3 of Figure 1, with a window per hour.


@pytest.fixture
def log() -> Log:
    return Log("OP1.out > OP3.in", "OP3.out > OP4.in")


@pytest.fixture
def op3() -> Context:
    return started(HOURLY, operator="OP3", **{"in": "OP1.out"})


def test_example_4_an_input_set_is_an_hour(log: Log, op3: Context) -> None:
    """Example 4: an event with records of two hours joins both windows; H is complete when H+1 has begun."""
    log.send("OP1.out", sales(H), sales(H, H + 1))
    first, second = log.waiting(op3)
    one = update(op3, HOURLY, [first])
    assert one.closed == ()
    two = update(one.context, HOURLY, [second])
    assert [taken.sets for taken in one.taken + two.taken] == [(1,), (1, 2)]
    assert [(closed.number, closed.label) for closed in two.closed] == [(1, ("generate", H))]
    assert list(two.context.opened) == [("generate", H + 1)]


TABLE_4 = [a(1, "done", "OP3", 1), a(2, "done", "OP3", 1), a(2, "done", "OP3", 2), a(3, "undone", "OP3", 3)]


@pytest.mark.parametrize("turns", [[1, 1, 1], [1, 2], [2, 1], [3]])
def test_example_7_tables_4_and_5(log: Log, op3: Context, turns: list[int]) -> None:
    """Example 7, Tables 4 and 5, whether the events come one by one or in one turn.

    Table 4 still shows a2 as undone in I2, although b2 has been generated from I2; Algorithm 3, Step 4 (4) sets
    it to done in the transaction that logs b2, so it is done here.
    """
    log.send("OP1.out", sales(H), sales(H, H + 1), sales(H + 2))
    context = op3
    for size in turns:
        context = log.turn(context, HOURLY, log.waiting(context, size))
    assert log.rows("EVENT_LOG", send_op="OP1") == TABLE_4
    assert log.rows("EVENT_LOG", send_op="OP3") == [b(1, "undone"), b(2, "undone")]
    assert len(log.rows("EVENT_LOG")) == 6
    assert log.rows("EVENT_LINEAGE") == [(1, "OP3", "out", 1), (2, "OP3", "out", 2)]


def test_example_7_step_by_step(log: Log, op3: Context) -> None:
    """Example 7: the log after each of a1, a2 and a3."""
    log.send("OP1.out", sales(H), sales(H, H + 1), sales(H + 2))
    after_1 = log.turn(op3, HOURLY, log.waiting(op3, 1))
    assert log.rows("EVENT_LOG") == [a(1, "undone", "OP3", 1), a(2, "undone", "OP3", None), a(3, "undone", "OP3", None)]
    after_2 = log.turn(after_1, HOURLY, log.waiting(after_1, 1))
    assert log.rows("EVENT_LOG") == sorted(TABLE_6, key=lambda row: (row[0], row[1], row[2]))
    assert log.rows("EVENT_LINEAGE") == [(1, "OP3", "out", 1)]
    log.turn(after_2, HOURLY, log.waiting(after_2, 1))
    assert log.rows("EVENT_LOG", send_op="OP1") == TABLE_4


TABLE_6 = [
    a(1, "done", "OP3", 1),
    a(2, "done", "OP3", 1),
    a(2, "undone", "OP3", 2),
    b(1, "undone"),
    a(3, "undone", "OP3", None),
]


def test_example_8_only_the_open_hour_is_rebuilt(log: Log, op3: Context) -> None:
    """Example 8, Table 6: the crash is before a3 is acknowledged.

    OP3 resends b1; its context is restored from STATE; a2 joins the window of hour H+1 only; nothing triggers; then
    a3 is processed as in Example 7. The latest event sent, b1, is known from STATE, not from EVENT_LOG.
    """
    log.send("OP1.out", sales(H), sales(H, H + 1), sales(H + 2))
    log.turn(op3, HOURLY, log.waiting(op3, 2))
    assert sorted(log.rows("EVENT_LOG"), key=str) == sorted(TABLE_6, key=str)

    out = next(iter(log.links.values()))._replace(operator="OP3")
    assert recover_output([out]).resends == (out,)
    receiver = started(HOURLY, operator="OP4", **{"in": "OP3.out"})
    assert [event.number for event in log.waiting(receiver)] == [1]

    recovered = log.recover(op3, HOURLY)
    assert recovered.sent == {"out": 1}
    assert [(s.number, s.label, s.spans) for s in recovered.opened.values()] == [
        (2, ("generate", H + 1), [Span("in", 2, 1)])
    ]
    assert update(recovered, HOURLY, []).nothing

    log.turn(recovered, HOURLY)
    assert log.rows("EVENT_LOG", send_op="OP1") == TABLE_4
    assert log.rows("EVENT_LOG", send_op="OP3") == [b(1, "undone"), b(2, "undone")]
    assert log.rows("EVENT_LINEAGE") == [(1, "OP3", "out", 1), (2, "OP3", "out", 2)]


# Example 6: a source with a non-replayable read action.


def test_example_6_tables_1_to_3() -> None:
    """Example 6, Tables 1, 2 and 3: Step 2.c is on-going, a1 and a2 are logged, r1 is undone.

    Two columns differ. Table 2 names OP as receiver operator of event r1 with a null receiver port, Clew has null
    in both, since nothing receives it. Table 3 has a null sender port for r1, Clew has the connection, by which
    r1 is found; Algorithm 1, Step 2.b says "OP.Cx as sender port" too. EVENT_DATA also has a1 and a2.
    """
    log = Log("OP.out > OP2.in")
    context, step = start_action(fresh("OP", {}, ("out",), {}), "Cx", "text of action A")
    log.commit("OP", step)
    log.commit("OP", complete_action(context, "Cx", bodies("ref to r1 store")))
    for name in ("a1", "a2"):
        context, step = emit(context, "Cx", batch(name), {"batch": name}, last=False, stored=True)
        log.commit("OP", step)

    assert log.rows("READ_ACTION") == [(1, "complete", "OP", "Cx", "text of action A")]
    assert log.rows("EVENT_LOG", send_p="Cx") == [(1, "undone", "OP", "Cx", None, None, None)]
    assert log.rows("EVENT_LOG", send_p="out") == [(n, "undone", "OP", "out", "OP2", "in", None) for n in (1, 2)]
    assert log.rows("EVENT_DATA", "event_id", "send_op", "header", "body", send_p="Cx") == [
        (1, "OP", None, b"ref to r1 store")
    ]
    assert len(log.rows("EVENT_LOG")) == 3
    assert log.rows("EVENT_DATA", "event_id", "body", send_p="out") == [(1, b"a1"), (2, b"a2")]


def test_example_6_at_its_end() -> None:
    """Example 6: "event r1 in EVENT_LOG will be set to done [...] and event r1 in EVENT_DATA will be deleted".

    In Clew event r1 is done with the last event (Algorithm 1, Step 2.c (3)), which is the end of the stream, #3;
    the row of EVENT_DATA goes afterwards (Step 2.d).
    """
    log = Log("OP.out > OP2.in")
    context, step = start_action(fresh("OP", {}, ("out",), {}), "Cx", "text of action A")
    log.commit("OP", step)
    log.commit("OP", complete_action(context, "Cx", bodies("ref to r1 store")))
    context, step = emit(context, "Cx", batch("a1", "a2"), {"batch": 2}, last=True, stored=True)
    log.commit("OP", step)
    assert log.rows("EVENT_LOG", send_p="Cx") == [(1, "done", "OP", "Cx", None, None, None)]
    assert log.rows("EVENT_DATA", "body", send_p="Cx") == [(b"ref to r1 store",)]
    log.commit("OP", drop_effect(context, "Cx"))
    assert log.rows("EVENT_DATA", "event_id", send_p="Cx") == []
    assert log.rows("EVENT_LOG", "event_id", "status", send_p="out") == [(n, "undone") for n in (1, 2, 3)]
    assert log.rows("EVENT_DATA", "event_id") == [(1,), (2,)]
    assert log.rows("READ_ACTION", "action_id", "status") == [(1, "complete")]


def test_example_7_with_the_columns_of_lineage_in_the_papers_order(log: Log, op3: Context) -> None:
    """Table 5: Event_ID, Send_Op, Send_p, InSet_ID; nothing is recorded for Input Sets still open."""
    log.send("OP1.out", sales(H))
    log.turn(op3, HOURLY)
    assert log.rows("EVENT_LINEAGE") == []
    assert list(log.store.open_sets("OP3")) == [InputSetId(1)]
