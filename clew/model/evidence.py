"""Finds the bodies that a judgement needs in the log, a stretch of events at a time."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import pyarrow as pa

from clew.ids import EventId, Port
from clew.model.certificate import Answer, Body, Certificate, EventWrong, Mistake, Sent
from clew.model.replay import Claim
from clew.model.work import Evidence, IntactAnswers, Stretch
from clew.pipeline.graph import OperatorSpec

#: How many events one piece of work holds.
CHUNK_EVENTS = 500


def bodies_of(certificate: Certificate, port: Port, first: int, count: int) -> Sequence[Body]:
    """Return the bodies of these events; raises EventWrong where the log has not all of them."""
    found = certificate.bodies(port, first, count)
    if len(found) == count:
        return found
    missing = next((n for n in range(first, first + count) if len(certificate.bodies(port, n, 1)) != 1), first)
    raise EventWrong(str(EventId(port, missing)), "the log has no body of it")


def stretches(certificate: Certificate, port: Port, schema: pa.Schema, sent: Iterable[Sent]) -> Iterator[Stretch]:
    """Cut the events of a port into pieces of work."""
    events = (one for one in sent if not one.end)
    while batch := list(islice(events, CHUNK_EVENTS)):
        bodies = bodies_of(certificate, port, batch[0].number, len(batch))
        rows = tuple(one.rows for one in batch)
        yield Stretch(port, batch[0].number, tuple(bodies), schema, certificate.root, rows)


def answers_whole(certificate: Certificate, operator: str) -> Iterator[IntactAnswers]:
    """Cut what an operator's side-effect reads found into pieces of work; raises EventWrong where one is missing."""
    answers = _in_order(certificate, operator)
    while batch := tuple(islice(answers, CHUNK_EVENTS)):
        yield IntactAnswers(batch, certificate.root)


def _in_order(certificate: Certificate, operator: str) -> Iterator[Answer]:
    """Yield the answers of an operator, which are numbered from 1 on each connection, up to the last read."""
    last: dict[str, int] = {}
    for answer in certificate.answers(operator):
        due = last.get(answer.connection, 0) + 1
        if answer.action != due:
            raise _no_answer(due, answer.connection)
        last[answer.connection] = due
        yield answer
    for connection, asked in certificate.asked(operator).items():
        if last.get(connection, 0) < asked:
            raise _no_answer(last.get(connection, 0) + 1, connection)


def _no_answer(action: int, connection: str) -> EventWrong:
    return EventWrong("", f"the log has no answer of read action #{action} on {connection}")


class Gathering:
    """Puts claims together with the bodies that they speak of."""

    def __init__(self, spec: OperatorSpec, certificate: Certificate) -> None:
        self._spec = spec
        self._log = certificate
        self._answers = {name: _Answers(certificate, spec.name, name) for name in spec.reads}
        self._headers = {port: _Headers(certificate, Port(spec.name, port)) for port in spec.outputs}

    def chunks(self, claims: Iterator[Claim]) -> Iterator[tuple[Evidence, ...]]:
        """Yield evidence for all claims, as many at a time as make up a piece of work."""
        stretch: list[Claim] = []
        events = 0
        try:
            for claim in claims:
                stretch.append(claim)
                events += sum(count for _, _, count in claim.spans) + sum(count for _, count in claim.outputs.values())
                if events >= CHUNK_EVENTS:
                    yield self._gathered(stretch)
                    stretch, events = [], 0
        except Mistake:
            # What went before may tell more of what is wrong.
            if stretch:
                yield self._gathered(stretch)
            raise
        if stretch:
            yield self._gathered(stretch)

    def finish(self) -> None:
        """Raise EventWrong where a read on the side served no Input Set that was complete then."""
        for answers in self._answers.values():
            answers.finish()

    def _gathered(self, claims: Sequence[Claim]) -> tuple[Evidence, ...]:
        inputs: dict[tuple[str, int], Body] = {}
        for port, sender in self._spec.inputs.items():
            spans = [(first, count) for claim in claims for name, first, count in claim.spans if name == port]
            inputs |= {(port, number): body for number, body in self._bodies(sender, spans)}
        outputs: dict[tuple[str, int], Body] = {}
        for port in self._spec.outputs:
            spans = [claim.outputs[port] for claim in claims if claim.outputs[port][1]]
            outputs |= {(port, number): body for number, body in self._bodies(Port(self._spec.name, port), spans)}
        return tuple(self._one(claim, inputs, outputs) for claim in claims)

    def _bodies(self, port: Port, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, Body]]:
        """Fetch bodies by the stretches that spans form together: neighbours are asked for at once."""
        wanted = sorted(set(spans))
        at = 0
        while at < len(wanted):
            first = stop = wanted[at][0]
            while at < len(wanted) and wanted[at][0] <= stop:
                stop = max(stop, sum(wanted[at]))
                at += 1
            yield from enumerate(bodies_of(self._log, port, first, stop - first), first)

    def _one(self, claim: Claim, inputs: dict[tuple[str, int], Body], outputs: dict[tuple[str, int], Body]) -> Evidence:
        own = {
            (port, number): inputs[port, number]
            for port, first, count in claim.spans
            for number in range(first, first + count)
        }
        made = {
            port: tuple(
                (outputs[port, number], self._headers[port].rows(number)) for number in range(first, first + count)
            )
            for port, (first, count) in claim.outputs.items()
        }
        return Evidence(claim, own, made, {name: found.of(claim.input_set) for name, found in self._answers.items()})


class _Headers:
    """The headers of a port's events, which are asked for in order."""

    def __init__(self, certificate: Certificate, port: Port) -> None:
        self._port = port
        self._sent = iter(certificate.sent(port))

    def rows(self, number: int) -> int:
        """Return how many records an event has."""
        for sent in self._sent:
            if sent.number == number and not sent.end:
                return sent.rows
        raise EventWrong(str(EventId(self._port, number)), "lineage tells of it, and it was never sent")


class _Answers:
    """What the side-effect reads of a connection found, logged in the order of the Input Sets that they served."""

    def __init__(self, certificate: Certificate, operator: str, connection: str) -> None:
        self._answers = (answer for answer in certificate.answers(operator) if answer.connection == connection)
        self._next: Answer | None = next(self._answers, None)

    def of(self, input_set: int) -> tuple[Body, ...]:
        found: list[Body] = []
        while self._next is not None and self._next.input_set == input_set:
            found.append(self._next.body)
            self._next = next(self._answers, None)
        return tuple(found)

    def finish(self) -> None:
        if self._next is not None:
            what = (
                f"read action #{self._next.action} on {self._next.connection} served Input Set {self._next.input_set}"
            )
            raise EventWrong("", f"{what}, which did not ask for it")
