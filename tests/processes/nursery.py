"""Runs pipelines in processes of their own, and lets them be killed.

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
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PIPELINES = Path(__file__).parent / "pipelines"
PATIENCE = 60
FINAL = 3


@dataclass(frozen=True)
class Job:
    """One run of a pipeline in a process of its own."""

    pipeline: str
    log: str
    bodies: str
    env: dict[str, str]
    faults: tuple[str, ...] = ()
    collect_every: float | None = None


@dataclass(frozen=True)
class Ending:
    """How a process ended."""

    killed: bool
    code: int
    error: str
    fired: tuple[str, ...] = field(default=())

    @property
    def finished(self) -> bool:
        return not self.killed and self.code in (0, FINAL)


class Nursery:
    """A process that forks one child per job."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(PIPELINES)])}
        self._process = subprocess.Popen(
            [sys.executable, __file__], cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, job: Job) -> Ending:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(vars(job)) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        status = answer["status"]
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        code = os.waitstatus_to_exitcode(status)
        return Ending(killed, code, answer["error"], tuple(answer["fired"]))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)


def _serve() -> None:
    # Imported here once, for all children.
    import clew.connectors
    import clew.run
    import clew.store.postgres
    import clew.store.sqlite  # noqa: F401

    # Children share what is here as it is, instead of copying it page by page when they collect.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        job = Job(**json.loads(line))
        out = Path(f"{job.bodies}.ending")
        out.parent.mkdir(parents=True, exist_ok=True)
        fired, error = Path(f"{out}.fired"), Path(f"{out}.error")
        for path in (fired, error):
            path.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            _child(job, fired, error)
        _, status = os.waitpid(child, 0)
        answer = {"status": status, "error": _text(error), "fired": _text(fired).split()}
        print(json.dumps(answer), flush=True)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _child(job: Job, fired: Path, error: Path) -> None:
    from clew.errors import RunFinished

    code = 1
    signal.alarm(PATIENCE)
    # What a run prints is not an answer.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        _run(job, fired)
        code = 0
    except RunFinished:
        code = FINAL
    except BaseException:
        error.write_text(traceback.format_exc())
    os._exit(code)


def _run(job: Job, fired: Path) -> None:
    from clew.faultpoint import arm
    from clew.pipeline.load import load
    from clew.run import run
    from clew.supervisor.threads import Policy

    os.environ.update({**job.env, "CLEW_FAULTS_FIRED": str(fired)})
    pipeline: Any = load(str(PIPELINES / f"{job.pipeline}.py"))
    arm(*job.faults)
    policy = Policy(first_delay=0.05, poll=0.2, collect_every=job.collect_every)
    run(pipeline, log=job.log, bodies=job.bodies, engine="inline", policy=policy)


if __name__ == "__main__":
    _serve()
