"""What strace is told, and what it tells: the calls of a run that change something on the disk."""

import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.storage.launcher import PATIENCE, Ending, Job, Launcher

WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2")
SYNCS = ("fsync", "fdatasync", "sync_file_range", "syncfs", "sync")
NAMES = ("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat")
SIZES = ("ftruncate", "truncate", "fallocate")
CALLS = (*WRITES, *SYNCS, *NAMES, *SIZES)

_LINE = re.compile(r"(?:(?P<tid>\d+) +)?(?P<name>\w+)\((?P<arguments>.*)")
_RANDOM = re.compile(r"[0-9a-f]{12,}")


@dataclass(frozen=True)
class Call:
    """The `nth` call of its name in a thread."""

    thread: str
    name: str
    nth: int
    #: What it is about, below the place of the run, without what is random in it.
    path: str
    #: Whether strace made it fail.
    injected: bool = False
    #: Whether it came to its end, without an error.
    succeeded: bool = True

    def __str__(self) -> str:
        return f"{self.thread}'s {self.name} #{self.nth} on {self.path}"

    @property
    def what(self) -> tuple[str, str, int, str]:
        return self.thread, self.name, self.nth, self.path


class Strace:
    """One strace on a waiting thread, or with `-f` on it and all that it starts."""

    def __init__(self, log: Path, calls: Iterable[str], *options: str) -> None:
        self._log = log
        self._options = ("-y", "-e", f"trace={','.join(calls)}", *options)

    def attach(self, thread: int) -> None:
        self._process = subprocess.Popen(
            ["strace", *self._options, "-o", str(self._log), "-p", str(thread)], stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        told = self._process.stderr.readline()
        assert "attached" in told, f"strace cannot trace: {told}{self._process.stderr.read()}"

    def lines(self) -> list[str]:
        """Return what it told, when what it traced has ended."""
        self._process.communicate(timeout=PATIENCE)
        return self._log.read_text().splitlines()


def run(launcher: Launcher, job: Job, home: Path, *options: str) -> tuple[Ending, list[Call]]:
    """Run a job with strace on its watched thread alone; returns also the calls of that thread."""
    strace = Strace(home.with_suffix(".strace"), CALLS, "-s", "0", *options)
    ending = launcher.run(job, strace.attach)
    return ending, list(_parse(strace.lines(), home, ending.threads, job.watched))


def record(launcher: Launcher, job: Job, home: Path) -> list[Call]:
    """Run a job to its end and return all its calls, of all threads in the order in which they were made."""
    strace = Strace(home.with_suffix(".strace"), CALLS, "-s", "0", "-f")
    ending = launcher.run(job, strace.attach)
    assert ending.code == 0, ending
    return list(_parse(strace.lines(), home, ending.threads))


def _parse(lines: Iterable[str], home: Path, threads: dict[int, str], alone: str = "") -> Iterator[Call]:
    seen: Counter[tuple[str, str]] = Counter()
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        # Where only one thread is traced, lines do not say which.
        thread = alone or threads.get(int(match["tid"]), "unknown")
        seen[thread, match["name"]] += 1
        path = _path(match["name"], match["arguments"])
        if path.startswith(f"{home}/"):
            short = _RANDOM.sub("*", path.removeprefix(f"{home}/"))
            failed = re.search(r"= (-1 |\?)", line) is not None
            yield Call(thread, match["name"], seen[thread, match["name"]], short, "(INJECTED)" in line, not failed)


def _path(name: str, arguments: str) -> str:
    """Return the path that a call is about; the new one, where there are two."""
    if name in (*NAMES, "truncate"):
        return str((re.findall(r'"([^"]+)"', arguments) or [""])[-1])
    match = re.match(r"\d+<([^>]+)>", arguments)
    return match[1] if match else ""
