"""Failure transparency as a definition that runs.

The numbers are those of Section 5 in Veresov, Spenger, Carbone and Haller, "Failure Transparency in Stateful Dataflow
Systems" (ECOOP 2024). What is here is said of single executions, or of all executions up to a length; the module
`explore` decides the same claims for executions of any length.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)
D = TypeVar("D", bound=Hashable)
E = TypeVar("E", bound=Hashable)
V = TypeVar("V", bound=Hashable)
W = TypeVar("W", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Rule(Generic[C]):
    """An inference rule: says where one step by it can lead.

    `successors` depends on the configuration alone, and yields nothing where the rule does not apply.
    """

    name: str
    successors: Callable[[C], Iterable[C]]


@dataclass(frozen=True, slots=True)
class Step(Generic[C]):
    """An execution step (Definition 5.1): where it leads, and the rule that derives it."""

    rule: str
    after: C


@dataclass(frozen=True, slots=True)
class Rules(Generic[C]):
    """A set of rules, each with a name of its own."""

    rules: tuple[Rule[C], ...]

    def __post_init__(self) -> None:
        if len(self.names) < len(self.rules):
            raise ValueError(f"rules {[rule.name for rule in self.rules]} share a name; give each one its own")

    @property
    def names(self) -> frozenset[str]:
        return frozenset(rule.name for rule in self.rules)

    def steps(self, before: C) -> Iterator[Step[C]]:
        """Yield every step that is derivable from a configuration (Definition 5.1)."""
        for rule in self.rules:
            for after in rule.successors(before):
                yield Step(rule.name, after)

    def derives(self, before: C, after: C) -> bool:
        """Say whether a step between the two is derivable (Definition 5.1)."""
        return any(step.after == after for step in self.steps(before))

    def without(self, names: Collection[str]) -> "Rules[C]":
        """Return the rules that are left when the named ones are taken away."""
        self.require(names)
        return Rules(tuple(rule for rule in self.rules if rule.name not in names))

    def swapped(self, *others: Rule[C]) -> "Rules[C]":
        """Return the same rules with some of them replaced by others of the same names."""
        by_name = {rule.name: rule for rule in others}
        self.require(by_name)
        return Rules(tuple(by_name.get(rule.name, rule) for rule in self.rules))

    def require(self, names: Iterable[str]) -> None:
        """Refuse names that no rule has."""
        if unknown := set(names) - self.names:
            raise ValueError(f"no rule is named {sorted(unknown)}, expected some of {sorted(self.names)}")


@dataclass(frozen=True, slots=True)
class Execution(Generic[C]):
    """An execution (Definition 5.2), with the rules of its steps."""

    start: C
    steps: tuple[Step[C], ...] = ()

    @property
    def configurations(self) -> tuple[C, ...]:
        return (self.start, *(step.after for step in self.steps))

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(step.rule for step in self.steps)

    @property
    def last(self) -> C:
        return self.steps[-1].after if self.steps else self.start

    def then(self, step: Step[C]) -> "Execution[C]":
        return Execution(self.start, (*self.steps, step))


def is_execution(configurations: Sequence[C], rules: Rules[C]) -> bool:
    """Say whether a sequence of configurations is an execution (Definition 5.2)."""
    return bool(configurations) and all(rules.derives(before, after) for before, after in pairwise(configurations))


def executions(rules: Rules[C], start: C, length: int) -> Iterator[Execution[C]]:
    """Yield all executions from a configuration of at most `length` steps, the shorter ones first (Definition 5.2)."""
    layer = [Execution(start)]
    for _ in range(length):
        yield from layer
        layer = [execution.then(step) for execution in layer for step in rules.steps(execution.last)]
    yield from layer


@dataclass(frozen=True, slots=True)
class Observability(Generic[C, V]):
    """What an observer sees of a configuration, and the partial order in which that may grow (Definition 5.3)."""

    of: Callable[[C], V]
    at_most: Callable[[V, V], bool]

    def retraction(self, configurations: Sequence[C]) -> int | None:
        """Return the index of the first configuration that takes back what the one before showed.

        None means that the function is monotone along this execution, which Definition 5.3 asks of all.
        """
        for index, (before, after) in enumerate(pairwise(configurations), start=1):
            if not self.grows(before, after):
                return index
        return None

    def grows(self, before: C, after: C) -> bool:
        """Say whether a step shows at least what was visible before it."""
        return self.at_most(self.of(before), self.of(after))

    def through(self, lens: Callable[[V], W], at_most: Callable[[W, W], bool]) -> "Observability[C, W]":
        """Return what is seen through a second observability function, one of observations (Lemma 5.9).

        It is an observability function only if the lens is monotone; `explore` finds out where it is not.
        """
        return Observability(_Composed(lens, self.of), at_most)


@dataclass(frozen=True, slots=True)
class _Composed(Generic[C, V, W]):
    """One function after another; a value, so that equal compositions are equal."""

    outer: Callable[[V], W]
    inner: Callable[[C], V]

    def __call__(self, configuration: C) -> W:
        return self.outer(self.inner(configuration))


def is_partial_order(at_most: Callable[[V, V], bool], values: Collection[V]) -> bool:
    """Say whether a relation is a partial order on these values, as Definition 5.3 asks."""
    return all(
        at_most(a, a)
        and (a == b or not (at_most(a, b) and at_most(b, a)))
        and (at_most(a, c) or not (at_most(a, b) and at_most(b, c)))
        for a in values
        for b in values
        for c in values
    )


def is_explained(
    explained: Sequence[C], observed: Observability[C, V], by: Sequence[D], by_observed: Observability[D, V]
) -> bool:
    """Say whether all that is seen of one sequence is seen of the other, at whatever times (Definition 5.4)."""
    return {observed.of(c) for c in explained} <= {by_observed.of(d) for d in by}


def monotone_explanation(
    explained: Sequence[C], observed: Observability[C, V], by: Sequence[D], by_observed: Observability[D, V]
) -> tuple[int, ...] | None:
    """Map each configuration to one that looks the same, never going back, or return None (Definition 5.6)."""
    mapping: list[int] = []
    # The earliest choice is never worse than a later one: it leaves more of the sequence for what follows.
    index = 0
    for configuration in explained:
        value = observed.of(configuration)
        while index < len(by) and by_observed.of(by[index]) != value:
            index += 1
        if index == len(by):
            return None
        mapping.append(index)
    return tuple(mapping)


@dataclass(frozen=True, slots=True)
class Explainability(Generic[C, D, V]):
    """The claim that one set of rules is observationally explainable by another (Definition 5.5).

    `translation` pairs a configuration of the explaining rules with one that they must explain. Both
    observability functions use one order. The definition allows two; but if one observer may see a before b and
    the other b before a, then each explains the other and neither does so monotonically, against Lemma 5.7.
    """

    rules: Rules[C]
    observed: Observability[C, V]
    by: Rules[D]
    by_observed: Observability[D, V]
    translation: tuple[tuple[D, C], ...]

    def __post_init__(self) -> None:
        if self.observed.at_most != self.by_observed.at_most:
            raise ValueError("the two observability functions have different orders; give them one, for Lemma 5.7")

    def then(self, other: "Explainability[D, E, V]") -> "Explainability[C, E, V]":
        """Return the claim that follows from this one and the other, if both hold (Lemma 5.8)."""
        if (self.by, self.by_observed) != (other.rules, other.observed):
            raise ValueError("the second claim does not explain what the first explains by; make them meet")
        pairs = {(e, c): None for e, d in other.translation for middle, c in self.translation if middle == d}
        return Explainability(self.rules, self.observed, other.by, other.by_observed, tuple(pairs))

    def through(self, lens: Callable[[V], W], at_most: Callable[[W, W], bool]) -> "Explainability[C, D, W]":
        """Return the claim that follows for an observer who sees less, if this one holds (Lemma 5.9)."""
        observed, by_observed = self.observed.through(lens, at_most), self.by_observed.through(lens, at_most)
        return Explainability(self.rules, observed, self.by, by_observed, self.translation)


def is_explainable(claim: Explainability[C, D, V], length: int, by_length: int) -> bool:
    """Say whether the claim holds of executions of at most `length` steps (Definition 5.5).

    This is the definition word for word, and exponential: it is there to check `explore` on very small systems.
    Explanations are looked for among executions of at most `by_length` steps.
    """
    return all(
        _some_explains(execution, claim, executions(claim.by, d, by_length))
        for d, c in claim.translation
        for execution in executions(claim.rules, c, length)
    )


def _some_explains(execution: Execution[C], claim: Explainability[C, D, V], candidates: Iterable[Execution[D]]) -> bool:
    explained = execution.configurations
    return any(
        is_explained(explained, claim.observed, candidate.configurations, claim.by_observed) for candidate in candidates
    )


@dataclass(frozen=True, slots=True)
class FailureTransparency(Generic[C, V]):
    """The claim that the failure rules cannot be noticed (Definition 5.10).

    Whatever an observer sees of an execution in `rules` from an initial configuration, he sees of some
    execution from the same configuration in the rules without `failures`.
    """

    rules: Rules[C]
    failures: frozenset[str]
    observed: Observability[C, V]
    initial: tuple[C, ...]

    def __post_init__(self) -> None:
        self.rules.require(self.failures)

    @property
    def explainability(self) -> Explainability[C, C, V]:
        """The same claim in terms of Definition 5.5, with the identity as translation."""
        pairs = tuple((c, c) for c in self.initial)
        return Explainability(self.rules, self.observed, self.rules.without(self.failures), self.observed, pairs)
