"""The one seam to the world: a decision is committed, then its receivers are woken (S1, S2)."""

import time
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from clew import trace
from clew.errors import StaleWriter
from clew.faultpoint import fault_point
from clew.protocol.rows import Bodies
from clew.protocol.step import Acknowledge, LogEvents, LogWrites, Step, Write
from clew.runtime.channels import Channels
from clew.runtime.progress import Progress
from clew.store.base import Store


@dataclass(frozen=True, slots=True)
class Writer:
    """Who commits: an operator in one of its incarnations."""

    operator: str
    incarnation: int
    store: Store
    channels: Channels
    progress: Progress | None = None

    def perform(self, step: Step, point: str = "") -> None:
        """Commit the step, then let its events be seen; `point` is the crash point between the two."""
        if step.writes:
            self._commit(step)
        if point:
            fault_point(point, self.operator)
        for run in step.sends:
            self.channels.send(run)
            trace.record("woken", self.operator, port=run.port.name, upto=run.last)
        for port in step.resends:
            self.channels.resend(port)
        for write in step.writes:
            if isinstance(write, Acknowledge):
                self.channels.acknowledge(write.receiver, write.first + write.count - 1)

    def _commit(self, step: Step) -> None:
        began = time.monotonic()
        try:
            self.store.commit(self.operator, self.incarnation, step.writes, step.durable)
        except StaleWriter as stale:
            trace.record("fenced", self.operator, incarnation=self.incarnation, current=stale.current)
            raise
        if self.progress is not None:
            headers = [header for write in step.writes if isinstance(write, LogEvents) for header in write.run.headers]
            records, size = sum(header.rows for header in headers), sum(header.size for header in headers)
            self.progress.committed(self.operator, time.monotonic() - began, records, size)
        if trace.recording():
            trace.record("committed", self.operator, incarnation=self.incarnation, **_told(step.writes))


def _told(writes: Iterable[Write]) -> dict[str, Any]:
    """Return what a trace says of a transaction: which events and write actions it fixed, and a digest of each."""
    told: dict[str, list[Any]] = {}
    for write in writes:
        if isinstance(write, LogEvents):
            run = write.run
            told.setdefault("sent", []).append([run.port.name, run.first, len(run.headers), _digest(run.bodies)])
        elif isinstance(write, Acknowledge):
            told.setdefault("taken", []).append([write.receiver.name, write.first, write.count])
        elif isinstance(write, LogWrites):
            bodies = [run for row in write.writes for run in row.bodies]
            first, count = write.writes[0].number, len(write.writes)
            told.setdefault("writes", []).append([write.port.name, first, count, _digest(bodies)])
    return told


def _digest(bodies: Iterable[Bodies]) -> int:
    return zlib.crc32(array("Q", [sum_ for run in bodies for sum_ in run.checksums]).tobytes())
