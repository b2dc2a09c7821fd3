"""An operator's write actions: performed after they are logged (Algorithm 5), settled after a crash (Algorithm 8)."""

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from clew import trace
from clew.errors import EngineFailed, SinkAhead, SinkFailed, StaleWriter, TurnTimedOut
from clew.faultpoint import fault_point
from clew.ids import Port
from clew.pipeline.contracts import FrameSink, WriteAction
from clew.protocol.log.alg5_write import write_done
from clew.protocol.log.alg8_writer import settle
from clew.protocol.rows import Bodies, WriteRow
from clew.protocol.step import LogWrites, SetOperator, Step, Write
from clew.runtime.absence import Absence
from clew.runtime.progress import Clock
from clew.runtime.runner import Surroundings
from clew.runtime.task import Failure, WriteTask, Written

if TYPE_CHECKING:
    from clew.runtime.operator import OperatorRunner

#: How many pending writes one job performs at most.
WRITES_PER_JOB = 256


class Writes:
    """The pending write actions of an operator, per connection, in order."""

    def __init__(self, runner: "OperatorRunner", around: Surroundings) -> None:
        self._runner = runner
        self._around = around
        self._pending: dict[str, list[WriteRow]] = {name: [] for name in runner.spec.sinks}
        self._absence = Absence(around.patience, around.stop)

    def expect(self, writes: Iterable[Write]) -> None:
        """Learn of write actions that were just logged."""
        for write in writes:
            if isinstance(write, LogWrites):
                self._pending[write.port.name] += write.writes
        self._count()

    def _count(self) -> None:
        pending = sum(len(rows) for rows in self._pending.values())
        if self._pending:
            self._around.progress.set(self._runner.spec.name, pending_writes=pending)

    def recover(self) -> None:
        """Algorithm 8: in order, settle each undone write by asking the outside system, or replay it."""
        for name in self._runner.spec.sinks:
            port = Port(self._runner.spec.name, name)
            while undone := self._around.store.undone_writes(port, WRITES_PER_JOB):
                fault_point("before-write-check", port.operator)
                self._pending[name] = self._unsettled(name, undone)
                self._count()
                self.perform()
            self._refuse_rewound(name)

    def _refuse_rewound(self, name: str) -> None:
        """Refuse a log that was put back to an earlier state: the sink would skip what it takes for old writes."""
        spec = self._runner.spec
        if not spec.sinks[name].checkable:
            return
        state = self._around.store.state(spec.name)
        following = int(state.context["writes"].get(name, 0)) + 1 if state else 1
        if any(self._ask(name, [WriteRow(following, ())])):
            # Who was taken over meanwhile knows an older log too, and is refused for that.
            self._runner.writer.perform(Step((SetOperator(spec.name, "running"),)))
            raise SinkAhead(spec.name, spec.sinks[name].describe(), following)

    def perform(self) -> None:
        """Algorithm 5: execute pending writes, and mark them as done when the outside system has them."""
        for name, pending in self._pending.items():
            port = Port(self._runner.spec.name, name)
            attempts = 0
            while pending:
                fault_point("before-write", port.operator)
                batch = pending[:WRITES_PER_JOB]
                clock = Clock()
                with clock:
                    written = self._run(name, batch, check=False)
                if written.done:
                    self._tell("written", port, batch[: written.done])
                    fault_point("after-write", port.operator)
                    self._runner.writer.perform(write_done(port, batch[0].number, written.done), "after-write-done")
                    self._tell("marked", port, batch[: written.done])
                    self._around.progress.wrote(port.operator, written.done, clock)
                    del pending[: written.done]
                    self._count()
                    attempts = 0
                    self._absence.over()
                if written.failure is not None:
                    # Step 2: a failed write is replayed, a limited number of times.
                    what = f"write {port}#{batch[written.done].number}"
                    attempts = self._wait(attempts + 1, written.failure, what)
                    # It may have been applied, and only the answer was lost.
                    batch = batch[written.done :]
                    left = self._unsettled(name, batch)
                    if len(left) < len(batch):
                        # A write of this run all the same, though the answer to it was lost.
                        self._around.progress.wrote(port.operator, len(batch) - len(left), clock)
                    pending[: len(batch)] = left
                    self._count()

    def _unsettled(self, name: str, undone: Sequence[WriteRow]) -> list[WriteRow]:
        """Algorithm 8, Step 2.a: set to done what the outside system says it has; return the rest."""
        if not self._runner.spec.sinks[name].checkable:
            return list(undone)
        step, left = settle(Port(self._runner.spec.name, name), undone, self._ask(name, undone))
        if step.writes:
            settled = undone[: len(undone) - len(left)]
            self._tell("settled", Port(self._runner.spec.name, name), settled)
            self._runner.writer.perform(step, "after-write-done")
            self._tell("marked", Port(self._runner.spec.name, name), settled)
        return list(left)

    def _tell(self, kind: str, port: Port, rows: Sequence[WriteRow]) -> None:
        trace.record(kind, port.operator, connection=port.name, first=rows[0].number, count=len(rows))

    def _ask(self, name: str, undone: Sequence[WriteRow]) -> list[bool]:
        attempts = 0
        while True:
            written = self._run(name, undone, check=True)
            if written.failure is None:
                self._absence.over()
                return list(written.applied)
            what = f"the check of {self._runner.spec.name}.{name}"
            attempts = self._wait(attempts + 1, written.failure, what)

    def _wait(self, attempts: int, failure: Failure, about: str) -> int:
        """Wait before the outside system is asked again, or give up; returns how many attempts count."""
        if self._absence.awaited(failure.error):
            return 0
        if isinstance(failure.error, StaleWriter):
            stale = failure.error
            trace.record("fenced", stale.operator, incarnation=stale.incarnation, current=stale.current)
        again = failure.error.again if isinstance(failure.error, SinkFailed) else 0.0
        if again is None or attempts >= self._runner.spec.settings.attempts:
            raise self._runner.failed(failure, about, attempts)
        time.sleep(max(again, 0.1 * attempts))
        return attempts

    def _run(self, name: str, rows: Sequence[WriteRow], check: bool) -> Written:
        spec, writer = self._runner.spec, self._runner.writer
        writes = tuple(
            (
                WriteAction(self._around.store.run_id, spec.name, name, row.number, writer.incarnation),
                () if check else self._content(row),
            )
            for row in rows
        )
        task = WriteTask(self._around.bodies, spec.name, name, writes, check)
        about = f"write {spec.name}.{name}#{rows[0].number}"
        job = self._runner.job(self._runner.context.turn, about)
        try:
            frames = isinstance(spec.sinks[name], FrameSink)
            engine = self._around.engine
            (written,) = (engine.write(job, task) if frames else engine.map(job, [task])).results
        except (EngineFailed, TurnTimedOut) as error:
            # Spark's own failure is an attempt, as one of the outside system is.
            return Written(0, (), Failure(None, type(error).__name__, str(error), "", error))
        assert isinstance(written, Written)
        return written

    def _content(self, row: WriteRow) -> tuple[tuple[bytes | None, tuple[Bodies, ...]], ...]:
        if row.bodies:
            return ((None, row.bodies),)
        parts = []
        for sender, first, count in row.events:
            runs = self._around.store.events(sender, first, count)
            bodies = tuple(body for run in runs for body in run.bodies)
            parts.append((self._around.store.schema(sender), bodies))
        return tuple(parts)
