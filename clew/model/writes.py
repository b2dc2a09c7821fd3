"""The write actions that the log says were to be performed, against the Input Sets and functions that made them."""

from itertools import dropwhile
from typing import Any

import pyarrow as pa

from clew.ids import EventId, Port, writes_port
from clew.model.certificate import Certificate, Logged, Mistake, undecided, wrong
from clew.model.compare import rows_of, same_rows, shown_apart
from clew.model.read import records
from clew.model.replay import Claim
from clew.model.work import Compute, Recompute, Recomputed, Rewrite, digest
from clew.pipeline.graph import OperatorSpec


class WriteLog:
    """The write actions of one connection, in order."""

    def __init__(self, certificate: Certificate, connection: Port) -> None:
        self._connection = connection
        self._log = certificate
        self._gone = certificate.collected_writes(connection)
        self._writes = certificate.writes(connection)
        port = Port(connection.operator, writes_port(connection.name))
        self._lineage = dropwhile(lambda one: one[0] <= self._gone, certificate.lineage(port))
        #: The next write action that has lineage, and its Input Set.
        self._next = next(self._lineage, None)
        self._captured = certificate.captured_writes(connection)
        self._untold = certificate.untold(port)
        self._number = 0

    def take(self, input_set: int | None = None, event: str = "") -> Logged | None:
        """Return the next write action, which an Input Set made; None where it was collected."""
        self._number += 1
        if self._number <= self._gone:
            return None
        write = next(self._writes, None)
        if write is not None and write.number == self._number:
            self._follow(input_set, event)
            return write
        found = f"#{write.number}" if write is not None else "no further one"
        raise Mistake(
            wrong(
                self._connection.operator, f"write action {self.name} was never logged", event=event,
                input_set=input_set, expected=f"#{self._number}", found=found,
            )
        )  # fmt: skip

    def _follow(self, input_set: int | None, event: str) -> None:
        """Check that lineage names the Input Set that made the write action which was taken last."""
        if self._next == (self._number, input_set):
            self._next = next(self._lineage, None)
        elif not self._may_lack_lineage(self._number):
            found = f"#{self._next[0]} of Input Set {self._next[1]}" if self._next is not None else "none"
            raise Mistake(
                wrong(
                    self._connection.operator, f"the lineage of write action {self.name} is not that of its Input Set",
                    event=event, input_set=input_set, expected=f"#{self._number} of Input Set {input_set}", found=found,
                )
            )  # fmt: skip

    def _may_lack_lineage(self, number: int) -> bool:
        """Say whether a write action has no lineage, and need not have."""
        none = self._next is None or self._next[0] > number
        return none and (not self._captured or number <= self._untold)

    @property
    def name(self) -> str:
        """The write action that was taken last."""
        return str(EventId(self._connection, self._number))

    def finish(self) -> None:
        """Check that there is no further write action."""
        if self._gone and self._number:
            gone = f"write actions {EventId(self._connection, 1)} to #{self._gone} were collected"
            fact = f"{gone}; verify a run before it is collected"
            raise Mistake(undecided(self._connection.operator, fact))
        self._check_no_write()
        self._check_no_lineage()

    def _check_no_write(self) -> None:
        left = next(self._writes, None)
        if left is not None:
            name = EventId(self._connection, left.number)
            raise Mistake(wrong(self._connection.operator, f"write action {name} was made by nobody"))

    def _check_no_lineage(self) -> None:
        if self._next is not None:
            name, named = EventId(self._connection, self._next[0]), self._next[1]
            fact = f"lineage tells of write action {name}, which Input Set {named} did not make"
            raise Mistake(wrong(self._connection.operator, fact, input_set=named))

    def take_made(self, input_set: int) -> None:
        """Take the write actions that an Input Set made, by their lineage: they come next, or it made none."""
        self._take_untold()
        while self._next == (self._number + 1, input_set):
            self.take(input_set)

    def _take_untold(self) -> None:
        self._number = max(self._number, self._gone)
        while self._number < self._untold and self._may_lack_lineage(self._number + 1):
            self.take()

    def finish_made(self) -> None:
        """Check that each write action was made by an Input Set, in the order in which these were complete."""
        if not self._captured:
            self.finish_unknown()
            return
        self._take_untold()
        self._check_no_lineage()
        self._check_no_write()

    def finish_unknown(self) -> None:
        """Check that all write actions are there, whatever made them."""
        self._number = max(self._number, self._gone)
        for write in self._writes:
            self._number += 1
            if write.number != self._number:
                fact = f"write action {self.name} was never logged"
                raise Mistake(wrong(self._connection.operator, fact, found=f"#{write.number}"))


class SinkWrites:
    """The write actions of a sink: each Input Set is written once, in order."""

    def __init__(self, certificate: Certificate, spec: OperatorSpec) -> None:
        (name,) = spec.sinks
        self._spec = spec
        self._log = WriteLog(certificate, Port(spec.name, name))

    def check(self, claim: Claim) -> None:
        """Hold the next write action against the Input Set that made it."""
        expected = tuple((self._spec.inputs[port], first, count) for port, first, count in claim.spans)
        event = str(EventId(expected[0][0], expected[0][1]))
        write = self._log.take(claim.input_set, event)
        if write is not None and write.events != expected:
            fact = f"write action {self._log.name} writes other events than its Input Set has"
            raise Mistake(
                wrong(
                    self._spec.name, fact, event=event, input_set=claim.input_set, expected=_spans(expected),
                    found=_spans(write.events),
                )
            )  # fmt: skip

    def finish(self) -> None:
        self._log.finish()


class OwnWrites:
    """The write actions of a general operator: what its functions write, in order."""

    def __init__(self, certificate: Certificate, spec: OperatorSpec, compute: Compute) -> None:
        self._spec = spec
        self._root = certificate.root
        self._compute = compute
        self._logs = {name: WriteLog(certificate, Port(spec.name, name)) for name in spec.sinks}

    def check(self, work: Recompute, made: Recomputed) -> None:
        """Hold the write actions that come next against those that the functions make."""
        for connection, writes in made.writes.items():
            firsts: dict[int, int] = {}
            for place, (index, number) in enumerate(writes):
                first = firsts.setdefault(index, place)
                claim = work.evidence[index].claim
                logged = self._logs[connection].take(claim.input_set)
                if logged is not None:
                    self._compare(connection, logged, number, Rewrite(work, index, connection, place - first))

    def _compare(self, connection: str, logged: Logged, number: int, again: Rewrite) -> None:
        name = self._logs[connection].name
        tables = [records(body, self._root, None, f"write action {name}") for body in logged.bodies]
        if [digest(table) for table in tables] == [number]:
            return
        # Numbers of records differ also where floats are rounded in another way.
        (expected,) = self._compute.map([again])
        if expected is not None and len(tables) == 1 and same_rows(rows_of(tables[0]), rows_of(expected)):
            return
        fact = f"write action {name} is not what the function writes"
        if expected is None or digest(expected) != number:
            fact = f"is declared deterministic and is not: it writes something else each time, in write action {name}"
        expected = pa.table({}) if expected is None else expected
        found = [row for table in tables for row in rows_of(table)]
        told = shown_apart(rows_of(expected), found, expected.schema.names)
        input_set = again.evidence.claim.input_set
        raise Mistake(wrong(self._spec.name, fact, input_set=input_set, expected=told[0], found=told[1]))

    def finish(self) -> None:
        for log in self._logs.values():
            log.finish()

    def take_made(self, input_set: int) -> None:
        """Take the write actions that come next and are an Input Set's, whatever it wrote."""
        for log in self._logs.values():
            log.take_made(input_set)

    def finish_made(self) -> None:
        for log in self._logs.values():
            log.finish_made()

    def finish_unknown(self) -> None:
        for log in self._logs.values():
            log.finish_unknown()


def _spans(events: Any) -> str:
    return ", ".join(f"{EventId(port, first)} ({count})" for port, first, count in events) or "none"
