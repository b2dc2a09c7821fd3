"""A run whose groups are processes, as a test drives it: how far it may go, who is killed, what is there in the end."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from clew.store.base import SUPERVISOR, ProcessRow, group_role
from clew.store.postgres import PostgresStore
from clew.supervisor.tenure import is_running

PIPELINES = Path(__file__).with_name("pipelines")
PATIENCE = 300.0
T = TypeVar("T")


@dataclass
class Apart:
    """A run of one of the pipelines here, in a directory and on a database of its own."""

    directory: Path
    database: str
    pipeline: str = "diamond"
    events: int = 60
    #: Seconds that an event takes to make.
    pause: float = 0.0
    words: tuple[str, ...] = ("--engine", "inline")
    settings: dict[str, Any] = field(default_factory=dict)
    supervisors: "list[subprocess.Popen[str]]" = field(default_factory=list)

    @property
    def file(self) -> str:
        return str(PIPELINES / f"{self.pipeline}.py")

    @property
    def own(self) -> dict[str, str]:
        """What the pipeline file finds in its environment."""
        gate = str(self.directory / "gate")
        return {"EVENTS": str(self.events), "GATE": gate, "SINK": self.database, "PAUSE": str(self.pause)}

    def clew(self, *words: str) -> "subprocess.Popen[str]":
        """Start a command on this run."""
        command = [sys.executable, "-m", "clew.app.main", *words]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=self.directory, env={**os.environ, **self.own}, text=True, **pipes)

    def call(self, *words: str) -> tuple[int, str]:
        """Wait for a command on this run; return its exit code and what it said."""
        process = self.clew(*words)
        out, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, out

    def start(self) -> "subprocess.Popen[str]":
        """Start or resume the run."""
        if not (self.directory / "gate").exists():
            self.let(0)
        given = [word for name, value in self.settings.items() for word in ("--set", f"{name}={value}")]
        self.supervisors.append(self.clew("run", self.file, *self.log, "--groups", "processes", *self.words, *given))
        return self.supervisors[-1]

    @property
    def log(self) -> list[str]:
        return ["--log", self.database]

    def let(self, events: int) -> None:
        """Let the source go on up to a number of events."""
        partial = self.directory / "gate.partial"
        partial.write_text(str(events))
        partial.rename(self.directory / "gate")

    def processes(self) -> dict[str, ProcessRow]:
        store = PostgresStore(self.database, schema=f"clew_{self.pipeline}", max_connections=2)
        try:
            return {row.role: row for row in store.processes()}
        finally:
            store.close()

    def sent(self, operator: str) -> int:
        """Return how many events an operator has sent, as its log has it."""
        store = PostgresStore(self.database, schema=f"clew_{self.pipeline}", max_connections=2)
        try:
            state = store.state(operator)
            return int(state.context["sent"].get("out", 0)) if state is not None else 0
        finally:
            store.close()

    def working(self, role: str) -> ProcessRow:
        """Wait until a process has a role, and return it."""
        return wait_for(lambda: _alive(self.processes().get(role)), f"nobody has the role {role}")

    def kill(self, role: str, number: int = signal.SIGKILL) -> ProcessRow:
        """Send a signal to who has a role, wherever it is in its work; the others must not notice."""
        row = self.working(role)
        os.kill(row.holder.pid, number)
        return row

    def replaced(self, before: ProcessRow) -> ProcessRow:
        """Wait until another process has the role that one had."""

        def other() -> ProcessRow | None:
            row = _alive(self.processes().get(before.role))
            return row if row is not None and row.holder != before.holder else None

        return wait_for(other, f"nobody has taken the role {before.role} over")

    def end(self) -> str:
        """Let the run go on to its end, and return what its last supervisor said."""
        self.let(self.events)
        out, _ = self.supervisors[-1].communicate(timeout=PATIENCE)
        assert self.supervisors[-1].returncode == 0, out
        return out

    def held(self, query: str = "SELECT n, k, double, triple FROM joined") -> list[tuple[Any, ...]]:
        """Return what a sink's table holds; nothing before the first write, which makes it."""
        with psycopg.connect(self.database) as connection, suppress(psycopg.errors.UndefinedTable):
            return sorted(connection.execute(query.encode()).fetchall())
        return []

    @property
    def expected(self) -> list[tuple[int, ...]]:
        """What the table of the diamond must hold."""
        return [(n, n % 7, 2 * n, 3 * n) for n in range(self.events)]

    def explained(self) -> None:
        """Have the run judged by who shares no code with it."""
        code, out = self.call("verify", self.file, *self.log)
        assert (code, out.splitlines()[-2].split(":")[0]) == (0, "explained"), out

    def engine(self) -> int:
        """Wait for the engine service, and return its process."""

        def served() -> int | None:
            said = self.directory / ".clew" / self.pipeline / "groups" / "engine.log"
            pids = re.findall(r", pid (\d+)$", said.read_text(), re.MULTILINE) if said.exists() else []
            return int(pids[-1]) if pids and is_running(int(pids[-1])) else None

        return wait_for(served, "there is no engine service")

    def workers(self) -> list[int]:
        """Wait for Python workers of the engine service, and return their processes."""
        return wait_for(lambda: [pid for pid in descendants(self.engine()) if is_worker(pid)], "there are no workers")

    def close(self) -> None:
        """End whatever is left."""
        for process in self.supervisors:
            if process.poll() is None:
                process.kill()
                process.wait()
        try:
            rows = self.processes()
        except Exception:
            return
        for row in rows.values():
            if row.left > 0 and is_running(row.holder.pid):
                os.kill(row.holder.pid, signal.SIGKILL)


def _alive(row: ProcessRow | None) -> ProcessRow | None:
    return row if row is not None and row.left > 0 and is_running(row.holder.pid) else None


def wait_for(look: Callable[[], T | None], otherwise: str) -> T:
    """Look until there is something to be seen."""
    until = time.monotonic() + PATIENCE
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < until, otherwise
        time.sleep(0.02)


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    own = [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in _read(task).split()]
    return [*own, *(found for child in own for found in descendants(child))]


def is_worker(pid: int) -> bool:
    """Say whether a process is a Python worker of Spark: a fork of its daemon."""
    parent = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[1:2]
    return all(_runs_daemon(int(one)) for one in (pid, *parent))


def _runs_daemon(pid: int) -> bool:
    # The JVM names it too, among its options.
    return _read(Path(f"/proc/{pid}/cmdline")).split("\0")[1:3] == ["-m", "clew.spark.daemon"]


def _read(path: Path) -> str:
    """Read a file of a process, which may have ended."""
    try:
        return path.read_text()
    except OSError:
        return ""


def groups(run: Apart) -> list[str]:
    return [group_role(name) for name in ("numbers", "left", "right", "joined", "writer")]


def some_moment(chance: random.Random) -> None:
    """Let a moment pass: what is struck next is somewhere in its work."""
    time.sleep(chance.random() * 0.3)


__all__ = ["SUPERVISOR", "Apart", "groups", "some_moment", "wait_for"]
