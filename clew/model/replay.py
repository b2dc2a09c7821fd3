"""Goes once through what an operator took and made, and holds it against what its windows declare.

What comes out are claims: for each Input Set that the operator completed, in order, the events that it holds and
the events that the log says were made of it. Everything about numbers is checked on the way; what the functions
give is checked elsewhere, claim by claim, because that touches records.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NoReturn

from clew.errors import ClewError
from clew.ids import EventId, Port
from clew.model.certificate import Certificate, Finding, Mistake, Sent, Taken, undecided, wrong
from clew.model.windows import Course, Event, Label, courses, label_of
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


class Replay:
    """One operator's course through the run."""

    def __init__(self, spec: OperatorSpec, certificate: Certificate, facts_of: FactsOf) -> None:
        self._spec = spec
        self._log = certificate
        self._facts_of = facts_of
        self._courses = courses(spec)
        self._open: dict[Label, _Open] = {}
        self._last_set = 0
        self._outputs = {port: _Lineage(certificate, Port(spec.name, port)) for port in spec.outputs}
        self._states = iter(certificate.states(spec.name))
        self.events = 0

    def claims(self) -> Iterator[Claim]:
        """Yield all claims in order; raises Mistake where the log contradicts itself, or what was declared."""
        ports = (*self._spec.inputs.values(), *(Port(self._spec.name, port) for port in self._spec.outputs))
        gone = [str(port) for port in ports if self._log.collected(port)]
        if gone:
            fact = f"events of {', '.join(gone)} were collected, so that Input Sets cannot be followed from the start"
            raise Mistake(undecided(self._spec.name, fact))
        try:
            yield from self._course()
        except (Mistake, ClewError):
            raise
        except Exception as error:
            # What decides on Input Sets may be the user's own code, which may fail in any way.
            fact = f"its Input Sets cannot be followed: {type(error).__name__}: {error}"
            raise Mistake(wrong(self._spec.name, fact)) from error
        self._finish()

    def _course(self) -> Iterator[Claim]:
        waiting = set(self._spec.inputs)
        for taken, event, end in self._merged():
            self.events += 1
            if taken.seq != self.events:
                self._wrong(f"took event number {taken.seq} where number {self.events} was due", event)
            if end:
                if taken.sets:
                    self._wrong("the end of a stream belongs to no Input Set", event, found=_numbers(taken.sets))
                waiting.discard(event.port)
                for course in self._courses.values():
                    course.end(event.port)
            else:
                self._assign(event, taken.sets)
            yield from self._close(lambda course: course.complete())
        if waiting:
            self._wrong(f"has not taken the end of {', '.join(sorted(waiting))}")
        yield from self._close(lambda course: course.rest())

    def _merged(self) -> Iterator[tuple[Taken, Event, bool]]:
        """Yield the events of all ports in the order in which they were taken."""
        streams = [self._port(port, sender) for port, sender in self._spec.inputs.items()]
        return heapq.merge(*streams, key=lambda item: item[0].seq)

    def _port(self, port: str, sender: Port) -> Iterator[tuple[Taken, Event, bool]]:
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
            yield one, Event(port, number, row.rows, row.size, facts), row.end

    def _assign(self, event: Event, logged: tuple[int, ...]) -> None:
        expected: list[int] = []
        for name, course in self._courses.items():
            seen = event if self._spec.general is not None or event.facts is None else _own_facts(event, name)
            for key in course.take(seen, logged[len(expected) :]):
                expected.append(self._join(label_of(self._spec, name, key), event))
        if tuple(expected) != logged:
            self._wrong(
                "is in other Input Sets than its windows say", event,
                input_set=next((number for number in (*logged, *expected) if number not in expected), expected[0]),
                expected=_numbers(expected), found=_numbers(logged),
            )  # fmt: skip

    def _join(self, label: Label, event: Event) -> int:
        if label not in self._open:
            self._last_set += 1
            self._open[label] = _Open(self._last_set)
        self._open[label].add(event.port, event.number)
        return self._open[label].number

    def _close(self, ask: Callable[[Course], Sequence[Any]]) -> Iterator[Claim]:
        for name, course in self._courses.items():
            for key in ask(course):
                label = label_of(self._spec, name, key)
                if label not in self._open:
                    continue
                yield self._claim(label, self._open.pop(label), course.state())

    def _claim(self, label: Label, closed: _Open, state: Any) -> Claim:
        if state is not None:
            self._check_state(closed, state)
        outputs = {port: lineage.of(closed.number) for port, lineage in self._outputs.items()}
        function, key = label
        return Claim(self._spec.name, closed.number, function, key, tuple(closed.spans), state, outputs)

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
        if (left := next(self._states, None)) is not None:
            self._wrong("a global state was logged for an Input Set that saw none", input_set=left[0])
        for lineage in self._outputs.values():
            if (finding := lineage.finish()) is not None:
                raise Mistake(finding)

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
