"""At the gate a batch waits until it is logged, and fails when nobody is there to log it."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clew import Pipeline, streaming
from clew.errors import ClewError, EngineFailed
from clew.run import run
from clew.runtime.bodies import BodyPlace
from clew.runtime.engine import InlineEngine, Job
from clew.runtime.gate import Gate, GateClosed

PLACE = BodyPlace(None, "source", 1, 1)


class Handler:
    """What a query's handler does, in a thread of its own."""

    def __init__(self, gate: Gate, number: int) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=(gate, number))
        self._thread.start()

    def _run(self, gate: Gate, number: int) -> None:
        try:
            place = gate.offer(number)
            if place is not None:
                gate.deliver([place.turn])
            self.result = "skipped" if place is None else "logged"
        except GateClosed as error:
            self.result = str(error)

    def ended(self) -> Any:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.result

    @property
    def waits(self) -> bool:
        self._thread.join(0.05)
        return self._thread.is_alive()


@pytest.fixture
def woken() -> threading.Event:
    return threading.Event()


@pytest.fixture
def gate(woken: threading.Event) -> Gate:
    return Gate(woken.set)


def until(ask: Callable[[], Any], woken: threading.Event) -> Any:
    """Ask as a runner does: again whenever it is woken."""
    while (answer := ask()) is None:
        assert woken.wait(10)
        woken.clear()
    return answer


def test_a_batch_goes_on_only_when_it_is_logged(gate: Gate, woken: threading.Event) -> None:
    handler = Handler(gate, 4)
    assert until(gate.offered, woken) == 4
    assert handler.waits
    gate.admit(PLACE)
    assert gate.offered() is None
    assert until(gate.delivered, woken) == (4, [1])
    assert handler.waits
    assert gate.busy
    gate.accept()
    assert handler.ended() == "logged"
    assert not gate.busy
    assert gate.delivered() is None


def test_a_batch_that_is_known_is_skipped(gate: Gate, woken: threading.Event) -> None:
    handler = Handler(gate, 4)
    until(gate.offered, woken)
    gate.admit(None)
    assert handler.ended() == "skipped"
    assert not gate.busy


@pytest.mark.parametrize("admitted", [False, True])
def test_a_gate_that_closes_fails_whoever_waits(gate: Gate, woken: threading.Event, admitted: bool) -> None:
    handler = Handler(gate, 4)
    until(gate.offered, woken)
    if admitted:
        gate.admit(PLACE)
        until(gate.delivered, woken)
    gate.close()
    said = "the source was restarted or stopped; its next query has this batch again"
    assert handler.ended() == said
    assert Handler(gate, 5).ended() == said


class _Stopped:
    """A query that somebody stops when a batch of it is on its way."""

    id = "q"

    def __init__(self, gate: Gate) -> None:
        self._stopped = threading.Event()
        threading.Thread(target=self._run, args=(gate,)).start()

    def _run(self, gate: Gate) -> None:
        gate.offer(0)
        self._stopped.set()

    def ended(self) -> bool:
        return self._stopped.is_set()

    def failure(self) -> ClewError | None:
        return None


class _Stopping(InlineEngine):
    started = 0

    def stream(self, job: Job, checkpoint: str, gate: Gate) -> _Stopped:
        self.started += 1
        return _Stopped(gate)


def test_a_query_that_is_stopped_within_a_batch_is_started_again_and_then_told(tmp_path: Path) -> None:
    pipeline = Pipeline("streamed")
    pipeline.source("batches", streaming(lambda spark: None))
    engine = _Stopping(pipeline.graph())
    with pytest.raises(EngineFailed) as failed:
        run(pipeline, log=f"sqlite:///{tmp_path / 'log.db'}", engine=engine)
    assert str(failed.value) == (
        "operator batches: Spark failed the job: its streaming query was stopped within a batch; "
        "mend the cause and run again"
    )
    assert engine.started == 3
