"""The engine service takes turns from other processes: many at once, the newest of each operator, some alone."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from clew.errors import EngineFailed, EngineLost, SetupFailed, StaleWriter, TurnTimedOut, UserFunctionFailed
from clew.run import run
from clew.runtime.engine import InlineEngine, Job
from clew.runtime.task import Failure
from clew.spark.client import _asked
from clew.spark.program import Program, fingerprint
from clew.spark.wire import Request
from tests.engine.served import CODE, TOKEN, InThread, Told, asked, job, numbers, read, served, until


def test_a_turn_is_computed_elsewhere_and_its_results_come_back() -> None:
    with served(InlineEngine(numbers())) as service, asked(service) as engine:
        ran = engine.map(job(), read(3))
        assert engine.parallelism == 1
        assert [result.pieces for result in ran.results] == [3]


@pytest.mark.parametrize("method", ["map", "frames", "observe", "write"])
def test_every_kind_of_turn_passes(method: str) -> None:
    given = {"map": ([],), "frames": (None,), "observe": (None, 10), "write": (None,)}[method]
    with served(Told(lambda job: [job.operator])) as service, asked(service) as engine:
        assert getattr(engine, method)(job(), *given).results == ["source"]


def test_a_whole_pipeline_runs_on_it(tmp_path: Path) -> None:
    with served(InlineEngine(numbers())) as service, asked(service) as engine:
        progress = run(numbers(), log=f"sqlite:///{tmp_path / 'log.db'}", engine=engine)
    assert {name: row.events_out for name, row in progress.rows().items()} == {"source": 20, "doubled": 20}


ROUND_TRIP = """
import sys
from clew.runtime.bodies import BodyPlace
from clew.runtime.engine import Job
from clew.runtime.task import ReadTask
from clew.spark.client import RemoteEngine

url, token, code = sys.argv[1:]
engine = RemoteEngine(lambda: (url, token), code)
task = ReadTask(BodyPlace(None, "source", 1, 1), None, ((0, 2),), {})
assert engine.map(Job("source", 1, 1, "", 60.0), [task]).results[0].pieces == 2
engine.close()
assert not [name for name in ("pyspark", "py4j") if name in sys.modules]
"""


def test_a_client_needs_no_pyspark() -> None:
    with served(InlineEngine(numbers())) as service:
        words = [sys.executable, "-c", ROUND_TRIP, service.url, TOKEN, CODE]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_service_says_who_it_is() -> None:
    with served(Told(), application="app-1", idle=30.0) as service, asked(service) as engine:
        hello = engine.hello
    assert {name: hello[name] for name in ("application", "code", "parallelism", "idle")} == {
        "application": "app-1", "code": CODE, "parallelism": 3, "idle": 30.0,
    }  # fmt: skip
    assert {"clew", "python", "pyarrow", "pid"} <= hello.keys()


def test_code_is_named_by_pipeline_and_content(tmp_path: Path) -> None:
    graph, file = numbers(), tmp_path / "numbers.py"
    found = []
    for text in ("a = 1", "a = 1", "a = 2"):
        file.write_text(text)
        found.append(fingerprint(graph, Program.of_file(file)))
    assert found[0] == found[1] != found[2]
    assert found[0].startswith("numbers@")


@pytest.mark.parametrize(
    "error",
    [
        EngineFailed("source", "a worker is gone", "stack"), TurnTimedOut("source", "source.out#1", 3.0),
        EngineLost("the driver died"), SetupFailed("no", "yes"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_errors_of_the_engine_are_raised_as_they_were(error: Exception) -> None:
    def fail(job: Job) -> Any:
        raise error

    with served(Told(fail)) as service, asked(service) as engine, pytest.raises(type(error)) as raised:
        engine.map(job(), [])
    assert str(raised.value) == str(error)
    assert vars(raised.value) == vars(error)


def test_failures_that_are_results_come_back_as_results() -> None:
    failure = Failure(1, "ValueError", "no", "frames", None, (0, "{}"))
    with served(Told(lambda job: [failure])) as service, asked(service) as engine:
        assert engine.map(job(), []).results == [failure]


class Unpicklable(UserFunctionFailed):
    def __reduce__(self) -> Any:
        raise TypeError("this is never pickled")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("what"), "KeyError: 'what'"),
        (Unpicklable("source", "e", "k", "m", ""), "Unpicklable: operator source failed on e"),
    ],
)
def test_what_was_not_foreseen_is_told(error: Exception, said: str) -> None:
    def fail(job: Job) -> Any:
        raise error

    with served(Told(fail)) as service, asked(service) as engine, pytest.raises(EngineFailed, match=said):
        engine.map(job(), [])


def test_turns_of_several_operators_run_at_once_up_to_a_limit() -> None:
    together, let_go, seen = threading.Barrier(3), threading.Event(), []

    def compute(job: Job) -> Any:
        seen.append(job.operator)
        if job.operator != "d":
            together.wait(30)
            let_go.wait(30)
        return []

    with served(Told(compute), at_once=2) as service, asked(service) as engine:
        calls = [InThread(lambda name=name: engine.map(job(operator=name), [])) for name in "ab"]  # type: ignore[misc]
        together.wait(30)
        third = InThread(lambda: engine.map(job(operator="d"), []))
        until(lambda: service._turns.running == 3)
        assert "d" not in seen
        let_go.set()
        assert [call.ended().error for call in (*calls, third)] == [None] * 3


class Held:
    """Holds the turns of an engine until they are let go, or cancelled."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.running: list[Job] = []
        self.engine = Told(self._compute)

    def _compute(self, job: Job) -> Any:
        self.running.append(job)
        until(lambda: self.let_go.is_set() or job in self.engine.cancelled)
        return [job.turn]


@pytest.fixture
def held() -> Any:
    held = Held()
    yield held
    held.let_go.set()


@pytest.mark.parametrize(("turn", "incarnation"), [(5, 2), (6, 2), (1, 3)], ids=["attempt", "turn", "incarnation"])
def test_what_is_newer_cuts_off_what_is_older(held: Held, turn: int, incarnation: int) -> None:
    with served(held.engine) as service, asked(service) as engine, asked(service) as other:
        # The other has asked more often, as one does who has lost a service.
        other._attempts = iter(range(10, 20))
        old = InThread(lambda: engine.map(job(5, incarnation=2), []))
        until(lambda: held.running)
        beside = InThread(lambda: engine.map(job(1, operator="doubled"), []))
        new = InThread(lambda: other.map(job(turn, incarnation=incarnation), []))
        until(lambda: len(held.running) == 3)
        error = old.ended().error
        assert isinstance(error, StaleWriter if incarnation == 3 else EngineLost)
        if incarnation == 2:
            assert str(error) == (
                "attempt 1 at turn 5 of source was cut off: its operator has asked for something newer since; if it "
                "has not, two processes run it, so stop one of them"
            )
        assert [cut.turn for cut in held.engine.cancelled] == [5]
        held.let_go.set()
        assert new.ended().result.results == [turn]
        assert beside.ended().result.results == [1], "other operators are left alone"


def test_what_waits_and_is_overtaken_is_never_run(held: Held) -> None:
    with served(held.engine, at_once=1) as service, asked(service) as engine:
        first = InThread(lambda: engine.map(job(1, operator="doubled"), []))
        until(lambda: held.running)
        old = InThread(lambda: engine.map(job(5), []))
        until(lambda: service._turns.running == 2)
        new = InThread(lambda: engine.map(job(6), []))
        assert isinstance(old.ended().error, EngineLost)
        held.let_go.set()
        assert new.ended().result.results == [6]
        assert first.ended().error is None
        assert [ran.turn for ran in held.running] == [1, 6]


def test_a_late_request_does_not_cut_off_a_newer_one(held: Held) -> None:
    with served(held.engine) as service, asked(service) as engine:
        new = InThread(lambda: engine.map(job(6), []))
        until(lambda: held.running)
        with pytest.raises(EngineLost, match="attempt 2 at turn 5 of source was cut off"):
            engine.map(job(5), [])
        held.let_go.set()
        assert new.ended().result.results == [6]


def test_an_operator_that_was_taken_over_is_refused() -> None:
    with served(Told()) as service, asked(service) as engine:
        engine.map(job(incarnation=2), [])
        with pytest.raises(StaleWriter) as stale:
            engine.map(job(9, incarnation=1), [])
        assert engine.map(job(9, operator="doubled", incarnation=1), []).results == [9]
    assert str(stale.value) == (
        "operator source wrote as incarnation 1, but the log is at 2; another process took it over, so this one must "
        "stop"
    )


def test_a_turn_whose_caller_is_gone_is_cancelled(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.spark.service.BEAT_EVERY", 0.05)
    with served(held.engine) as service:
        words = [sys.executable, "-c", ROUND_TRIP, service.url, TOKEN, CODE]
        caller = subprocess.Popen(words, stderr=subprocess.PIPE)
        until(lambda: held.running)
        caller.kill()
        caller.communicate()
        until(lambda: held.engine.cancelled)
        until(lambda: service._turns.running == 0)


def test_a_turn_that_must_be_alone_waits_for_the_others_and_they_for_it(held: Held) -> None:
    with served(held.engine) as service, asked(service) as engine:
        calls = [InThread(lambda name=name: engine.map(job(operator=name), [])) for name in "ab"]  # type: ignore[misc]
        until(lambda: len(held.running) == 2)
        request = Request("map", job(operator="lonely", attempt=50), ([],), alone=True)
        lonely = InThread(lambda: _asked(engine._reach(), request))
        until(lambda: service._turns.running == 3)
        late = InThread(lambda: engine.map(job(operator="late"), []))
        until(lambda: service._turns.running == 4)
        assert {ran.operator for ran in held.running} == {"a", "b"}
        held.let_go.set()
        for call in (*calls, lonely, late):
            assert call.ended().error is None
        assert [ran.operator for ran in held.running][2:] == ["lonely", "late"]


def test_a_service_is_quiet_when_nobody_calls_and_nothing_runs(held: Held) -> None:
    with served(held.engine, idle=0.09) as service:
        until(lambda: service.quiet_for() > 0.1)
        with asked(service) as engine:
            call = InThread(lambda: engine.map(job(), []))
            until(lambda: held.running)
            assert service.quiet_for() == 0.0
            held.let_go.set()
            call.ended()
            called = service._called
            # A client that has nothing to ask lets it know that it is there.
            until(lambda: service._called > called)
