"""The supervisor of processes by itself: what it says when a process must not, or can not, be started again."""

import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest

from clew import Pipeline, files, generator
from clew.admission import supervising
from clew.errors import AlreadyRunning, EngineLost, GroupFailed, RoleLost, RunStopped, SetupFailed
from clew.groups import Membership, run_group, run_processes
from clew.place import Log
from clew.runtime.engine import InlineEngine
from clew.runtime.progress import Progress
from clew.store.base import SUPERVISOR, Holder, KeptStore, group_role
from clew.store.memory import MemoryStore
from clew.supervisor.address import is_good
from clew.supervisor.processes import Commands, ProcessSupervisor
from clew.supervisor.tenure import this_process
from clew.supervisor.threads import Policy
from tests.groups.runs import wait_for

ROOT = Path(__file__).parents[2]
#: Gives up after two deaths in a row, and does not wait between them.
POLICY = Policy(first_delay=0.0, give_up_after=2)
WAITS = "import time; time.sleep(600)"
REFUSES = "import sys; print('error: it cannot be done'); sys.exit(1)"
DIES = "import os; os.kill(os.getpid(), 9)"


@dataclass
class OwnDoor:
    store: KeptStore = field(default_factory=MemoryStore)

    def reopen(self) -> None:
        raise AssertionError("a log in memory is always there")


def small(directory: Path) -> Pipeline:
    pipeline = Pipeline("small")
    source = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), 3))
    pipeline.sink(source, files(directory / "out"), name="kept")
    return pipeline


def supervised(directory: Path, group: str, engine: str | None = None) -> ProcessSupervisor:
    def start(name: str | None, dead: str | None) -> Sequence[str]:
        return [sys.executable, "-c", group]

    commands = Commands(start, None if engine is None else [sys.executable, "-c", engine], directory / "groups")
    return ProcessSupervisor(small(directory).graph(), OwnDoor(), commands, POLICY, Progress(), 5.0)


def test_a_group_that_says_why_it_cannot_go_on_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(GroupFailed, match="it cannot be done"):
        supervised(tmp_path, REFUSES).run()


def test_a_group_that_dies_again_and_again_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match=r"failed 2 times .*its process ended by signal 9; what it printed is in"):
        supervised(tmp_path, DIES).run()


def test_what_became_of_a_process_that_was_replaced_is_told_for_it(tmp_path: Path) -> None:
    supervisor = supervised(tmp_path, DIES)
    with pytest.raises(RunStopped):
        supervisor.run()
    assert "its process ended by signal 9" in supervisor.report()["deaths"]["numbers"]


def test_an_engine_that_cannot_start_ends_the_run_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(
        SetupFailed, match=r"it cannot be done; all that the engine service printed is in .*engine\.log"
    ):
        supervised(tmp_path, WAITS, REFUSES).run()


def test_an_engine_that_dies_again_and_again_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(EngineLost, match="ended by signal 9, 2 times in a row"):
        supervised(tmp_path, WAITS, DIES).run()


def test_a_group_whose_role_another_has_taken_ends_and_says_so(tmp_path: Path, postgres_url: str) -> None:
    graph = small(tmp_path).graph()
    place = Log.at(postgres_url, "small", str(tmp_path / "bodies"))
    raised: list[BaseException] = []

    def work() -> None:
        try:
            run_group(Membership(graph, "kept", place, Policy(), lease=1.0), InlineEngine(graph), threading.Event())
        except RoleLost as lost:
            raised.append(lost)

    # It waits for what the source will send, which nobody runs.
    thread = threading.Thread(target=work)
    thread.start()
    store = place.open("small")
    role = group_role("kept")
    first = wait_for(lambda: next((row for row in store.processes() if row.role == role), None), "it has no role")
    assert store.take_lease(role, Holder("another", "elsewhere", 1), 60, dead=first.holder.name) is None
    thread.join(60)
    store.close()
    assert "group kept was taken over by another process while this one was silent" in str(raised[0])


def test_a_supervisor_that_was_replaced_leaves_the_run_to_the_one_that_has_it(tmp_path: Path) -> None:
    supervisor = supervised(tmp_path, WAITS)
    store = supervisor._door.store
    graph = small(tmp_path).graph()
    first, second = this_process(), Holder("second", "elsewhere", 1)

    def work() -> None:
        with supervising(graph, lambda: store, first, 0.4, supervisor.report, lambda asked: None, supervisor.lose):
            supervisor.run()

    thread = threading.Thread(target=work)
    thread.start()
    children = wait_for(lambda: [group.child for group in supervisor._groups if group.child], "nothing is started")
    assert store.take_lease(SUPERVISOR, second, 60, dead=first.name) is None
    thread.join(60)
    try:
        assert supervisor.lost
        assert [child.poll() for child in children] == [None] * len(children)
        (row,) = [row for row in store.processes() if row.role == SUPERVISOR]
        assert (row.holder, row.asked) == (second, "")
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_spare_that_cannot_start_is_not_started_all_the_time(tmp_path: Path) -> None:
    started: list[str | None] = []

    def start(name: str | None, dead: str | None) -> Sequence[str]:
        started.append(name)
        return [sys.executable, "-c", WAITS if name else REFUSES]

    commands, stop = Commands(start, None, tmp_path / "groups"), threading.Event()
    policy = Policy(first_delay=60.0)
    supervisor = ProcessSupervisor(small(tmp_path).graph(), OwnDoor(), commands, policy, Progress(), 5.0, stop)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    wait_for(lambda: supervisor._spares._failures > 1, "the spare does not fail")
    stop.set()
    thread.join(60)
    assert started.count(None) == 2


def test_an_address_is_good_while_its_writer_lives(tmp_path: Path) -> None:
    path = tmp_path / "engine.address"
    assert not is_good(path)
    published = f"""
from pathlib import Path
from clew.supervisor.address import published
with published(Path({str(path)!r}), "grpc://127.0.0.1:1"):
    {WAITS}
"""
    with subprocess.Popen([sys.executable, "-c", published], cwd=ROOT) as writer:
        wait_for(path.exists, "nothing is written")
        assert is_good(path)
        writer.kill()
        writer.wait()
    assert path.read_text() == "grpc://127.0.0.1:1\n"
    assert not is_good(path)


def test_a_port_that_another_program_has_got_is_not_taken_for_the_engine(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        (tmp_path / "groups").mkdir()
        address = tmp_path / "groups" / "engine.address"
        address.write_text(f"grpc://127.0.0.1:{other.getsockname()[1]}\n")
        # It is started, which is seen by what it says.
        with pytest.raises(SetupFailed, match="it cannot be done"):
            supervised(tmp_path, WAITS, REFUSES).run()
    assert not address.exists()


def test_no_group_is_taken_from_a_process_that_runs_all_of_them(tmp_path: Path, postgres_url: str) -> None:
    graph = small(tmp_path).graph()
    place = Log.at(postgres_url, "small", str(tmp_path / "bodies"))
    with closing(place.open("small")) as store:
        assert store.take_lease(SUPERVISOR, replace(this_process(threads=True), host="elsewhere"), 60) is None
    with pytest.raises(AlreadyRunning, match="on elsewhere, expected nobody"):
        run_group(Membership(graph, "kept", place, Policy()), InlineEngine(graph), threading.Event())


def test_who_was_replaced_says_so(tmp_path: Path, postgres_url: str) -> None:
    graph, raised = small(tmp_path).graph(), []
    place = Log.at(postgres_url, "small", str(tmp_path / "bodies"))
    # They outlive their supervisor, and end by themselves.
    commands = Commands(lambda name, dead: [sys.executable, "-c", "import time; time.sleep(20)"], None, tmp_path)

    def work() -> None:
        try:
            run_processes(graph, place, commands, POLICY, Progress(), lease=0.5)
        except RoleLost as lost:
            raised.append(str(lost))

    thread = threading.Thread(target=work)
    thread.start()
    with closing(place.open("small")) as store:
        first = wait_for(lambda: [row for row in store.processes() if row.role == SUPERVISOR], "nobody supervises")[0]
        wait_for(lambda: (tmp_path / "spare.log").exists(), "nothing is started")
        assert store.take_lease(SUPERVISOR, Holder("second", "elsewhere", 1), 60, dead=first.holder.name) is None
        thread.join(60)
        assert [row.asked for row in store.processes()] == [""] * len(store.processes())
    assert [text.partition(" while")[0] for text in raised] == [
        "the run of pipeline small was taken over by another process"
    ]
