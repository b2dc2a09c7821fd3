"""Operators that decide anew each time they are asked: which Input Sets their events are in is what the log says.

What `assign` and `ready` of a general operator decide may hang on chance, as what its functions give may. Nobody can
then say what they ought to have decided, but it is still known what any decision comes to: every event was taken, in
order, Input Sets are numbered without a gap, each is done, and at most one Output Set was made of each, after its last
event.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from clew.ids import Port, writes_port
from clew.model.certificate import RAISED, Certificate, Mistake
from clew.model.declared import courses
from clew.model.replay import FactsOf, Replay
from clew.model.windows import Course, Event
from clew.pipeline.graph import OperatorSpec


def decides_anew(spec: OperatorSpec, certificate: Certificate, facts_of: FactsOf) -> bool:
    """Say whether `assign` and `ready`, asked twice about the same events, decide something else.

    Where they decide the same twice, and not what the log says, somebody has made a mistake.
    """
    if spec.general is None:
        return False
    one, other = courses(spec)[""], courses(spec)[""]
    taken = Replay(spec, certificate, facts_of).taken()
    try:
        return any(_decided(one, *event) != _decided(other, *event) for event in taken) or _rest(one) != _rest(other)
    except (Mistake, *RAISED):
        return False


def _decided(course: Course, _: int, taken: Any, event: Event, end: Any) -> list[Any]:
    """Let a course take what comes next; return what it decides, with the states that are seen."""
    keys: Sequence[Any] = ()
    if taken is not None and not end:
        keys = course.take(event, ())
    elif taken is not None:
        course.end(event.port)
    elif not (isinstance(end, dict) and "" in end):
        course.decide(end)
    return [keys, *((key, course.state(key)) for key in course.complete())]


def _rest(course: Course) -> list[Any]:
    return [(key, course.state(key)) for key in course.rest()]


class AsLogged(Replay):
    """One operator's course through the run, with the Input Sets that the log says."""

    def __init__(self, spec: OperatorSpec, certificate: Certificate) -> None:
        super().__init__(spec, certificate, lambda port, sent: iter(()))
        self._logged = _LoggedCourse(spec, certificate)
        self._courses = {"": self._logged}
        # What was seen of the global state is what the log says, too.
        self._states = iter(())

    def _again(self, resolved: Sequence[Sequence[Any]]) -> Iterator[Any]:
        self._logged.make(number for _, number in resolved if number is not None)
        yield from super()._again(resolved)


class _LoggedCourse(Course):
    """Completes an Input Set when it has all its events, and what was made of those before it was made."""

    def __init__(self, spec: OperatorSpec, certificate: Certificate) -> None:
        assert spec.general is not None
        self._names = spec.general.functions
        receivers = [Port(spec.name, port) for port in spec.inputs]
        #: How many events an Input Set waits for.
        self._left = Counter(number for port in receivers for row in certificate.taken(port) for number in row.sets)
        #: By port and connection: the Input Sets of what was made, in order; the next one, or None after the last.
        ports = [*(Port(spec.name, port) for port in spec.outputs), *_writes(spec)]
        self._made = Counter(number for port in ports for number in _in_order(certificate, port))
        self._orders = [_in_order(certificate, port) for port in ports]
        self._next = [next(order, None) for order in self._orders]
        self._ready: list[int] = []

    def take(self, event: Event, logged: Sequence[int]) -> Sequence[Any]:
        for number in logged:
            self._left[number] -= 1
            if not self._left[number] and number not in self._made:
                self._ready.append(number)
        return [self._key(number) for number in logged]

    def make(self, numbers: Iterable[int]) -> None:
        """Learn of Input Sets that what was set aside is tried again as: they wait for no event."""
        self._left.update(dict.fromkeys(numbers, 0))

    def decide(self, decision: Any) -> None:
        """Whatever was decided, only the log says what came of it."""

    def complete(self) -> Sequence[Any]:
        done, self._ready = self._ready, []
        while (number := self._due()) is not None:
            done.append(number)
            self._next = [next(order, None) if head == number else head
                          for head, order in zip(self._next, self._orders)]  # fmt: skip
        return [self._key(number) for number in done]

    def _due(self) -> int | None:
        """Return an Input Set that is next wherever anything was made of it, and has all its events."""
        heads = Counter(number for number in self._next if number is not None)
        return next(
            (n for n, count in heads.items() if count == self._made[n] and n in self._left and not self._left[n]), None
        )

    def rest(self) -> Sequence[Any]:
        return self.complete()

    def _key(self, number: int) -> Any:
        return (self._names[0], number) if len(self._names) > 1 else number


def _writes(spec: OperatorSpec) -> Iterator[Port]:
    return (Port(spec.name, writes_port(connection)) for connection in spec.sinks)


def _in_order(certificate: Certificate, port: Port) -> Iterator[int]:
    """Yield the Input Sets that a port's events, or a connection's write actions, were made of."""
    return (number for number, _ in groupby(made for _, made in certificate.lineage(port)))
