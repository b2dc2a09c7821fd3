"""Runs pipelines in processes of their own, and lets them be killed, or frozen and woken up again.

A process that has imported everything waits for jobs and forks one child per job, so that a crash costs
milliseconds and not the second that Python's imports take. The child is a real process, and its death is a real
SIGKILL. `python nursery.py` is that waiting process.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PIPELINES = Path(__file__).parent / "pipelines"
#: What counts the error messages of processes that tests start.
CENSUS = ROOT / "tests" / "census"
#: Seconds after which a process that is frozen is replaced.
LEASE = 0.5
PATIENCE = 60
FINAL = 3


@dataclass(frozen=True)
class Job:
    """One run of a pipeline in a process of its own."""

    #: A file of `pipelines/`, or the path of another one, without its ending.
    pipeline: str
    log: str
    bodies: str
    env: dict[str, str]
    faults: tuple[str, ...] = ()
    collect_every: float | None = None
    #: Seconds to wait for a SQLite file that another process holds; None waits as long as Clew does.
    busy: float | None = None
    #: The file that the steps of the run are appended to.
    trace: str | None = None


@dataclass(frozen=True)
class Ending:
    """How a process ended."""

    killed: bool
    code: int
    error: str
    fired: tuple[str, ...] = ()
    #: How often each operator was restarted within the process; empty if it did not come to its end.
    restarts: dict[str, int] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return not self.killed and self.code in (0, FINAL)


@dataclass(frozen=True)
class Child:
    """A process that runs a job."""

    pid: int
    report: str
    nursery: "Nursery"

    def end(self) -> Ending:
        """Wait until it has ended."""
        status = self._status()
        assert not os.WIFSTOPPED(status), f"it froze instead of ending: {self.fired()}"
        said = json.loads(_text(Path(f"{self.report}.said")) or '{"error": "", "restarts": {}}')
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        return Ending(killed, os.waitstatus_to_exitcode(status), said["error"], self.fired(), said["restarts"])

    def freeze(self) -> None:
        """Wait until it has frozen."""
        status = self._status()
        said = _text(Path(f"{self.report}.said"))
        assert os.WIFSTOPPED(status), f"it ended instead of freezing, with status {status}: {self.fired()} {said}"

    def thaw(self) -> Ending:
        """Wake it up, and wait until it has ended."""
        os.kill(self.pid, signal.SIGCONT)
        return self.end()

    def kill(self) -> Ending:
        """Kill it wherever it is, also when it is frozen."""
        os.kill(self.pid, signal.SIGKILL)
        return self.end()

    def fired(self) -> tuple[str, ...]:
        """Return the faults that have fired in it so far."""
        return tuple(_text(Path(f"{self.report}.fired")).split())

    def _status(self) -> int:
        return int(self.nursery.ask({"wait": self.pid})["status"])


class Nursery:
    """A process that forks one child per job."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [CENSUS, ROOT, PIPELINES]))}
        self._process = subprocess.Popen(
            [sys.executable, __file__], cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._children = 0

    def start(self, job: Job) -> Child:
        self._children += 1
        report = f"{job.bodies}.child{self._process.pid}-{self._children}"
        return Child(self.ask({"job": vars(job), "report": report})["pid"], report, self)

    def run(self, job: Job) -> Ending:
        return self.start(job).end()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)


def _serve() -> None:
    # Imported here once, for all children; pyarrow would import pandas in each of them.
    import pandas  # noqa: F401

    import clew.connectors
    import clew.run
    import clew.store.postgres
    import clew.store.sqlite  # noqa: F401

    # Children share what is here as it is, instead of copying it page by page when they collect.
    gc.collect()
    gc.freeze()
    alive: set[int] = set()
    for line in sys.stdin:
        question = json.loads(line)
        if "job" in question:
            answer = {"pid": _fork(Job(**question["job"]), question["report"])}
            alive.add(answer["pid"])
        else:
            pid, status = os.waitpid(question["wait"], os.WUNTRACED)
            answer = {"status": status}
            if not os.WIFSTOPPED(status):
                alive.discard(pid)
        print(json.dumps(answer), flush=True)
    for pid in alive:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _fork(job: Job, report: str) -> int:
    Path(report).parent.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child == 0:
        _child(job, report)
    return child


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _child(job: Job, report: str) -> None:
    from clew.errors import RunFinished

    code, error, restarts = 1, "", {}
    signal.alarm(PATIENCE)
    # What a run prints is not an answer.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        restarts = _run(job, f"{report}.fired")
        code = 0
    except RunFinished:
        code = FINAL
    except BaseException:
        error = traceback.format_exc()
    Path(f"{report}.said").write_text(json.dumps({"error": error, "restarts": restarts}))
    os._exit(code)


def _run(job: Job, fired: str) -> dict[str, int]:
    from clew.errors import AlreadyRunning
    from clew.faultpoint import arm
    from clew.pipeline.load import load
    from clew.run import run
    from clew.supervisor.threads import Policy

    os.environ.update({**job.env, "CLEW_FAULTS_FIRED": fired})
    pipeline: Any = load(str(PIPELINES / f"{job.pipeline}.py"))
    arm(*job.faults)
    if job.busy is not None:
        # By their names: the package of connectors calls a function by that of its module.
        waits: Any = sys.modules["clew.store.sqlite"], sys.modules["clew.connectors.sqlite"]
        waits[0]._PATIENCE = waits[1]._WAIT_SECONDS = job.busy
    if any(fault.endswith(":freeze") for fault in job.faults):
        _freeze_alone()
    policy = Policy(first_delay=0.05, poll=0.2, collect_every=job.collect_every)
    own: dict[str, Any] = {"log": job.log, "bodies": job.bodies, "engine": "inline", "trace": job.trace, "lease": LEASE}
    while True:
        try:
            progress = run(pipeline, policy=policy, **own)
        except AlreadyRunning:
            # One that is frozen has its role until its lease is over.
            time.sleep(LEASE / 10)
        else:
            return {name: row.restarts for name, row in progress.rows().items()}


def _freeze_alone() -> None:
    """Freeze only while no other thread of the process is inside a transaction of SQLite.

    It would hold its lock while it is frozen. That is a case of its own, at the crash points inside transactions, and
    must not come about by chance at the others.
    """
    import threading
    from types import SimpleNamespace

    from clew import faultpoint
    from clew.connectors.sqlite import Sqlite
    from clew.store.sqlite_writer import GroupWriter

    gate = threading.RLock()
    transact, transaction, marker = GroupWriter._transact, Sqlite.transaction, Sqlite.marker

    @contextmanager
    def alone(sink: Any) -> Iterator[Any]:
        with gate, transaction(sink) as opened:
            yield opened

    def held(method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            with gate:
                return method(*arguments)

        return call

    changed: Any = (GroupWriter, Sqlite)
    changed[0]._transact, changed[1].transaction, changed[1].marker = held(transact), alone, held(marker)
    faultpoint.signal = SimpleNamespace(SIGSTOP=signal.SIGSTOP, pthread_kill=held(signal.pthread_kill))


if __name__ == "__main__":
    _serve()
