"""Algorithm 2: the State Update phase, and the Triggering that ends it."""

from collections.abc import Sequence
from typing import Any

import pytest

from clew.errors import GapInIds, UserFunctionFailed
from clew.pipeline.operators import OperatorLogic
from clew.pipeline.timewindows import Tumbling
from clew.pipeline.windows import Batch, Count, Each, State
from clew.protocol.log.alg2_update import Retaken, update
from clew.protocol.log.context import Arrival, Span
from clew.protocol.log.runs import Taken
from tests.protocol.scene import Choosy, Pairs, arrivals, end, panes, started, unchanged, windowed

HOURLY = windowed(f=Tumbling(1, on="hour"))
CHOOSY = OperatorLogic(Choosy())


def hours(number: int, *windows: int, port: str = "in") -> Arrival:
    return Arrival(port, number, 1, 1, {"f": panes(*windows)})


def keyed(number: int, *keys: str, close: tuple[str, ...] = ()) -> Arrival:
    return Arrival("in", number, 1, 1, {"keys": list(keys), "close": list(close)})


def test_an_obsolete_event_is_discarded() -> None:
    """Algorithm 2, Step 1."""
    logic = windowed(f=Count(10))
    first = update(started(logic), logic, arrivals(1, 2)).context
    again = update(first, logic, arrivals(1, 2))
    assert again.nothing
    assert again.context.state == first.state
    assert again.context.seq == 2


def test_obsolete_events_before_new_ones_are_skipped() -> None:
    """Algorithm 2, Step 1: a resent event may come before one that is new."""
    logic = windowed(f=Count(10))
    first = update(started(logic), logic, arrivals(1, 2)).context
    again = update(first, logic, arrivals(2, 3))
    assert [taken.number for taken in again.taken] == [3]


def test_a_gap_in_ids_stops_the_operator() -> None:
    """Algorithm 2, Step 1; C1: a gap is a bug, never a thing to skip."""
    logic = windowed(f=Each())
    context = started(logic)
    with unchanged(context), pytest.raises(GapInIds) as failure:
        update(context, logic, arrivals(1, 3))
    assert (failure.value.port, failure.value.expected, failure.value.found) == ("OP.in", 2, 3)


def test_ids_are_followed_per_port() -> None:
    """Algorithm 2, Step 2: "an array of the latest event_ID from each input port"."""
    logic = windowed("left", "right", f=Count(9))
    context = started(logic, left="S.out", right="T.out")
    events = [*arrivals(1, 2, port="left"), *arrivals(1, port="right"), *arrivals(3, port="left")]
    assert update(context, logic, events).context.latest == {"left": 3, "right": 1}


def test_each_event_updates_the_global_state_once() -> None:
    """Algorithm 2, Step 2: "Use e to update the global state [...], if not already done"."""
    logic = OperatorLogic(Pairs())
    first = update(started(logic), logic, arrivals(1, 2, 3)).context
    assert first.state == {"total": 3}
    assert update(first, logic, arrivals(2, 3, 4)).context.state == {"total": 4}


def test_an_event_is_assigned_to_an_input_set() -> None:
    """Algorithm 2, Step 2."""
    logic = windowed(f=Count(2))
    done = update(started(logic), logic, arrivals(1, 2, 3))
    assert done.taken == (Taken("in", 1, 1, (1,)), Taken("in", 2, 2, (1,)), Taken("in", 3, 3, (2,)))


def test_an_event_may_be_assigned_to_several_input_sets() -> None:
    """Algorithm 2, Step 2: "assign to e one or more InSet_IDs"."""
    done = update(started(HOURLY), HOURLY, [hours(1, 10, 11, 12)])
    assert done.taken[0].sets == (1, 2, 3)


def test_a_label_named_twice_is_one_assignment() -> None:
    """Algorithm 2, Step 2: "each entry represents a single InSet_ID assignment"."""
    done = update(started(CHOOSY), CHOOSY, [keyed(1, "a", "b", "a")])
    assert done.taken[0].sets == (1, 2)
    assert [opened.spans for opened in done.context.opened.values()] == [[Span("in", 1, 1)], [Span("in", 1, 1)]]


def test_an_event_may_belong_to_no_input_set() -> None:
    """Algorithm 2, Step 2; in Clew such an event is taken, in the Input Set `none`."""
    done = update(started(HOURLY), HOURLY, [hours(1), hours(2, 10)])
    assert [taken.sets for taken in done.taken] == [(), (1,)]
    assert done.context.latest == {"in": 2}


def test_events_are_numbered_in_the_order_in_which_they_were_taken() -> None:
    """Algorithm 2, Step 2; the order that Algorithm 9, Step 2 keeps."""
    logic = windowed("left", "right", f=Count(9))
    context = started(logic, left="S.out", right="T.out")
    first = update(context, logic, [*arrivals(1, port="right"), *arrivals(1, port="left")])
    second = update(first.context, logic, arrivals(2, port="right"))
    taken = first.taken + second.taken
    assert [(event.seq, event.port) for event in taken] == [(1, "right"), (2, "left"), (3, "right")]


def test_input_sets_hold_their_events_in_that_order() -> None:
    """Algorithm 2, Step 2: "Update the event state"."""
    logic = windowed("left", "right", f=Count(4))
    context = started(logic, left="S.out", right="T.out")
    events = [*arrivals(1, 2, port="left"), *arrivals(1, port="right"), *arrivals(3, port="left")]
    (closed,) = update(context, logic, events).closed
    assert closed.spans == [Span("left", 1, 2), Span("right", 1, 1), Span("left", 3, 1)]


def test_a_ready_input_set_closes_at_once() -> None:
    """Algorithm 2, Step 3: triggering is evaluated after each event, not after the turn."""
    logic = windowed(f=Count(2))
    done = update(started(logic), logic, arrivals(1, 2, 3, 4, 5))
    assert [(closed.number, closed.closed_at) for closed in done.closed] == [(1, 2), (2, 4)]
    assert [opened.number for opened in done.context.opened.values()] == [3]


def test_several_input_sets_may_close_on_one_event() -> None:
    """Algorithm 2, Step 3, and Section 3.5.1: generation can be triggered for more than one Input Set."""
    done = update(started(HOURLY), HOURLY, [hours(1, 10, 11), hours(2, 13)])
    assert [(closed.number, closed.label) for closed in done.closed] == [(1, ("f", 10)), (2, ("f", 11))]


def test_no_event_is_assigned_to_a_closed_input_set() -> None:
    """Section 2.3: "no new event can be assigned that InSet_ID"; the same label is a new Input Set."""
    done = update(started(CHOOSY), CHOOSY, [keyed(1, "a", close=("a",)), keyed(2, "a")])
    assert [taken.sets for taken in done.taken] == [(1,), (2,)]


def test_an_input_set_named_ready_twice_closes_once() -> None:
    """Algorithm 2, Step 3: one generation phase per Input Set."""
    done = update(started(CHOOSY), CHOOSY, [keyed(1, "a", close=("a", "a"))])
    assert [closed.number for closed in done.closed] == [1]


def test_an_input_set_that_is_not_open_cannot_be_ready() -> None:
    """Algorithm 2, Step 3: the user's own `ready` named a key that no open Input Set has."""

    class Hasty(Choosy):
        def ready(self, state: State, opened: Any) -> Sequence[Any]:
            return ["b"]

    logic = OperatorLogic(Hasty())
    with pytest.raises(UserFunctionFailed, match="named as complete, but is not open"):
        update(started(logic), logic, [keyed(1, "a")])


def test_each_closed_input_set_has_its_own_snapshot_of_the_global_state() -> None:
    """Algorithm 2, Step 3, for Algorithm 3, Step 2: the state that triggered it, not that of the turn's end."""
    logic = OperatorLogic(Pairs())
    done = update(started(logic), logic, arrivals(1, 2, 3, 4, 5))
    assert [closed.state for closed in done.closed] == [{"total": 2}, {"total": 4}]
    assert done.context.state == {"total": 5}


def test_no_snapshot_is_taken_where_the_function_does_not_use_the_state() -> None:
    """Algorithm 3, Step 2: "If F uses a global state"."""
    logic = windowed(f=Each())
    assert [closed.state for closed in update(started(logic), logic, arrivals(1)).closed] == [None]


def test_a_batch_closes_when_the_turn_ends() -> None:
    """Algorithm 2, Step 3: with Batch() the triggering condition is the end of the turn."""
    logic = windowed(f=Batch())
    first = update(started(logic), logic, arrivals(1, 2, 3))
    second = update(first.context, logic, arrivals(4))
    assert [closed.spans for closed in first.closed + second.closed] == [[Span("in", 1, 3)], [Span("in", 4, 1)]]
    assert [closed.number for closed in first.closed + second.closed] == [1, 2]


def test_what_was_ready_when_the_operator_stopped_closes_first() -> None:
    """Algorithm 9, Step 2.c: "If a triggering condition evaluates to true"."""
    logic = windowed(f=Tumbling(1, on="hour"))
    context = update(started(logic), logic, [hours(1, 10)]).context
    context.state["f"]["watermark"] = 11
    done = update(context, logic, [])
    assert [closed.number for closed in done.closed] == [1]
    assert not done.nothing


def test_an_end_of_stream_is_taken_in_no_input_set() -> None:
    """Algorithm 2, Step 2; the end is an event with an id, and belongs to no Input Set."""
    logic = windowed("left", "right", f=Count(5))
    done = update(started(logic, left="S.out", right="T.out"), logic, [end(1, "left")])
    assert done.taken == (Taken("left", 1, 1, ()),)
    assert done.context.ended == ["left"]
    assert not done.ends


def test_the_end_of_a_port_may_make_windows_ready() -> None:
    """Algorithm 2, Step 3: a port that has ended no longer holds windows back."""
    logic = windowed("left", "right", f=Tumbling(1, on="hour"))
    context = started(logic, left="S.out", right="T.out")
    waiting = update(context, logic, [hours(1, 10, port="left"), hours(1, 10, 11, port="right")])
    assert waiting.closed == ()
    done = update(waiting.context, logic, [end(2, "left")])
    assert [closed.number for closed in done.closed] == [1]


def test_open_input_sets_are_flushed_when_all_ports_have_ended() -> None:
    """Algorithm 2, Step 3: at the end of the stream every open Input Set is triggered."""
    logic = windowed("left", "right", f=Count(5))
    context = started(logic, left="S.out", right="T.out")
    one = update(context, logic, [*arrivals(1, port="left"), end(2, "left")])
    assert one.closed == ()
    both = update(one.context, logic, [end(1, "right")])
    assert [closed.number for closed in both.closed] == [1]
    assert both.ends
    assert both.context.flushed
    assert not both.context.opened


def test_the_end_comes_exactly_once() -> None:
    """Algorithm 2, Step 3: a turn after the end, or an end that is resent, flushes nothing."""
    logic = windowed(f=Count(5))
    done = update(started(logic), logic, [*arrivals(1), end(2)])
    again = update(done.context, logic, [end(2)])
    assert again.nothing
    assert not again.ends


def test_what_a_flush_does_not_name_is_dropped() -> None:
    """Algorithm 2, Step 3: an Input Set that ends without an Output Set."""
    done = update(started(CHOOSY), CHOOSY, [keyed(1, "kept", "dropped"), end(2)])
    assert [closed.label for closed in done.closed] == [("generate", "kept")]
    assert done.dropped == (2,)
    assert not done.context.opened


def test_ids_of_input_sets_go_on_from_the_turn_before() -> None:
    """Section 2.3: every Input Set has a unique identifier."""
    logic = windowed(f=Each())
    first = update(started(logic), logic, arrivals(1, 2))
    second = update(first.context, logic, arrivals(3))
    assert (first.known, second.known) == (0, 2)
    assert second.closed[0].number == 3


@pytest.mark.parametrize("logic", [windowed(f=Count(2), g=Each(), h=Batch()), OperatorLogic(Pairs())])
def test_a_turn_leaves_the_context_it_starts_from_as_it_was(logic: OperatorLogic) -> None:
    """Algorithm 2 as a pure function: a turn that fails can be tried again."""
    context = update(started(logic), logic, arrivals(1)).context
    with unchanged(context):
        once = update(context, logic, [*arrivals(2, 3, 4), end(5)])
        assert update(context, logic, [*arrivals(2, 3, 4), end(5)]) == once


def test_events_of_open_input_sets_are_assigned_anew_when_the_logic_is_another_one() -> None:
    """The old Input Sets end without Output Sets; events keep their places in the order of taking."""
    old, new = windowed(f=Count(5)), windowed(f=Count(2))
    before = update(started(old), old, arrivals(1, 2, 3)).context
    events = tuple((event, seq) for seq, event in enumerate(arrivals(1, 2, 3), 1))
    with unchanged(before):
        done = update(before, new, (), retaken=Retaken(new.initial(), events))
        assert done == update(before, new, (), retaken=Retaken(new.initial(), events)), "a turn may be tried again"
    assert done.dropped == (1,)
    assert [(closed.number, closed.spans) for closed in done.closed] == [(2, [Span("in", 1, 2)])]
    assert [(span.first, span.seq, number) for span, number in done.rejoined] == [(1, 1, 2), (2, 2, 2), (3, 3, 3)]
    assert [opened.number for opened in done.context.opened.values()] == [3]
    assert (done.taken, done.context.seq, done.context.latest) == ((), 3, {"in": 3})


def test_a_new_logic_hears_of_ports_that_have_ended() -> None:
    old, new = windowed("left", "right", f=Count(9)), windowed("left", "right", f=Tumbling(1, on="hour"))
    context = started(old, left="S.out", right="T.out")
    before = update(context, old, [*arrivals(1, port="left"), end(2, "left"), *arrivals(1, port="right")]).context
    events = ((hours(1, 3, port="left"), 1), (hours(1, 5, port="right"), 3))
    done = update(before, new, (), retaken=Retaken(new.initial(), events))
    # The port that has ended does not hold time back any more.
    assert [closed.label for closed in done.closed] == [("f", 3)]
    assert done.context.state["f"]["ended"] == ["left"]
