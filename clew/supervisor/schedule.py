"""Draws the faults of a chaos run: a pure function of the pipeline and a seed.

Which faults there are is dealt like cards, so that each kind comes up once before any comes up twice. Where they
strike is drawn so that it is nearly always reached: at crash points that every run of such an operator passes, and
after numbers of commits that small pipelines make, too.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from clew.errors import SetupFailed
from clew.pipeline.contracts import Replayable
from clew.pipeline.graph import Graph, OperatorSpec

Kind = Literal["group", "process", "worker", "freeze", "slow-store", "store-down"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_SLOW = 1.5
_FROZEN = 2.0
#: Seconds that a log in a file is held; the run waits longer than that before it stops.
_HELD = (1.0, 2.5)

#: Crash points that an operator passes in each turn, also in its last; they can be drawn for a later turn, too.
_TURNS = ("after-gather", "after-generate", "after-wake")
_OPERATOR = (*_TURNS, "after-assign", "after-commit", "before-flush", "after-end")
_SINK = ("before-write", "after-write", "after-write-done")
_SOURCE = ("before-action-logged", "after-action-logged", "after-source-read", "after-source-commit", "after-end")
_STORED = ("after-effect-stored", "after-action-complete", "before-effect-dropped", "after-effect-dropped")


@dataclass(frozen=True, slots=True)
class ChaosFault:
    """One fault that was drawn: at a crash point of an operator, or after a number of commits of the whole run."""

    kind: Kind
    operator: str = ""
    point: str = ""
    nth: int = 1
    after: int = 0
    seconds: float = 0.0

    @property
    def where(self) -> str:
        """When it strikes, in words."""
        if self.point:
            return self.point if self.nth == 1 else f"{self.point}, time {self.nth}"
        return f"after {self.after} commit{'' if self.after == 1 else 's'}"

    def __str__(self) -> str:
        return " ".join(part for part in (self.kind, self.operator, self.where) if part)

    def armed(self, nth: int) -> str:
        """The fault as CLEW_FAULTS has it."""
        action = f"sleep={self.seconds:g}" if self.kind == "slow-store" else "raise"
        return f"{self.point}@{self.operator}#{nth}:{action}"


def kinds_for(engine: str, master: str | None, log: str) -> tuple[Kind, ...]:
    """Return the kinds of faults that a run on this engine and this log can meet."""
    # The workers of a cluster are not this machine's to kill.
    workers = engine == "spark" and (master is None or master.startswith("local"))
    known = [kind for kind in KINDS if kind != "worker" or workers]
    return tuple(kind for kind in known if kind != "store-down" or not log.startswith("memory"))


def draw(graph: Graph, seed: int, faults: int, kinds: Sequence[Kind]) -> tuple[ChaosFault, ...]:
    """Draw so many faults; the same seed draws the same ones, always."""
    return _Deck(graph, random.Random(seed), kinds).deal(faults)


class _Deck:
    def __init__(self, graph: Graph, dice: random.Random, kinds: Sequence[Kind]) -> None:
        self._dice = dice
        self._kinds = tuple(kinds)
        self._left: list[Kind] = []
        #: For faults at crash points: the places that are not taken, by operator. No place is taken twice, so that
        #: what fired can be told from the place alone; a slow commit has one that no other kind uses.
        self._places = {
            "group": {spec.name: list(_points(spec)) for spec in graph.operators.values()},
            "slow-store": {name: ["inside-commit"] for name in graph.operators},
        }
        self._struck: Counter[str] = Counter()
        self._operators = len(graph.operators)
        self._commits = 0

    def deal(self, faults: int) -> tuple[ChaosFault, ...]:
        dealt: list[ChaosFault] = []
        while len(dealt) < faults:
            if not self._left:
                self._left = [kind for kind in self._kinds if self._places.get(kind, True)]
                self._dice.shuffle(self._left)
            if not self._left:
                raise SetupFailed(
                    f"there are only {len(dealt)} places for faults of kind {', '.join(self._kinds)}",
                    f"ask for at most {len(dealt)} faults, or for more kinds",
                )
            kind = self._left.pop()
            dealt.append(self._at_point(kind) if kind in self._places else self._after_commits(kind))
        return tuple(dealt)

    def _at_point(self, kind: Kind) -> ChaosFault:
        places = self._places[kind]
        # One of those that were struck least, so that faults spread over all operators.
        least = min(self._struck[name] for name in places)
        operator = self._dice.choice([name for name in places if self._struck[name] == least])
        self._struck[operator] += 1
        point = places[operator].pop(self._dice.randrange(len(places[operator])))
        if not places[operator]:
            del places[operator]
        if kind == "slow-store":
            return ChaosFault(kind, operator, point, self._dice.randint(1, 3), seconds=_SLOW)
        return ChaosFault(kind, operator, point, self._dice.randint(1, 2) if point in _TURNS else 1)

    def _after_commits(self, kind: Kind) -> ChaosFault:
        self._commits += self._dice.randint(1, self._operators)
        held = round(self._dice.uniform(*_HELD), 1)
        seconds = {"freeze": _FROZEN, "store-down": held}.get(kind, 0.0)
        return ChaosFault(kind, after=self._commits, seconds=seconds)


def _points(spec: OperatorSpec) -> tuple[str, ...]:
    """Return the crash points of the driver that this operator passes in a run without failures."""
    if spec.source is None:
        return (*_OPERATOR, *_SINK) if spec.is_sink else _OPERATOR
    by_offset = isinstance(spec.source, Replayable) and not spec.source.stores_snapshot
    return _SOURCE if by_offset else (*_SOURCE, *_STORED)
