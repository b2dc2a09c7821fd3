"""`clew chaos` lets faults happen, says which did, and judges what is left."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result

from clew.faultpoint import POINTS, Fault
from clew.pipeline.graph import Graph
from clew.pipeline.load import load
from clew.supervisor.schedule import KINDS, ChaosFault, draw, kinds_for
from clew.trace import load as load_trace
from tests.app.pipelines import call, finish, log_url, start, write, write_numbers

INLINE = kinds_for("inline", None, "sqlite:///log.db")

ORDERS = """
import os
import time

import pyarrow as pa

from clew import Count, Pipeline, files, generator, sqlite

OUT = os.environ.get("OUT", ".")

pipeline = Pipeline("orders")


def make(index):
    return pa.table({"n": [index, index + 1]})


source = pipeline.source("source", generator(make, int(os.environ.get("EVENTS", "300"))), max_turn_events=20)


@pipeline.operator(source, max_turn_events=10, deterministic=True)
def doubled(table: pa.Table) -> pa.Table:
    time.sleep(0.003)
    return pa.table({"n": [2 * number for number in table["n"].to_pylist()]})


@pipeline.operator(doubled, window=Count(7), deterministic=True)
def sums(table: pa.Table) -> pa.Table:
    return pa.table({"sum": [sum(table["n"].to_pylist())]})


pipeline.sink(doubled, files(os.path.join(OUT, "kept")), name="kept")
pipeline.sink(sums, sqlite(os.path.join(OUT, "sums.db"), table="sums"), name="table")
"""

MISTAKEN = '''
import json
import os

import pyarrow as pa

from clew import Pipeline, Sink, generator
from clew.pipeline.contracts import RecordsHeld


class Lines(RecordsHeld):
    def tables(self, schema):
        with open("lines") as lines:
            yield pa.Table.from_pylist([json.loads(line) for line in lines], schema=schema)


class Appended(Sink):
    """Says that a repeat is harmless, and appends each one."""

    idempotent = True

    def describe(self):
        return "lines"

    def holds(self):
        return Lines()

    def write(self, action, tables, schema):
        with open("lines", "a") as out:
            out.writelines(json.dumps(row) + "\\n" for table in tables for row in table.to_pylist())


pipeline = Pipeline("mistaken")
source = pipeline.source("source", generator(lambda index: pa.table({"n": [index]}), 40), max_turn_events=5)
pipeline.sink(source, Appended(), name="lines")
'''


PICKY = """
import pyarrow as pa

from clew import Count, Pipeline, files, generator

pipeline = Pipeline("picky")
numbers = generator(lambda index: pa.table({"n": [index, index + 100]}), 12)
source = pipeline.source("source", numbers, max_turn_events=2)


@pipeline.map(source, deterministic=True, on_error="quarantine", attempts=1)
def doubled(record: dict) -> dict:
    if record["n"] == 105:
        raise ValueError("nobody likes it")
    return {"n": 2 * record["n"]}


@pipeline.operator(doubled, window=Count(5), deterministic=True, on_error="quarantine", attempts=1)
def fives(table: pa.Table) -> pa.Table:
    # The last of them comes when the stream ends, after something before it was given up.
    if 22 in table["n"].to_pylist():
        raise ValueError("nor this one")
    return table


pipeline.sink(fives, files("kept"), name="kept")
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def graph_of(file: str) -> Graph:
    return load(file).graph()


def chaos(file: str, seed: int, faults: int, *words: str, **environment: str) -> Result:
    given = ("--seed", str(seed), "--faults", str(faults), "--engine", "inline")
    return call("chaos", file, *given, *words, **environment)


def seed_with(graph: Graph, faults: int, only: str, point: str, operator: str) -> int:
    """Return the first seed that draws a fault at this place."""
    drawn = ((seed, draw(graph, seed, faults, [only])) for seed in count())
    return next(seed for seed, all_ in drawn if any((f.point, f.operator) == (point, operator) for f in all_))


def held(directory: Path) -> tuple[Counter[Any], Counter[Any]]:
    """Return what the sinks of ORDERS hold, as multisets."""
    numbers = [n for path in (directory / "kept").glob("[!.]*.parquet") for n in pq.read_table(path)["n"].to_pylist()]
    with closing(sqlite3.connect(directory / "sums.db")) as database:
        return Counter(numbers), Counter(database.execute("SELECT sum FROM sums").fetchall())


# What is drawn.


def test_the_same_seed_draws_the_same_faults(tmp_path: Path) -> None:
    graph = graph_of(write(tmp_path, "orders.py", ORDERS))
    schedules = [draw(graph, seed, 12, KINDS) for seed in range(20)]
    assert schedules == [draw(graph, seed, 12, KINDS) for seed in range(20)]
    assert len(set(schedules)) == 20


def test_each_kind_comes_up_once_before_any_comes_up_twice(tmp_path: Path) -> None:
    graph = graph_of(write(tmp_path, "orders.py", ORDERS))
    for seed in range(20):
        drawn = draw(graph, seed, 2 * len(KINDS), KINDS)
        assert {fault.kind for fault in drawn[: len(KINDS)]} == set(KINDS)
        assert Counter(fault.kind for fault in drawn) == dict.fromkeys(KINDS, 2)


def test_no_crash_point_is_drawn_twice_and_all_can_be_armed(tmp_path: Path) -> None:
    graph = graph_of(write(tmp_path, "orders.py", ORDERS))
    for seed in range(20):
        drawn = draw(graph, seed, 20, ["group"])
        assert len({(fault.point, fault.operator) for fault in drawn}) == 20
        assert {fault.operator for fault in drawn} == set(graph.operators)
        armed = [Fault.parse(fault.armed(fault.nth)) for fault in drawn]
        assert {(fault.point, fault.operator, fault.nth) for fault in armed} == {
            (fault.point, fault.operator, fault.nth) for fault in drawn
        }
        # A sink's own points are in workers, and what only a recovery passes may never be passed.
        recovery = {point for point, where in POINTS.items() if "recovery" in where or "Algorithm 9" in where}
        assert not {f.point for f in drawn if f.point in recovery or f.point.startswith("sink-")}


def test_more_faults_than_there_are_places_are_refused(tmp_path: Path) -> None:
    result = chaos(write(tmp_path, "orders.py", ORDERS), 1, 9, "--only", "slow-store")
    assert result.exit_code == 1
    assert "there are only 5 places for faults of kind slow-store; ask for at most 5 faults" in result.stderr


def test_what_a_run_cannot_meet_is_not_drawn(tmp_path: Path) -> None:
    assert "worker" not in INLINE
    assert "worker" in kinds_for("spark", None, "sqlite:///log.db")
    assert "worker" in kinds_for("spark", "local[4]", "sqlite:///log.db")
    assert "worker" not in kinds_for("spark", "spark://host:7077", "sqlite:///log.db")
    result = chaos(write(tmp_path, "orders.py", ORDERS), 1, 1, "--only", "worker")
    assert result.exit_code == 1
    assert "a run with engine inline has no faults of kind worker" in result.stderr
    assert chaos(write(tmp_path, "orders.py", ORDERS), 1, 1, "--only", "earthquake").exit_code == 2


# What happens.


def test_under_every_kind_of_fault_the_sinks_hold_what_an_undisturbed_run_leaves(tmp_path: Path) -> None:
    file = write(tmp_path, "orders.py", ORDERS)
    for place in ("undisturbed", "struck"):
        (tmp_path / place).mkdir()
    assert call("run", file, "--engine", "inline", OUT=str(tmp_path / "undisturbed")).exit_code == 0
    result = chaos(file, 2, len(INLINE), OUT=str(tmp_path / "struck"))
    assert result.exit_code == 0, result.output
    assert "this must be a test system" in result.stderr
    table = [line.split() for line in result.stdout.splitlines()]
    assert {words[0] for words in table if words[-1] == "yes"} == set(INLINE)
    assert "explained: " in result.stdout
    assert "empty the sinks, and repeat it with: clew chaos" in result.stdout
    assert f"--seed 2 --faults {len(INLINE)} --engine inline" in result.stdout
    assert held(tmp_path / "struck") == held(tmp_path / "undisturbed")


def test_groups_and_the_process_die_again_and_again(tmp_path: Path) -> None:
    result = chaos(write(tmp_path, "orders.py", ORDERS), 7, 6, "--only", "group,process", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [fault["fired"] for fault in told["faults"]] == [True] * 6
    assert told["starts"] > Counter(fault["kind"] for fault in told["faults"])["process"]
    assert told["verdict"] == "explained"
    numbers, sums = held(tmp_path)
    assert numbers == Counter(2 * n for index in range(300) for n in (index, index + 1))
    assert sum(sums.values()) == -(-300 // 7)


def test_a_log_in_postgres_loses_its_sessions(tmp_path: Path, postgres_url: str) -> None:
    file = write(tmp_path, "orders.py", ORDERS)
    result = chaos(file, 3, 2, "--log", postgres_url, "--only", "store-down", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [fault["fired"] for fault in told["faults"]] == [True, True]
    assert told["starts"] == 3
    assert "the run has stopped: the log postgresql://" in result.stderr
    assert held(tmp_path)[0].total() == 600
    refused = chaos(file, 4, 1, "--log", postgres_url)
    assert refused.exit_code == 1
    assert "already, which is not of this chaos run; name one that does not exist" in refused.stderr


def test_a_sink_that_is_not_what_it_says_is_found(tmp_path: Path) -> None:
    file = write(tmp_path, "mistaken.py", MISTAKEN)
    seed = seed_with(graph_of(file), 1, "group", "after-write", "lines")
    result = chaos(file, seed, 1, "--only", "group")
    assert result.exit_code == 1
    assert "1 record of write action #1 is in what lines.out writes to more often than written" in result.stdout
    assert "not explained" in result.stdout
    assert f"what the run said is in .clew/mistaken/chaos-{seed}/output.txt" in result.stdout


def test_a_fault_that_had_no_chance_is_not_claimed(tmp_path: Path) -> None:
    file = write(tmp_path, "orders.py", ORDERS)
    # Without events nothing is ever written.
    seed = seed_with(graph_of(file), 1, "group", "before-write", "kept")
    result = chaos(file, seed, 1, "--only", "group", EVENTS="0")
    assert result.exit_code == 4, result.output
    assert "1 fault had no chance to fire before the run ended: group kept before-write" in result.stdout
    assert "explained" in result.stdout


def test_a_sink_that_holds_rows_of_an_earlier_run_is_undecided(tmp_path: Path) -> None:
    file = write(tmp_path, "orders.py", ORDERS)
    words = ("--only", "group")
    assert chaos(file, 1, 1, *words, EVENTS="30").exit_code == 0
    result = chaos(file, 1, 1, *words, EVENTS="30")
    assert result.exit_code == 4, result.output
    assert "other runs have written there too" in result.stdout
    assert "a sink that holds what other runs wrote cannot be judged: empty it, and repeat" in result.stdout


def test_a_run_that_fails_by_itself_is_told(tmp_path: Path) -> None:
    result = chaos(write_numbers(tmp_path), 1, 1, "--only", "group", POISON="13")
    assert result.exit_code == 1
    assert "error: the run has not finished: operator doubled failed on source.out#14" in result.stderr
    assert "ValueError: a number that nobody likes" in result.stderr
    assert "what the run said is in .clew/numbers/chaos-1/output.txt" in result.stdout


def test_what_is_in_quarantine_is_dropped_so_that_the_run_can_be_judged(tmp_path: Path) -> None:
    """What one operator set aside keeps the stream from its end, at which another one sets something aside."""
    file = write(tmp_path, "picky.py", PICKY)
    seed = seed_with(graph_of(file), 1, "group", "after-generate", "doubled")
    result = chaos(file, seed, 1, "--only", "group")
    assert result.exit_code == 0, result.output
    said = "all is done but for what is in quarantine: 1 dropped, so that the run can end"
    assert result.stderr.count(said) == 2
    assert "explained: a run without failures could have left what is there" in result.stdout
    log = f".clew/picky/chaos-{seed}/log.db"
    listed = f"`clew quarantine list {file} --log sqlite:///{log}` lists it"
    assert f"2 in quarantine when all else was done: dropped; {listed}" in result.stdout
    numbers = [n for path in Path("kept").glob("[!.]*.parquet") for n in pq.read_table(path)["n"].to_pylist()]
    assert Counter(numbers) == Counter(2 * n for i in range(10) for n in (i, i + 100) if n != 105)
    assert "2 dropped by an earlier run" in call("quarantine", "list", file, "--log", f"sqlite:///{log}").stdout


def test_somebody_elses_log_is_left_alone(tmp_path: Path) -> None:
    file = write_numbers(tmp_path)
    assert call("run", file, "--engine", "inline", "--log", log_url(tmp_path)).exit_code == 0
    before = (tmp_path / "log.db").read_bytes()
    result = chaos(file, 1, 1, "--log", log_url(tmp_path))
    assert result.exit_code == 1
    assert "already, which is not of this chaos run" in result.stderr
    assert (tmp_path / "log.db").read_bytes() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_the_run_too(tmp_path: Path, number: signal.Signals) -> None:
    process, run = _under_way(tmp_path)
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == 130
    assert "Traceback" not in err
    assert not _lives(run)


def test_a_run_does_not_outlive_a_command_that_is_killed(tmp_path: Path) -> None:
    process, run = _under_way(tmp_path)
    os.kill(run, signal.SIGSTOP)
    process.kill()
    finish(process)
    until = time.monotonic() + 60
    while _lives(run):
        assert time.monotonic() < until
        time.sleep(0.05)


def _under_way(directory: Path) -> "tuple[subprocess.Popen[str], int]":
    """Start a run under faults that takes long; return also the process of the run."""
    file = write(directory, "orders.py", ORDERS)
    process = start(
        "chaos", file, "--seed", "1", "--faults", "1", "--engine", "inline", "--only", "freeze", EVENTS="9999"
    )
    trace = directory / ".clew" / "orders" / "chaos-1" / "trace.jsonl"
    until = time.monotonic() + 60
    while not trace.exists() or not trace.stat().st_size:
        assert time.monotonic() < until
        time.sleep(0.05)
    return process, next(load_trace(str(trace))).process


def _lives(process: int) -> bool:
    """Say whether a process runs, or is stopped; one that has ended may still have a name."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_what_somebody_else_keeps_in_the_directory_of_bodies_is_left_alone(tmp_path: Path) -> None:
    file = write(tmp_path, "orders.py", ORDERS)
    theirs = [tmp_path / "shared" / "chaos-1" / "thesis.txt", tmp_path / "shared" / "orders" / "chaos-1" / "thesis.txt"]
    for path in theirs:
        path.parent.mkdir(parents=True)
        path.write_text("years of work")
    words = ("--only", "group", "--bodies", "shared")
    refused = chaos(file, 1, 1, *words, EVENTS="30")
    assert refused.exit_code == 1
    assert "shared/orders/chaos-1 holds what clew chaos has not made, expected a directory that is" in refused.stderr
    assert "move it away, or use another --seed or --bodies" in refused.stderr
    assert [path.read_text() for path in theirs] == ["years of work"] * 2
    theirs.pop().unlink()
    for _ in range(2):
        assert chaos(file, 1, 1, *words, EVENTS="30").exit_code in (0, 4)
    assert [path.read_text() for path in theirs] == ["years of work"]


def test_only_json_is_printed_whatever_user_code_prints(tmp_path: Path) -> None:
    text = ORDERS.replace('return pa.table({"sum"', "print('summed'); return pa.table({\"sum\"")
    file = write(tmp_path, "orders.py", f"print('imported')\n{text}")
    result = chaos(file, 1, 1, "--only", "group", "--json", EVENTS="30")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["verdict"] == "explained"
    assert "imported" in result.stderr
    assert "summed" in result.stderr


def test_more_faults_than_a_run_meets_are_refused(tmp_path: Path) -> None:
    result = chaos(write(tmp_path, "orders.py", ORDERS), 1, 201)
    assert result.exit_code == 2
    assert "there are to be 201 faults, and one run meets at most 200" in " ".join(result.stderr.split())


def test_a_log_in_memory_is_refused(tmp_path: Path) -> None:
    result = chaos(write(tmp_path, "orders.py", ORDERS), 1, 1, "--log", "memory:")
    assert result.exit_code == 1
    assert "a log in memory survives no fault; leave out --log, or name a file or a database" in result.stderr


def test_it_needs_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "orders.py", ORDERS)
    monkeypatch.setattr(sys, "platform", "darwin")
    result = chaos(file, 1, 1)
    monkeypatch.undo()
    assert result.exit_code == 1
    assert "clew chaos runs on Linux only, and this is darwin; run it on Linux" in result.stderr


def test_a_fault_says_where_it_strikes() -> None:
    assert str(ChaosFault("group", "paid", "after-wake", 2)) == "group paid after-wake, time 2"
    assert str(ChaosFault("process", after=1)) == "process after 1 commit"
