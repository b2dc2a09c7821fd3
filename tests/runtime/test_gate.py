"""At the gate a batch waits until it is logged, and fails when nobody is there to log it."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from clew.runtime.bodies import BodyPlace
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
