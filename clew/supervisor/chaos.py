"""Runs a pipeline's command under faults until it has finished: starts it, strikes it, and starts it again.

The run is a process of its own, with a session of its own, so that a signal reaches all of it and nothing else. What
happens in it is known from outside only: from the trace that it writes, from the file in which crash points leave a
mark, and from its exit code. A fault counts as fired when it was seen to happen, never because it was scheduled.
"""

import ctypes
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clew.supervisor.schedule import ChaosFault

#: Exit codes of `clew run`: it has finished, now or before.
_FINISHED = (0, 3)
#: Its exit code when everything is done but for what is in quarantine.
_HELD = 5
#: Seconds between two looks at the run.
_LOOK = 0.005
#: How many more starts than faults there may be.
_SPARE_STARTS = 5
_WORKER = re.compile(r"-m\0(clew\.spark|pyspark)\.daemon\0")

Tell = Callable[[str], None]


@dataclass(frozen=True)
class ChaosPlace:
    """The directory of a chaos run, and what lies in it."""

    directory: Path

    @property
    def trace(self) -> Path:
        return self.directory / "trace.jsonl"

    @property
    def output(self) -> Path:
        """What the run has printed, all its starts one after the other."""
        return self.directory / "output.txt"

    @property
    def fired(self) -> Path:
        return self.directory / "fired.txt"


@dataclass(frozen=True)
class ChaosOutcome:
    """What became of a run under faults."""

    faults: tuple[ChaosFault, ...]
    #: For each fault, whether it was seen to happen.
    fired: tuple[bool, ...]
    starts: int
    #: Why the run has not finished; empty when it has.
    failure: str = ""
    #: How much was in quarantine when all else was done, and was dropped.
    dropped: int = 0


class Chaos:
    """One run of a command under faults."""

    def __init__(
        self,
        command: Sequence[str],
        place: ChaosPlace,
        faults: Sequence[ChaosFault],
        outage: Callable[[], AbstractContextManager[bool]],
        drop: Callable[[], int],
        tell: Tell,
    ) -> None:
        self._command = list(command)
        self._place = place
        self._faults = tuple(faults)
        self._outage = outage
        #: Drops all that is in quarantine, and says how much that was.
        self._drop = drop
        self._dropped = 0
        self._tell = tell
        self._fired: set[int] = set()
        self._commits = _Commits(place.trace)
        self._starts = 0
        #: How many commits there were when the process that runs now was started.
        self._before = 0

    def run(self) -> ChaosOutcome:
        """Start the command again and again until it has finished, or cannot."""
        with _interruptible():
            return self._run()

    def _run(self) -> ChaosOutcome:
        failure = ""
        while not failure:
            before = len(self._fired)
            said_before = _size(self._place.output)
            code = self._run_once()
            if code in _FINISHED:
                break
            if code == _HELD and self._settle():
                continue
            message = _last_error(self._place.output, said_before) or f"it ended with {code}"
            if len(self._fired) == before:
                # Nothing struck this process, so the same would happen to the next.
                failure = message
            elif self._starts > len(self._faults) + _SPARE_STARTS:
                failure = f"it was started {self._starts} times and has not finished; the last time: {message}"
            elif code != -signal.SIGKILL:
                self._tell(f"the run has stopped: {message.splitlines()[0]}")
        fired = tuple(index in self._fired for index in range(len(self._faults)))
        return ChaosOutcome(self._faults, fired, self._starts, failure, self._dropped)

    def _settle(self) -> bool:
        """Drop what the run waits for, so that it can end; say whether there was anything."""
        dropped = self._drop()
        self._dropped += dropped
        if dropped:
            self._tell(f"all is done but for what is in quarantine: {dropped} dropped, so that the run can end")
        return dropped > 0

    def _run_once(self) -> int:
        """Run one process to its end, whichever that is, and return its exit code."""
        self._starts += 1
        self._before = self._commits.count()
        process = self._start()
        try:
            self._tell(f"the run is started{' again' if self._starts > 1 else ''} (process {process.pid})")
            while process.poll() is None:
                self._look(process)
                time.sleep(_LOOK)
            self._see_marks()
            return process.wait()
        finally:
            if process.poll() is None:
                # It must not outlive a command that was interrupted; this ends a frozen one, too.
                _signal(process, signal.SIGKILL)
                process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        with open(self._place.output, "ab") as output:
            return subprocess.Popen(
                self._command, env=self._environment(), start_new_session=True, preexec_fn=_dying_with(os.getpid()),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def _environment(self) -> dict[str, str]:
        """Arm the faults at crash points that have not fired; in a process started again, for the next time."""
        armed = [
            fault.armed(fault.nth if self._starts == 1 else 1)
            for index, fault in enumerate(self._faults)
            if fault.point and index not in self._fired
        ]
        inherited = {key: value for key, value in os.environ.items() if key != "CLEW_FAULTS"}
        marks = {"CLEW_FAULTS_FIRED": str(self._place.fired.resolve())}
        return {**inherited, **marks, **({"CLEW_FAULTS": ",".join(armed)} if armed else {})}

    def _look(self, process: "subprocess.Popen[bytes]") -> None:
        self._see_marks()
        commits = self._commits.count()
        if commits == self._before:
            # It has yet to begin; to strike it now would be to strike Python's imports.
            return
        for index, fault in enumerate(self._faults):
            due = not fault.point and index not in self._fired and commits >= fault.after
            if due and process.poll() is None and self._strike(fault, process):
                self._fired.add(index)
                self._tell(f"{_told(fault)} after {commits} commits")

    def _see_marks(self) -> None:
        """Learn which crash points have fired since: a place is drawn once, so its name is enough."""
        if not self._place.fired.exists():
            return
        marks = set(self._place.fired.read_text(encoding="utf-8").split())
        for index, fault in enumerate(self._faults):
            if index not in self._fired and fault.point and f"{fault.point}@{fault.operator}" in marks:
                self._fired.add(index)
                self._tell(f"{_told(fault)} {fault.operator} at {fault.point}")

    def _strike(self, fault: ChaosFault, process: "subprocess.Popen[bytes]") -> bool:
        """Let the fault happen now; say whether it did."""
        if fault.kind == "process":
            _signal(process, signal.SIGKILL)
            return process.wait() == -signal.SIGKILL
        if fault.kind == "worker":
            return _kill_worker(process.pid)
        if fault.kind == "freeze":
            _signal(process, signal.SIGSTOP)
            stopped = process.poll() is None
            time.sleep(fault.seconds)
            _signal(process, signal.SIGCONT)
            return stopped
        with self._outage() as struck:
            struck = struck and process.poll() is None
            until = time.monotonic() + fault.seconds
            while process.poll() is None and time.monotonic() < until:
                time.sleep(_LOOK)
        return struck


_WORDS = {
    "group": "raised in", "slow-store": "a commit slowed down in", "process": "killed the run",
    "worker": "killed a Python worker", "freeze": "froze the run", "store-down": "took its log away from the run",
}  # fmt: skip


def _told(fault: ChaosFault) -> str:
    lasted = f" for {fault.seconds:g} s" if fault.kind in ("freeze", "store-down") else ""
    return f"{fault.kind}: {_WORDS[fault.kind]}{lasted}"


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, so that the run is ended with the command that strikes it."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread hears signals.
        yield
        return
    # Who started it may have said that it shall not hear of one, as nohup does.
    heard = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, signal.default_int_handler) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _dying_with(parent: int) -> Callable[[], None]:
    """Return what a process does at its start to be killed when its parent dies, however that dies (prctl(2))."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    set_death_signal = 1

    def arrange() -> None:
        prctl(set_death_signal, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Signal all processes of the run's session that are in its group: the driver, and its JVM."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


class _Commits:
    """Counts the commits in a trace while it is written."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace
        self._at = 0
        self._commits = 0

    def count(self) -> int:
        with suppress(FileNotFoundError), open(self._trace, "rb") as lines:
            lines.seek(self._at)
            whole = lines.read()
            whole = whole[: whole.rfind(b"\n") + 1]
            self._at += len(whole)
            self._commits += whole.count(b'{"kind":"committed"')
        return self._commits


def _kill_worker(run: int) -> bool:
    """Kill a Python worker of Spark that works for this run, if there is one."""
    for worker in _workers(run):
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
            return True
    return False


def _workers(run: int) -> list[int]:
    """Return the processes that Spark's daemon has forked: they have its command line, and it is their parent."""
    processes = dict(_processes())

    def belongs(process: int) -> bool:
        while process in processes and process != run:
            process = processes[process][0]
        return process == run

    def daemon(process: int) -> bool:
        return process in processes and _WORKER.search(processes[process][1]) is not None

    forked = (one for one, (parent, _) in processes.items() if daemon(one) and daemon(parent))
    return [process for process in forked if belongs(process)]


def _processes() -> list[tuple[int, tuple[int, str]]]:
    """Return (process, (parent, command line)) of all processes of this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # It may have ended by the time that it is looked at.
            with suppress(OSError):
                # Its name stands in parentheses and may hold anything; behind it are the state and the parent.
                parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                found.append((int(entry.name), (parent, (entry / "cmdline").read_text(errors="replace"))))
    return found


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _last_error(output: Path, start: int) -> str:
    """Return what `clew run` complained of last, from its first line to the end of what it said."""
    with open(output, "rb") as said:
        said.seek(start)
        text = said.read().decode(errors="replace").rstrip()
    complaints = list(re.finditer(r"^error: ", text, re.MULTILINE))
    return text[complaints[-1].end() :] if complaints else text.rpartition("\n")[2]
