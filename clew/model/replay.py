"""Goes once through what an operator took and made, and holds it against what its windows declare.

What comes out are claims: for each Input Set that the operator completed, in order, the events that it holds and
the events that the log says were made of it. Everything about numbers is checked on the way; what the functions
give is checked elsewhere, claim by claim, because that touches records.
"""

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NoReturn

from clew.errors import ClewError
from clew.ids import EventId, Port
from clew.model.certificate import RAISED, Certificate, Finding, Mistake, Sent, SetAside, Taken, undecided, wrong
from clew.model.declared import courses, label_of, late_functions
from clew.model.read import UNPLACED
from clew.model.windows import Course, Event, Label, NoPlace, NotDeclared, Records
from clew.pipeline.graph import OperatorSpec

#: For an event of a receiver's port, what its course needs to know of the records.
FactsOf = Callable[[str, Iterable[Sent]], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Claim:
    """The log's word that an Output Set was made of an Input Set."""

    operator: str
    input_set: int
    function: str
    key: Any
    #: Events in the order in which they were taken: (input port, first, count).
    spans: tuple[tuple[str, int, int], ...]
    state: Any = None
    #: Which records of its events it has, where the key does not tell.
    records: Records | None = None
    #: Records that were set aside: their places in the event. An Input Set that was set aside whole makes nothing.
    without: tuple[int, ...] = ()
    aside: bool = False
    #: What of it the function failed on, and was given up: the places of records, or None for all of it.
    dropped: tuple[tuple[int, ...] | None, ...] = ()
    #: By output port: (first event, count).
    outputs: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass
class _Open:
    """An Input Set that is not complete yet."""

    number: int
    spans: list[tuple[str, int, int]] = field(default_factory=list)

    def add(self, port: str, number: int) -> None:
        if self.spans and self.spans[-1][0] == port and sum(self.spans[-1][1:]) == number:
            port, first, count = self.spans[-1]
            self.spans[-1] = (port, first, count + 1)
        else:
            self.spans.append((port, number, 1))

    def absorb(self, other: "_Open") -> list[tuple[str, int]]:
        """Take in the events of another one, which has the same port; return those that were not here."""
        return [event for event in other.events() if self._insert(*event)]

    def _insert(self, port: str, number: int) -> bool:
        """Add an event where it belongs, in the order of the numbers; False where it is there."""
        at = bisect_right(self.spans, number, key=lambda span: span[1])
        if at and sum(self.spans[at - 1][1:]) > number:
            return False
        start, stop, first, count = at, at, number, 1
        if at and sum(self.spans[at - 1][1:]) == number:
            start, first, count = at - 1, self.spans[at - 1][1], self.spans[at - 1][2] + 1
        if at < len(self.spans) and self.spans[at][1] == number + 1:
            stop, count = at + 1, count + self.spans[at][2]
        self.spans[start:stop] = [(port, first, count)]
        return True

    def events(self) -> list[tuple[str, int]]:
        return [(port, number) for port, first, count in self.spans for number in range(first, first + count)]


class Replay:
    """One operator's course through the run."""

    def __init__(self, spec: OperatorSpec, certificate: Certificate, facts_of: FactsOf) -> None:
        self._spec = spec
        self._log = certificate
        self._facts_of = facts_of
        self._courses = courses(spec)
        self._late = late_functions(spec)
        #: Input Sets of late records that the last event has opened, and which records these are.
        self._missed: dict[Label, Records] = {}
        #: The Input Set of the last event, where this has no place in any window.
        self._alone: Label | None = None
        #: Events that joined a further Input Set: (input port, number, Input Set).
        self._rejoined: set[tuple[str, int, int]] = set()
        #: By Input Set, and by number: what was set aside, and the claim that it was part of.
        self._asides: dict[int, list[SetAside]] = {}
        self._aside_claims: dict[int, tuple[SetAside, Claim]] = {}
        for aside in certificate.asides(spec.name):
            self._asides.setdefault(aside.input_set, []).append(aside)
        self._open: dict[Label, _Open] = {}
        self._last_set = 0
        self._outputs = {port: _Lineage(certificate, Port(spec.name, port)) for port in spec.outputs}
        self._states = iter(certificate.states(spec.name))
        self.events = 0

    @property
    def dropped(self) -> int:
        """How much of what was set aside was given up."""
        return sum(aside.dropped for asides in self._asides.values() for aside in asides)

    def claims(self) -> Iterator[Claim]:
        """Yield all claims in order; raises Mistake where the log contradicts itself, or what was declared."""
        ports = (*self._spec.inputs.values(), *(Port(self._spec.name, port) for port in self._spec.outputs))
        gone = [str(port) for port in ports if self._log.collected(port)]
        if gone:
            fact = f"events of {', '.join(gone)} were collected, so that Input Sets cannot be followed from the start"
            raise Mistake(undecided(self._spec.name, f"{fact}; verify a run before it is collected"))
        if self._log.uncaptured(self._spec.name):
            fact = (
                "no lineage was captured of it, or not of all its ports, so that its Output Sets cannot be told apart"
            )
            raise Mistake(
                undecided(self._spec.name, f"{fact}; to have them judged, capture it from the start of a run")
            )
        try:
            yield from self._course()
        except (Mistake, ClewError):
            raise
        except RAISED as error:
            # What decides on Input Sets may be the user's own code, which may fail in any way.
            fact = f"its Input Sets cannot be followed: {type(error).__name__}: {error}"
            raise Mistake(wrong(self._spec.name, fact)) from error
        self._finish()

    def _course(self) -> Iterator[Claim]:
        waiting = set(self._spec.inputs)
        for seq, taken, event, end in self.taken():
            self.events += 1
            if seq != self.events:
                self._wrong(f"took event number {seq} where number {self.events} was due", event)
            if taken is None:
                yield from self._over(())
                yield from self._decided(end)
            elif end:
                if taken.sets:
                    self._wrong("the end of a stream belongs to no Input Set", event, found=_numbers(taken.sets))
                waiting.discard(event.port)
                for course in self._courses.values():
                    course.end(event.port)
            else:
                alone = self._is_alone(event, taken.sets)
                # That an event belongs elsewhere tells more than what it is missing from.
                before = [] if alone else list(self._over(taken.sets))
                self._assign(event, taken.sets, alone)
                yield from before
            yield from self._close(lambda course: course.complete())
            if end is True and not waiting:
                # After this, only what was set aside may still be tried again.
                yield from self._close(lambda course: course.rest())
        if waiting:
            senders = ", ".join(str(self._spec.inputs[port]) for port in sorted(waiting))
            self._wrong(f"has not taken the end of {senders}")

    def taken(self) -> Iterator[tuple[int, Any, Any, Any]]:
        """Yield what all ports took, and what the clock decided, in order: (number, taken, event, end or decision)."""
        streams = [self._port(port, sender) for port, sender in self._spec.inputs.items()]
        decisions = ((seq, None, None, decision) for seq, decision in self._log.decisions(self._spec.name))
        return heapq.merge(*streams, decisions, key=lambda item: item[0])

    def _over(self, logged: Sequence[int]) -> Iterator[Claim]:
        """Close what the log says was complete before this, by the Input Sets of the event that is next."""
        return self._close(lambda course: course.over(logged))

    def _decided(self, decision: Any) -> Iterator[Claim]:
        if isinstance(decision, dict) and "" in decision:
            yield from self._again(decision[""])
        else:
            self._decide(decision)

    def _again(self, resolved: Sequence[Sequence[Any]]) -> Iterator[Claim]:
        """Follow what a person decided on what was set aside: its events are a new Input Set, or are given up."""
        for number, input_set in resolved:
            if number not in self._aside_claims:
                self._wrong(f"{self._spec.name}#{number} was never set aside, or was decided on twice")
            aside, claim = self._aside_claims.pop(number)
            if input_set is None:
                self._check_resolved(aside, input_set)
                continue
            self._last_set += 1
            if input_set != self._last_set:
                self._wrong(
                    f"{self._spec.name}#{number}, which was set aside, was tried again as another Input Set",
                    expected=f"{self._last_set}", found=f"{input_set}",
                )  # fmt: skip
            self._check_resolved(aside, input_set)
            again = replace(
                claim, input_set=input_set, records=self._of_aside(claim, aside), without=(), aside=False, dropped=()
            )
            self._rejoined |= {(port, n, input_set) for port, first, c in claim.spans for n in range(first, first + c)}
            outputs = {port: lineage.of(input_set) for port, lineage in self._outputs.items()}
            if claim.state is not None:
                self._check_state(_Open(input_set, list(claim.spans)), claim.state)
            made = self._with_asides(replace(again, outputs=outputs))
            if claim.function == UNPLACED:
                self._check_aside(made)
            else:
                yield made

    def _check_resolved(self, aside: SetAside, input_set: int | None) -> None:
        """See that what was set aside has come to what was decided on it."""
        if (aside.retried_as, aside.dropped) != (input_set, input_set is None):
            self._wrong(
                f"{self._spec.name}#{aside.number}, which was set aside, has not come to what was decided on it",
                input_set=aside.input_set, expected=_come_to(input_set, input_set is None),
                found=_come_to(aside.retried_as, aside.dropped),
            )  # fmt: skip

    def _of_aside(self, claim: Claim, aside: SetAside) -> Records | None:
        if aside.records is None:
            return claim.records
        (port, number, _), *_ = claim.spans
        return {(port, number): aside.records}

    def _with_asides(self, claim: Claim) -> Claim:
        """Say of a claim what of it was set aside."""
        found = self._asides.get(claim.input_set, [])
        places = tuple(place for aside in found for place in aside.records or ())
        whole = any(aside.records is None or (claim.records is not None and aside.records == self._places(claim))
                    for aside in found)  # fmt: skip
        dropped = tuple(aside.records for aside in found if aside.dropped and aside.failed)
        claim = replace(claim, without=() if whole else places, aside=whole, dropped=dropped)
        for aside in found:
            self._aside_claims[aside.number] = (aside, claim)
        return claim

    def _places(self, claim: Claim) -> tuple[int, ...]:
        return tuple(place for places in (claim.records or {}).values() for place in places)

    def _decide(self, decision: Any) -> None:
        """Follow a decision, of each course that it is about; whether it was time for it nobody can say."""
        own = {"": decision} if self._spec.general is not None else decision
        try:
            for name, part in own.items():
                self._courses[name].decide(part)
        except (NotDeclared, KeyError, TypeError, AttributeError):
            self._wrong("the clock made it decide what it cannot decide", found=f"{decision}")

    def _port(self, port: str, sender: Port) -> Iterator[tuple[int, Taken, Event, bool]]:
        """Hold what a port took against what its sender sent: all of it, in channel order, once."""
        sent = self._log.sent(sender)
        taken = self._log.taken(Port(self._spec.name, port))
        needs = any(course.needs_facts for course in self._courses.values())
        events = _with_facts(sent, lambda part: self._facts_of(port, part)) if needs else ((one, None) for one in sent)
        for number, (one, (row, facts)) in enumerate(_zipped(taken, events), 1):
            if one is None:
                self._wrong("was sent to it and never taken", about=str(EventId(sender, number)))
            if row is None:
                self._wrong("was taken and never sent", about=str(EventId(sender, one.number)))
            if one.number != number or row.number != number:
                about, found = str(EventId(sender, number)), f"sent #{row.number}, taken #{one.number}"
                self._wrong("events are not consecutive", about=about, expected=f"#{number}", found=found)
            yield one.seq, one, Event(port, number, row.rows, row.size, facts), row.end

    def _assign(self, event: Event, logged: tuple[int, ...], alone: bool) -> None:
        if alone:
            self._alone = (UNPLACED, (event.port, event.number))
            expected = [self._join(self._alone, event)]
        else:
            expected = self._placed(event, logged)
        if tuple(expected) != logged:
            self._wrong(
                "is in other Input Sets than its windows say", event,
                input_set=next((number for number in (*logged, *expected) if number not in expected), expected[0]),
                expected=_numbers(expected), found=_numbers(logged),
            )  # fmt: skip

    def _is_alone(self, event: Event, logged: tuple[int, ...]) -> bool:
        """Say whether the event has no place; one that the log has set aside as such may be mended by now."""
        if isinstance(event.facts, NoPlace):
            return True
        return len(logged) == 1 and any(not aside.placed for aside in self._asides.get(logged[0], ()))

    def _placed(self, event: Event, logged: tuple[int, ...]) -> list[int]:
        """Return the Input Sets that an event belongs to, by all courses."""
        expected: list[int] = []
        for name, course in self._courses.items():
            seen = event if self._spec.general is not None or event.facts is None else _own_facts(event, name)
            keys = self._taken(course, seen, logged[len(expected) :])
            for gone, into in course.absorbed():
                self._absorb(label_of(self._spec, name, gone), label_of(self._spec, name, into))
            if course.missed and name in self._late:
                label = (self._late[name], (event.port, event.number))
                self._missed[label] = {(event.port, event.number): course.missed}
                expected.append(self._join(label, event))
            expected += [self._join(label_of(self._spec, name, key), event) for key in keys]
        return expected

    def _taken(self, course: Course, event: Event, logged: tuple[int, ...]) -> Sequence[Any]:
        try:
            return course.take(event, logged)
        except NotDeclared:
            self._wrong("was taken before the clock had said what time it was", event)

    def _absorb(self, gone: Label, into: Label) -> None:
        target = self._open[into]
        self._rejoined |= {(*event, target.number) for event in target.absorb(self._open.pop(gone))}

    def _join(self, label: Label, event: Event) -> int:
        if label not in self._open:
            self._last_set += 1
            self._open[label] = _Open(self._last_set)
        self._open[label].add(event.port, event.number)
        return self._open[label].number

    def _close(self, ask: Callable[[Course], Sequence[Any]]) -> Iterator[Claim]:
        if self._alone is not None:
            self._check_aside(self._claim(self._alone, self._open.pop(self._alone), None, None))
            self._alone = None
        for label, records in self._missed.items():
            yield self._claim(label, self._open.pop(label), None, records)
        self._missed = {}
        for name, course in self._courses.items():
            for key in ask(course):
                label = label_of(self._spec, name, key)
                if label not in self._open:
                    continue
                state = course.state(key)
                yield self._claim(label, self._open.pop(label), state, course.records(key))

    def _check_aside(self, claim: Claim) -> None:
        """See that an event without a place was set aside, and that nothing was made of it."""
        (port, number, _), *_ = claim.spans
        event = str(EventId(self._spec.inputs[port], number))
        if not claim.aside:
            self._wrong("has no place in any window, and was not set aside", about=event, input_set=claim.input_set)
        if any(count for _, count in claim.outputs.values()):
            self._wrong("has no place in any window, yet something was made of it", about=event)

    def _claim(self, label: Label, closed: _Open, state: Any, records: Records | None) -> Claim:
        if state is not None:
            self._check_state(closed, state)
        outputs = {port: lineage.of(closed.number) for port, lineage in self._outputs.items()}
        function, key = label
        claim = Claim(
            self._spec.name, closed.number, function, key, tuple(closed.spans), state, records, outputs=outputs
        )
        return self._with_asides(claim)

    def _check_state(self, closed: _Open, state: Any) -> None:
        number, logged = next(self._states, (None, None))
        if number != closed.number or logged != state:
            port, first, _ = closed.spans[0]
            self._wrong(
                "saw another global state", about=str(EventId(self._spec.inputs[port], first)),
                input_set=closed.number, expected=f"{state}",
                found=f"{logged} for Input Set {number}" if number is not None else "no state",
            )  # fmt: skip

    def _finish(self) -> None:
        """After the last event: all Input Sets are done, and everything sent came from one of them."""
        done = 0
        for first, count in self._log.done_sets(self._spec.name):
            if first != done + 1:
                self._wrong(f"Input Set {done + 1} was never set to done", input_set=done + 1)
            done += count
        if done < self._last_set:
            self._wrong(f"Input Set {done + 1} was never set to done", input_set=done + 1)
        if done > self._last_set:
            self._wrong("has more Input Sets than it should", expected=f"{self._last_set}", found=f"{done} done")
        self._check_rejoined()
        self._check_late()
        if self._aside_claims:
            number = min(self._aside_claims)
            self._wrong(f"finished though nobody has decided on {self._spec.name}#{number}, which was set aside")
        if (left := next(self._states, None)) is not None:
            self._wrong("a global state was logged for an Input Set that saw none", input_set=left[0])
        for lineage in self._outputs.values():
            if (finding := lineage.finish()) is not None:
                raise Mistake(finding)

    def _check_rejoined(self) -> None:
        """Sessions that became one have the events of both; nothing else joins an Input Set later."""
        left = set(self._rejoined)
        for port, sender in self._spec.inputs.items():
            for number, input_set in self._log.rejoined(Port(self._spec.name, port)):
                if (port, number, input_set) not in self._rejoined:
                    fact = "joined an Input Set later that it does not belong to"
                    self._wrong(fact, about=str(EventId(sender, number)), input_set=input_set)
                left.discard((port, number, input_set))
        for port, number, input_set in sorted(left):
            event = str(EventId(self._spec.inputs[port], number))
            self._wrong("did not join an Input Set", about=event, input_set=input_set)

    def _check_late(self) -> None:
        """As many records were counted as late as are."""
        counted = self._log.late(self._spec.name)
        for name, course in self._courses.items():
            if counted.get(name, 0) != course.late:
                fact = f"{name} counted other records as late than came late"
                self._wrong(fact, expected=f"{course.late}", found=f"{counted.get(name, 0)}")

    def _wrong(self, fact: str, event: Event | None = None, **rest: Any) -> NoReturn:
        name = str(EventId(self._spec.inputs[event.port], event.number)) if event else rest.pop("about", "")
        raise Mistake(wrong(self._spec.name, fact, event=name, **rest))


class _Lineage:
    """The events of one output port, in order, and the Input Set that each came from."""

    def __init__(self, certificate: Certificate, port: Port) -> None:
        self._port = port
        self._pairs = iter(certificate.lineage(port))
        self._sent = certificate.sent(port)
        self._next = next(self._pairs, None)
        self._number = 0

    def of(self, input_set: int) -> tuple[int, int]:
        """Return (first, count) of the events made of the Input Set; they are next, or it made none."""
        first = self._number + 1
        while self._next is not None and self._next == (self._number + 1, input_set):
            self._number += 1
            self._next = next(self._pairs, None)
        return first, self._number + 1 - first

    def finish(self) -> Finding | None:
        """Check that nothing is left: no event out of order, none from nowhere, one end."""
        if self._next is None:
            return check_sent(self._sent, self._port, self._number + 1)[1]
        number, input_set = self._next
        event = str(EventId(self._port, number))
        return wrong(
            self._port.operator, f"{event} is out of order, or made twice", event=event, input_set=input_set,
            expected=f"{EventId(self._port, self._number + 1)} next, of an Input Set that was complete then",
            found=f"{event} of Input Set {input_set}",
        )  # fmt: skip


def check_sent(sent: Iterator[Sent], port: Port, last: int | None = None) -> tuple[int, Finding | None]:
    """Return how many events a port has sent, and what is wrong: they have no gap, and end with one end."""
    number, ended = 0, False
    for event in sent:
        number += 1
        if event.number != number:
            expected, found = str(EventId(port, number)), str(EventId(port, event.number))
            fact = "ids are not consecutive"
            return number, wrong(port.operator, fact, event=found, expected=expected, found=found)
        if ended:
            name = str(EventId(port, number))
            return number, wrong(port.operator, "was sent after the end of the stream", event=name)
        ended = event.end
    if ended and last in (None, number):
        return number, None
    expected = "the end of the stream" if last is None else f"{last} events with the end of the stream"
    found = f"{number} events{'' if ended else ' and no end'}"
    return number, wrong(port.operator, f"{port} did not send what was made", expected=expected, found=found)


def _numbers(sets: Sequence[int]) -> str:
    return ", ".join(map(str, sets)) or "none"


def _come_to(retried_as: int | None, dropped: bool) -> str:
    if dropped:
        return "dropped"
    return "still set aside" if retried_as is None else f"tried again as Input Set {retried_as}"


def _own_facts(event: Event, course: str) -> Event:
    return Event(event.port, event.number, event.rows, event.size, event.facts.get(course))


def _with_facts(
    sent: Iterator[Sent], facts_of: Callable[[Iterable[Sent]], Iterator[Any]]
) -> Iterator[tuple[Sent, Any]]:
    """Pair events with their facts, which come in the same order; the end of a stream has none."""
    kept: deque[Sent] = deque()

    def seen() -> Iterator[Sent]:
        for event in sent:
            kept.append(event)
            if not event.end:
                yield event

    for facts in facts_of(seen()):
        while kept[0].end:
            yield kept.popleft(), None
        yield kept.popleft(), facts
    yield from ((event, None) for event in chain(kept, sent))


def _zipped(
    taken: Iterator[Taken], events: Iterator[tuple[Sent, Any]]
) -> Iterator[tuple[Taken | Any, tuple[Sent | Any, Any]]]:
    """Pair the two; where one ends before the other, None stands for it."""
    while True:
        one, other = next(taken, None), next(events, None)
        if one is None and other is None:
            return
        yield one, other or (None, None)
