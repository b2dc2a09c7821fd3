"""Was anything that could be observed ever taken back? Judged from the steps that a trace tells.

An observability function gives what outsiders see of a run at a step: the events logged on each port, and the write
actions performed on each connection. It must only ever grow along a run; so what a step fixed must be, with the same
content, what the log holds at the end, and nothing may be fixed twice.
"""

import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from clew.ids import EventId, Port
from clew.model.certificate import Certificate, Finding, wrong
from clew.trace import TraceStep


@dataclass
class _Seen:
    """How far a port, or a connection, was fixed by the steps so far."""

    upto: int = 0
    spans: list[tuple[int, int, int]] = field(default_factory=list)


def check_trace(certificate: Certificate, steps: Iterable[TraceStep]) -> list[Finding]:
    """Return what a trace tells that the log of the finished run contradicts: the first of it."""
    try:
        for _ in _retractions(certificate, steps):
            pass
    except _Retracted as retracted:
        return [retracted.finding]
    return []


class _Retracted(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def _retractions(certificate: Certificate, steps: Iterable[TraceStep]) -> Iterator[None]:
    sent: dict[Port, _Seen] = {}
    logged: dict[Port, _Seen] = {}
    written: dict[Port, int] = {}
    for step in steps:
        if step.kind == "committed":
            for name, first, count, digest in step.what.get("sent", ()):
                _fix(sent, Port(step.operator, name), first, count, digest, "event")
            for name, first, count, digest in step.what.get("writes", ()):
                _fix(logged, Port(step.operator, name), first, count, digest, "write action")
        elif step.kind == "written":
            port = Port(step.operator, step.what["connection"])
            _performed(logged, written, port, step.what["first"], step.what["count"])
        yield
    for port, seen in sent.items():
        _same_events(certificate, port, seen)
        yield


def _fix(seen: dict[Port, _Seen], port: Port, first: int, count: int, digest: int, what: str) -> None:
    known = seen.setdefault(port, _Seen(first - 1))
    if first <= known.upto:
        fact = f"{what} {EventId(port, first)} was logged twice: what was seen of it was taken back"
        raise _Retracted(wrong(port.operator, fact, event=str(EventId(port, first))))
    known.upto = first + count - 1
    known.spans.append((first, count, digest))


def _performed(logged: dict[Port, _Seen], written: dict[Port, int], port: Port, first: int, count: int) -> None:
    last = first + count - 1
    if port in logged and last > logged[port].upto:
        fact = f"write action {EventId(port, last)} was performed and not logged before: nobody could repeat it"
        raise _Retracted(wrong(port.operator, fact))
    written[port] = max(last, written.get(port, 0))


def _same_events(certificate: Certificate, port: Port, seen: _Seen) -> None:
    """Hold the content of what was logged then against what the log holds now."""
    gone = certificate.collected(port)
    ends = {sent.number for sent in certificate.sent(port) if sent.end}
    for first, count, digest in seen.spans:
        if first <= gone:
            continue
        bodies = certificate.bodies(port, first, count)
        expected = count - sum(number in ends for number in range(first, first + count))
        found = zlib.crc32(array("Q", [body.checksum for body in bodies]).tobytes())
        if len(bodies) != expected or found != digest:
            fact = f"events {EventId(port, first)} to #{first + count - 1} are not those that were logged first"
            raise _Retracted(wrong(port.operator, fact, event=str(EventId(port, first))))
