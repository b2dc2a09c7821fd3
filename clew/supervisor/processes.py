"""Groups as processes of one machine: each is started, watched and started again; the others do not notice.

The supervisor holds nothing that a run needs. It can be killed at any time: groups go on without it, and the next one
finds them by their leases. A spare process, which has imported and loaded everything, takes the place of one that dies.
"""

import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from clew import trace
from clew.errors import ClewError, EngineLost, GroupFailed, RunStopped, SetupFailed, StoreUnreachable
from clew.pipeline.graph import Graph
from clew.runtime.progress import OperatorProgress, Progress
from clew.store.base import KeptStore, ProcessRow, group_role
from clew.supervisor.address import is_good
from clew.supervisor.tenure import is_here, is_running, lives
from clew.supervisor.threads import Policy, all_held

_LOG = logging.getLogger(__name__)
#: Seconds between two looks at processes, and between two looks into the log.
_LOOK = 0.05
_READ = 0.5
#: Seconds that processes may take to end when they are told to, before they are killed.
_GRACE = 60.0
#: What a group's process finds in its environment: Arrow's own pool would keep 4 MB of it, and it computes nothing.
_LIGHT = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
#: How a group's process ends when starting it again would not help.
FAILED_FOR_GOOD = 1


@dataclass(frozen=True)
class Commands:
    """How processes of a run are started."""

    #: A group by its name, and the one that is known to be dead; the name None is the spare, which is told by a line.
    group: Callable[[str | None, str | None], Sequence[str]]
    #: The engine service; None where groups compute by themselves.
    engine: Sequence[str] | None
    #: The directory of their output.
    directory: Path


@dataclass
class _Group:
    """A group, and the process that runs it, if it is known: a child of this one or one that was there before."""

    name: str
    attempts: "_Attempts"
    child: "subprocess.Popen[bytes] | None" = None
    row: ProcessRow | None = None
    ended: bool = False
    #: Children that are frozen or lost their role: they end when they find out.
    left: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def role(self) -> str:
        return group_role(self.name)


class Door(Protocol):
    """The log, which can be opened again when its server was away."""

    store: KeptStore

    def reopen(self) -> None:
        """Wait for the server, and open the log again; raises StoreUnreachable when that takes too long."""


class ProcessSupervisor:
    """Keeps the processes of all groups alive until they have finished, or until one must not be started again."""

    def __init__(
        self,
        graph: Graph,
        door: Door,
        commands: Commands,
        policy: Policy,
        progress: Progress,
        lease: float,
        stop: threading.Event | None = None,
        finished: Callable[[Sequence[str]], bool] = lambda operators: False,
    ) -> None:
        #: Says of some operators whether the log has all that they were to do.
        self._finished = finished
        self._graph, self._door, self._commands, self._lease = graph, door, commands, lease
        #: Until when silence is forgiven: while the log was away, nobody could be heard.
        self._forgiven = 0.0
        self._policy, self._progress = policy, progress
        self._groups = [_Group(name, _Attempts(policy)) for name in graph.groups]
        self._engine = _Engine(commands, policy) if commands.engine is not None else None
        self._spare: subprocess.Popen[bytes] | None = None
        self._stop = stop or threading.Event()
        self._read_at = 0.0
        self._held_before = False
        #: Whether another process supervises the run, so that nothing of it is this one's to end.
        self.lost = False
        self._spares = _Attempts(policy)
        #: What the last process of a group that died had to say, or how it ended.
        self._deaths: dict[str, str] = {}
        for spec in graph.operators.values():
            progress.add(spec.name, spec.group)

    def run(self) -> None:
        """Watch all groups until they have ended; raises what stopped the run, if anything did."""
        self._commands.directory.mkdir(parents=True, exist_ok=True)
        try:
            while not self._stop.is_set() and not all(group.ended for group in self._groups):
                try:
                    self._look()
                except StoreUnreachable:
                    # Groups wait for it, as this does; nothing of them need be known meanwhile.
                    self._reopen()
                self._stop.wait(_LOOK)
        finally:
            if self.lost:
                self._leave()
            else:
                self._end()

    def _reopen(self) -> None:
        try:
            self._door.reopen()
            self._forgiven = time.monotonic() + self._lease
        except StoreUnreachable:
            if not self._stop.is_set():
                raise

    def stop(self) -> None:
        """Let every group end after its turn."""
        self._stop.set()

    def lose(self) -> None:
        """Leave everything to the process that supervises the run now."""
        self.lost = True
        self._stop.set()

    def report(self) -> Mapping[str, Any]:
        """Return what others may know of processes that cannot say it any more."""
        return {"deaths": dict(self._deaths)}

    def _look(self) -> None:
        if self._engine is not None:
            self._engine.look()
        news = self._read()
        for group in self._groups:
            if not group.ended:
                self._watch(group)
        self._keep_spare()
        if news:
            self._stop_when_held()

    def _read(self) -> bool:
        """Read who is there and what they say, not at every look; says whether it did."""
        if time.monotonic() < self._read_at:
            return False
        self._read_at = time.monotonic() + _READ
        rows = {row.role: row for row in self._door.store.processes()}
        for group in self._groups:
            group.row = rows.get(group.role)
            # What a process said that has ended is not how things are.
            if group.row is not None and (lives(group.row) or group.ended):
                self._show(group.row)
        return True

    def _show(self, row: ProcessRow) -> None:
        for name, figures in row.report.get("operators", {}).items():
            if name in self._graph.operators:
                own = OperatorProgress(**figures)
                self._progress.put(own._replace(restarts=own.restarts + row.starts - 1))

    def _watch(self, group: _Group) -> None:
        group.left = [child for child in group.left if child.poll() is None]
        if group.child is not None:
            self._watch_child(group, group.child)
        elif group.row is not None and (lives(group.row) or self._is_forgiven(group.row)):
            return  # Somebody else has started it, and it works.
        elif self._finished(self._graph.groups[group.name]):
            # Before this one began, under another supervisor or none.
            group.ended = True
        elif group.attempts.due:
            self._start(group)

    def _watch_child(self, group: _Group, child: "subprocess.Popen[bytes]") -> None:
        code = child.poll()
        row = group.row if group.row is not None and group.row.holder.pid == child.pid else None
        if code is None:
            if row is not None and row.left < 0 and not row.given_up and not self._is_forgiven(row):
                _LOG.warning("group is silent, and another process takes its place", extra={"group": group.name})
                self._deaths[group.name] = f"process {child.pid} was silent for longer than its lease"
                group.left.append(child)
                group.child = None
            return
        group.child = None
        self._read_at = 0.0
        self._read()
        if code == 0:
            self._ended(group)
            return
        said = group.row.report if group.row is not None and group.row.holder.pid == child.pid else {}
        if code == FAILED_FOR_GOOD:
            raise GroupFailed(group.name, said.get("error") or _last_line(self._output(group.name)))
        self._died(group, code, said)

    def _ended(self, group: _Group) -> None:
        """See what a process means that ended by itself: its group has finished, or it was told to stop."""
        if (
            self._finished(self._graph.groups[group.name])
            or self._stop.is_set()
            or (group.row is not None and group.row.asked)
        ):
            group.ended = True
            if group.row is not None:
                self._show(group.row)
        else:
            # Somebody has ended this one alone; as long as the run goes on, it is missed.
            _LOG.warning("group was ended, and is started again", extra={"group": group.name})
            group.attempts.wait(self._policy.first_delay)

    def _is_forgiven(self, row: ProcessRow) -> bool:
        """Say whether who was not heard of may still be there, because nobody could be heard."""
        elsewhere = row.holder.host != socket.gethostname()
        return time.monotonic() < self._forgiven and (elsewhere or is_running(row.holder.pid))

    def _died(self, group: _Group, code: int, said: Mapping[str, Any]) -> None:
        if any(figures.get("turns") for figures in said.get("operators", {}).values()):
            group.attempts.succeeded()
        failures = group.attempts.failed()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        what = said.get("error") or f"its process ended by {how}; what it printed is in {self._output(group.name)}"
        self._deaths[group.name] = what
        trace.record("failed", group.name, error=what, final=False)
        _LOG.warning("group restarts", extra={"group": group.name, "error": what, "failures": failures})
        if failures >= self._policy.give_up_after:
            raise RunStopped(group.name, failures, what)
        for name in self._graph.groups[group.name]:
            self._progress.set(name, phase="restarting", last_error=what)
        if group.attempts.due:
            self._start(group)

    def _start(self, group: _Group) -> None:
        """Start a process for the group: the spare, if it is ready."""
        dead = group.row.holder.name if group.row is not None and not lives(group.row) else None
        spare, self._spare = self._spare, None
        if spare is not None and spare.poll() is None and _assign(spare, group.name, dead):
            self._spares.succeeded()
            group.child = spare
        else:
            group.child = _spawn(self._commands.group(group.name, dead), self._output(group.name), _LIGHT)
        group.row = None
        trace.record("restarted", group.name)

    def _keep_spare(self) -> None:
        """Have a process ready, once all groups have one; it must not hold up those that work."""
        if self._spare is not None and self._spare.poll() is None:
            return
        if self._spare is not None:
            # One that cannot start would be started again all the time.
            self._spare = None
            self._spares.failed()
        if self._spares.due and all(
            group.ended or group.child is not None or group.row is not None for group in self._groups
        ):
            command = self._commands.group(None, None)
            self._spare = _spawn(command, self._output("spare"), _LIGHT, stdin=subprocess.PIPE)

    def _output(self, name: str) -> Path:
        return self._commands.directory / f"{name}.log"

    def _stop_when_held(self) -> None:
        """End the run when all that is left waits for somebody to decide on what was set aside."""
        # Who is not there yet, or has said nothing, may have something to do.
        told = [group.row for group in self._groups if not group.ended]
        held = all(row is not None and lives(row) and row.report.get("operators") for row in told)
        held = held and all_held(self._graph, {name: row.phase for name, row in self._progress.rows().items()})
        held = held and not any(self._door.store.backlog(link.receiver).events for link in self._graph.links)
        if held and self._held_before:
            self.stop()
        self._held_before = held

    def _leave(self) -> None:
        """End what is nobody else's: the spare."""
        if self._spare is not None:
            _signal(self._spare.pid, signal.SIGTERM)
            _wait([self._spare])

    def _end(self) -> None:
        """Let all processes that this machine has of the run end, and those elsewhere."""
        with suppress(ClewError):
            if not all(group.ended for group in self._groups):
                self._door.store.ask_processes("stop")
        children = [child for group in self._groups for child in (group.child, *group.left) if child is not None]
        # A spare that is not ready yet does not read that it is wanted no more.
        children += [] if self._spare is None else [self._spare]
        for child in children:
            _signal(child.pid, signal.SIGTERM)
        for group in self._groups:
            if group.child is None and group.row is not None and is_here(group.row):
                _signal(group.row.holder.pid, signal.SIGTERM)
        _wait(children)
        self._await_others()
        for group in self._groups:
            # What they said last is how it ended.
            group.ended = True
        with suppress(ClewError):
            self._read_at = 0.0
            self._read()
        if self._engine is not None:
            self._engine.end()

    def _await_others(self) -> None:
        """Wait for groups that are no children of this process."""
        until = time.monotonic() + _GRACE
        with suppress(ClewError):
            roles = {group.role for group in self._groups}
            while time.monotonic() < until and any(
                row.role in roles and lives(row) for row in self._door.store.processes()
            ):
                time.sleep(_LOOK)


class _Attempts:
    """How often in a row something failed, and when it may be started again: after the first time at once."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._failures = 0
        self._due = 0.0

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._due

    def failed(self) -> int:
        """Count a failure; returns how many there were in a row."""
        self._failures += 1
        if self._failures > 1:
            # What has just worked will very likely work again; what has not needs time.
            self.wait(self._policy.delay(self._failures - 1))
        return self._failures

    def succeeded(self) -> None:
        self._failures, self._due = 0, 0.0

    def wait(self, seconds: float) -> None:
        """Let it not be started for so long."""
        self._due = time.monotonic() + seconds


class _Engine:
    """The process of the engine service: started when it is not there, and again when it dies."""

    def __init__(self, commands: Commands, policy: Policy) -> None:
        assert commands.engine is not None
        self._command = commands.engine
        self._output = commands.directory / "engine.log"
        self._address = commands.directory / "engine.address"
        self._policy = policy
        self._child: subprocess.Popen[bytes] | None = None
        self._attempts = _Attempts(policy)

    def look(self) -> None:
        if self._child is None:
            # One that an earlier supervisor has started serves this one too.
            if is_good(self._address) or not self._attempts.due:
                return
            self._address.unlink(missing_ok=True)
            self._child = _spawn(self._command, self._output)
            return
        code = self._child.poll()
        if code is None:
            if self._address.exists():
                self._attempts.succeeded()
            return
        served = self._address.exists()
        self._child = None
        failures = self._attempts.failed()
        what = f"the engine service ended by {f'signal {-code}' if code < 0 else f'exit code {code}'}"
        _LOG.warning("engine restarts", extra={"error": what, "failures": failures})
        if code > 0 and not served:
            raise SetupFailed(_last_line(self._output), f"all that the engine service printed is in {self._output}")
        if failures >= self._policy.give_up_after:
            raise EngineLost(f"{what}, {failures} times in a row; what it printed is in {self._output}")

    def end(self) -> None:
        """End the service; one that an earlier supervisor has started ends by itself, when nobody calls any more."""
        if self._child is not None:
            _signal(self._child.pid, signal.SIGTERM)
            _wait([self._child])


def _spawn(
    command: Sequence[str], output: Path, unless_set: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
) -> "subprocess.Popen[bytes]":
    # In a session of its own: what a terminal sends to this process is not for it, nor does it end with this one.
    with open(output, "ab") as file:
        own: dict[str, Any] = {"start_new_session": True, "env": {**(unless_set or {}), **os.environ}}
        return subprocess.Popen(command, stdin=stdin, stdout=file, stderr=file, **own)


def _assign(spare: "subprocess.Popen[bytes]", group: str, dead: str | None) -> bool:
    """Tell the spare which group it is; False where it cannot be told any more."""
    assert spare.stdin is not None
    try:
        spare.stdin.write(json.dumps({"group": group, "dead": dead}).encode() + b"\n")
        spare.stdin.close()
    except OSError:
        return False
    return True


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _wait(children: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Wait until they have ended; those that do not are killed."""
    until = time.monotonic() + _GRACE
    for child in children:
        try:
            child.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _last_line(file: Path) -> str:
    """Return the last line that a process printed, which is what it says of its end."""
    with suppress(OSError):
        lines = [line.strip() for line in file.read_text(errors="replace").splitlines() if line.strip()]
        if lines:
            return lines[-1].removeprefix("error: ")
    return f"it printed nothing to {file}"


@contextmanager
def stopped_by(numbers: Sequence[int], stop: Callable[[], None]) -> Iterator[None]:
    """Let signals stop something, for as long as the block lasts; only in a main thread, which alone hears them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["FAILED_FOR_GOOD", "Commands", "ProcessSupervisor", "stopped_by"]
