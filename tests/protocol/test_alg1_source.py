"""Algorithm 1: processing of a Source operator."""

from copy import deepcopy

import pytest

from clew.ids import Port
from clew.protocol.log.alg1_source import (
    complete_action,
    complete_next,
    drop_effect,
    emit,
    end_stream,
    start_action,
)
from clew.protocol.log.context import Context, fresh
from clew.protocol.rows import END
from clew.protocol.step import (
    AddReadAction,
    CompleteReadAction,
    DropReadEvent,
    FinishReadEvent,
    FixSchema,
    LogEvents,
    LogReadEvent,
    SetOperator,
    Step,
    StoreState,
)
from tests.protocol.scene import Log, batch, bodies, unchanged, writes_of


@pytest.fixture
def log() -> Log:
    return Log("OP.out > OP2.in")


@pytest.fixture
def source(log: Log) -> Context:
    """A source whose read action has been added."""
    context, step = start_action(fresh("OP", {}, ("out",), {}), "Cx", "text of action A")
    log.commit("OP", step)
    return context


def kinds(step: Step) -> list[type]:
    return [type(write) for write in step.writes]


def test_a_read_action_starts_as_incomplete(log: Log, source: Context) -> None:
    """Algorithm 1, Step 1."""
    assert log.rows("READ_ACTION") == [(1, "incomplete", "OP", "Cx", "text of action A")]
    assert source.actions == {"Cx": 1}


def test_an_action_takes_a_new_state_id_with_it() -> None:
    """Algorithm 1, Step 1: "get new state_ID s for global state"."""
    context, step = start_action(fresh("OP", {}, ("out",), {}), "Cx", "A")
    assert kinds(step) == [AddReadAction, StoreState]
    assert context.state_id == 1
    assert step.sends == ()


def test_action_ids_count_on_per_connection(source: Context) -> None:
    """Algorithm 1, Step 1: an action_ID is unique for a connection and an operator."""
    again, _ = start_action(source, "Cx", "B")
    other, _ = start_action(again, "Cy", "C")
    assert other.actions == {"Cx": 2, "Cy": 1}


def test_a_stored_effect_completes_its_action_and_becomes_an_undone_event(log: Log, source: Context) -> None:
    """Algorithm 1, Step 2.b (1) and (2), in one transaction."""
    step = complete_action(source, "Cx", bodies("effect"))
    assert kinds(step) == [CompleteReadAction, LogReadEvent]
    log.commit("OP", step)
    assert log.rows("READ_ACTION", "action_id", "status") == [(1, "complete")]
    assert log.rows("EVENT_LOG") == [(1, "undone", "OP", "Cx", None, None, None)]
    assert log.rows("EVENT_DATA", "event_id", "send_p", "body") == [(1, "Cx", b"effect")]


def test_output_events_are_logged_undone_with_their_data(log: Log, source: Context) -> None:
    """Algorithm 1, Step 2.c (1)."""
    _, step = emit(source, "Cx", batch("a1", "a2"), {"row": 2}, last=False, stored=True)
    log.commit("OP", step)
    assert log.rows("EVENT_LOG") == [(n, "undone", "OP", "out", "OP2", "in", None) for n in (1, 2)]
    assert log.rows("EVENT_DATA", "event_id", "body") == [(1, b"a1"), (2, b"a2")]


def test_the_offset_of_the_batch_end_is_stored_with_the_events(log: Log, source: Context) -> None:
    """Algorithm 1, Step 2.c (2)."""
    _, step = emit(source, "Cx", batch("a1"), {"row": 1}, last=False, stored=True)
    assert kinds(step) == [LogEvents, StoreState]
    log.commit("OP", step)
    row = log.store.state("OP")
    assert row is not None
    assert row.state == {"offset": {"row": 1}}
    assert row.context["sent"] == {"out": 1}


def test_events_are_sent_after_they_are_logged(source: Context) -> None:
    """Algorithm 1, Step 2.c: "Send o on OP.out"; S2."""
    _, step = emit(source, "Cx", batch("a1"), 1, last=False, stored=True)
    assert step.sends == (writes_of(step, LogEvents)[0].run,)
    assert step.durable


def test_events_are_numbered_one_after_the_other(source: Context) -> None:
    """Algorithm 1, Step 2.c: "a new SSN" per output event."""
    first, _ = emit(source, "Cx", batch("a1", "a2"), 2, last=False, stored=True)
    second, step = emit(first, "Cx", batch("a3"), 3, last=False, stored=True)
    assert writes_of(step, LogEvents)[0].run.first == 3
    assert second.sent == {"out": 3}


def test_an_offset_may_move_without_an_event(source: Context) -> None:
    """Algorithm 1, Step 2.c: a batch that gives no event still moves the offset on."""
    after, step = emit(source, "Cx", batch(), 7, last=False, stored=False)
    assert kinds(step) == [StoreState]
    assert step.sends == ()
    assert (after.state, after.sent) == ({"offset": 7}, {"out": 0})


def test_the_last_event_of_a_stored_effect_sets_its_action_event_to_done(log: Log, source: Context) -> None:
    """Algorithm 1, Step 2.c (3)."""
    log.commit("OP", complete_action(source, "Cx", bodies("effect")))
    after, step = emit(source, "Cx", batch("a1"), 1, last=True, stored=True)
    assert kinds(step) == [LogEvents, FinishReadEvent, SetOperator, StoreState]
    log.commit("OP", step)
    assert log.rows("EVENT_LOG", "event_id", "status", send_p="Cx") == [(1, "done")]
    assert after.finished


def test_the_last_event_of_a_replayable_action_completes_it(log: Log, source: Context) -> None:
    """Algorithm 1, Step 3: "except for the last event where the status of r is set to complete"."""
    _, step = emit(source, "Cx", batch("a1"), 1, last=True, stored=False)
    assert kinds(step) == [LogEvents, CompleteReadAction, SetOperator, StoreState]
    log.commit("OP", step)
    assert log.rows("READ_ACTION", "status") == [("complete",)]
    assert log.rows("EVENT_LOG", send_p="Cx") == []


def test_a_replayable_action_stays_incomplete_until_then(log: Log, source: Context) -> None:
    """Algorithm 1, Step 3: consumption and generation are pipelined."""
    _, step = emit(source, "Cx", batch("a1"), 1, last=False, stored=False)
    log.commit("OP", step)
    assert log.rows("READ_ACTION", "status") == [("incomplete",)]


def test_the_last_batch_carries_the_end_of_the_stream(source: Context) -> None:
    """Algorithm 1, Step 2.c; in Clew the end of stream is an event with an id, in the last transaction."""
    after, step = emit(source, "Cx", batch("a1"), 1, last=True, stored=False)
    run = writes_of(step, LogEvents)[0].run
    assert [header.end for header in run.headers] == [False, True]
    assert after.sent == {"out": 2}


def test_an_empty_effect_still_ends_the_stream(log: Log, source: Context) -> None:
    """Algorithm 1, Step 3: nothing was read; the end is the only event, and has no data."""
    _, step = emit(source, "Cx", batch(), None, last=True, stored=False)
    assert writes_of(step, LogEvents)[0].run.headers == (END,)
    log.commit("OP", step)
    assert log.rows("EVENT_DATA") == []
    assert {row.operator: row.status for row in log.store.operators()}["OP"] == "finished"


def test_the_schema_is_fixed_with_the_first_events(log: Log, source: Context) -> None:
    """Algorithm 1, Step 2.c (2), with the port's schema in the same transaction."""
    _, step = emit(source, "Cx", batch("a1"), 1, False, True, FixSchema(Port("OP", "out"), b"schema"))
    assert kinds(step) == [FixSchema, LogEvents, StoreState]
    log.commit("OP", step)
    assert log.store.schema(Port("OP", "out")) == b"schema"


def test_the_stored_effect_is_discarded_at_the_end_and_again_without_harm(log: Log, source: Context) -> None:
    """Algorithm 1, Step 2.d."""
    log.commit("OP", complete_action(source, "Cx", bodies("effect")))
    after, step = emit(source, "Cx", batch("a1"), 1, last=True, stored=True)
    log.commit("OP", step)
    dropped = drop_effect(after, "Cx")
    assert kinds(dropped) == [DropReadEvent]
    assert not dropped.durable
    for _ in range(2):
        log.commit("OP", dropped)
        assert log.rows("EVENT_DATA", send_p="Cx") == []
        assert log.rows("EVENT_LOG", "status", send_p="Cx") == [("done",)]


def test_no_step_changes_the_context_it_starts_from(source: Context) -> None:
    """Algorithm 1 as a pure function: a step whose commit fails leaves nothing behind."""
    with unchanged(source):
        start_action(source, "Cx", "B")
        complete_action(source, "Cx", bodies("effect"))
        emit(source, "Cx", batch("a1"), {"row": 1}, last=True, stored=True)
        drop_effect(source, "Cx")


def test_a_source_may_go_on_changing_its_offset(source: Context) -> None:
    """Algorithm 1, Step 2.c (2): what was logged as the end of one batch is not moved by the next."""
    offset = {"row": 1}
    first, step = emit(source, "Cx", batch("a1"), offset, last=False, stored=False)
    logged = deepcopy(step)
    with unchanged(first):
        offset["row"] = 2
        emit(first, "Cx", batch("a2"), offset, last=False, stored=False)
    assert step == logged


def test_an_effect_may_be_stored_in_several_runs_of_bodies(log: Log, source: Context) -> None:
    """Algorithm 1, Steps 2.b to 2.d: all of them are logged, done and discarded together."""
    log.commit("OP", complete_action(source, "Cx", bodies("one"), bodies("two"), bodies("three")))
    rows = [(1, "undone", "Cx"), (1, "undone", "Cx.2"), (1, "undone", "Cx.3")]
    assert log.rows("EVENT_LOG", "event_id", "status", "send_p") == rows
    after, step = emit(source, "Cx", batch("a1"), 1, last=True, stored=3)
    log.commit("OP", step)
    assert log.rows("EVENT_LOG", "status", rec_op=None) == [("done",)] * 3
    log.commit("OP", drop_effect(after, "Cx", 3))
    assert log.rows("EVENT_DATA", "send_p") == [("out",)]


def test_an_action_that_another_follows_is_settled_without_the_end_of_the_stream(log: Log, source: Context) -> None:
    """Algorithm 1, Step 2.c (3), for a source whose read actions follow each other."""
    stored, step = complete_next(source, "Cx", [bodies("effect")], {"files": 1})
    assert kinds(step) == [CompleteReadAction, LogReadEvent, StoreState]
    log.commit("OP", step)
    after, step = emit(stored, "Cx", batch("a1"), 1, last=True, stored=1, ends=False)
    assert kinds(step) == [LogEvents, FinishReadEvent, StoreState]
    log.commit("OP", step)
    assert not after.finished
    assert after.state == {"seen": {"files": 1}}
    again, _ = start_action(after, "Cx", "B")
    assert again.actions == {"Cx": 2}


def test_the_end_of_many_actions_is_an_event_of_its_own(log: Log, source: Context) -> None:
    """Algorithm 1: an action that was added and finds nothing to read is complete with the end."""
    after, step = end_stream(source, "Cx", incomplete=True)
    assert kinds(step) == [LogEvents, CompleteReadAction, SetOperator, StoreState]
    assert writes_of(step, LogEvents)[0].run.headers == (END,)
    assert step.sends == (writes_of(step, LogEvents)[0].run,)
    log.commit("OP", step)
    assert after.finished
    assert log.rows("READ_ACTION", "status") == [("complete",)]
    with unchanged(source):
        end_stream(source, "Cx", incomplete=False)
        complete_next(source, "Cx", [bodies("effect")], 1)
