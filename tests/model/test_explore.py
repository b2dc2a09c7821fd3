"""The explorer decides what the definitions say, and shows the shortest execution against a false claim."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.model.definitions import (
    Explainability,
    FailureTransparency,
    Observability,
    Rule,
    Rules,
    is_execution,
    is_explainable,
)
from clew.model.explore import check, check_transparency, first_dead_end

#: Configurations of a random system. No execution needs to pass one twice to show all that it can show, so
#: executions of one step less tell everything.
SIZE = 4
Seen = frozenset[str]


def table(name: str, pairs: Iterable[tuple[int, int]]) -> Rule[int]:
    return Rule(name, lambda c: [after for before, after in pairs if before == c])


@dataclass(frozen=True)
class System:
    """Rules over numbers, two of them, and what is seen of each number."""

    rules: Rules[int]
    observed: Observability[int, Seen]


@st.composite
def systems(draw: st.DrawFn) -> System:
    """A system whose steps never take back what is seen; it starts with nothing seen, and may run in circles."""
    seen = [
        frozenset[str](),
        *draw(st.lists(st.frozensets(st.sampled_from("ab")), min_size=SIZE - 1, max_size=SIZE - 1)),
    ]
    pairs = [(i, j) for i in range(SIZE) for j in range(SIZE) if i != j and seen[i] <= seen[j]]
    steps = st.sets(st.sampled_from(pairs), min_size=2)
    rules = Rules((table("go", draw(steps)), table("fail", draw(steps))))
    return System(rules, Observability(seen.__getitem__, frozenset.issubset))


def claim(low: System, high: System) -> Explainability[int, int, Seen]:
    return Explainability(low.rules, low.observed, high.rules, high.observed, ((0, 0),))


@settings(max_examples=50, deadline=None)
@given(systems(), systems())
def test_the_graph_says_what_all_executions_say(low: System, high: System) -> None:
    """Definition 5.5, by the definition's own words and by pairs of a configuration and its candidates."""
    assert check(claim(low, high)).holds == is_explainable(claim(low, high), SIZE - 1, SIZE - 1)


@settings(max_examples=50, deadline=None)
@given(systems())
def test_failure_transparency_is_explainability_by_the_rest(system: System) -> None:
    """Definition 5.10."""
    whole = FailureTransparency(system.rules, frozenset(["fail"]), system.observed, (0,))
    expected = is_explainable(whole.explainability, SIZE - 1, SIZE - 1)
    assert check_transparency(whole).holds == expected


@settings(max_examples=50, deadline=None)
@given(systems(), systems())
def test_a_counterexample_is_an_execution_and_none_is_shorter(low: System, high: System) -> None:
    found = check(claim(low, high)).counterexample
    if found is not None:
        assert is_execution(found.execution.configurations, low.rules)
        assert not is_explainable(claim(low, high), len(found.execution.steps), SIZE - 1)
        assert not found.execution.steps or is_explainable(claim(low, high), len(found.execution.steps) - 1, SIZE - 1)


@settings(max_examples=50, deadline=None)
@given(systems(), systems(), systems())
def test_explainability_is_transitive(low: System, middle: System, high: System) -> None:
    """Lemma 5.8."""
    first, second = claim(low, middle), claim(middle, high)
    if check(first).holds and check(second).holds:
        assert check(first.then(second)).holds


@settings(max_examples=50, deadline=None)
@given(systems(), systems())
def test_who_sees_less_has_an_explanation_too(low: System, high: System) -> None:
    """Lemma 5.9, for a lens that hides one of the two letters."""
    if check(claim(low, high)).holds:
        assert check(claim(low, high).through(lambda seen: seen - {"b"}, frozenset.issubset)).holds


def line(name: str, numbers: Sequence[int]) -> Rule[int]:
    return table(name, list(pairwise(numbers)))


EXACT: Observability[int, int] = Observability(int, operator.le)


def test_a_specification_may_show_values_in_between() -> None:
    """Definition 5.4 asks that what is seen has an image, not that all images are seen."""
    jump, walk = Rules((table("jump", [(0, 2)]),)), Rules((line("walk", [0, 1, 2]),))
    assert check(Explainability(jump, EXACT, walk, EXACT, ((0, 0),))).holds
    assert not check(Explainability(walk, EXACT, jump, EXACT, ((0, 0),))).holds


def test_each_execution_needs_one_explanation_for_all_it_shows() -> None:
    """Definition 5.5: two explanations, one for each half of what is seen, are none."""
    fork = Rules((table("left", [(0, 1)]), table("right", [(0, 2)])))
    both = Rules((line("both", [0, 1, 2]),))
    order: Observability[int, frozenset[int]] = Observability(lambda c: frozenset(range(c + 1)), frozenset.issubset)
    verdict = check(Explainability(both, order, fork, order, ((0, 0),)))
    assert verdict.counterexample is not None
    assert verdict.counterexample.why == "unexplained"
    assert verdict.counterexample.execution.rules == ("both", "both")


def test_the_shortest_of_several_counterexamples_is_shown() -> None:
    rules = Rules((line("slow", [0, 1, 2, 9]), table("fast", [(1, 9)]), line("good", [0, 1, 2, 3])))
    verdict = check_transparency(FailureTransparency(rules, frozenset(["slow", "fast"]), EXACT, (0,)))
    assert verdict.counterexample is not None
    assert verdict.counterexample.execution.rules == ("slow", "fast")
    assert verdict.counterexample.seen == (0, 1, 9)
    assert str(verdict.counterexample) == "unexplained after 2 steps:\n  slow\n  fast\nseen: 0 then 1 then 9"


def test_an_observer_from_whom_something_is_taken_back_is_refused() -> None:
    """Definition 5.3, of the rules to be explained."""
    rules = Rules((line("count", [0, 1, 2]), table("reset", [(2, 0)])))
    found = check_transparency(FailureTransparency(rules, frozenset(["reset"]), EXACT, (0,))).counterexample
    assert found is not None
    assert found.why == "retracted"
    assert found.execution.rules == ("count", "count", "reset")


def test_an_explanation_that_takes_something_back_is_refused() -> None:
    """Definition 5.3, of the rules that explain."""
    back, still = Rules((line("back", [1, 2, 0]),)), Rules((table("still", []),))
    found = check(Explainability(still, EXACT, back, EXACT, ((1, 0),))).counterexample
    assert found is not None
    assert found.why == "retracted"
    assert found.execution.rules == ("back", "back")


def test_every_initial_configuration_counts() -> None:
    rules = Rules((line("good", [0, 1]), line("bad", [5, 6])))
    assert check_transparency(FailureTransparency(rules, frozenset(["bad"]), EXACT, (0,))).holds
    assert not check_transparency(FailureTransparency(rules, frozenset(["bad"]), EXACT, (0, 5))).holds


def test_configurations_and_steps_are_counted_once() -> None:
    """Two ways to the same place: four configurations, four steps, and an explanation that goes one way."""
    rules = Rules((table("up", [(0, 1), (2, 3)]), table("right", [(0, 2), (1, 3)])))
    blind: Observability[int, int] = Observability(lambda c: 0, operator.le)
    verdict = check_transparency(FailureTransparency(rules, frozenset(["right"]), blind, (0,)))
    assert (verdict.configurations, verdict.steps, verdict.explaining) == (4, 4, 2)


def test_endless_rules_are_refuted_if_they_are_wrong_and_refused_if_they_are_not() -> None:
    endless = Rules((Rule("count", lambda c: [c + 1]), table("stay", [(0, 0)])))
    wrong = check_transparency(FailureTransparency(endless, frozenset(["count"]), EXACT, (0,)), limit=10)
    assert not wrong.holds
    blind: Observability[int, int] = Observability(lambda c: 0, operator.le)
    with pytest.raises(OverflowError, match="more than 10 configurations"):
        check_transparency(FailureTransparency(endless, frozenset(["count"]), blind, (0,)), limit=10)


def test_rules_that_do_nothing_are_transparent_and_a_dead_end() -> None:
    """Section 6.3: failure transparency is a safety property."""
    rules = Rules((line("go", [0, 1]), table("fail", [(0, 7)]), table("mend", [])))
    hidden: Observability[int, bool] = Observability(lambda c: c == 1, operator.le)
    assert check_transparency(FailureTransparency(rules, frozenset(["fail", "mend"]), hidden, (0,))).holds
    stuck = first_dead_end(rules, [0], lambda c: c == 1, ["fail"])
    assert stuck is not None
    assert stuck.rules == ("fail",)


def test_where_recovery_is_possible_there_is_no_dead_end() -> None:
    rules = Rules((line("go", [0, 1]), table("fail", [(0, 7)]), table("mend", [(7, 0)])))
    assert first_dead_end(rules, [0], lambda c: c == 1, ["fail"]) is None


def test_a_failure_is_no_way_out() -> None:
    rules = Rules((line("go", [0, 1]), table("fail", [(1, 2)])))
    stuck = first_dead_end(rules, [0], lambda c: c == 2, ["fail"])
    assert stuck is not None
    assert stuck.rules == ()
