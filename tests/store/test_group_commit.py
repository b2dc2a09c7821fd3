"""The writer thread of the SQLite store: many commits to a sync, each refused alone, all failed together."""

import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from clew.errors import StoreFailed, UnexpectedRow
from clew.faultpoint import CrashInjected, arm
from clew.ids import Port
from clew.store.base import Topology
from clew.store.sqlite import SqliteStore
from tests.figures import lacking
from tests.store.logs import READER_OUT, TOPOLOGY, Pen, events

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "log.db")
    store.declare(TOPOLOGY)
    yield store
    store.close()


def test_commits_of_many_threads_share_a_sync_and_lose_nothing(tmp_path: Path) -> None:
    names = [f"op{index}" for index in range(16)]
    store = SqliteStore(tmp_path / "log.db")
    store.declare(Topology("many", "", tuple(names), ()))
    pen = Pen(store, names)
    held = hold_the_writer(store)

    def work(name: str) -> None:
        for number in range(1, 21):
            pen(name, events(Port(name, "out"), number, 1))

    with ThreadPoolExecutor(16) as threads:
        done = [threads.submit(work, name) for name in names]
        held()
        for future in done:
            future.result()
    assert len(store.table("EVENT_LOG")) == 16 * 20
    store.close()


def test_one_that_is_refused_rolls_back_alone(log: SqliteStore) -> None:
    pen = Pen(log)
    held = hold_the_writer(log)
    with ThreadPoolExecutor(4) as threads:
        good = threads.submit(pen, "reader", events(READER_OUT, 1, 2))
        bad = threads.submit(pen, "mapper", events(Port("mapper", "out"), 1, 1), events(Port("mapper", "out"), 7, 1))
        other = threads.submit(pen, "counter", events(Port("counter", "out"), 1, 1))
        held()
        good.result()
        other.result()
        with pytest.raises(UnexpectedRow):
            bad.result()
    assert {row[2] for row in log.table("EVENT_LOG")} == {"reader", "counter"}
    pen("mapper", events(Port("mapper", "out"), 1, 1))


def test_a_crash_inside_a_commit_rolls_back_alone(log: SqliteStore) -> None:
    pen = Pen(log)
    (fault,) = arm("inside-commit@reader:raise")
    try:
        with pytest.raises(CrashInjected):
            pen("reader", events(READER_OUT, 1, 2))
    finally:
        arm()
    assert fault.fired
    assert log.table("EVENT_LOG") == []
    pen("reader", events(READER_OUT, 1, 2))


def test_scenario_10_an_error_at_commit_fails_all_and_poisons_the_store(log: SqliteStore, tmp_path: Path) -> None:
    pen = Pen(log)
    pen("reader", events(READER_OUT, 1, 1))
    log._writer._connection = FailingCommit(log._writer._connection)  # type: ignore[assignment]
    held = hold_the_writer(log)
    with ThreadPoolExecutor(2) as threads:
        futures = [
            threads.submit(pen, "reader", events(READER_OUT, 2, 1)),
            threads.submit(pen, "mapper", events(Port("mapper", "out"), 1, 1)),
        ]
        held()
        for future in futures:
            with pytest.raises(StoreFailed):
                future.result()
    calls: list[Callable[[], Any]] = [
        lambda: pen("reader", events(READER_OUT, 2, 1)),
        lambda: log.take_over("reader"),
        lambda: log.table("EVENT_LOG"),
        lambda: log.collect(),
    ]
    for call in calls:
        with pytest.raises(StoreFailed, match="disk I/O error"):
            call()
    again = SqliteStore(tmp_path / "log.db")
    assert {row[0] for row in again.table("EVENT_LOG")} == {1}
    again.close()


def test_scenario_11_a_file_that_may_not_grow_fails_the_store_and_what_was_acknowledged_is_safe(tmp_path: Path) -> None:
    """The limit on a file's size is the kernel's: writes past it fail with an error of the disk."""
    told = fill_up(tmp_path / "log.db", "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))")
    number = int(told.split()[0])
    store = SqliteStore(tmp_path / "log.db")
    assert len(store.events(READER_OUT, 1, 99)) == number > 5
    Pen(store)("reader", events(READER_OUT, number + 1, 1))
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a small file system")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_scenario_11_a_full_disk_is_told_and_when_there_is_room_the_run_goes_on(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    told = fill_up(small_disk / "log.db", "")
    assert "the disk of the log" in told
    assert "is full; make room and run again" in told
    number = int(told.split()[0])
    ballast.unlink()
    store = SqliteStore(small_disk / "log.db")
    assert len(store.events(READER_OUT, 1, 99)) == number > 5
    Pen(store)("reader", events(READER_OUT, number + 1, 1))
    store.close()


def fill_up(path: Path, limit: str) -> str:
    """Write to a log until it fails; returns how many commits were acknowledged, and the error."""
    script = f"""
import resource, signal
from clew.errors import StoreFailed
from clew.store.sqlite import SqliteStore
from tests.store.logs import *
store = SqliteStore({str(path)!r})
store.declare(TOPOLOGY)
pen = Pen(store)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
{limit}
number = 0
try:
    while number < 99:
        pen("reader", events(READER_OUT, number + 1, 1, (Bodies((50000,), (0,), bytes(50000)),)))
        number += 1
except StoreFailed as error:
    print(number, error)
try:
    store.take_over("reader")
except StoreFailed:
    print("poisoned")
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("poisoned\n"), done.stdout + done.stderr
    return done.stdout


def test_d1_only_a_durable_commit_waits_for_the_disk(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """One sync of the write-ahead log's file covers the commits before it, which had none."""
    if shutil.which("strace") is None:
        lacking(pytestconfig, "strace tells the system calls, and is missing: make tools")
    script = f"""
import os
from clew.store.sqlite import SqliteStore
from tests.store.logs import *
store = SqliteStore({str(tmp_path / "log.db")!r})
store.declare(TOPOLOGY)
pen = Pen(store)
os.write(1, b"not durable")
for number in range(1, 6):
    pen("reader", events(READER_OUT, number, 1), durable=False)
os.write(1, b"durable")
pen("reader", events(READER_OUT, 6, 1))
os.write(1, b"end")
"""
    calls = tmp_path / "calls"
    strace = ["strace", "-f", "-y", "-e", "trace=fsync,fdatasync,write", "-o", str(calls)]
    done = subprocess.run([*strace, sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    if "ptrace" in done.stderr.lower():
        lacking(pytestconfig, "this machine does not let processes be traced")
    marked = [
        line for line in calls.read_text().splitlines() if "sync(" in line or "durable" in line or '"end"' in line
    ]
    start, middle, end = (index for index, line in enumerate(marked) if "sync(" not in line)
    assert middle == start + 1
    assert [line for line in marked[middle + 1 : end] if "log.db-wal" in line]


class FailingCommit:
    """A connection whose COMMIT fails as when the disk does not take the sync."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(sql, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def hold_the_writer(store: SqliteStore) -> Callable[[], None]:
    """Keep the writer busy until the returned function is called, so that what comes meanwhile is one batch."""
    held, entered = threading.Event(), threading.Event()

    def wait(_: Any) -> None:
        entered.set()
        held.wait(10)

    holder = threading.Thread(target=lambda: _quietly(store, wait))
    holder.start()
    entered.wait(10)

    def release() -> None:
        threading.Event().wait(0.2)
        held.set()
        holder.join()

    return release


def _quietly(store: SqliteStore, work: Callable[[Any], None]) -> None:
    # The batch that only waits may be the one whose commit is made to fail.
    with suppress(StoreFailed):
        store._writer.run(work)
