"""The parts of a judgement that touch records: plain values that can be worked off here, or on Spark executors.

Those of this module are about operators: what their windows need to know, and what their functions give. What is about
the outside is in `holdings`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, groupby
from typing import Any, Protocol

import pyarrow as pa

from clew.ids import EventId, Port
from clew.model.certificate import RAISED, Answer, Body, EventWrong, Finding, Kept, undecided, wrong
from clew.model.compare import number_of, numbers_of, rows_of, same_rows, shown, shown_apart, unmatched
from clew.model.declared import courses
from clew.model.interpret import Frames, Given, Made, NoResources, as_sent, interpret, interpret_rows
from clew.model.read import kept_records, records
from clew.model.replay import Claim
from clew.model.windows import Course, NoPlace, Records
from clew.pipeline.graph import Graph, OperatorSpec
from clew.pipeline.lookups import Content
from clew.pipeline.schema import untyped


class Work(Protocol):
    """Something to do with records. What it raises is raised where its result is asked for."""

    def run(self, graph: Graph, frames: Frames | None) -> Any: ...


class Compute(Protocol):
    """Where work is done."""

    @property
    def frames(self) -> Frames | None:
        """Calls functions of DataFrames; None where there is no Spark."""

    def map(self, works: Iterable[Work]) -> Iterator[Any]:
        """Do all work, and give back the results in the same order, as they come."""


@dataclass(frozen=True)
class Here:
    """Does the work in this process."""

    graph: Graph
    frames: Frames | None = None

    def map(self, works: Iterable[Work]) -> Iterator[Any]:
        return (work.run(self.graph, self.frames) for work in works)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive events of a port, with their bodies."""

    port: Port
    first: int
    bodies: tuple[Body, ...]
    schema: pa.Schema
    root: str | None
    #: How many records each event has, by its header.
    rows: tuple[int, ...]

    def events(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield each event's name and records."""
        for number, (body, rows) in enumerate(zip(self.bodies, self.rows), self.first):
            event = str(EventId(self.port, number))
            yield event, as_told(records(body, self.root, self.schema, event), rows, event)


def as_told(table: pa.Table, rows: int, event: str) -> pa.Table:
    """Return the records of an event, which must be as many as its header says."""
    if table.num_rows == rows:
        return table
    fact = "its header tells of another number of records than its body holds"
    raise EventWrong(event, fact, expected=f"{table.num_rows} in its header", found=f"{rows}")


@dataclass(frozen=True, slots=True)
class Intact:
    """See that bodies are those that were logged, and hold as many records as is told; raises EventWrong."""

    stretch: Stretch

    def run(self, graph: Graph, frames: Frames | None) -> None:
        for _ in self.stretch.events():
            pass


@dataclass(frozen=True, slots=True)
class IntactAnswers:
    """See that what side-effect reads found is what was logged; raises EventWrong."""

    answers: tuple[Answer, ...]
    root: str | None

    def run(self, graph: Graph, frames: Frames | None) -> None:
        for answer in self.answers:
            records(answer.body, self.root, None, f"read action #{answer.action} on {answer.connection}")


@dataclass(frozen=True, slots=True)
class Facts:
    """Compute what an operator's windows need to know of some events."""

    operator: str
    stretch: Stretch

    def run(self, graph: Graph, frames: Frames | None) -> list[Any]:
        spec = graph.operators[self.operator]
        own = {name: course for name, course in courses(spec).items() if course.needs_facts}
        return [self._facts(spec, own, table) for _, table in self.stretch.events()]

    def _facts(self, spec: OperatorSpec, own: Mapping[str, Course], table: pa.Table) -> Any:
        try:
            facts = {name: course.facts(table) for name, course in own.items()}
        except RAISED as error:
            # Then it has no place, and must have been set aside.
            return NoPlace(f"{type(error).__name__}: {error}")
        return facts if spec.general is None else facts[""]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A claim with the bodies that it speaks of."""

    claim: Claim
    inputs: Mapping[tuple[str, int], Body]
    #: By output port: the bodies of its events, and how many records each has by its header.
    outputs: Mapping[str, tuple[tuple[Body, int], ...]]
    answers: Mapping[str, tuple[Body, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What came of computing some claims again: the first mistake, or the write actions that were made, in order."""

    finding: Finding | None
    #: By connection: (index of the claim, number of the write's records).
    writes: Mapping[str, tuple[tuple[int, int], ...]]
    #: What was given up though the function does not fail on it.
    unfailing: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Recompute:
    """Give functions their Input Sets again, and hold what they make against what was logged."""

    operator: str
    evidence: tuple[Evidence, ...]
    inputs: Mapping[str, pa.Schema]
    outputs: Mapping[str, pa.Schema]
    root: str | None
    lookups: Mapping[str, Kept] = field(default_factory=dict)

    def run(self, graph: Graph, frames: Frames | None) -> Recomputed:
        spec = graph.operators[self.operator]
        writes: dict[str, list[tuple[int, int]]] = {}
        unfailing: list[Finding] = []
        made = self._made(spec, frames)
        for index, one in enumerate(self.evidence):
            try:
                again = next(made)
                finding = self._compare(spec, one, again, partial(self.again, spec, one, frames))
                unfailing += self._unfailing(spec, one, frames)
            except NoResources as error:
                fact = f"its setup hook fails now, so that its Output Sets cannot be computed again: {error}"
                finding = undecided(spec.name, fact)
            except EventWrong as error:
                finding = error.finding(self.operator, input_set=one.claim.input_set)
            except RAISED as error:
                finding = _failed(spec, one.claim, error)
            if finding is not None:
                return Recomputed(finding, {})
            for connection, tables in again.writes.items():
                writes.setdefault(connection, []).extend((index, digest(table)) for table in tables)
        return Recomputed(None, {name: tuple(found) for name, found in writes.items()}, tuple(unfailing))

    def again(self, spec: OperatorSpec, one: Evidence, frames: Frames | None) -> Made:
        """Compute one claim by itself; what was set aside makes nothing."""
        return Made() if one.claim.aside else interpret(self._given(spec, one), frames)

    def _unfailing(self, spec: OperatorSpec, one: Evidence, frames: Frames | None) -> Iterator[Finding]:
        """Try what was given up, each record by itself: say of what the function does not fail on."""
        for dropped in one.claim.dropped:
            for place in (None,) if dropped is None else dropped:
                if not self._fails(spec, self._whole(one, place), frames):
                    what = "it" if place is None else f"its record {place}"
                    fact = (
                        f"{what} was set aside and dropped, and the function does not fail on it now: either it is not "
                        "deterministic, or its surroundings failed"
                    )
                    yield undecided(spec.name, fact, event=_first_event(spec, one.claim), input_set=one.claim.input_set)

    def _whole(self, one: Evidence, place: int | None) -> Evidence:
        """Return what was set aside as an Input Set of its own: all that the claim has, or one record."""
        claim = replace(one.claim, without=())
        if place is not None:
            (port, number, _), *_ = claim.spans
            claim = replace(claim, records={(port, number): (place,)})
        return replace(one, claim=claim)

    def _fails(self, spec: OperatorSpec, one: Evidence, frames: Frames | None) -> bool:
        """Say whether the function fails, or gives what its ports cannot carry."""
        given = self._given(spec, one)
        try:
            made = interpret(given, frames)
            sent = all(self._is_sent(spec, port, table) for port, made_of in made.outputs.items() for table in made_of)
        except NoResources:
            raise
        except RAISED:
            return True
        return not sent or not made.writes.keys() <= spec.sinks.keys()

    def _is_sent(self, spec: OperatorSpec, port: str, table: pa.Table) -> bool:
        """Say whether a port would send records; columns of no type it may not have, if these were its first."""
        as_sent(table, self.outputs.get(port, spec.schemas.get(port)), port)
        return port in spec.outputs and not untyped(table.schema)

    def _made(self, spec: OperatorSpec, frames: Frames | None) -> Iterator[Made]:
        """Compute all claims; those of a row-local function together, as far as they stand together."""
        for function, group in groupby(self.evidence, key=lambda one: one.claim.function):
            ones = list(group)
            if spec.function(function).row_local and not any(one.claim.aside for one in ones):
                yield from interpret_rows([self._given(spec, one) for one in ones], frames)
            else:
                yield from (self.again(spec, one, frames) for one in ones)

    def _given(self, spec: OperatorSpec, one: Evidence) -> Given:
        claim = one.claim
        events = [
            (port, number, self._input(spec, one, port, number))
            for port, first, count in claim.spans
            for number in range(first, first + count)
        ]
        answers = {
            name: [records(body, self.root, None, name) for body in found] for name, found in one.answers.items()
        }
        return Given(
            spec, claim.function, claim.key, claim.input_set, events, self.inputs, claim.state, answers,
            _records_left(claim, events), self._lookups(spec), self.outputs,
        )  # fmt: skip

    def _lookups(self, spec: OperatorSpec) -> dict[str, Content]:
        return {name: _content(kept, self.root, name, spec.lookups[name].key) for name, kept in self.lookups.items()}

    def _input(self, spec: OperatorSpec, one: Evidence, port: str, number: int) -> pa.Table:
        event = str(EventId(spec.inputs[port], number))
        return records(one.inputs[port, number], self.root, self.inputs[port], event)

    def _compare(self, spec: OperatorSpec, one: Evidence, made: Made, again: Callable[[], Made]) -> Finding | None:
        frames = spec.function(one.claim.function).style == "dataframe"
        same = _same_records if frames else _same_events
        for connection in made.writes.keys() - spec.sinks.keys():
            fact = f"its function writes to {connection}, which is not declared"
            return wrong(spec.name, fact, event=_first_event(spec, one.claim), input_set=one.claim.input_set)
        for port in spec.outputs:
            found = self._logged(spec, one, port)
            expected = self._sent(made, port)
            if same(expected, found):
                continue
            fact = f"the Output Set on port {port} is not what the function gives"
            if not same(expected, self._sent(again(), port)):
                fact = f"is declared deterministic and is not: it gives something else each time, on port {port}"
            first, count = one.claim.outputs.get(port, (0, 0))
            event = str(EventId(Port(spec.name, port), first)) if count else ""
            told = (_records_apart if frames else _events_apart)(expected, found)
            return wrong(
                spec.name, fact, event=event or _first_event(spec, one.claim), input_set=one.claim.input_set,
                expected=told[0], found=told[1],
            )  # fmt: skip
        return None

    def _logged(self, spec: OperatorSpec, one: Evidence, port: str) -> list[pa.Table]:
        first, _ = one.claim.outputs.get(port, (0, 0))
        sender = Port(spec.name, port)
        return [
            as_told(records(body, self.root, self.outputs[port], event), rows, event)
            for number, (body, rows) in enumerate(one.outputs.get(port, ()), first)
            for event in [str(EventId(sender, number))]
        ]

    def _sent(self, made: Made, port: str) -> list[pa.Table]:
        tables = made.outputs.get(port, [])
        schema = self.outputs.get(port)
        return [as_sent(table, schema, port) for table in tables]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Give a function its Input Set again, and return what it writes; None where it writes less than before."""

    work: Recompute
    index: int
    connection: str
    nth: int

    @property
    def evidence(self) -> Evidence:
        return self.work.evidence[self.index]

    def run(self, graph: Graph, frames: Frames | None) -> pa.Table | None:
        made = self.work.again(graph.operators[self.work.operator], self.evidence, frames)
        return next(iter(made.writes.get(self.connection, [])[self.nth :]), None)


@lru_cache(maxsize=16)
def _content(kept: Kept, root: str | None, name: str, key: str | None) -> Content:
    """Hold the content of a lookup once per process, however many pieces of work ask for it."""
    return Content(kept_records(kept, root, name), key)


def _records_left(claim: Claim, events: Sequence[tuple[str, int, pa.Table]]) -> Records | None:
    """Return which records the function was given, without those that were set aside."""
    if not claim.without:
        return claim.records
    ((port, number, table),) = events
    own = range(table.num_rows) if claim.records is None else claim.records[port, number]
    return {(port, number): [place for place in own if place not in claim.without]}


def needs_frames(work: Work, graph: Graph) -> bool:
    """Say whether work calls functions of DataFrames, which only a process with a Spark session can."""
    return isinstance(work, Recompute) and any(
        function.style == "dataframe" for function in graph.operators[work.operator].functions
    )


def digest(table: pa.Table) -> int:
    """Number the records of a table as one."""
    return number_of(tuple(numbers_of(table)))


def _same_events(one: Sequence[pa.Table], other: Sequence[pa.Table]) -> bool:
    # Arrow sees at once what is equal bit by bit, which nearly all is.
    return len(one) == len(other) and all(a.equals(b) or same_rows(rows_of(a), rows_of(b)) for a, b in zip(one, other))


def _same_records(one: Sequence[pa.Table], other: Sequence[pa.Table]) -> bool:
    """Compare what a DataFrame holds: Spark cuts it into events, and orders it, as it comes."""
    missing, extra = unmatched(chain.from_iterable(map(rows_of, one)), chain.from_iterable(map(rows_of, other)))
    return not missing and not extra


def _failed(spec: OperatorSpec, claim: Claim, error: BaseException) -> Finding:
    fact = f"its Output Set cannot be computed again: {type(error).__name__}: {error}"
    return wrong(spec.name, fact, input_set=claim.input_set, event=_first_event(spec, claim))


def _first_event(spec: OperatorSpec, claim: Claim) -> str:
    if not claim.spans:
        return ""
    port, first, _ = claim.spans[0]
    return str(EventId(spec.inputs[port], first))


def _records_apart(expected: Sequence[pa.Table], found: Sequence[pa.Table]) -> tuple[str, str]:
    """Show the records that have no counterpart."""
    names: Sequence[str] = next((table.schema.names for table in (*expected, *found)), ())
    missing, extra = unmatched(chain.from_iterable(map(rows_of, expected)), chain.from_iterable(map(rows_of, found)))
    return shown(missing, names), shown(extra, names)


def _events_apart(expected: Sequence[pa.Table], found: Sequence[pa.Table]) -> tuple[str, str]:
    """Show the first event that differs, from the first record on that does."""
    if len(expected) != len(found):
        return _events_shown(expected), _events_shown(found)
    at = next(i for i, (one, other) in enumerate(zip(expected, found)) if not _same_events([one], [other]))
    event = f"event {at + 1} of {len(found)}: " if len(found) > 1 else ""
    one, other = shown_apart(rows_of(expected[at]), rows_of(found[at]), found[at].schema.names)
    return event + one, event + other


def _events_shown(events: Sequence[pa.Table]) -> str:
    told = " | ".join(shown(rows_of(table), table.schema.names, 2) for table in events[:3])
    return told if len(events) == 1 else f"{len(events)} events: {told}" if events else "no event"
