"""Delta tables: each write once in the table's own history, a replaced writer refused, all of it durable."""

import datetime
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import Pipeline, disk, faultpoint
from clew.connectors import delta, generator
from clew.errors import GraphError, SinkFailed, StaleWriter
from clew.faultpoint import CrashInjected
from clew.pipeline.contracts import WriteAction
from tests.app.pipelines import finish
from tests.connectors.crashes import (
    EVENTS,
    complete,
    expected,
    judged,
    kill,
    multiset,
    records,
    run_here,
    run_killed,
    words,
    write_command,
)
from tests.model.runs import explained, finished, only

FIRST = WriteAction("run1", "totals", "out", 1, incarnation=1)
#: The package of connectors calls a function by the name of its module.
delta_module: Any = sys.modules["clew.connectors.delta"]
SINK = 'delta(os.path.join(HERE, "out"), partition_by="day")'
KEYED = 'delta(os.path.join(HERE, "out"), key="n")'


def table(*rows: tuple[Any, Any]) -> pa.Table:
    return pa.table({"k": pa.array([k for k, _ in rows], pa.int64()), "v": pa.array([v for _, v in rows], pa.string())})


def write(sink, action: WriteAction, *tables: pa.Table) -> None:
    sink.write(action, iter(tables), (tables[0] if tables else table()).schema)


def found(path: Path) -> list[tuple[Any, ...]]:
    """Read a table with deltalake and pandas, in no order of its own."""
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def history(path: Path) -> list[list[dict[str, Any]]]:
    """Return the actions of all commits."""
    commits = sorted((path / "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in commit.read_text().splitlines()] for commit in commits]


# One write.


def test_a_write_is_one_commit_with_its_markers(tmp_path):
    sink = delta(tmp_path / "t")
    sink.validate_target()
    assert not sink.applied(FIRST)
    write(sink, FIRST, table((1, "a")), table((1, "a"), (2, "b")))
    assert sink.applied(FIRST)
    assert not sink.applied(replace(FIRST, number=2))
    assert found(tmp_path / "t") == [(1, "a"), (1, "a"), (2, "b")]
    _, commit = history(tmp_path / "t")
    assert [action["txn"]["appId"] for action in commit if "txn" in action] == [
        "run1/totals/out", "run1/totals/out/incarnation",
    ]  # fmt: skip
    assert sum("add" in action for action in commit) == 1


def test_a_write_of_an_old_number_is_skipped(tmp_path):
    sink = delta(tmp_path / "t")
    for number in (1, 2, 1, 2):
        write(sink, replace(FIRST, number=number), table((number, "a")))
    assert found(tmp_path / "t") == [(1, "a"), (2, "a")]
    assert len(history(tmp_path / "t")) == 3


def test_a_stale_writer_is_refused_and_a_repeat_fences(tmp_path):
    sink = delta(tmp_path / "t")
    write(sink, FIRST, table((1, "a")))
    write(sink, replace(FIRST, incarnation=2), table((1, "a")))
    with pytest.raises(StaleWriter):
        write(sink, replace(FIRST, number=2), table((2, "b")))
    assert found(tmp_path / "t") == [(1, "a")]


def test_runs_operators_and_connections_have_markers_of_their_own(tmp_path):
    sink = delta(tmp_path / "t")
    for action in (FIRST, replace(FIRST, run="run2"), replace(FIRST, operator="o"), replace(FIRST, connection="c")):
        write(sink, action, table((1, "a")))
    assert len(found(tmp_path / "t")) == 4


@pytest.mark.parametrize("key", [None, "k"])
def test_an_empty_write_moves_the_marker_and_makes_the_table(tmp_path, key):
    sink = delta(tmp_path / "t", key=key, partition_by="v")
    write(sink, FIRST)
    assert sink.applied(FIRST)
    assert found(tmp_path / "t") == []


@pytest.mark.parametrize("key", [None, "k"])
def test_a_write_without_events_needs_no_schema(tmp_path, key):
    sink = delta(tmp_path / "t", key=key, partition_by="v")
    sink.write(FIRST, iter([]), pa.schema([]))
    assert not sink.applied(FIRST), "there is no table yet, and nothing to write"
    write(sink, replace(FIRST, number=2), table((1, "a")))
    sink.write(replace(FIRST, number=3), iter([]), pa.schema([]))
    assert sink.applied(replace(FIRST, number=3))
    assert found(tmp_path / "t") == [(1, "a")]


def test_files_of_another_table_are_not_this_ones_to_sync(tmp_path):
    """A shallow clone names the files of its original in full."""
    write(delta(tmp_path / "original"), FIRST, table((1, "a")))
    shutil.copytree(tmp_path / "original" / "_delta_log", tmp_path / "clone" / "_delta_log")
    commit = tmp_path / "clone" / "_delta_log" / f"{1:020d}.json"
    commit.write_text(commit.read_text().replace('"path":"', f'"path":"{tmp_path}/original/'))
    assert delta(tmp_path / "clone").applied(FIRST)


def test_rows_with_a_known_key_are_replaced_and_the_last_one_wins(tmp_path):
    sink = delta(tmp_path / "t", key=["k"])
    write(sink, FIRST, table((1, "a"), (2, "b"), (1, "c")), table((3, "d"), (1, "e")))
    assert found(tmp_path / "t") == [(1, "e"), (2, "b"), (3, "d")]
    write(sink, replace(FIRST, number=2), table((2, "x"), (4, "y"), (2, None)))
    assert found(tmp_path / "t") == [(1, "e"), (2, None), (3, "d"), (4, "y")]


@pytest.mark.parametrize("key", [None, ['odd "name"']])
def test_types_and_odd_names_read_back_equal(tmp_path, key):
    times = [datetime.datetime(2024, 1, 2, 3, 4, 5, 6), datetime.datetime(1, 1, 1)]
    rows = pa.table(
        {
            'odd "name"': pa.array(times, pa.timestamp("us", "UTC")), "ts": pa.array(times, pa.timestamp("us")),
            "i": pa.array([2**63 - 1, None], pa.int64()), "f": pa.array([0.1, float("inf")]),
            "d": pa.array([Decimal("-0.01"), None], pa.decimal128(38, 9)), "b": pa.array([True, None]),
            "bin": pa.array([b"\x00\xff", b""]), "day": pa.array([datetime.date(2024, 1, 2), None]),
            "l": pa.array([[1, None], None], pa.list_(pa.int64())), "s": ["", None],
        }
    )  # fmt: skip
    sink = delta(tmp_path / "a table é", key=key)
    for number in (1, 2):
        sink.write(replace(FIRST, number=number), iter([rows]), rows.schema)
    back = [row for part in sink.holds().tables(rows.schema) for row in part.to_pylist()]
    assert sorted(map(repr, back)) == sorted(map(repr, rows.to_pylist() * (1 if key else 2)))


ROWS = st.lists(st.tuples(st.integers(0, 5), st.none() | st.text(max_size=3)), max_size=6)


@settings(max_examples=15, deadline=None)
@given(writes=st.lists(ROWS, min_size=1, max_size=4))
def test_any_writes_leave_the_last_record_of_each_key(writes):
    with tempfile.TemporaryDirectory() as place:
        sink = delta(place, key="k")
        for number, rows in enumerate(writes, 1):
            write(sink, replace(FIRST, number=number), table(*rows))
        last = {k: v for rows in writes for k, v in rows}
        assert dict(found(Path(place))) == last
        assert len(found(Path(place))) == len(last)


# Crashes.


@pytest.mark.parametrize("point", ["sink-before-commit", "sink-after-commit"])
@pytest.mark.parametrize("key", [None, "k"])
def test_a_crash_at_the_commit_leaves_the_write_once(tmp_path, point, key):
    sink = delta(tmp_path / "t", key=key)
    write(sink, FIRST, table((1, "a")))
    second = replace(FIRST, number=2)
    (fault,) = faultpoint.arm(f"{point}@totals:raise")
    with pytest.raises(CrashInjected):
        write(sink, second, table((2, "b")))
    assert fault.fired
    assert sink.applied(second) is (point == "sink-after-commit")
    write(sink, replace(second, incarnation=2), table((2, "b")))
    assert found(tmp_path / "t") == [(1, "a"), (2, "b")]


def writer(sink, action: WriteAction, rows: pa.Table, fault: str) -> "subprocess.Popen[str]":
    """Write in a process of its own."""
    pipes: Any = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(write_command(sink, action, rows), env={**os.environ, "CLEW_FAULTS": fault}, **pipes)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_frozen_writer_that_was_replaced_is_refused_when_it_wakes(tmp_path, key):
    sink = delta(tmp_path / "t", key=key)
    write(sink, FIRST, table((1, "a")))
    second = replace(FIRST, number=2)
    frozen = writer(sink, second, table((2, "b")), "sink-before-commit:freeze")
    _, status = os.waitpid(frozen.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "the fault did not fire"
    write(sink, replace(second, incarnation=2), table((2, "b")))
    frozen.send_signal(signal.SIGCONT)
    code, _, told = finish(frozen)
    assert code == 1
    assert "StaleWriter: operator totals wrote as incarnation 1, but the log is at 2" in told
    assert found(tmp_path / "t") == [(1, "a"), (2, "b")]


def test_a_frozen_writer_that_was_not_replaced_writes_once_beside_another(tmp_path):
    sink = delta(tmp_path / "t")
    write(sink, FIRST, table((1, "a")))
    frozen = writer(sink, replace(FIRST, number=2), table((2, "b")), "sink-before-commit:freeze")
    _, status = os.waitpid(frozen.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "the fault did not fire"
    write(sink, replace(FIRST, operator="other"), table((3, "c")))
    frozen.send_signal(signal.SIGCONT)
    assert finish(frozen)[0] == 0
    assert found(tmp_path / "t") == [(1, "a"), (2, "b"), (3, "c")]


def _race(sink, operators: tuple[str, ...], begin: float, writes: int) -> None:
    time.sleep(max(0.0, begin - time.time()))
    for number in range(1, writes + 1):
        for operator in operators:
            rows = table((number, operator), (100, "shared"))
            write(sink, replace(FIRST, operator=operator, number=number), rows)


@pytest.mark.parametrize("key", [None, "k"])
def test_processes_that_write_at_once_leave_each_write_once(tmp_path, key):
    """Two of them are the same writer, and all of them begin by making the table."""
    sink = delta(tmp_path / "t", key=key)
    spawn = multiprocessing.get_context("spawn")
    begin = time.time() + 5
    racers = [spawn.Process(target=_race, args=(sink, (name,), begin, 6)) for name in ("one", "one", "two")]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(120)
    assert [racer.exitcode for racer in racers] == [0, 0, 0]
    rows = found(tmp_path / "t")
    if key:
        assert sorted(k for k, _ in rows) == [*range(1, 7), 100]
    else:
        assert rows == sorted(
            [*((n, name) for n in range(1, 7) for name in ("one", "two")), *[(100, "shared")] * 12], key=repr
        )


def test_of_two_commits_of_one_writer_from_one_version_delta_lets_one_stand(tmp_path):
    """What the sink relies on, by delta-rs itself: appends that carry different ids both stand."""
    write_deltalake(tmp_path, table((0, "a")))
    one, other, third = (DeltaTable(tmp_path) for _ in range(3))

    def commit(held: DeltaTable, writer: str) -> None:
        marks = CommitProperties(app_transactions=[Transaction(writer, 1)])
        write_deltalake(held, table((1, writer)), mode="append", commit_properties=marks)

    commit(one, "w")
    with pytest.raises(Exception, match="Concurrent transaction failed"):
        commit(other, "w")
    commit(third, "v")
    assert found(tmp_path) == [(0, "a"), (1, "v"), (1, "w")]


# Durability.


@pytest.mark.parametrize("key", [None, "k"])
def test_what_a_commit_added_is_synced_before_the_write_counts(tmp_path, key, monkeypatch):
    synced: list[str] = []
    sync = disk._sync

    def noted(path, flags):
        synced.append(os.path.relpath(path, tmp_path))
        sync(path, flags)

    monkeypatch.setattr(disk, "_sync", noted)
    sink = delta(tmp_path / "t", key=key, partition_by="v")
    write(sink, FIRST, table((1, "a")))
    names = {os.path.relpath(path, tmp_path) for path in (tmp_path / "t").rglob("*")}
    assert len(names) == 5, "two commits, a file, and their directories"
    assert {".", "t", *names} <= set(synced)
    synced.clear()
    write(sink, replace(FIRST, number=2), table((2, "a")))
    assert "t/_delta_log/00000000000000000002.json" in synced
    assert "t/_delta_log/00000000000000000001.json" not in synced, "known to be durable"


def test_a_write_that_was_not_synced_does_not_count_in_this_process(tmp_path, monkeypatch):
    sink = delta(tmp_path / "t")
    write(sink, FIRST, table((1, "a")))
    second = replace(FIRST, number=2)

    def broken(path, flags):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(disk, "_sync", broken)
        with pytest.raises(SinkFailed, match=r"version 2 cannot be made durable .*; mend the cause and run again"):
            write(sink, second, table((2, "b")))
    with pytest.raises(SinkFailed, match=r"an earlier sync of it failed, .*; mend the cause and run again"):
        sink.applied(second)
    again = subprocess.run(write_command(sink, second, table((2, "b"))), check=False, timeout=60)
    assert again.returncode == 0, "another process may try"
    assert found(tmp_path / "t") == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("harm", [os.unlink, lambda path: os.truncate(path, 0)])
def test_a_commit_whose_file_a_power_failure_took_does_not_count(tmp_path, harm):
    sink = delta(tmp_path / "t")
    write(sink, FIRST, table((1, "a")))
    harm(next((tmp_path / "t").glob("*.parquet")))
    delta_module._synced.clear()
    told = r"version 1 has the file part-.*, expected \d+ bytes of it on the disk; put the file back from a backup, or"
    with pytest.raises(SinkFailed, match=told):
        sink.applied(FIRST)


def test_a_file_that_the_table_no_longer_needs_may_be_gone(tmp_path):
    sink = delta(tmp_path / "t", key="k")
    write(sink, FIRST, table((1, "a")))
    (old,) = (tmp_path / "t").glob("*.parquet")
    write(sink, replace(FIRST, number=2), table((1, "b")))
    old.unlink()
    delta_module._synced.clear()
    assert sink.applied(FIRST)


def test_two_sinks_of_one_table_are_judged_together_by_whatever_links_they_reach_it(tmp_path):
    (tmp_path / "table").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "table")
    pipeline = Pipeline("linked")
    numbers = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), 3))
    for name in ("table", "link"):
        numbers.sink(delta(tmp_path / name), name=f"to_{name}")
    assert explained(finished(pipeline, tmp_path).verify())


def test_a_checkpoint_keeps_the_markers_and_is_synced(tmp_path, monkeypatch):
    sink = delta(tmp_path / "t")
    write(sink, FIRST, table((1, "a")))
    DeltaTable(tmp_path / "t").create_checkpoint()
    (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").unlink()
    synced: list[str] = []
    monkeypatch.setattr(disk, "_sync", lambda path, flags: synced.append(os.path.basename(path)))
    write(sink, FIRST, table((1, "a")))
    write(sink, replace(FIRST, number=2), table((2, "b")))
    assert found(tmp_path / "t") == [(1, "a"), (2, "b")]
    assert {"_last_checkpoint", f"{1:020d}.checkpoint.parquet"} <= set(synced)


# What is refused.


def test_a_missing_library_is_named_with_its_cure(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake.exceptions", None)
    sink = delta(tmp_path / "t")
    with pytest.raises(SinkFailed, match=r'need the package deltalake, .*; install it .*pip install "clew\[delta\]"'):
        sink.validate_target()


FLOAT = pa.table({"f": [0.5], "v": ["a"]})
BARE = table((1, "a")).select([])
TIME = pa.table({"t": pa.array([1], pa.time64("us"))})


@pytest.mark.parametrize(
    ("settings", "rows", "told"),
    [
        ({"key": "x"}, table((1, "a")), "the records have no column x, which key= names; name columns that are there"),
        (
            {"key": "k"},
            table((None, "a")),
            "key column k holds null; fill it in, or filter .* start a new run with --fresh",
        ),
        ({"key": "f"}, FLOAT, "key column f has type double, expected one of exact values; make it text or a number"),
        ({"partition_by": "x"}, table((1, "a")), "no column x, which partition_by= names; name columns that are there"),
        ({"partition_by": "v"}, table((1, "")), "column v holds an empty text, .* read back as null; give it another"),
        ({"partition_by": "f"}, FLOAT, "partition column f has type double, expected text, .*; make it one of these"),
        ({}, BARE, "the records have no columns, expected at least one; give them one in the function"),
        ({}, TIME, r"it cannot be used \(.*\); mend the cause and run again"),
    ],
)
def test_what_a_table_cannot_hold_is_refused(tmp_path, settings, rows, told):
    sink = delta(tmp_path / "t", **settings)
    with pytest.raises(SinkFailed, match=told):
        write(sink, FIRST, rows)
    assert not sink.applied(FIRST)


@pytest.mark.parametrize(
    ("settings", "rows", "told"),
    [
        ({}, pa.table({"k": [1]}), "column v is not in the records and string in the table, expected the same; name"),
        ({}, pa.table({"k": ["1"], "v": ["a"]}), "column k is string in the records and long in the table"),
        ({}, table((1, "a")).append_column("w", [[1]]), "column w is long in the records and not in the table"),
        ({"partition_by": "v"}, table((1, "a")), "the table is partitioned by nothing, expected v; name the table's"),
    ],
)
def test_a_table_of_other_columns_is_refused(tmp_path, settings, rows, told):
    write_deltalake(tmp_path, table((0, "z")))
    with pytest.raises(SinkFailed, match=told):
        write(delta(tmp_path, **settings), FIRST, rows)
    assert found(tmp_path) == [(0, "z")]


def test_a_partitioned_table_of_the_users_own_keeps_its_partitions(tmp_path):
    write_deltalake(tmp_path, table((0, "z")), partition_by=["v"])
    write(delta(tmp_path), FIRST, table((1, "a")))
    with pytest.raises(SinkFailed, match="holds an empty text"):
        write(delta(tmp_path), replace(FIRST, number=2), table((1, "")))
    assert found(tmp_path) == [(0, "z"), (1, "a")]


def test_writers_that_never_come_first_are_told(tmp_path, monkeypatch):
    sink = delta(tmp_path)
    write(sink, FIRST, table((1, "a")))
    stale = DeltaTable(tmp_path)
    write(sink, replace(FIRST, number=2), table((2, "b")))
    monkeypatch.setattr(delta_module.Delta, "_opened", lambda *_: stale)
    with pytest.raises(
        SinkFailed, match=r"other writers committed first, 20 times .*; run again, or let fewer operators"
    ):
        write(sink, replace(FIRST, number=2), table((2, "b")))


def test_a_place_that_cannot_be_a_table_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SinkFailed, match="it is a file, expected a directory; name a directory"):
        delta(tmp_path / "file").validate_target()
    with pytest.raises(GraphError, match="a directory on a local file system, not s3://b/t; name a path"):
        delta("s3://b/t")
    with pytest.raises(GraphError, match=r"a%b has the sign %, with which delta-rs loses its way; name another"):
        delta("a%b")


def test_a_delta_sink_is_transactional_and_checkable(tmp_path):
    sink = pickle.loads(pickle.dumps(delta(tmp_path)))
    assert (sink.transactional, sink.idempotent, sink.checkable) == (True, False, True)


# Whole runs.


def rows(directory: Path) -> Any:
    return multiset(DeltaTable(directory / "out").to_pyarrow_table().to_pylist())


def last_of_each() -> Any:
    last = {row["n"]: row for index in range(EVENTS) for row in records(index).to_pylist()}
    return multiset(last.values())


@pytest.mark.parametrize(
    "fault",
    ["sink-before-commit@out#1", "sink-before-commit@out#3", "sink-after-commit@out#2", "before-write@out#2",
     "after-write@out#1"],
)  # fmt: skip
@pytest.mark.parametrize(("sink", "wanted"), [(SINK, expected), (KEYED, last_of_each)], ids=["append", "key"])
def test_a_crash_by_raise_leaves_each_record_once(tmp_path, fault, sink, wanted):
    run_here(tmp_path, sink, f"{fault}:raise")
    assert rows(tmp_path) == wanted()
    assert explained(judged(tmp_path))


@pytest.mark.parametrize(
    "faults",
    [
        ["sink-before-commit@out#2"], ["sink-after-commit@out#2"],
        ["sink-after-commit@out#1", "before-write-check@out", "sink-before-commit@out#2"],
    ],
)  # fmt: skip
@pytest.mark.parametrize(("sink", "wanted"), [(SINK, expected), (KEYED, last_of_each)], ids=["append", "key"])
def test_a_kill_leaves_each_record_once(tmp_path, faults, sink, wanted):
    run_killed(tmp_path, sink, *faults)
    assert rows(tmp_path) == wanted()
    assert explained(judged(tmp_path))


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is missing: make tools")
@pytest.mark.parametrize("before", [[], ["sink-before-commit@out#3"]], ids=["new", "third"])
@pytest.mark.parametrize(("sink", "wanted"), [(SINK, expected), (KEYED, last_of_each)], ids=["append", "key"])
def test_a_kill_inside_a_commit_of_delta_rs_leaves_each_record_once(tmp_path, before, sink, wanted):
    """The name of a commit is a hard link; the process dies at the first, which makes the table or is a write."""
    kill(tmp_path, sink, *before)
    traced = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "inject=linkat:signal=SIGKILL:when=1"]
    command = [*traced, sys.executable, "-m", "clew.app.main", *words(tmp_path, sink)]
    died = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert died.returncode in (-9, 137), f"the fault did not fire: {died.stderr.decode()}"
    complete(tmp_path, sink)
    assert rows(tmp_path) == wanted()
    assert explained(judged(tmp_path))


def remove(path: Path) -> None:
    next(path.rglob("*.parquet")).unlink()


def double(path: Path) -> None:
    write_deltalake(path, records(1), mode="append")


def change(path: Path) -> None:
    DeltaTable(path).update(updates={"n": "77"}, predicate="n = 1")


def delete(path: Path) -> None:
    DeltaTable(path).delete("n = 1")


@pytest.mark.parametrize("tamper", [remove, double, change, delete])
@pytest.mark.parametrize("sink", [SINK, KEYED], ids=["append", "key"])
def test_what_was_changed_by_hand_is_not_explained(tmp_path, tamper, sink):
    run_here(tmp_path, sink)
    assert explained(judged(tmp_path))
    tamper(tmp_path / "out")
    assert only(judged(tmp_path)).operator == "out"
