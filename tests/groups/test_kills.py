"""Whoever is killed, and whenever: the sink holds what it should, and those that were not hit never restarted."""

import os
import random
import signal

from tests.groups.runs import SUPERVISOR, Apart, groups, some_moment, wait_for
from tests.soak import SOAK

#: How often each kind of process is killed.
TIMES = 10 if SOAK else 2


def test_each_group_and_the_supervisor_are_killed_in_turn_and_the_others_do_not_notice(apart: Apart) -> None:
    chance = random.Random(7)
    victims = [role for role in (*groups(apart), SUPERVISOR) for _ in range(TIMES)]
    chance.shuffle(victims)
    step = 4
    apart.events = step * (len(victims) + 1)
    apart.start()
    for number, role in enumerate(victims, 1):
        apart.let(step * number)
        some_moment(chance)
        killed = apart.kill(role)
        if role == SUPERVISOR:
            apart.supervisors[-1].wait()
            apart.start()
        apart.replaced(killed)
    apart.end()
    assert apart.held() == apart.expected
    starts = {role: row.starts for role, row in apart.processes().items()}
    assert {role: starts[role] for role in set(victims)} == dict.fromkeys(victims, 1 + TIMES)
    apart.explained()


def test_scenario_6_a_frozen_group_is_replaced_and_changes_nothing_when_it_wakes_up(apart: Apart) -> None:
    apart.settings = {"lease": 1}
    apart.start()
    apart.let(20)
    wait_for(lambda: apart.sent("left") >= 10, "left does not work")
    frozen = apart.kill("group left", signal.SIGSTOP)
    other = apart.replaced(frozen)
    apart.let(40)
    wait_for(lambda: apart.sent("left") >= 30, "nobody goes on in its place")
    os.kill(frozen.holder.pid, signal.SIGCONT)
    apart.end()
    assert apart.held() == apart.expected
    assert apart.processes()["group left"].holder == other.holder


def test_who_runs_a_group_that_somebody_runs_stands_by_and_takes_over_when_that_one_is_gone(apart: Apart) -> None:
    apart.settings = {"lease": 1}
    apart.start()
    apart.let(10)
    first = apart.working("group joined")
    second = apart.clew("group", "joined", "--pipeline", apart.file, *apart.log, "--set", "lease=1")
    assert second.stdout is not None
    assert second.stdout.readline().startswith(f"group joined is run by process {first.holder.pid} on ")
    # Its own supervisor is gone too, so that nobody else takes its place.
    apart.kill(SUPERVISOR)
    apart.kill("group joined")
    assert apart.replaced(first).holder.pid == second.pid
    # Groups need no supervisor.
    apart.let(apart.events)
    assert second.wait(60) == 0
    wait_for(lambda: apart.held() == apart.expected, "the writer does not come to its end")
