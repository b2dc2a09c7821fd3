"""A second `clew run` of a pipeline shows what the first one does, and takes its place when that is gone."""

import json
import os
import signal
import socket
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from clew import admission
from clew.errors import AlreadyRunning, RoleLost
from clew.pipeline.graph import Graph
from clew.pipeline.load import load
from clew.place import Log
from clew.run import run
from clew.store.base import SUPERVISOR, Holder, KeptStore, ProcessRow
from clew.store.sqlite import SqliteStore
from clew.supervisor.tenure import this_process
from tests.app.pipelines import call, finish, kept, log_url, start, write_numbers

EVENTS = 60
ALL = [2 * number for number in range(EVENTS)]
Process = "subprocess.Popen[str]"


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    return ("run", write_numbers(tmp_path), "--engine", "inline", "--log", log_url(tmp_path))


def slow(words: tuple[str, ...], *more: str, **environment: str) -> Process:
    """Start a run that lasts for seconds."""
    return start(*words, *more, **{"PAUSE": "0.05", "EVENTS": str(EVENTS), **environment})


def held(words: tuple[str, ...], *more: str, **environment: str) -> Process:
    """Start a run that does half of its work, and the rest when it is let go on."""
    return slow(words, *more, GATE=str(_gate(words)), **environment)


def let_go_on(words: tuple[str, ...]) -> None:
    _gate(words).touch()


def _gate(words: tuple[str, ...]) -> Path:
    return Path(words[1]).with_name("gate")


def supervisor(directory: Path) -> ProcessRow | None:
    with closing(SqliteStore(directory / "log.db")) as store:
        return next((row for row in store.processes() if row.role == SUPERVISOR), None)


def runs(directory: Path, process: Process) -> None:
    """Wait until a process runs the pipeline, and has written something."""
    until = time.monotonic() + 60
    while not ((directory / "out").is_dir() and (row := supervisor(directory)) and row.holder.pid == process.pid):
        assert time.monotonic() < until, "it does not begin"
        time.sleep(0.05)


def freeze(directory: Path, process: Process) -> None:
    """Freeze a process outside its transactions: inside one it would keep the lock of the log, which is a file."""
    with closing(sqlite3.connect(directory / "log.db", timeout=60, isolation_level=None)) as log:
        log.execute("BEGIN IMMEDIATE")
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        log.execute("ROLLBACK")


def said_by(process: Process, what: str) -> str:
    """Wait until a process says something on stderr; return all that it has said until then."""
    assert process.stderr is not None
    said = ""
    while what not in said:
        line = process.stderr.readline()
        assert line, f"it ended without {what!r}: {said}"
        said += line
    return said


def test_the_second_shows_what_the_first_does_until_it_ends(tmp_path: Path, words: tuple[str, ...]) -> None:
    first = held(words)
    runs(tmp_path, first)
    second = slow(words)
    said_by(second, f"pipeline numbers is run by process {first.pid} on ")
    let_go_on(words)
    code, out, err = finish(second)
    assert code == 0
    assert "source finished in=0 out=60" in err
    assert "pipeline numbers has finished in" in out
    assert finish(first)[0] == 0
    assert kept(tmp_path) == ALL
    row = supervisor(tmp_path)
    assert row is not None
    assert row.starts == 1


def test_the_second_takes_the_place_of_one_that_was_killed_at_once(tmp_path: Path, words: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # A lease that outlasts the test: a process that is gone from this machine is not waited for.
    first = held(words, "--set", "lease=60", "--metrics", f"127.0.0.1:{port}")
    runs(tmp_path, first)
    # The first one serves the figures; that is no reason not to show them here.
    second = slow(words, "--metrics", f"127.0.0.1:{port}")
    said_by(second, f"is run by process {first.pid} on ")
    first.kill()
    assert finish(first)[0] == -signal.SIGKILL
    said_by(second, f"figures for Prometheus on port {port}")
    said_by(second, "that process gives no sign of life, and this one takes its place")
    assert finish(second)[0] == 0
    assert kept(tmp_path) == ALL


def test_scenario_6_one_that_was_frozen_past_its_lease_is_replaced_and_changes_nothing(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    first = held(words, "--set", "lease=1")
    runs(tmp_path, first)
    freeze(tmp_path, first)
    # Whether it waits for the lease first is a matter of how long it takes to start.
    code, _, err = finish(slow(words, "--set", "lease=1"))
    assert code == 0, err
    assert kept(tmp_path) == ALL
    let_go_on(words)
    first.send_signal(signal.SIGCONT)
    code, _, err = finish(first)
    assert code == 1
    assert "another process took it over" in err or "was taken over by another process while this one was silent" in err
    assert kept(tmp_path) == ALL


@pytest.mark.parametrize("how", ["clew stop", "SIGTERM"])
def test_a_run_is_stopped_after_its_turns_and_goes_on_where_it_was(
    tmp_path: Path, words: tuple[str, ...], how: str
) -> None:
    told_to = {"CLEW_OPENLINEAGE": f"file:{tmp_path / 'events.jsonl'}"}
    # So much that it has not ended, and a lease so long that it has not run out, when others are slow to start.
    many = {"EVENTS": "600"}
    first = slow(words, "--set", "lease=3", PAUSE="0.2", **many, **told_to)
    runs(tmp_path, first)
    second = slow(words, **many, **told_to)
    said_by(second, "is run by process")
    if how == "SIGTERM":
        first.terminate()
    else:
        told = call("stop", words[1], *words[-2:])
        assert told.exit_code == 0
        assert "asked 1 process of pipeline numbers to stop" in told.stderr
        assert "stopped; `clew run " in told.stderr
        assert "nobody runs pipeline numbers" in call("stop", words[1], *words[-2:]).stderr
    for process in (first, second):
        code, out, err = finish(process)
        assert code == 0, err
        assert "stopped after the turns in flight; `clew run " in err
        assert "has finished" not in out
    assert len(kept(tmp_path)) < 600
    # A collector hears of one run, from who runs it, and not that it has come to its end.
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["eventType"] for event in events if event["job"]["name"] == "numbers"] == ["START", "ABORT"]
    again = slow(words, "--json", PAUSE="0", **many)
    assert json.loads(finish(again)[1])["outcome"] == "finished"
    assert kept(tmp_path) == [2 * number for number in range(600)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"])
def test_who_only_shows_a_run_can_be_ended_and_the_run_goes_on(
    tmp_path: Path, words: tuple[str, ...], number: signal.Signals, code: int
) -> None:
    first = held(words)
    runs(tmp_path, first)
    second = slow(words)
    said_by(second, "is run by process")
    second.send_signal(number)
    ended, _, err = finish(second)
    let_go_on(words)
    assert (ended, f"not shown any more; process {first.pid} on " in err) == (code, True), err
    assert finish(first)[0] == 0
    assert kept(tmp_path) == ALL


def test_the_second_fails_as_the_first_does(tmp_path: Path, words: tuple[str, ...]) -> None:
    first = held(words, POISON="40")
    runs(tmp_path, first)
    second = slow(words, POISON="40")
    said_by(second, "is run by process")
    let_go_on(words)
    code, _, err = finish(second)
    assert code == 1
    assert f"the run of process {first.pid} on " in err
    assert ", which this showed, failed: operator doubled failed on source.out#41" in err
    assert finish(first)[0] == 1


def test_a_fresh_start_is_refused_while_somebody_works(tmp_path: Path, words: tuple[str, ...]) -> None:
    first = held(words)
    runs(tmp_path, first)
    code, _, err = finish(start(*words, "--fresh", "--yes"))
    let_go_on(words)
    assert code == 1
    assert f"is being run by process {first.pid} on " in err
    assert finish(first)[0] == 0
    assert kept(tmp_path) == ALL


def test_of_two_fresh_starts_at_the_same_moment_one_is_refused(
    tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, place = load(words[1]), Log.at(log_url(tmp_path), "numbers", None)
    place.open("numbers").close()
    nobody_works = admission.refuse_processes

    def another_begins(graph: Graph, store: KeptStore) -> None:
        # Who looks finds nobody, and before it goes on another one has looked, and removes the log.
        nobody_works(graph, store)
        assert store.take_lease(SUPERVISOR, Holder("another", "elsewhere", 11), 100) is None

    monkeypatch.setattr(admission, "refuse_processes", another_begins)
    with pytest.raises(AlreadyRunning, match="is being run by process 11 on elsewhere"):
        run(pipeline, log=place.url, engine="inline", fresh=True)
    assert supervisor(tmp_path) is not None


def test_from_python_a_run_that_another_process_has_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    pipeline = load(words[1])
    with closing(SqliteStore(tmp_path / "log.db")) as store:
        assert store.take_lease(SUPERVISOR, Holder("another", "elsewhere", 11), 100) is None
        with pytest.raises(AlreadyRunning, match="is being run by process 11 on elsewhere"):
            run(pipeline, log=log_url(tmp_path), engine="inline")


def test_who_was_replaced_in_silence_ends_and_says_so(
    tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTS", "400")
    monkeypatch.setenv("PAUSE", "0.05")
    raised: list[str] = []

    def work() -> None:
        try:
            run(load(words[1]), log=log_url(tmp_path), engine="inline", lease=0.4)
        except RoleLost as lost:
            raised.append(str(lost))

    thread = threading.Thread(target=work)
    thread.start()
    while not (tmp_path / "out").is_dir():
        time.sleep(0.05)
    with closing(SqliteStore(tmp_path / "log.db")) as store:
        (first,) = store.processes()
        assert store.take_lease(SUPERVISOR, Holder("another", "elsewhere", 11), 100, dead=first.holder.name) is None
        thread.join(60)
    assert [text.partition(" while")[0] for text in raised] == [
        "the run of pipeline numbers was taken over by another process"
    ]


def test_a_run_that_could_not_give_its_role_up_does_not_hold_up_the_next_in_its_process(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    with closing(SqliteStore(tmp_path / "log.db")) as store:
        # Its process lives, but nobody in it keeps the role.
        assert store.take_lease(SUPERVISOR, this_process(), 100) is None
    assert run(load(words[1]), log=log_url(tmp_path), engine="inline").finished


def test_a_log_that_is_not_there_has_nobody_to_stop(tmp_path: Path, words: tuple[str, ...]) -> None:
    told = call("stop", words[1], *words[-2:])
    assert told.exit_code == 1
    assert "pipeline numbers has no log at " in told.stderr
