"""Where the batches of a streaming query wait to be logged.

On one side is the query's handler, in a thread of Spark's, which blocks; on the other the source's runner, which never
does. A batch is offered, admitted with a place to store it to (or skipped), delivered, and accepted once it is logged.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clew.runtime.bodies import BodyPlace


class GateClosed(Exception):
    """The runner at the other side is gone: the batch was not logged, and the query must end."""

    def __init__(self) -> None:
        super().__init__("the source was restarted or stopped; its next query has this batch again")


@dataclass
class _Batch:
    """A batch at the gate, and how far it has come."""

    number: int
    place: BodyPlace | None = None
    decided: bool = False
    effects: list[Any] | None = None
    accepted: bool = False


class Gate:
    """Lets one batch through at a time; `wake` tells the runner to look."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self._batch: _Batch | None = None
        self._closed = False

    # The handler's side.

    def offer(self, number: int) -> BodyPlace | None:
        """Offer a batch; return where to store it, or None where it is to be skipped unread."""
        with self._changed:
            batch = self._batch = _Batch(number)
        self._wait(lambda: batch.decided)
        return batch.place

    def deliver(self, effects: list[Any]) -> None:
        """Hand over what was stored; returns when it is logged."""
        with self._changed:
            if self._closed or self._batch is None:
                raise GateClosed
            batch = self._batch
            batch.effects = effects
        self._wait(lambda: batch.accepted)

    def _wait(self, arrived: Callable[[], bool]) -> None:
        self._wake()
        with self._changed:
            self._changed.wait_for(lambda: self._closed or arrived())
            if not arrived():
                raise GateClosed

    # The runner's side.

    def offered(self) -> int | None:
        """Return the batch that waits to be admitted."""
        with self._changed:
            waits = self._batch is not None and not self._batch.decided
            return self._batch.number if self._batch is not None and waits else None

    @property
    def busy(self) -> bool:
        """Whether a batch is on its way through."""
        with self._changed:
            return self._batch is not None

    def admit(self, place: BodyPlace | None) -> None:
        """Let the batch that waits be stored to a place, or, without one, be skipped."""
        with self._changed:
            assert self._batch is not None
            self._batch.place, self._batch.decided = place, True
            if place is None:
                self._batch = None
            self._changed.notify_all()

    def delivered(self) -> tuple[int, list[Any]] | None:
        """Return the batch that was stored, and its runs of bodies or a Failure."""
        with self._changed:
            if self._batch is None or self._batch.effects is None:
                return None
            return self._batch.number, self._batch.effects

    def accept(self) -> None:
        """Say that the batch is logged: the query may go on."""
        with self._changed:
            assert self._batch is not None
            self._batch.accepted = True
            self._batch = None
            self._changed.notify_all()

    def close(self) -> None:
        """Let whoever waits here fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
