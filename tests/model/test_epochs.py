"""The model of the paper's Section 4 is failure transparent, as the paper proves, and the explorer agrees."""

import operator
from collections.abc import Callable

import pytest

from clew.model.definitions import FailureTransparency, Observability, Rule, Rules
from clew.model.epochs import (
    BORDER,
    OUTPUT,
    Configuration,
    Dataflow,
    Message,
    State,
    Task,
    common_epoch,
    latest_common_snapshot,
    rules_of,
    start,
    transparency,
)
from clew.model.explore import check_transparency, first_dead_end


def history(state: str, word: str) -> tuple[str, tuple[str, ...]]:
    """Append to all that came before, and show it."""
    return state + word, (state + word,)


def stream(*epochs: str) -> tuple[Message, ...]:
    return tuple(Message(number, data) for number, words in enumerate(epochs, start=1) for data in words + BORDER)


#: Two tasks read streams of their own, and what they say meets in a third, in any order within an epoch.
JOIN = Dataflow(
    (Task("left", history, (0,), 2), Task("right", history, (1,), 3), Task("join", history, (2, 3), 4)),
    (stream("ab", "c"), stream("x", "y"), (), (), ()),
)
#: One event per epoch through two tasks.
CHAIN = Dataflow((Task("first", history, (0,), 1), Task("last", history, (1,), 2)), (stream("a", "b"), (), ()))
UNFAIR = ("F-Fail left", "F-Fail right", "F-Fail join")


def ended(c: Configuration) -> bool:
    return common_epoch(c) == 2


def test_snapshots_at_borders_hide_all_failures() -> None:
    """Theorem 6.9, for one dataflow with a join."""
    verdict = check_transparency(transparency(JOIN, rules_of(JOIN)))
    assert verdict.counterexample is None
    assert verdict.configurations > 2_000


def test_every_epoch_can_still_be_completed() -> None:
    """Theorem 6.10, for one dataflow with a join."""
    assert first_dead_end(rules_of(JOIN), [start(JOIN)], ended, UNFAIR) is None


def test_recovery_goes_back_to_the_last_epoch_that_all_have_completed() -> None:
    """Definition 4.5."""
    ahead = Configuration(
        (State(("", "a"), (2, "a")), State(("",), None)), ((2,), (0,)), (stream("a", "b"), stream("a"), ())
    )
    assert common_epoch(ahead) == 0
    assert latest_common_snapshot(CHAIN, ahead) == start(CHAIN)


def test_what_is_not_yet_common_can_be_taken_back() -> None:
    """Section 5.1: who looks at all messages, and not at those of completed epochs, sees failures."""
    rules = rules_of(JOIN)
    everything: Observability[Configuration, int] = Observability(lambda c: sum(map(len, c.streams)), operator.le)
    failures = transparency(JOIN, rules).failures
    found = check_transparency(FailureTransparency(rules, failures, everything, (start(JOIN),))).counterexample
    assert found is not None
    assert found.why == "retracted"
    assert found.execution.rules[-1] == "F-Recover"


def wrong(change: Callable[[Configuration, Configuration], Configuration]) -> Rules[Configuration]:
    """The rules with another recovery: one that changes what the right one would make of a configuration."""

    def successors(c: Configuration) -> list[Configuration]:
        failed = any(state.volatile is None for state in c.states)
        return [change(c, latest_common_snapshot(CHAIN, c))] if failed else []

    return rules_of(CHAIN).swapped(Rule("F-Recover", successors))


def keeps_the_latest_snapshot_of_each(before: Configuration, after: Configuration) -> Configuration:
    """Every task goes back to a snapshot of its own, and consumes what follows the common one."""
    latest = tuple(State(s.archive, (common_epoch(before) + 1, s.archive[-1])) for s in before.states)
    return after._replace(states=latest)


def keeps_the_messages(before: Configuration, after: Configuration) -> Configuration:
    """What was produced after the snapshot stays, and is produced again."""
    return after._replace(streams=before.streams)


def keeps_the_place_in_the_input(before: Configuration, after: Configuration) -> Configuration:
    """The state goes back and the input does not."""
    return after._replace(consumed=before.consumed)


def keeps_the_states_of_the_living(before: Configuration, after: Configuration) -> Configuration:
    """Only the failed task goes back to its snapshot."""
    value = tuple(
        State(s.archive, (s.volatile[0], old.volatile[1]) if old.volatile and s.volatile else s.volatile)
        for s, old in zip(after.states, before.states)
    )
    return after._replace(states=value)


@pytest.mark.parametrize(
    "change",
    [
        keeps_the_latest_snapshot_of_each,
        keeps_the_messages,
        keeps_the_place_in_the_input,
        keeps_the_states_of_the_living,
    ],
)
def test_a_recovery_to_no_common_snapshot_is_refuted(
    change: Callable[[Configuration, Configuration], Configuration],
) -> None:
    found = check_transparency(transparency(CHAIN, wrong(change))).counterexample
    assert found is not None
    assert "F-Recover" in found.execution.rules


def test_nothing_is_output_before_an_epoch_is_common() -> None:
    """Definition 4.3: not even the input is."""
    assert OUTPUT.of(start(JOIN)) == frozenset()
