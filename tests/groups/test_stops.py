"""A run of processes is stopped, watched, resumed, and refused what it cannot have."""

import json
import signal

from clew.store.base import group_role
from tests.groups.runs import SUPERVISOR, Apart, groups, wait_for


def test_a_run_is_stopped_after_its_turns_and_goes_on_where_it_was(apart: Apart) -> None:
    apart.events, apart.pause = 1000, 0.05
    first = apart.start()
    apart.let(apart.events)
    wait_for(lambda: apart.sent("left") >= 5, "left does not work")
    stands_by = apart.clew("group", "left", "--pipeline", apart.file, *apart.log)
    assert stands_by.stdout is not None
    assert "is run by process" in stands_by.stdout.readline()
    code, out = apart.call("stop", apart.file, *apart.log)
    assert code == 0, out
    assert stands_by.wait(60) == 0
    assert "stopped; `clew run " in out
    assert first.wait(60) == 0
    assert all(row.left <= 0 for row in apart.processes().values())
    assert apart.sent("numbers") < apart.events
    assert apart.call("stop", apart.file, *apart.log)[1].startswith("nobody runs pipeline diamond")
    apart.pause = 0.0
    apart.start()
    apart.end()
    assert apart.held() == apart.expected


def test_sigterm_to_the_supervisor_stops_all_groups(apart: Apart) -> None:
    apart.events, apart.pause = 1000, 0.05
    first = apart.start()
    apart.let(apart.events)
    wait_for(lambda: apart.sent("left") >= 5, "left does not work")
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    assert all(row.given_up for row in apart.processes().values() if row.role in groups(apart))
    assert apart.sent("numbers") < apart.events
    apart.pause = 0.0
    apart.start()
    apart.end()
    assert apart.held() == apart.expected


def test_a_group_that_somebody_ends_is_started_again_while_the_run_goes_on(apart: Apart) -> None:
    apart.start()
    apart.let(10)
    wait_for(lambda: apart.sent("left") >= 5, "left does not work")
    apart.replaced(apart.kill(group_role("left"), signal.SIGTERM))
    apart.end()
    assert apart.held() == apart.expected


def test_of_two_supervisors_one_works_and_the_other_shows_what_it_does(apart: Apart) -> None:
    first = apart.start()
    apart.let(10)
    wait_for(lambda: apart.sent("left") >= 5, "left does not work")
    told = json.loads(apart.call("status", apart.file, *apart.log, "--json")[1])
    shown = {process["role"]: process for process in told["processes"]}
    assert (shown[SUPERVISOR]["pid"], shown["group left"]["alive"]) == (first.pid, True)
    second = apart.start()
    assert second.stdout is not None
    said = ""
    while "is run by process" not in said:
        said = second.stdout.readline()
        assert said, "it ended without a word"
    assert f"pipeline diamond is run by process {first.pid} on" in said
    out = apart.end()
    assert "writer finished" in out
    assert first.wait(60) == 0
    assert apart.processes()[SUPERVISOR].starts == 1
    assert apart.held() == apart.expected


def test_a_fresh_start_is_refused_while_somebody_works(apart: Apart) -> None:
    apart.start()
    apart.let(10)
    wait_for(lambda: apart.sent("left") >= 5, "left does not work")
    words = ("run", apart.file, *apart.log, "--groups", "processes", "--engine", "inline", "--fresh", "--yes")
    code, out = apart.call(*words)
    assert code == 1
    assert "expected nobody; let it work, or end it with `clew stop`" in out
    # Nor does one process take the groups from those that have them: it shows what they do.
    shows = apart.clew("run", apart.file, *apart.log, "--engine", "inline")
    assert shows.stdout is not None
    assert "is run by process" in shows.stdout.readline()
    apart.end()
    assert shows.wait(60) == 0
    assert apart.held() == apart.expected


def test_a_process_takes_no_groups_from_those_that_nobody_supervises(apart: Apart) -> None:
    apart.start()
    apart.let(10)
    wait_for(lambda: apart.sent("left") >= 5, "left does not work")
    apart.kill(SUPERVISOR)
    apart.supervisors[-1].wait()
    code, out = apart.call("run", apart.file, *apart.log, "--engine", "inline")
    assert (code, "expected nobody; let it work" in out) == (1, True)
    apart.start()
    apart.working(SUPERVISOR)
    apart.end()
    assert apart.held() == apart.expected


def test_what_processes_cannot_have_is_refused_with_a_sentence(apart: Apart) -> None:
    run = ("run", apart.file, "--groups", "processes", "--engine", "inline")
    code, out = apart.call(*run)
    assert code == 1
    assert "need a log that they can share" in out
    assert "--log embedded-postgres:DIR, which needs no server" in out
    code, out = apart.call(*run, *apart.log, "--recovery", "none")
    assert (code, "--recovery none is for groups that are threads of one process" in out) == (1, True)
    code, out = apart.call("group", "other", "--pipeline", apart.file, *apart.log)
    assert (code, "has no group 'other'; name one of numbers, left, right, joined, writer" in out) == (1, True)
    code, out = apart.call("group", "left", "--pipeline", apart.file, *apart.log, "--engine", "grpc://127.0.0.1:9")
    assert (code, "asks for a token; give --token-file" in out) == (1, True)
    secured = ("--engine", "grpc+tls://127.0.0.1:9", "--token-file", "token", "--tls-ca", "ca.pem")
    code, out = apart.call("group", "left", "--pipeline", apart.file, *apart.log, *secured)
    assert (code, "ca.pem cannot be read (No such file or directory); give --tls-ca" in out) == (1, True)
