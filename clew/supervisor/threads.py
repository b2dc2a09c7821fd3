"""Groups as threads of one process: each runs, fails and restarts on its own; the others keep going."""

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from clew import trace
from clew.errors import ClewError, EngineLost, RunStopped
from clew.ids import Port
from clew.pipeline.contracts import Continuing, Streamed
from clew.pipeline.graph import Graph, OperatorSpec
from clew.runtime.absence import Stopped
from clew.runtime.collect import collect
from clew.runtime.following import FollowingRunner
from clew.runtime.operator import OperatorRunner
from clew.runtime.runner import Runner, Surroundings
from clew.runtime.source import SourceRunner
from clew.runtime.streaming import StreamingRunner

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Policy:
    """How a failed group is restarted.

    - `first_delay`: seconds before the first restart; doubled for each further failure without a commit in between, up
      to `longest_delay`.
    - `give_up_after`: failures in a row, with nothing committed between them, after which the run stops.
    - `poll`: seconds after which an idle group looks into the log even if nobody woke it.
    - `collect_every`: seconds between two garbage collections; None leaves the log as it is.
    """

    first_delay: float = 0.2
    longest_delay: float = 10.0
    give_up_after: int = 8
    poll: float = 1.0
    collect_every: float | None = None

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after so many failures in a row."""
        return float(min(self.first_delay * 2 ** (failures - 1), self.longest_delay))


def make_runner(spec: OperatorSpec, around: Surroundings) -> Runner:
    """Return the loop for an operator of this kind."""
    if isinstance(spec.source, Streamed):
        return StreamingRunner(spec, around)
    if isinstance(spec.source, Continuing):
        return FollowingRunner(spec, around)
    return SourceRunner(spec, around) if spec.is_source else OperatorRunner(spec, around)


class Supervisor:
    """Keeps all groups of a run alive until they have finished, or until one must not be restarted."""

    def __init__(
        self,
        around: Surroundings,
        policy: Policy | None = None,
        groups: Collection[str] = (),
        asked: threading.Event | None = None,
    ) -> None:
        self._around = around
        #: Set by whoever wants the run to end after the turns in flight.
        self._asked = asked or threading.Event()
        self._policy = policy or Policy()
        #: The groups to keep alive: those that are named, or all.
        self._groups = {name: own for name, own in around.graph.groups.items() if not groups or name in groups}
        self._stop = around.stop
        self._fatal: BaseException | None = None
        self._lock = threading.Lock()
        self._held_before = False
        for group, operators in self._groups.items():
            for name in operators:
                around.progress.add(name, group)

    def run(self) -> None:
        """Run all groups to their end; raises what stopped the run, if anything did."""
        threads = [
            threading.Thread(target=self._keep_alive, args=(group, operators), name=f"group-{group}", daemon=True)
            for group, operators in self._groups.items()
        ]
        collector = self._start_collector()
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
                    self._stop_when_held()
                    if self._asked.is_set():
                        self.stop()
        except BaseException:
            self.stop()
            for thread in threads:
                thread.join()
            raise
        finally:
            self._stop.set()
            if collector is not None:
                collector.join()
        if self._fatal is not None:
            raise self._fatal

    def _stop_when_held(self) -> None:
        """End the run when all that is left waits for somebody to decide on what was set aside."""
        if len(self._groups) < len(self._around.graph.groups):
            # What others may still send is for their supervisor to know.
            return
        rows = self._around.progress.rows()
        held = all_held(self._around.graph, {name: row.phase for name, row in rows.items()}) and not self._waits()
        # Twice, because an operator may be between two phases.
        if held and self._held_before:
            self.stop()
        self._held_before = held

    def _waits(self) -> bool:
        channels = self._around.channels
        receivers = [
            Port(name, port)
            for operators in self._groups.values()
            for name in operators
            for port in self._around.graph.operators[name].inputs
        ]
        return any(channels.backlog(receiver).events for receiver in receivers)

    def stop(self) -> None:
        """Let every group end after its current turn."""
        self._stop.set()
        for operators in self._groups.values():
            for name in operators:
                self._around.channels.wake(name)

    def _keep_alive(self, group: str, operators: tuple[str, ...]) -> None:
        failures = 0
        while not self._stop.is_set():
            before = self._turns(operators)
            try:
                self._work(operators)
                return
            except Stopped:
                return
            except BaseException as error:
                failures = 1 if self._turns(operators) > before else failures + 1
                if not self._may_restart(group, operators, error, failures):
                    self.stop()
                    return
                self._stop.wait(self._policy.delay(failures))
                trace.record("restarted", group)

    def _may_restart(self, group: str, operators: tuple[str, ...], error: BaseException, failures: int) -> bool:
        """Decide whether the group is restarted; if not, remember what stops the run."""
        rows = self._around.progress.rows()
        final = isinstance(error, ClewError) and not isinstance(error, EngineLost)
        if not final and failures >= self._policy.give_up_after:
            error, final = RunStopped(group, failures, f"{type(error).__name__}: {error}"), True
        for name in operators:
            figures = {"phase": "failed"} if final else {"phase": "restarting", "restarts": rows[name].restarts + 1}
            self._around.progress.set(name, last_error=f"{type(error).__name__}: {error}", **figures)
        trace.record("failed", group, error=f"{type(error).__name__}: {error}", final=final)
        _tell_failure(group, error, failures, final)
        if final:
            with self._lock:
                self._fatal = self._fatal or error
        return not final

    def _turns(self, operators: tuple[str, ...]) -> int:
        rows = self._around.progress.rows()
        return sum(rows[name].turns for name in operators)

    def _work(self, operators: tuple[str, ...]) -> None:
        """Recover the group's operators, then let them take turns until all have finished."""
        waker = self._around.channels.share_waker(operators)
        runners = [make_runner(self._around.graph.operators[name], self._around) for name in operators]
        for runner in runners:
            self._check()
            runner.recover()
        while True:
            # Cleared before looking, so that what comes while we look is not missed.
            waker.clear()
            if not self._round(runners):
                if all(runner.finished for runner in runners):
                    break
                waits = [wait for runner in runners if (wait := runner.patience()) is not None]
                # Not at once: who is blocked has time on its hands too.
                if not waker.wait(max(0.01, min([self._policy.poll, *waits]))):
                    self._around.channels.news(operators)
        for name in operators:
            self._around.progress.set(name, phase="finished")

    def _round(self, runners: Sequence[Runner]) -> bool:
        """Give every operator of the group one turn; say whether any of them worked."""
        worked = False
        for runner in runners:
            self._check()
            outcome = runner.step()
            worked |= outcome == "worked"
            if outcome in ("idle", "blocked", "held"):
                phase = {"idle": "waiting", "blocked": "blocked", "held": "held"}[outcome]
                self._around.progress.set(runner.spec.name, phase=phase)
        return worked

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped

    def _start_collector(self) -> threading.Thread | None:
        every = self._policy.collect_every
        if every is None:
            return None
        thread = threading.Thread(target=_collect_often, args=(self._around, every, self._stop), name="collector")
        thread.start()
        return thread


def all_held(graph: Graph, phases: Mapping[str, str]) -> bool:
    """Say whether all that is left of a run waits for a decision; what a source may still send is something else."""
    seen = set(phases.values())
    sources = {phases.get(name) for name, spec in graph.operators.items() if spec.is_source}
    return "held" in seen and seen <= {"held", "finished", "waiting"} and sources <= {"held", "finished"}


def _tell_failure(group: str, error: BaseException, failures: int, final: bool) -> None:
    told = {"group": group, "error": f"{type(error).__name__}: {error}", "failures": failures}
    if final:
        _LOG.error("group failed", extra=told)
    else:
        # Where it came from is in the log alone: on a terminal one line must do.
        _LOG.warning("group restarts", extra=told, exc_info=error)


def _collect_often(around: Surroundings, every: float, stop: threading.Event) -> None:
    """Collect beside the run; what goes wrong here is the run's next commit's to report."""
    while not stop.wait(every):
        try:
            collected = collect(around.store, around.bodies, around.keep())
            level = logging.INFO if collected.events or collected.files else logging.DEBUG
            _LOG.log(level, "collected", extra={"events": collected.events, "files": len(collected.files)})
        except ClewError:
            return
