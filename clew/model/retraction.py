"""Was anything that could be observed ever taken back? Judged from the steps that a trace tells.

An observability function gives what outsiders see of a run at a step: the events logged on each port, and the write
actions performed on each connection. It must only ever grow along a run; so what a step fixed must be, with the same
content, what the log holds at the end, and nothing may be fixed twice.
"""

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from clew.ids import EventId, Port
from clew.model.certificate import Body, Certificate, EventWrong, Finding, Mistake, undecided, wrong
from clew.trace import TraceStep

#: No number of an event is greater.
_MOST = 1 << 62


@dataclass
class _Seen:
    """What of a port, or of a connection, the steps so far have fixed: spans with their digests, in order."""

    spans: list[tuple[int, int, int]] = field(default_factory=list)

    def fix(self, first: int, count: int, digest: int) -> bool:
        """Add a span; False where part of it was fixed before."""
        at = bisect_left(self.spans, (first,))
        if at and sum(self.spans[at - 1][:2]) > first:
            return False
        if at < len(self.spans) and first + count > self.spans[at][0]:
            return False
        self.spans.insert(at, (first, count, digest))
        return True


@dataclass
class _Observed:
    """What the steps so far let outsiders see."""

    events: dict[Port, _Seen] = field(default_factory=dict)
    writes: dict[Port, _Seen] = field(default_factory=dict)
    #: The last write action that was performed, by connection.
    performed: dict[Port, int] = field(default_factory=dict)
    #: The last incarnation of each operator that any step told of.
    incarnations: dict[str, int] = field(default_factory=dict)

    def step(self, step: TraceStep) -> None:
        late = self._is_late(step)
        if step.kind == "committed":
            for name, first, count, digest in _spans(step, "sent"):
                _fix(self.events, Port(step.operator, name), first, count, digest, "event")
            for name, first, count, digest in _spans(step, "writes"):
                connection = Port(step.operator, name)
                _fix(self.writes, connection, first, count, digest, "write action")
                if not late and first <= self.performed.get(connection, 0):
                    raise Mistake(_unlogged(connection, first))
        elif step.kind == "written":
            connection = Port(step.operator, str(step.what["connection"]))
            last = int(step.what["first"]) + int(step.what["count"]) - 1
            self.performed[connection] = max(last, self.performed.get(connection, 0))

    def _is_late(self, step: TraceStep) -> bool:
        """Say whether a step is told by a process that was taken over: what it did came before what others told.

        A process that is killed or frozen between a commit and the step that tells of it has logged all the same.
        """
        last = self.incarnations.get(step.operator, 0)
        own = int(step.what.get("incarnation", last))
        self.incarnations[step.operator] = max(last, own)
        return own < last


def _spans(step: TraceStep, what: str) -> list[tuple[str, int, int, int]]:
    """Return what a step says was logged: the port or connection, the first number, how many, and a digest."""
    spans = [(str(name), int(first), int(count), int(digest)) for name, first, count, digest in step.what.get(what, ())]
    if not all(0 < first <= _MOST and 0 < count <= _MOST for _, first, count, _ in spans):
        raise ValueError(f"no numbers of events: {spans}")
    return spans


def check_trace(certificate: Certificate, steps: Iterable[TraceStep]) -> list[Finding]:
    """Return what a trace tells that the log of the finished run contradicts: the first of it."""
    observed = _Observed()
    own, told = False, 0
    try:
        for step, of_run in _of_run(steps, certificate.run):
            told, own = told + 1, own or of_run
            if of_run:
                observed.step(step)
    except Mistake as mistake:
        return [mistake.finding]
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        fact = f"step {told or 1} of the trace tells what cannot be read ({type(error).__name__}: {error})"
        return [undecided("trace", f"{fact}; give the trace as `clew run --trace` wrote it")]
    try:
        _compare(certificate, observed)
    except Mistake as mistake:
        return [mistake.finding]
    except EventWrong as error:
        return [error.finding("trace")]
    if not told:
        return [undecided("trace", "the trace is empty: it tells nothing")]
    if not own:
        return [undecided("trace", f"the trace tells nothing of run {certificate.run}")]
    return []


def _of_run(steps: Iterable[TraceStep], run: str) -> Iterator[tuple[TraceStep, bool]]:
    """Tell steps of the run from those of others: a process says at its start of which run the rest will be."""
    others: set[int] = set()
    for step in steps:
        if step.kind == "started":
            of_other = step.what.get("run", run) != run
            others = others | {step.process} if of_other else others - {step.process}
        yield step, step.process not in others


def _fix(seen: dict[Port, _Seen], port: Port, first: int, count: int, digest: int, what: str) -> None:
    if not seen.setdefault(port, _Seen()).fix(first, count, digest):
        fact = f"{what} {EventId(port, first)} was logged twice: what was seen of it was taken back"
        raise Mistake(wrong(port.operator, fact, event=str(EventId(port, first))))


def _compare(certificate: Certificate, observed: _Observed) -> None:
    """Hold what was seen against what the log holds at the end."""
    for port, seen in observed.events.items():
        _same_events(certificate, port, seen)
    for connection in {**observed.writes, **observed.performed}:
        _same_writes(certificate, connection, observed)


def _same_events(certificate: Certificate, port: Port, seen: _Seen) -> None:
    gone = certificate.collected(port)
    ends = {sent.number for sent in certificate.sent(port) if sent.end}
    for first, count, digest in seen.spans:
        if first <= gone:
            continue
        bodies = certificate.bodies(port, first, count)
        expected = count - sum(first <= number < first + count for number in ends)
        if len(bodies) != expected or _digest(bodies) != digest:
            fact = f"events {EventId(port, first)} to #{first + count - 1} are not those that were logged first"
            raise Mistake(wrong(port.operator, fact, event=str(EventId(port, first))))


def _same_writes(certificate: Certificate, connection: Port, observed: _Observed) -> None:
    gone = last = certificate.collected_writes(connection)
    seen = observed.writes.get(connection, _Seen()).spans
    spans = iter([span for span in seen if span[0] > gone])
    span = next(spans, None)
    bodies: list[Body] = []
    for write in certificate.writes(connection):
        last = max(last, write.number)
        while span is not None and span[0] + span[1] <= write.number:
            span, bodies = next(spans, None), []
        if span is None or write.number < span[0]:
            continue
        bodies += write.bodies
        whole = write.number == span[0] + span[1] - 1
        if whole and _digest(bodies) != span[2]:
            fact = (
                f"write actions {EventId(connection, span[0])} to #{write.number} are not those that were logged first"
            )
            raise Mistake(wrong(connection.operator, fact))
    if seen and sum(seen[-1][:2]) - 1 > last:
        fact = (
            f"write action {EventId(connection, last + 1)} was logged, and the log does not hold it: it was taken back"
        )
        raise Mistake(wrong(connection.operator, fact))
    if observed.performed.get(connection, 0) > last:
        raise Mistake(_unlogged(connection, observed.performed[connection]))


def _unlogged(connection: Port, number: int) -> Finding:
    fact = f"write action {EventId(connection, number)} was performed and not logged before: nobody could repeat it"
    return wrong(connection.operator, fact)


def _digest(bodies: Iterable[Body]) -> int:
    return zlib.crc32(array("Q", [body.checksum for body in bodies]).tobytes())
