"""How long a group is away when it is killed, what the others notice of that, and how long an engine service is away.

The groups of bench/pipelines/steady.py are processes on a log in PostgreSQL. One after the other is killed with kill -9
while a spare process is ready; the log itself says when a turn was committed, and by which incarnation.

restart_s          from the kill of a group to its next commit
others_gap_turns   the longest time that a group which was not hit, and had input, took for a commit while another one
                   was away, in units of its own median turn; `usual_gap_turns` is the same of equally long stretches in
                   which nobody was
engine_restart_s   from the kill of the engine service to the next commit of any group that is made with its successor
group_memory_mb    the most memory that any process of a group ever had (VmHWM), and how much of that it shares with no
                   file, and so with no other process (RssAnon): `group_own_memory_mb`
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from figures import median_interval, plot, report
from psycopg import sql

from clew.place import Log
from clew.store.base import ProcessRow, group_of

PIPELINE = Path(__file__).with_name("pipelines") / "steady.py"
NAME = "steady"
#: The operator that a group is named for -> who sends to it.
GROUPS: Mapping[str, str | None] = {"left": "numbers", "numbers": None, "right": "numbers"}
#: Seconds between two looks into the log, and after which something that is waited for does not come any more.
LOOK, PATIENCE = 0.003, 180.0
#: Turns of every group before anything is measured, and after each kill.
WARM = 40
#: Seconds for which a process uses no processor when it waits to be told something.
QUIET = 1.0
T = TypeVar("T")


@dataclass
class Course:
    """The commits of an operator, as the log showed them: when, up to which event, and by which incarnation."""

    times: list[float] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    incarnations: list[int] = field(default_factory=list)

    def see(self, now: float, event: int, incarnation: int) -> None:
        if not self.events or event > self.events[-1]:
            # The time last: who reads beside this goes by it.
            self.incarnations.append(incarnation)
            self.events.append(event)
            self.times.append(now)

    def when(self, event: int) -> float | None:
        """Return when an event was there; None if it is not."""
        at = bisect_left(self.events, event)
        return self.times[at] if at < len(self.times) else None

    def first_of(self, incarnation: int) -> float | None:
        """Return when a later incarnation than this committed for the first time."""
        at = bisect_right(self.incarnations, incarnation)
        return self.times[at] if at < len(self.times) else None

    def next_after(self, moment: float) -> float | None:
        at = bisect_right(self.times, moment)
        return self.times[at] if at < len(self.times) else None


class Watch:
    """Looks into the log all the time, on a connection of its own, and writes down what was committed when."""

    def __init__(self, url: str) -> None:
        self.courses = {name: Course() for name in GROUPS}
        self.failure: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(url,), name="watch", daemon=True)
        self._thread.start()

    def _look(self, url: str) -> None:
        schema = sql.Identifier(f"clew_{NAME}")
        asked = sql.SQL("SELECT name, incarnation, context FROM {0}.latest_state JOIN {0}.operator ON name = operator")
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                while not self._over.wait(LOOK):
                    rows = connection.execute(asked.format(schema), prepare=True).fetchall()
                    now = time.monotonic()
                    for name, incarnation, context in rows:
                        if name in self.courses:
                            self.courses[name].see(now, _event(json.loads(context)), incarnation)
        except BaseException as error:
            self.failure = error

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def gaps(self, name: str, since: float, until: float) -> list[float]:
        """Return the seconds that an operator took for each commit in a stretch of time, and for one under way.

        What it waited for input is not counted.
        """
        own, sender = self.courses[name], GROUPS[name]
        found = []
        for at in range(max(bisect_left(own.times, since), 1), bisect_right(own.times, until) + 1):
            begins: float | None = own.times[at - 1]
            if sender is not None:
                given = self.courses[sender].when(own.events[at - 1] + 1)
                begins = None if given is None else max(given, own.times[at - 1])
            ends = own.times[at] if at < len(own.times) and own.times[at] <= until else until
            if begins is not None and begins < ends:
                found.append(ends - begins)
        return found


def _event(context: Mapping[str, Any]) -> int:
    """Return the last event that an operator took; of a source, the last that it sent."""
    return int(context.get("latest", {}).get("in") or context.get("sent", {}).get("out", 0))


@dataclass
class Kill:
    """A group was killed."""

    group: str
    at: float
    back: float
    #: The longest commit of the others, in their own turns, while it was away and in as long a stretch before.
    gap: float = 0.0
    usual: float = 0.0

    @property
    def seconds(self) -> float:
        return self.back - self.at


class Run:
    """A run of the pipeline, with its groups as processes."""

    def __init__(self, home: Path, url: str, engine: str) -> None:
        self._place = Log.at(url, NAME, str(home / "bodies"))
        self._output = open(home / "run.out", "w")  # noqa: SIM115 (it is the process's, which outlives this call)
        words = ["run", str(PIPELINE), "--log", url, "--bodies", str(home / "bodies"), "--groups", "processes"]
        words += ["--engine", engine, "--fresh", "--yes", *(["--master", "local[4]"] if engine == "spark" else [])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "clew.app.main", *words], cwd=home, stdin=subprocess.DEVNULL, stdout=self._output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._home = home
        self._file = self._place.beside("groups")
        #: Kilobytes that processes of groups have had: VmHWM and RssAnon.
        self.memory: dict[int, tuple[int, int]] = {}
        self.wait_for(lambda: self._place.exists(NAME), "there is no log")
        self._store = self._place.open(NAME)
        self.watch = Watch(self._place.address())

    def wait_for(self, look: Callable[[], T | None], otherwise: str) -> T:
        until = time.monotonic() + PATIENCE
        while True:
            found = look()
            if found:
                return found
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{otherwise}; the run said: {(self._home / 'run.out').read_text()[-2000:]}")
            time.sleep(LOOK)

    def groups(self) -> dict[str, ProcessRow]:
        """Return who runs each group."""
        rows = {group_of(row.role): row for row in self._store.processes() if row.left > 0}
        return {name: row for name, row in rows.items() if name is not None}

    def settle(self) -> None:
        """Wait until every group has worked for a while and said so, and a spare process is ready."""
        marks = {name: len(course.times) + WARM for name, course in self.watch.courses.items()}
        self.wait_for(
            lambda: all(len(self.watch.courses[name].times) >= mark for name, mark in marks.items()), "it does not work"
        )
        self.wait_for(lambda: all(map(_has_worked, self.groups().values())), "groups say nothing of themselves")
        self.wait_for(self._spare_is_ready, "there is no spare")
        for row in self.groups().values():
            self.memory[row.holder.pid] = _memory(row.holder.pid)

    def _spare_is_ready(self) -> bool:
        known = {row.holder.pid for row in self.groups().values()}
        spares = [pid for pid, words in self._children() if "--spare" in words and pid not in known]
        before = [_processor(pid) for pid in spares]
        time.sleep(QUIET)
        return bool(spares) and [_processor(pid) for pid in spares] == before

    def _children(self) -> Iterator[tuple[int, list[str]]]:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_text().split("\0")
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
                if parent == self._process.pid:
                    yield int(entry.name), words

    def kill_group(self, group: str) -> Kill:
        self.settle()
        course, pid = self.watch.courses[group], self.groups()[group].holder.pid
        incarnation = course.incarnations[-1]
        at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        back = self.wait_for(lambda: course.first_of(incarnation), f"{group} does not come back")
        kill = Kill(group, at, back)
        others = [name for name in GROUPS if name != group]
        for name in others:
            turn = self.turn(name, at)
            kill.gap = max([kill.gap, *(gap / turn for gap in self.watch.gaps(name, at, back))])
            kill.usual = max([kill.usual, *(gap / turn for gap in self.watch.gaps(name, 2 * at - back, at))])
        return kill

    def turn(self, name: str, until: float) -> float:
        """Return the median turn of an operator in the last turns before a moment."""
        times = self.watch.courses[name].times
        since = times[max(bisect_right(times, until) - WARM, 0)]
        return statistics.median(self.watch.gaps(name, since, until))

    def kill_engine(self) -> float:
        self.settle()
        (pid,) = (pid for pid, words in self._children() if "engine" in words)
        assert self._file is not None
        address = self._home / self._file / "engine.address"
        before = address.stat().st_mtime_ns
        at = time.monotonic()
        os.kill(pid, signal.SIGKILL)

        def serves() -> float | None:
            try:
                return time.monotonic() if address.stat().st_mtime_ns != before else None
            except FileNotFoundError:
                return None

        # What was computed before the kill may be committed after it; with the next service there is nothing such.
        served = self.wait_for(serves, "no other engine service serves")
        committed = self.wait_for(lambda: self._first_commit(served), "nobody commits with the next engine service")
        return committed - at

    def _first_commit(self, moment: float) -> float | None:
        times = [course.next_after(moment) for course in self.watch.courses.values()]
        return min((one for one in times if one is not None), default=None)

    def close(self) -> None:
        """End the run, and remove what it left on the server."""
        self.watch.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._store.close()
        self._place.remove(NAME)
        self._output.close()


def _has_worked(row: ProcessRow) -> bool:
    return any(figures["turns"] for figures in row.report.get("operators", {}).values())


def _memory(pid: int) -> tuple[int, int]:
    """Return the most memory that a process has had, and what is its own alone, in kilobytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if value.strip()}
    return int(found["VmHWM"]), int(found["RssAnon"])


def _processor(pid: int) -> int:
    """Return the ticks of the processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@contextmanager
def running(url: str | None, engine: str) -> Iterator[Run]:
    """Have a run in a directory of its own, on a server that is given or of its own."""
    home = Path(tempfile.mkdtemp(prefix="clew-bench-"))
    # The embedded server does not run as root, and must find its directory all the same.
    home.chmod(0o711)
    run = None
    try:
        run = Run(home, url or f"embedded-postgres:{home}/log", engine)
        yield run
    finally:
        if run is not None:
            run.close()
        if url is None:
            from clew.store.embedded_postgres import stop

            stop(home / "log")
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    """Measure, print, and end with one line of JSON."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--postgres", metavar="URL", help="the server of the log; without it one is started")
    arguments.add_argument("--engine", choices=("spark", "inline"), default="spark")
    arguments.add_argument("--kills", type=int, default=12, help="of groups, each in its turn")
    arguments.add_argument("--engine-kills", type=int, default=5)
    given = arguments.parse_args()

    kills, engines = [], []
    with running(given.postgres, given.engine) as run:
        names = list(GROUPS)
        for number in range(given.kills):
            kills.append(run.kill_group(names[number % len(names)]))
            last = kills[-1]
            told = f"{last.group} was away for {last.seconds:.2f} s, the others for {last.gap:.1f} of their turns"
            print(f"kill {number + 1} of {given.kills}: {told} (usually {last.usual:.1f})", flush=True)
        for number in range(given.engine_kills if given.engine == "spark" else 0):
            engines.append(run.kill_engine())
            print(f"engine {number + 1} of {given.engine_kills}: away for {engines[-1]:.2f} s", flush=True)
        run.settle()
        turns = {name: round(1000 * run.turn(name, time.monotonic()), 1) for name in GROUPS}
        memory, own = (max(kilobytes) / 1024 for kilobytes in zip(*run.memory.values()))

    seconds = [kill.seconds for kill in kills]
    restart, low, high = median_interval(seconds)
    name = "restart" if given.engine == "spark" else f"restart_{given.engine}"
    figures: dict[str, object] = {
        "engine": given.engine,
        "restart_s": round(restart, 3),
        "restart_s_95": [round(low, 3), round(high, 3)],
        "others_gap_turns": round(max(kill.gap for kill in kills), 2),
        "usual_gap_turns": round(max(kill.usual for kill in kills), 2),
        "group_memory_mb": round(memory, 1),
        "group_own_memory_mb": round(own, 1),
        "turn_ms": turns,
        "kills": given.kills,
    }
    series = {"group": seconds}
    if engines:
        away, low, high = median_interval(engines)
        figures |= {"engine_restart_s": round(away, 2), "engine_restart_s_95": [round(low, 2), round(high, 2)]}
        figures |= {"engine_kills": len(engines)}
        series["engine service"] = engines
    plot(name, f"Seconds from a kill to the next commit, {given.engine}", series, "s")
    report(name, figures)


if __name__ == "__main__":
    main()
