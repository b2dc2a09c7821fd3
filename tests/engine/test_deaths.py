"""A service that dies loses nothing: its turns are tried again on the next, and the one that kills it is found."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Pipeline, generator
from clew.errors import EngineFailed, EngineLost
from clew.pipeline.load import load
from clew.run import quarantine_of, run
from clew.runtime.engine import InlineEngine, Job, Ran
from clew.runtime.task import GenerateTask
from clew.spark import client
from clew.spark.client import RemoteEngine
from clew.spark.program import Program, fingerprint
from clew.spark.wire import Request
from tests.engine.served import CODE, TOKEN, Command, InThread, Relay, Told, asked, job, piece, read, served, until

FILE = """
import os
from pathlib import Path
import time
import pyarrow as pa
from clew import Pipeline, generator

HERE = Path(__file__).parent


def make(index):
    with open(HERE / "tried", "a") as tried:
        tried.write(f"{index}\\n")
    if index == 7:
        os.kill(os.getpid(), 9)
    while index == 1 and not (HERE / "go").exists():
        time.sleep(0.01)
    return pa.table({"n": [index]})


pipeline = Pipeline("deadly")
pipeline.source("source", generator(make, 20))
"""


class Keeper:
    """Starts a service, and the next one when it has died."""

    def __init__(self, place: Path) -> None:
        self.file = place / "deadly.py"
        self.file.write_text(FILE)
        self.place = place
        self.started = 0
        self._start()

    def _start(self) -> None:
        self.started += 1
        self.command = Command(str(self.file), self.place)

    def address(self) -> tuple[str, str]:
        if self.command.process.poll() is not None:
            self._start()
        return self.command.address()

    def kill(self) -> None:
        self.command.kill()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    keeper = Keeper(tmp_path)
    yield keeper
    keeper.kill()


def test_a_turn_is_tried_again_and_one_that_kills_three_times_is_to_blame(keeper: Keeper, tmp_path: Path) -> None:
    code = fingerprint(load(str(keeper.file)).graph(), Program.of_file(keeper.file))
    engine = RemoteEngine(keeper.address, code, patience=60.0)
    tried = lambda: (tmp_path / "tried").read_text().split() if (tmp_path / "tried").exists() else []  # noqa: E731

    first = InThread(lambda: engine.map(job(1), piece(1)))
    until(tried)
    keeper.kill()
    until(lambda: len(tried()) == 2)
    (tmp_path / "go").touch()
    assert first.ended().result.results[0].pieces == 1
    assert keeper.started == 2

    with pytest.raises(EngineFailed) as failed:
        engine.map(job(2), piece(7))
    assert str(failed.value) == (
        "operator source: Spark failed the job: the engine died 3 times under turn 2 (source.out#2), at last with "
        "nothing else beside it; mend the cause and run again"
    )
    assert tried() == ["1", "1", "7", "7", "7"]
    assert keeper.started == 4
    engine.close()


Script = list[Any]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Script], list[Request]]:
    """Let each request for a turn have an end that a test says; return those that were made."""

    def script(ends: Script) -> list[Request]:
        made: list[Request] = []

        def end(line: Any, request: Request) -> Any:
            made.append(request)
            found = ends.pop(0)
            if isinstance(found, type):
                raise found("gone")
            return Ran([found], 0.0)

        monkeypatch.setattr(client, "_asked", end)
        return made

    return script


D, U = client._Died, client._Unreached


@pytest.mark.parametrize(
    ("ends", "alone"),
    [
        ([1], "-"), ([D, 1], "--"), ([D, D, 1], "--a"), ([U, U, U, 1], "----"), ([D, U, D, U, 1], "---aa"),
        ([D, D, D], "--a"), ([D, D, U, D], "--aa"),
    ],
)  # fmt: skip
def test_two_deaths_make_a_turn_run_alone_and_who_was_not_reached_has_not_died(
    scripted: Callable[[Script], list[Request]], ends: Script, alone: str
) -> None:
    fails = ends[-1] is D
    with served(Told()) as service, asked(service) as engine:
        made = scripted(list(ends))
        if fails:
            with pytest.raises(EngineFailed, match="died 3 times"):
                engine.map(job(4), [])
        else:
            assert engine.map(job(4), []).results == [1]
    assert "".join("a" if request.alone else "-" for request in made) == alone
    attempts = [request.job.attempt for request in made]
    assert attempts == sorted(set(attempts)), "each is a new attempt"


def test_a_line_that_is_cut_is_a_death_under_the_turn() -> None:
    seen: list[Job] = []

    def compute(job: Job) -> Any:
        seen.append(job)
        if len(seen) == 1:
            relay.cut()
            until(lambda: job in told.cancelled)
        return [job.turn]

    told = Told(compute)
    with served(told) as service:
        relay = Relay(service)
        engine = RemoteEngine(lambda: (relay.url, TOKEN), CODE)
        assert engine.map(job(2), []).results == [2]
        engine.close()
        relay.close()
    assert [one.attempt for one in seen] == [1, 2]


def test_a_service_that_comes_back_elsewhere_is_found() -> None:
    with served(Told()) as first:
        places = [first.url]
        engine = RemoteEngine(lambda: (places[-1], TOKEN), CODE, patience=20.0)
        assert engine.parallelism == 3
    with served(InlineEngine(Told()._graph)) as second:
        places.append(second.url)
        assert engine.map(job(), read()).results[0].pieces == 1
        assert engine.parallelism == 1
        engine.close()


def test_turns_that_were_not_begun_are_given_back_when_a_service_ends() -> None:
    with served(Told()) as second:
        first = Told(lambda job: until(lambda: job in first.cancelled) and [])
        places = []
        with served(first) as service:
            places.append(service.url)
            engine = RemoteEngine(lambda: (places[-1], TOKEN), CODE, patience=20.0)
            call = InThread(lambda: engine.map(job(3), []))
            until(lambda: service._turns.running)
            places.append(second.url)
            service.end(0.0)
        assert call.ended().result.results == [3]
        engine.close()


@pytest.mark.parametrize("where", ["closed", "unknown"])
def test_a_service_that_does_not_come_is_not_waited_for_for_ever(where: str, tmp_path: Path) -> None:
    with served(Told()) as service:
        url = service.url

    def address() -> tuple[str, str]:
        return (url, TOKEN) if where == "closed" else (Path(tmp_path / "address").read_text(), TOKEN)

    with pytest.raises(EngineLost) as lost:
        RemoteEngine(address, CODE, patience=0.3)
    told = str(lost.value)
    assert told.startswith(f"no engine has answered at {url if where == 'closed' else 'an unknown place'} for 0 s: ")
    assert ("Connection refused" if where == "closed" else "its address is not known") in told
    assert told.endswith("; start it with `clew engine FILE`, or mend its address, and run again")


def test_the_event_that_kills_the_engine_is_set_aside_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ask = client._asked

    def deadly(line: Any, request: Request) -> Any:
        if request.method == "map" and isinstance(task := request.arguments[0][0], GenerateTask):
            parts = [part for task in request.arguments[0] for work in task.sets for part in work.parts]
            if any(part.first <= 7 < part.first + sum(map(len, part.bodies)) for part in parts):
                raise D(f"under {task.place.operator}")
        return ask(line, request)

    monkeypatch.setattr(client, "_asked", deadly)
    pipeline = Pipeline("numbers")
    source = pipeline.source("source", generator(lambda i: pa.table({"n": [i]}), 20))

    @pipeline.operator(source, on_error="quarantine")
    def same(table: pa.Table) -> pa.Table:
        return table

    graph, log = pipeline.graph(), f"sqlite:///{tmp_path / 'log.db'}"
    with served(InlineEngine(graph)) as service, asked(service) as engine:
        progress = run(graph, log=log, engine=engine)
    assert progress.rows()["same"].events_out == 19
    (aside,) = quarantine_of(graph, log)
    assert "the engine died 3 times under turn" in json.dumps(aside.row.error)
