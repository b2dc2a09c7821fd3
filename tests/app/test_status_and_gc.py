"""`clew status` tells what the log says, during a run and after it; `clew gc` removes what is done."""

import json
from contextlib import closing
from pathlib import Path

from clew.store.base import SUPERVISOR, Holder, group_role
from clew.store.sqlite import SqliteStore
from tests.app.pipelines import call, finish, kept, log_url, start, write_numbers
from tests.app.test_run import _wait_for


def status(tmp_path: Path):
    return json.loads(call("status", write_numbers(tmp_path), "--log", log_url(tmp_path), "--json").stdout)


def run_inline(tmp_path: Path, **environment: str) -> None:
    call("run", write_numbers(tmp_path), "--engine", "inline", "--log", log_url(tmp_path), **environment)


def test_without_a_log_status_and_gc_say_so_and_make_none(tmp_path: Path) -> None:
    for command in ("status", "gc"):
        result = call(command, write_numbers(tmp_path), "--log", log_url(tmp_path))
        assert result.exit_code == 1
        assert f"pipeline numbers has no log at {log_url(tmp_path)}: it has not been run there" in result.stderr
        assert not (tmp_path / "log.db").exists()


def test_without_a_log_json_says_so_too(tmp_path: Path) -> None:
    result = call("status", write_numbers(tmp_path), "--log", log_url(tmp_path), "--json")
    assert json.loads(result.stdout)["exists"] is False


def test_the_status_of_a_finished_run(tmp_path: Path) -> None:
    run_inline(tmp_path)
    answer = status(tmp_path)
    assert answer["finished"]
    operators = {operator["operator"]: operator for operator in answer["operators"]}
    # The end of the stream is an event too.
    assert operators["source"]["sent"] == {"out": 21}
    assert operators["doubled"]["acknowledged"] == {"in": 21}
    assert operators["doubled"]["backlog"] == {"in": {"events": 0, "bytes": 0}}
    assert operators["doubled_sink"]["undone_writes"] == {"out": 0}
    assert {operator["incarnation"] for operator in operators.values()} == {1}


def test_the_status_as_a_table(tmp_path: Path) -> None:
    run_inline(tmp_path)
    told = call("status", write_numbers(tmp_path), "--log", log_url(tmp_path)).stdout
    assert told.startswith("pipeline numbers, run ")
    assert "finished: 42 events logged" in told


def test_the_status_of_a_run_that_was_cut_off(tmp_path: Path) -> None:
    words = ("run", write_numbers(tmp_path), "--engine", "inline", "--log", log_url(tmp_path))
    # The sink has its first write in the log, and dies before it is performed.
    finish(start(*words, CLEW_FAULTS="before-write@doubled_sink#1"))
    answer = status(tmp_path)
    assert not answer["finished"]
    sink = next(operator for operator in answer["operators"] if operator["operator"] == "doubled_sink")
    assert sink["undone_writes"] == {"out": 1}
    told = call("status", write_numbers(tmp_path), "--log", log_url(tmp_path)).stdout
    assert "not finished: " in told
    assert f"`clew run {words[1]} --log {log_url(tmp_path)}` resumes it" in told


def test_status_changes_nothing(tmp_path: Path) -> None:
    run_inline(tmp_path, POISON="13")
    before, after = status(tmp_path), status(tmp_path)
    for told in (before, after):
        # It is silent for longer each time.
        (supervisor,) = told["processes"]
        del supervisor["silent"]
    assert after == before


def test_where_groups_are_threads_the_process_of_a_run_is_told_of_while_it_lives(tmp_path: Path) -> None:
    run_inline(tmp_path)
    (supervisor,) = status(tmp_path)["processes"]
    assert (supervisor["role"], supervisor["alive"], supervisor["ended"]) == ("supervisor", False, True)
    assert "pid" not in call("status", write_numbers(tmp_path), "--log", log_url(tmp_path)).stdout


def has_processes(tmp_path: Path) -> None:
    """Leave a log that a supervisor and a group work on; another group has ended, one was replaced and is silent."""
    run_inline(tmp_path, POISON="13")
    with closing(SqliteStore(tmp_path / "log.db")) as store:
        first, second = Holder("first", "here", 11), Holder("second", "there", 22)
        # Had for a moment by whoever starts: that is nobody's place in the run.
        store.take_lease("setup", first, 100)
        store.take_lease(SUPERVISOR, first, 100)
        store.take_lease(group_role("source"), first, 100)
        store.release_lease(group_role("source"), first)
        store.take_lease(group_role("doubled"), first, 100)
        store.take_lease(group_role("doubled"), second, 100, dead="first")
        figures = {"doubled": {"restarts": 2, "last_error": "ValueError: no\nmore of it"}}
        store.renew_lease(group_role("doubled"), second, 100, {"operators": figures, "error": ""})
        store.take_lease(group_role("doubled_sink"), second, 0)
        store.take_lease(group_role("removed"), second, 0)
        deaths = {"doubled": "signal 15", "doubled_sink": "its process ended by signal 9"}
        store.renew_lease(SUPERVISOR, first, 100, {"deaths": deaths})


def test_the_processes_of_a_run_are_told_with_what_the_log_has_of_them(tmp_path: Path) -> None:
    has_processes(tmp_path)
    processes = {process["role"]: process for process in status(tmp_path)["processes"]}
    roles = ["supervisor", "group source", "group doubled", "group doubled_sink", "group removed"]
    assert list(processes) == roles
    assert [processes[role]["alive"] for role in roles] == [True, False, True, False, False]
    assert [processes[role]["ended"] for role in roles] == [False, True, False, False, False]
    doubled = processes["group doubled"]
    assert (doubled["group"], doubled["host"], doubled["pid"]) == ("doubled", "there", 22)
    assert (doubled["restarts"], doubled["restarts_inside"], doubled["incarnations"]) == (1, 2, {"doubled": 1})
    assert doubled["last_error"] == "ValueError: no\nmore of it"
    assert processes["group doubled_sink"]["last_error"] == "its process ended by signal 9"
    assert 0 < doubled["left"] <= 100
    assert (processes["group removed"]["incarnations"], processes["group removed"]["left"]) == ({}, 0)


def test_the_processes_of_a_run_are_a_table_of_their_own(tmp_path: Path) -> None:
    has_processes(tmp_path)
    told = call("status", write_numbers(tmp_path), "--log", log_url(tmp_path)).stdout
    rows = {line.split("  ")[0]: " ".join(line.split()) for line in told.splitlines()}
    assert rows["group source"] == "group source 11 here ended 1 0 -"
    assert rows["group doubled"].startswith("group doubled 22 there alive, ")
    assert rows["group doubled"].endswith(" s left 1 1, 2 inside ValueError: no")
    assert rows["group doubled_sink"].startswith("group doubled_sink 22 there silent for ")
    assert "it is run by process 11 on here" in told


def test_an_operator_that_is_no_longer_declared_is_named(tmp_path: Path) -> None:
    run_inline(tmp_path)
    file = Path(write_numbers(tmp_path))
    file.write_text(file.read_text().replace("pipeline.sink(", "# pipeline.sink("))
    told = call("status", str(file), "--log", log_url(tmp_path)).stdout
    assert "finished (no longer in the file)" in told


def test_status_and_gc_work_while_a_run_goes_on(tmp_path: Path) -> None:
    file = write_numbers(tmp_path)
    process = start("run", file, "--engine", "inline", "--log", log_url(tmp_path), PAUSE="0.02", EVENTS="150")
    _wait_for(lambda: (tmp_path / "out").is_dir())
    during = status(tmp_path)
    told = call("status", file, "--log", log_url(tmp_path)).stdout
    removed = json.loads(call("gc", file, "--log", log_url(tmp_path), "--json").stdout)
    code, _, _ = finish(process)
    assert code == 0
    assert not during["finished"]
    assert f"it is run by process {process.pid} on " in told
    assert during["operators"][1]["status"] == "running"
    assert removed["events"] > 0
    assert kept(tmp_path) == [2 * number for number in range(150)]


def test_gc_removes_what_is_done(tmp_path: Path) -> None:
    run_inline(tmp_path)
    file, url = write_numbers(tmp_path), log_url(tmp_path)
    assert call("gc", file, "--log", url).stdout == f"removed 42 events and 0 body files from {url}\n"
    assert call("gc", file, "--log", url).stdout == f"removed 0 events and 0 body files from {url}\n"
    # Counters outlive rows.
    assert status(tmp_path)["events"] == 42


def test_a_log_in_postgresql_is_run_shown_and_collected(tmp_path: Path, postgres_url: str) -> None:
    file = write_numbers(tmp_path)
    where = ("--log", postgres_url, "--bodies", str(tmp_path / "bodies"))
    for command in ("status", "gc"):
        # Twice: the first must not have made a log.
        for _ in range(2):
            result = call(command, file, *where)
            assert result.exit_code == 1
            assert "has no log at" in result.stderr
    failed = call("run", file, "--engine", "inline", *where, POISON="13")
    assert failed.exit_code == 1
    assert "new run of pipeline numbers" in failed.stderr
    assert not json.loads(call("status", file, *where, "--json").stdout)["finished"]
    assert "resuming run " in call("run", file, "--engine", "inline", *where).stderr
    assert json.loads(call("status", file, *where, "--json").stdout)["finished"]
    assert json.loads(call("gc", file, *where, "--json").stdout)["events"] == 42
    assert call("run", file, "--engine", "inline", *where).exit_code == 3
    assert call("run", file, "--engine", "inline", *where, "--fresh").exit_code == 0
