"""A streaming query runs in the service, and its batches are logged by a source in another process."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Pipeline, streaming
from clew.errors import ClewError, EngineLost, SourceFailed, StaleWriter, UserFunctionFailed
from clew.run import run
from clew.runtime.bodies import BodyPlace
from clew.runtime.codec import encode_stream
from clew.runtime.engine import InlineEngine, Job
from clew.runtime.gate import Gate
from clew.spark.client import RemoteEngine
from clew.supervisor.threads import Policy
from tests.engine.served import CODE, TOKEN, InThread, Relay, Told, asked, job, served, until

PLACE = BodyPlace(None, "batches", 1, 1)


class Query:
    """A query whose batches are numbers."""

    id = "q"

    def __init__(self, gate: Gate, checkpoint: str, first: int, last: int, failure: ClewError | None = None) -> None:
        self._gate, self._checkpoint, self._failure = gate, checkpoint, failure
        self.seen: list[Any] = []
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(first, last))
        self.thread.start()

    def _run(self, first: int, last: int) -> None:
        try:
            for number in range(first, last):
                self._plan(number)
                place = self._gate.offer(number)
                if place is not None:
                    self._gate.deliver(place.store([[encode_stream(pa.table({"n": [number]}))]]))
                self.seen.append((number, place is not None))
        except Exception as error:
            self.seen.append(type(error).__name__)

    def _plan(self, number: int) -> None:
        os.makedirs(os.path.join(self._checkpoint, "offsets"), exist_ok=True)
        Path(self._checkpoint, "offsets", str(number)).write_text(str(number))

    def ended(self) -> bool:
        return not self.thread.is_alive()

    def failure(self) -> ClewError | None:
        return self._failure

    def stop(self) -> None:
        self._gate.close()
        self.thread.join(10)
        self.stopped.set()


class Streaming(Told):
    """Runs queries of three batches, as a test wants them."""

    def __init__(self, first: int = 0, last: int = 3, failure: ClewError | None = None) -> None:
        super().__init__()
        self._wanted = (first, last, failure)
        self.queries: list[Query] = []
        self.refuses: ClewError | None = None

    def stream(self, job: Job, checkpoint: str, gate: Gate) -> Query:  # type: ignore[override]
        if self.refuses is not None:
            raise self.refuses
        self.queries.append(Query(gate, checkpoint, *self._wanted))
        return self.queries[-1]


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def woken() -> threading.Event:
    return threading.Event()


@pytest.fixture
def gate(woken: threading.Event) -> Iterator[Gate]:
    gate = Gate(woken.set)
    yield gate
    gate.close()


def test_batches_pass_as_they_do_in_one_process(checkpoint: str, gate: Gate) -> None:
    told = Streaming()
    with served(told) as service, asked(service) as engine:
        query = engine.stream(job(operator="batches"), checkpoint, gate)
        assert query.id == "q"
        assert until(lambda: gate.offered() == 0)
        assert told.queries[0].seen == [], "it waits to be admitted"
        gate.admit(PLACE)
        number, effects = until(gate.delivered)
        assert (number, len(effects[0])) == (0, 1)
        assert told.queries[0].seen == [], "it waits to be logged"
        gate.accept()
        until(lambda: gate.offered() == 1)
        gate.admit(None)
        until(lambda: gate.offered() == 2)
        assert not query.ended()
        assert query.failure() is None
        gate.admit(PLACE)
        until(gate.delivered)
        gate.accept()
        until(query.ended)
        assert query.failure() is None
        assert told.queries[0].seen == [(0, True), (1, False), (2, True)]


def test_what_a_query_failed_of_is_told(checkpoint: str, gate: Gate) -> None:
    failure = UserFunctionFailed("batches", "its streaming query", "ValueError", "no", "")
    with served(Streaming(last=0, failure=failure)) as service, asked(service) as engine:
        query = engine.stream(job(operator="batches"), checkpoint, gate)
        until(query.ended)
        assert str(query.failure()) == str(failure)


def test_why_a_query_cannot_start_is_told(checkpoint: str, gate: Gate) -> None:
    told = Streaming()
    told.refuses = SourceFailed("batches", "it is none", "make it one")
    with served(told) as service, asked(service) as engine:
        with pytest.raises(SourceFailed, match="it is none; make it one"):
            engine.stream(job(operator="batches"), checkpoint, gate)
        engine.map(job(operator="batches", incarnation=5), [])
        with pytest.raises(StaleWriter):
            engine.stream(job(operator="batches", incarnation=4), checkpoint, gate)


def test_a_query_that_nobody_can_ask_about_is_lost(checkpoint: str, gate: Gate, monkeypatch: Any) -> None:
    lost = EngineLost("the Spark driver died under the streaming query")

    def ended(self: Query) -> bool:
        raise lost

    monkeypatch.setattr(Query, "ended", ended)
    with served(Streaming()) as service, asked(service) as engine:
        query = engine.stream(job(operator="batches"), checkpoint, gate)
        with pytest.raises(EngineLost, match=str(lost)):
            until(query.ended)


def offered(engine: RemoteEngine, checkpoint: str, gate: Gate) -> Any:
    query = engine.stream(job(operator="batches"), checkpoint, gate)
    until(lambda: gate.offered() == 0)
    return query


def test_a_line_that_is_lost_stops_the_query_and_lets_the_source_start_it_anew(checkpoint: str, gate: Gate) -> None:
    told = Streaming()
    with served(told) as service:
        relay = Relay(service)
        engine = RemoteEngine(lambda: (relay.url, TOKEN), CODE)
        query = offered(engine, checkpoint, gate)
        gate.admit(PLACE)
        until(gate.delivered)
        relay.cut()
        assert told.queries[0].stopped.wait(30)
        assert told.queries[0].seen == ["GateClosed"]
        gate.accept()
        with pytest.raises(EngineLost) as lost:
            until(query.ended)
        assert str(lost.value).startswith("the engine was lost under the streaming query of batches (")
        assert str(lost.value).endswith("); the query is started anew")
        engine.close()
        relay.close()


def test_a_service_that_dies_while_it_starts_a_query_is_lost(checkpoint: str, gate: Gate) -> None:
    told = Streaming()
    with served(told) as service:
        relay = Relay(service)
        engine = RemoteEngine(lambda: (relay.url, TOKEN), CODE)
        engine.map(job(), [])
        told.stream = lambda *given: relay.cut() or (threading.Event().wait(0.2) and None)  # type: ignore
        with pytest.raises(EngineLost) as lost:
            engine.stream(job(operator="batches"), checkpoint, gate)
        said = f"the engine at {relay.url} was lost while it started the streaming query of batches: "
        assert str(lost.value).startswith(said)
        engine.close()
        relay.close()


def test_a_service_that_ends_says_so_to_its_queries(checkpoint: str, gate: Gate) -> None:
    told = Streaming()
    with served(told) as service, asked(service) as engine:
        query = offered(engine, checkpoint, gate)
        ending = InThread(lambda: service.end(5.0))
        assert told.queries[0].stopped.wait(30)
        gate.admit(None)
        with pytest.raises(EngineLost, match="the engine ends, and its streaming queries with it"):
            until(query.ended)
        ending.ended()


def test_a_new_query_of_a_source_stops_the_one_before(checkpoint: str, gate: Gate) -> None:
    told = Streaming()
    with served(told) as service, asked(service) as engine:
        offered(engine, checkpoint, gate)
        second = Gate(lambda: None)
        engine.stream(job(operator="batches"), checkpoint, second)
        assert told.queries[0].stopped.wait(30)
        until(lambda: second.offered() == 0)
        engine.close()
        assert told.queries[1].stopped.wait(30)


def test_a_turn_that_must_be_alone_waits_for_a_batch_that_is_stored(checkpoint: str, gate: Gate) -> None:
    told = Streaming()
    with served(told) as service, asked(service) as engine:
        offered(engine, checkpoint, gate)
        with service._turns.beside.passed(alone=True):
            gate.admit(PLACE)
            assert not told.queries[0].thread.join(0.05)
            assert gate.delivered() is None
        until(gate.delivered)
        gate.accept()


def test_a_run_logs_each_batch_once_whatever_is_lost(tmp_path: Path) -> None:
    pipeline = Pipeline("streamed")
    pipeline.source("batches", streaming(lambda spark: None))
    told = _Computing()
    told._graph = pipeline.graph()
    with served(told) as service:
        relay = Relay(service)
        engine = RemoteEngine(lambda: (relay.url, TOKEN), CODE)
        done = InThread(
            lambda: run(
                pipeline, log=f"sqlite:///{tmp_path / 'log.db'}", engine=_Cutting(engine, relay),
                policy=Policy(first_delay=0.01),
            )
        )  # fmt: skip
        progress = done.ended().result
        engine.close()
        relay.close()
    assert done.error is None
    assert progress.rows()["batches"].records == 3
    assert progress.rows()["batches"].restarts >= 1
    assert len(told.queries) >= 2


class _Computing(Streaming):
    """Runs queries, and turns in this process."""

    def map(self, job: Job, *given: Any) -> Any:
        return InlineEngine.map(self, job, *given)


class _Cutting:
    """An engine whose line is cut once, when it starts to compute."""

    def __init__(self, engine: RemoteEngine, relay: Relay) -> None:
        self._engine, self._relay, self._cut = engine, relay, False
        self.parallelism = engine.parallelism

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def map(self, job: Job, tasks: Any) -> Any:
        if not self._cut:
            self._cut = True
            self._relay.cut()
        return self._engine.map(job, tasks)
