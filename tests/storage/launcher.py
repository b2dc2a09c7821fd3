"""Runs `clew run` in processes of their own, whose system calls can be traced, failed, or made deadly.

A process that has imported everything waits for jobs and forks one child per job, so that what is traced is the run
and not Python's imports, and a case costs a fraction of a second. strace counts the calls of each thread apart, so a
job names the thread that it is about: that thread waits, as soon as it begins, until its tracer is there. It says so
over a socket, because those are calls that nobody counts. `python launcher.py` is the waiting process.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60

#: The threads of a run whose operators are in one group: who opens and closes the log, who works, who writes the log.
MAIN, GROUP, LOG = "main", "group", "log"


@dataclass(frozen=True)
class Job:
    """One run of a pipeline."""

    pipeline: str
    log: str
    bodies: str
    #: Where what it says on stderr goes.
    said: str
    env: dict[str, str]
    #: Bodies from this size on go to files.
    inline_limit: int
    #: After how many pages SQLite copies the log's write-ahead log into its file.
    checkpoint_pages: int
    #: The thread that waits for its tracer.
    watched: str = ""
    #: Failure points of libfiu to enable; the launcher must have been started with it.
    failing: tuple[str, ...] = ()
    #: A bug to plant into it.
    planted: str = ""


@dataclass(frozen=True)
class Ending:
    """How a process ended, what it said on stderr, and which of its threads was which."""

    status: int
    said: str
    threads: dict[int, str]

    @property
    def killed(self) -> bool:
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL

    @property
    def code(self) -> int:
        return os.waitstatus_to_exitcode(self.status)

    @property
    def explained(self) -> bool:
        """Whether it failed with an error that says what is wrong, and not with one that takes it for another."""
        unforeseen = ("did not expect", "Traceback", "mend the function", "mend its declaration, or what")
        return self.code == 1 and "error: " in self.said and not any(sign in self.said for sign in unforeseen)


class Launcher:
    """A process that forks one child per job."""

    def __init__(self, *prefix: str) -> None:
        # Without threads of libraries: one that holds a lock while a child is forked holds it there for ever.
        alone = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
        self._process = subprocess.Popen(
            [*prefix, sys.executable, __file__],
            cwd=ROOT,
            env={**os.environ, **alone, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, job: Job, attach: Callable[[int], Any] = lambda thread: None) -> Ending:
        """Run a job to its end; `attach` is called with the watched thread while that waits."""
        answer = self._ask(json.dumps(asdict(job)))
        if "watched" in answer:
            attach(answer["watched"])
            answer = self._ask("go")
        elif job.watched:
            raise AssertionError(f"there was no thread {job.watched}: {answer}")
        return Ending(answer["status"], answer["said"], {int(tid): role for tid, role in answer["threads"].items()})

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)


def _serve() -> None:
    # Imported here once, for all children; some of it only a run would import, and that takes longer than the run.
    for module in (
        "clew.app.main",
        "clew.connectors",
        "clew.store.sqlite",
        "pandas",
        "pyarrow.acero",
        "typer._adapters",
    ):
        with suppress(ImportError):
            importlib.import_module(module)
    # Children share what is here as it is, instead of copying it page by page when they collect.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        job = Job(**json.loads(line))
        said = Path(job.said)
        ours, its = socket.socketpair()
        child = os.fork()
        if child == 0:
            ours.close()
            _child(job, its, said)
        its.close()
        threads = _listen(ours, job.watched)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"status": status, "said": said.read_text(), "threads": threads}), flush=True)


def _listen(child: socket.socket, watched: str) -> dict[int, str]:
    """Learn the child's threads as they begin; returns them when it has ended."""
    threads = {}
    with child, child.makefile() as lines:
        for line in lines:
            tid, role = line.split()
            threads[int(tid)] = role
            if role == watched:
                print(json.dumps({"watched": int(tid)}), flush=True)
                sys.stdin.readline()
                child.send(b".")
    return threads


def _child(job: Job, parent: socket.socket, said: Path) -> None:
    signal.alarm(PATIENCE)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.environ.update(job.env)
    _let_anyone_trace()
    _shrink(job)
    if job.planted:
        from tests.storage.planted import BUGS

        BUGS[job.planted]()
    _announce_threads(job.watched, parent)
    _enable(job.failing)
    os._exit(_run(job))


def _run(job: Job) -> int:
    from clew.app.main import app

    try:
        # A lease is renewed when time has passed, and the calls that are counted must be the same in every run.
        own = ["--log", job.log, "--bodies", job.bodies, "--set", "lease=60"]
        app(["run", job.pipeline, "--engine", "inline", *own])
    except SystemExit as exit:
        return int(exit.code or 0)
    return 0


def _let_anyone_trace() -> None:
    """On some machines only an ancestor may trace a process, if that does not agree to more (prctl(2))."""
    set_ptracer, anyone = 0x59616D61, -1
    # It fails where there is no such rule.
    ctypes.CDLL(None).prctl(set_ptracer, ctypes.c_long(anyone), 0, 0, 0)


def _shrink(job: Job) -> None:
    """Let a small run do what only large ones do: put bodies into files, and copy the write-ahead log on its way."""
    from clew.runtime import bodies
    from clew.store import sqlite, sqlite_writer

    bodies.INLINE_LIMIT = job.inline_limit
    sqlite.CHECKPOINT_PAGES = job.checkpoint_pages  # type: ignore[attr-defined]
    sqlite_writer.CHECKPOINT_PAGES = job.checkpoint_pages


def _announce_threads(watched: str, parent: socket.socket) -> None:
    """Let each thread say who it is when it begins, and the watched one wait for an answer."""
    begun: Counter[str] = Counter()

    def announce(role: str) -> None:
        begun[role] += 1
        # To tell how far a log has come it is opened too.
        role = f"{role}-{begun[role]}" if begun[role] > 1 else role
        parent.send(f"{threading.get_native_id()} {role}\n".encode())
        if role == watched:
            parent.recv(1)

    run = threading.Thread.run

    def announced(thread: threading.Thread) -> None:
        announce(_role(thread.name))
        run(thread)

    threading.Thread.run = announced  # type: ignore[assignment,method-assign]
    announce(MAIN)


def _role(name: str) -> str:
    for prefix, role in (("group-", GROUP), ("clew-log", LOG)):
        if name.startswith(prefix):
            return role
    return name.split()[0]


def _enable(points: tuple[str, ...]) -> None:
    if points:
        fiu = ctypes.CDLL("libfiu.so.0")
        for point in points:
            assert fiu.fiu_enable(point.encode(), 1, None, 0) == 0, point


if __name__ == "__main__":
    _serve()
