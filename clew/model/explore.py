"""Decides the claims of `definitions` on systems with few configurations, for executions of any length."""

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, Literal, TypeVar

from clew.model.definitions import (
    C,
    D,
    Execution,
    Explainability,
    FailureTransparency,
    Observability,
    Rules,
    Step,
    V,
)

N = TypeVar("N", bound=Hashable)

#: How many configurations a system may have: above that, exploring it is a mistake and not a matter of patience.
LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A shortest execution that refutes a claim.

    `unexplained`: no execution of the explaining rules shows all that this one shows. `retracted`: its last step
    takes back something that was seen, so what was given as an observability function is none (Definition 5.3).
    """

    why: Literal["unexplained", "retracted"]
    execution: Execution[Any]
    #: What was seen, without repetitions.
    seen: tuple[object, ...]

    def __str__(self) -> str:
        steps = "\n".join(f"  {rule}" for rule in self.execution.rules)
        return (
            f"{self.why} after {len(self.execution.steps)} steps:\n{steps}\nseen: {' then '.join(map(str, self.seen))}"
        )


@dataclass(frozen=True, slots=True)
class Explored:
    """Whether a claim holds, and how much was looked at to say so.

    `configurations` and `steps` are counted once each, however many executions pass through them; they are fewer
    than there are if the claim was refuted before all were seen. `explaining` counts the configurations of the rules
    that explain.
    """

    counterexample: Counterexample | None
    configurations: int
    steps: int
    explaining: int

    @property
    def holds(self) -> bool:
        return self.counterexample is None


def check_transparency(claim: FailureTransparency[C, V], limit: int = LIMIT) -> Explored:
    """Decide Definition 5.10."""
    return check(claim.explainability, limit)


def check(claim: Explainability[C, D, V], limit: int = LIMIT) -> Explored:
    """Decide Definition 5.5, after Definition 5.3 for both observability functions, on what is reachable.

    The explaining rules must have finitely many configurations; the explained ones need not, if the claim is false.
    """
    explanations = Explanations(claim.by, claim.by_observed, [d for d, _ in claim.translation], limit)
    graph = Graph(claim.rules, limit)
    found = explanations.retraction() or _refute(claim, graph, explanations)
    return Explored(found, len(graph.configurations), graph.steps, len(explanations.graph.configurations))


def first_dead_end(
    rules: Rules[C], initial: Iterable[C], final: Callable[[C], bool], unfair: Collection[str], limit: int = LIMIT
) -> Execution[C] | None:
    """Return a shortest execution after which no final configuration can be reached without `unfair` rules.

    Failure transparency asks for no progress: rules that do nothing have it. This is what it lacks (compare
    Theorem 6.10): if there is no dead end, an execution with finitely many failures can always still be completed.
    """
    rules.require(unfair)
    graph = Graph(rules, limit)
    search = Search([graph.number(c) for c in initial], graph.edges)
    found = list(search)
    before = _backwards(graph, found, unfair)
    ends = [number for number in found if final(graph.configurations[number])]
    hopeful = set(Search(ends, lambda number: before.get(number, ())))
    return next((graph.execution(search.path(number)) for number in found if number not in hopeful), None)


class Graph(Generic[C]):
    """The configurations that rules lead to, numbered as they are met, and their steps, derived when asked for."""

    def __init__(self, rules: Rules[C], limit: int) -> None:
        self._rules = rules
        self._limit = limit
        self._numbers: dict[C, int] = {}
        self._edges: dict[int, tuple[tuple[str, int], ...]] = {}
        self.configurations: list[C] = []
        self.steps = 0

    def number(self, configuration: C) -> int:
        number = self._numbers.setdefault(configuration, len(self.configurations))
        if number == len(self.configurations):
            if number == self._limit:
                raise OverflowError(f"more than {self._limit} configurations; make the system smaller")
            self.configurations.append(configuration)
        return number

    def edges(self, number: int) -> tuple[tuple[str, int], ...]:
        """Return the steps from a configuration: each rule, and the number of the configuration it leads to."""
        known = self._edges.get(number)
        if known is None:
            steps = self._rules.steps(self.configurations[number])
            known = self._edges[number] = tuple((step.rule, self.number(step.after)) for step in steps)
            self.steps += len(known)
        return known

    def execution(self, path: "Path[int]") -> Execution[C]:
        start, steps = path
        return Execution(
            self.configurations[start], tuple(Step(rule, self.configurations[after]) for rule, after in steps)
        )


#: Where a search started, and the steps it took from there.
Path = tuple[N, tuple[tuple[str, N], ...]]


class Search(Generic[N]):
    """A breadth-first walk, which therefore reaches every node by a shortest path."""

    def __init__(self, roots: Iterable[N], edges: Callable[[N], Iterable[tuple[str, N]]]) -> None:
        self._came: dict[N, tuple[str, N] | None] = dict.fromkeys(roots)
        self._edges = edges

    def __iter__(self) -> Iterator[N]:
        """Yield each node once, before its successors are asked for."""
        queue = deque(self._came)
        while queue:
            node = queue.popleft()
            yield node
            for rule, after in self._edges(node):
                if after not in self._came:
                    self._came[after] = (rule, node)
                    queue.append(after)

    def path(self, node: N) -> Path[N]:
        steps: list[tuple[str, N]] = []
        while (came := self._came[node]) is not None:
            steps.append((came[0], node))
            node = came[1]
        return node, tuple(reversed(steps))


#: Configurations of the explaining rules, by number, that can be the image of the last configuration of an execution.
Candidates = frozenset[int]


class Explanations(Generic[D, V]):
    """All that the explaining rules can show, and in which order."""

    def __init__(self, rules: Rules[D], observed: Observability[D, V], initial: Iterable[D], limit: int) -> None:
        self.graph = Graph(rules, limit)
        self._observed = observed
        self._search = Search([self.graph.number(d) for d in initial], self.graph.edges)
        self._numbers = list(self._search)
        self._seen = [observed.of(d) for d in self.graph.configurations]
        self._known: dict[tuple[Candidates, V], Candidates] = {}

    def retraction(self) -> Counterexample | None:
        """Return an execution along which the observability function is not monotone (Definition 5.3)."""
        for number in self._numbers:
            for rule, after in self.graph.edges(number):
                if not self._observed.at_most(self._seen[number], self._seen[after]):
                    start, steps = self._search.path(number)
                    return _counterexample(self.graph.execution((start, (*steps, (rule, after)))), self._observed)
        return None

    def first(self, start: D, value: V) -> Candidates:
        """Return the configurations from a start that show the value."""
        return self.next(frozenset([self.graph.number(start)]), value)

    def next(self, left: Candidates, value: V) -> Candidates:
        """Return the configurations that show the value and that one of these leads to, in any number of steps."""
        known = self._known.get((left, value))
        if known is None:
            known = frozenset(n for n in Search(left, self.graph.edges) if self._seen[n] == value)
            self._known[left, value] = known
        return known


def _refute(claim: Explainability[C, D, V], graph: Graph[C], explanations: Explanations[D, V]) -> Counterexample | None:
    """Look for an execution without an explanation, among pairs of a configuration and the candidates left there.

    Why pairs are enough, though there are infinitely many executions. An execution is explained monotonically
    (Definition 5.6) if and only if it has a candidate: a configuration of the explaining rules that looks like its last
    one and is reached by way of images of all the others. Which these are depends on the execution only through
    its last observation and the candidates before it; so executions that agree in their last configuration and their
    candidates are continued, and refuted, alike. And an execution with any explanation (Definition 5.4) has a
    monotone one, because both observability functions are monotone in one order (Lemma 5.7). For the
    explaining rules that is checked beforehand; where the explained rules take something back, no candidate is left.
    """

    def edges(pair: tuple[int, Candidates]) -> Iterator[tuple[str, tuple[int, Candidates]]]:
        number, left = pair
        for rule, after in graph.edges(number):
            yield rule, (after, explanations.next(left, claim.observed.of(graph.configurations[after])))

    roots = [(graph.number(c), explanations.first(d, claim.observed.of(c))) for d, c in claim.translation]
    search = Search(roots, edges)
    refuted = next((pair for pair in search if not pair[1]), None)
    if refuted is None:
        return None
    (start, _), steps = search.path(refuted)
    execution = graph.execution((start, tuple((rule, after) for rule, (after, _) in steps)))
    return _counterexample(execution, claim.observed)


def _counterexample(execution: Execution[C], observed: Observability[C, V]) -> Counterexample:
    configurations = execution.configurations
    why: Literal["unexplained", "retracted"]
    why = "unexplained" if observed.retraction(configurations) is None else "retracted"
    return Counterexample(why, execution, tuple(value for value, _ in groupby(map(observed.of, configurations))))


def _backwards(
    graph: Graph[C], numbers: Iterable[int], leaving_out: Collection[str]
) -> dict[int, list[tuple[str, int]]]:
    """Return the steps of a graph turned around, without those by some rules."""
    before: dict[int, list[tuple[str, int]]] = {}
    for number in numbers:
        for rule, after in graph.edges(number):
            if rule not in leaving_out:
                before.setdefault(after, []).append((rule, number))
    return before
