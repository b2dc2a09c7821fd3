"""What a log says happened, as values: the certificate of one failure-free run that the checker goes through.

Whatever the checker knows of a run it knows through `Certificate`. Nothing in it is believed: it is a claim, to be
held against the declared functions, the sources and the sinks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from clew.errors import ClewError
from clew.ids import Port

#: What somebody's own code may raise: it may fail in any way, and sys.exit() in it does not end who judges.
RAISED = (Exception, SystemExit)


@dataclass(frozen=True, slots=True)
class Body:
    """Where the records of one event are: in `data`, or in a stretch of a file."""

    length: int
    checksum: int
    data: bytes | None = None
    file: str | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """An event that the log holds of a port."""

    number: int
    rows: int
    size: int
    end: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """An event that a receiver has acknowledged: the how manieth it took, and for which Input Sets."""

    seq: int
    number: int
    sets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Logged:
    """A write action that was logged: the events it writes, or bodies of its own."""

    number: int
    done: bool
    events: tuple[tuple[Port, int, int], ...]
    bodies: tuple[Body, ...] = ()


@dataclass(frozen=True, slots=True)
class SetAside:
    """Something that a function failed on: an Input Set, or some records of its one event."""

    number: int
    input_set: int
    records: tuple[int, ...] | None
    #: The Input Set that it was tried again as, if it was.
    retried_as: int | None = None
    #: Whether its event had a place in the operator's Input Sets.
    placed: bool = True
    #: Whether it was given up, so that nothing is made of it.
    dropped: bool = False
    #: Whether the function failed on it; else it was cut off, or Spark gave it up.
    failed: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """What a side-effect read action found, and the Input Set that it served."""

    connection: str
    action: int
    input_set: int
    body: Body


@dataclass(frozen=True, slots=True)
class Kept:
    """The content of a lookup: its hash, and itself where it is in no file."""

    digest: str
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """What of an operator was changed in the course of its run."""

    #: The code that it had last, as `OperatorSpec.version` names it; None where the log does not say.
    code: str | None = None
    #: The last Input Set, of a source the last event, that earlier code may have made; 0 where there was none.
    mixed: int = 0
    #: The parts of its version that were changed, besides its code.
    parts: tuple[str, ...] = ()


class Certificate(Protocol):
    """The log of a run. Iterators go through it once, in the order of the numbers."""

    @property
    def run(self) -> str: ...
    @property
    def root(self) -> str | None:
        """The directory that files of bodies are under."""

    def statuses(self) -> dict[str, str]:
        """Return the status of each operator."""

    def changed(self, operator: str) -> Changed:
        """Return what of an operator was changed in the course of the run."""

    def uncaptured(self, operator: str) -> bool:
        """Say whether lineage of the operator was ever not captured, of some of its ports."""

    def captured_writes(self, connection: Port) -> bool:
        """Say whether lineage of all write actions of the connection was captured."""

    def untold(self, port: Port) -> int:
        """Return up to which number the port's events, or write actions, may lack lineage that was captured.

        A Clew logged them that kept none for sources and write actions; 0 where there are no such.
        """

    def links(self) -> dict[Port, Port]:
        """Return the sender of each receiver."""

    def schema(self, port: Port) -> pa.Schema | None: ...

    def collected(self, port: Port) -> int:
        """Return the number up to which the port's events were collected; 0 where none were."""

    def collected_writes(self, connection: Port) -> int:
        """Return the number up to which the connection's write actions were collected; 0 where none were."""

    def sent(self, port: Port) -> Iterator[Sent]: ...
    def taken(self, receiver: Port) -> Iterator[Taken]: ...

    def lineage(self, port: Port) -> Iterator[tuple[int, int]]:
        """Yield (event, Input Set)."""

    def done_sets(self, operator: str) -> Iterator[tuple[int, int]]:
        """Yield (first, count) of the Input Sets that are done, in order."""

    def states(self, operator: str) -> Iterator[tuple[int, Any]]:
        """Yield (Input Set, global state that it saw), in the order in which they were logged."""

    def decisions(self, operator: str) -> Iterator[tuple[int, Any]]:
        """Yield what the clock made an operator decide: (its place in the order of the events taken, what)."""

    def rejoined(self, receiver: Port) -> Iterator[tuple[int, int]]:
        """Yield (event, Input Set) for events that joined a further Input Set after they were taken."""

    def asides(self, operator: str) -> Iterator["SetAside"]:
        """Yield what the operator has set aside, in order."""

    def late(self, operator: str) -> dict[str, int]:
        """Return how many records the operator has counted as late, by function."""

    def bodies(self, port: Port, first: int, count: int) -> Sequence[Body]:
        """Return the bodies of these events, in order; fewer where some are not in the log."""

    def writes(self, connection: Port) -> Iterator[Logged]: ...

    def answers(self, operator: str) -> Iterator[Answer]:
        """Yield the effects of side-effect reads by connection, and in the order in which they were logged."""

    def asked(self, operator: str) -> Mapping[str, int]:
        """Return the number of the last side-effect read, by connection."""

    def lookups(self, operator: str) -> Mapping[str, "Kept"]:
        """Return what the run has kept of the operator's lookups, by name."""

    def actions(self, source: str) -> Iterator[tuple[int, bool]]:
        """Yield the numbers of a source's read actions, in order, and whether each is complete."""

    def pending(self, source: str) -> bool:
        """Say whether a source still holds the stored effect of its read action."""


@dataclass(eq=False)
class EventWrong(ClewError):
    """The body of an event, or of a write action, is missing or is not what was logged."""

    event: str
    what: str
    expected: str = ""
    found: str = ""

    def __str__(self) -> str:
        return f"{self.event}: {self.what}" if self.event else self.what

    def finding(self, operator: str, **rest: Any) -> "Finding":
        return wrong(operator, self.what, event=self.event, expected=self.expected, found=self.found, **rest)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that no failure-free run explains, or that cannot be decided; as small as it can be told."""

    #: "wrong" or "undecided".
    weight: str
    operator: str
    fact: str
    event: str = ""
    input_set: int | None = None
    expected: str = ""
    found: str = ""

    def __str__(self) -> str:
        where = [self.operator, f"event {self.event}" if self.event else ""]
        where.append(f"Input Set {self.input_set}" if self.input_set is not None else "")
        against = [("expected", self.expected), ("found   ", self.found)]
        told = "".join(f"\n  {word} {text}" for word, text in against if text)
        return f"{', '.join(part for part in where if part)}: {self.fact}{told}"


def wrong(operator: str, fact: str, **rest: Any) -> Finding:
    return Finding("wrong", operator, fact, **rest)


def undecided(operator: str, fact: str, **rest: Any) -> Finding:
    return Finding("undecided", operator, fact, **rest)


class Mistake(Exception):
    """Something was found after which the rest of a part of the run cannot be judged."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass
class Verdict:
    """What the checker came to."""

    findings: list[Finding] = field(default_factory=list)
    #: What was gone through: events, Input Sets, Output Sets computed again, records of sources and of sinks.
    counts: dict[str, int] = field(default_factory=dict)
    #: The operators whose Output Sets were counted and not computed again, for they may be anything.
    counted: list[str] = field(default_factory=list)
    #: Of these, the ones whose Input Sets, too, may be any: they are taken as the log says.
    as_logged: list[str] = field(default_factory=list)

    @property
    def word(self) -> str:
        """The verdict: `explained`, `not explained` or `undecided`."""
        weights = {finding.weight for finding in self.findings}
        if "wrong" in weights:
            return "not explained"
        return "undecided" if weights else "explained"

    def ranked(self) -> list[Finding]:
        """Return the findings, those that decide the verdict first; those of one weight in the order of the graph."""
        return sorted(self.findings, key=lambda finding: finding.weight != "wrong")

    def count(self, what: str, by: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + by
