"""The definitions of failure transparency, on systems small enough to judge by hand (Section 5 of the paper)."""

import operator
from collections.abc import Callable, Iterable

import pytest

from clew.model.definitions import (
    Execution,
    Explainability,
    FailureTransparency,
    Observability,
    Rule,
    Rules,
    Step,
    executions,
    is_execution,
    is_explainable,
    is_explained,
    is_partial_order,
    monotone_explanation,
)


def lookup(name: str, table: dict[str, str]) -> Rule[str]:
    """A rule that leads from each key to the letters of its value."""
    return Rule(name, lambda c: iter(table.get(c, "")))


COUNT = Rules((lookup("up", {"0": "1", "1": "2"}), lookup("break", {"1": "x"}), lookup("mend", {"x": "01"})))
#: A broken counter looks like one that has not moved: it shows what is safe.
SAFE: Observability[str, str] = Observability({"0": "0", "1": "0", "2": "2", "x": "0"}.__getitem__, operator.le)
FAILURES = frozenset(["break", "mend"])


def test_a_step_carries_the_rule_that_derives_it() -> None:
    """Definition 5.1."""
    assert list(COUNT.steps("1")) == [Step("up", "2"), Step("break", "x")]
    assert COUNT.derives("1", "x")
    assert not COUNT.without(FAILURES).derives("1", "x")


def test_an_execution_is_a_sequence_of_derivable_steps() -> None:
    """Definition 5.2."""
    assert is_execution("01x012", COUNT)
    assert is_execution("0", COUNT)
    assert not is_execution("02", COUNT)
    assert not is_execution("", COUNT)


def test_all_executions_are_enumerated_with_their_prefixes() -> None:
    """Definition 5.2."""
    found = ["".join(execution.configurations) for execution in executions(COUNT, "0", 3)]
    assert found == ["0", "01", "012", "01x", "01x0", "01x1"]
    assert list(executions(COUNT, "2", 3)) == [Execution("2")]


def test_rules_are_told_apart_by_their_names() -> None:
    with pytest.raises(ValueError, match="share a name"):
        Rules((lookup("up", {}), lookup("up", {})))
    with pytest.raises(ValueError, match="no rule is named"):
        COUNT.swapped(lookup("down", {}))
    with pytest.raises(ValueError, match="no rule is named"):
        FailureTransparency(COUNT, frozenset(["down"]), SAFE, ("0",))


def test_a_swapped_rule_takes_the_place_of_the_old_one() -> None:
    jumping = COUNT.swapped(lookup("up", {"0": "2"}))
    assert jumping.names == COUNT.names
    assert [step.after for step in jumping.steps("0")] == ["2"]


def test_what_was_seen_is_never_taken_back() -> None:
    """Definition 5.3, along one execution."""
    seeing_all: Observability[str, str] = Observability(str, operator.le)
    assert SAFE.retraction("01x012") is None
    assert seeing_all.retraction("01x012") == 3


@pytest.mark.parametrize(
    ("at_most", "values", "is_one"),
    [
        (operator.le, [1, 2, 3], True),
        (frozenset.issubset, [frozenset(), frozenset("a"), frozenset("b"), frozenset("ab")], True),
        (operator.lt, [1, 2], False),
        (lambda a, b: True, [1, 2], False),
        (lambda a, b: b - a in (0, 1), [1, 2, 3], False),
    ],
    ids=["a chain", "subsets", "not reflexive", "not antisymmetric", "not transitive"],
)
def test_observations_grow_in_a_partial_order(
    at_most: Callable[[object, object], bool], values: list[object], is_one: bool
) -> None:
    """Definition 5.3."""
    assert is_partial_order(at_most, values) is is_one


def seeing(letters: Iterable[str]) -> Observability[str, str]:
    """An observer of single letters, who expects to see them in this order."""
    order = "".join(letters)
    return Observability(str, lambda a, b: order.index(a) <= order.index(b))


def test_an_explanation_shows_all_that_it_explains_and_may_show_more() -> None:
    """Definition 5.4."""
    sight = seeing("abc")
    assert is_explained("aac", sight, "abbc", sight)
    assert not is_explained("abc", sight, "ac", sight)


def test_a_monotone_explanation_never_goes_back() -> None:
    """Definition 5.6."""
    sight = seeing("abc")
    assert monotone_explanation("aac", sight, "abbc", sight) == (0, 0, 3)
    assert monotone_explanation("ba", sight, "ab", sight) is None
    assert monotone_explanation("d", seeing("abcd"), "abc", sight) is None


def test_observers_with_different_orders_break_the_equivalence_of_explanations() -> None:
    """Lemma 5.7 needs one order for both observability functions, so claims are made with one only."""
    forth, back = seeing("ab"), seeing("ba")
    assert forth.retraction("ab") is None
    assert back.retraction("ba") is None
    assert is_explained("ab", forth, "ba", back)
    assert monotone_explanation("ab", forth, "ba", back) is None
    with pytest.raises(ValueError, match="different orders"):
        Explainability(COUNT, forth, COUNT, back, ())


def test_the_counter_is_failure_transparent_to_who_sees_what_is_safe() -> None:
    """Definition 5.10, for all executions of at most six steps."""
    claim = FailureTransparency(COUNT, FAILURES, SAFE, ("0", "1")).explainability
    assert claim.translation == (("0", "0"), ("1", "1"))
    assert is_explainable(claim, 6, 2)


def test_the_counter_is_not_failure_transparent_to_who_sees_it_break() -> None:
    """Definition 5.10."""
    order = {"0": 0, "1": 1, "x": 2, "2": 3}
    sight: Observability[str, int] = Observability(order.__getitem__, operator.le)
    assert not is_explainable(FailureTransparency(COUNT, FAILURES, sight, ("0",)).explainability, 2, 2)


def test_the_average_of_the_paper_is_explained_by_its_snapshots() -> None:
    """Section 5.1: what a snapshot holds can be relied on; the average itself can be taken back."""
    none, first, second = (), (1,), (1, 4)
    faulty = [
        (0, none),
        (1, none),
        (1, first),
        (2, first),
        (None, first),
        (1, first),
        (3, first),
        (4, first),
        (4, second),
    ]
    free = [(0, none), (1, none), (1, first), (0, first), (3, first), (4, first), (4, second)]
    archive: Observability[tuple[object, tuple[int, ...]], int] = Observability(lambda c: len(c[1]), operator.le)
    assert archive.retraction(faulty) is None
    assert monotone_explanation(faulty, archive, free, archive) == (0, 0, 2, 2, 2, 2, 2, 2, 6)
    average: Observability[tuple[object, tuple[int, ...]], object] = Observability(lambda c: c[0], operator.eq)
    assert average.retraction(faulty) is not None
    assert not is_explained(faulty, average, free, average)


def test_claims_that_do_not_meet_cannot_be_joined() -> None:
    """Lemma 5.8."""
    claim = FailureTransparency(COUNT, FAILURES, SAFE, ("0",)).explainability
    with pytest.raises(ValueError, match="make them meet"):
        claim.then(claim)


def test_joined_claims_translate_through_the_middle() -> None:
    """Lemma 5.8: its translation is the composition."""
    sight = seeing("abc")
    low = Explainability(COUNT, sight, COUNT, sight, (("m", "c"), ("m", "d"), ("n", "e")))
    high = Explainability(COUNT, sight, COUNT, sight, (("top", "m"), ("other", "k")))
    assert low.then(high).translation == (("top", "c"), ("top", "d"))


def test_a_second_observer_sees_through_the_first() -> None:
    """Lemma 5.9."""
    doubled = SAFE.through(int, operator.le).through(lambda n: 2 * n, operator.le)
    assert [doubled.of(c) for c in "012x"] == [0, 0, 4, 0]
