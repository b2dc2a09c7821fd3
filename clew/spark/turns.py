"""The turns that the engine service runs: many at once, the newest of each operator, some alone."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from clew.errors import ClewError, EngineLost, StaleWriter
from clew.runtime.engine import Engine, Job
from clew.spark.threads import Threads
from clew.spark.wire import Request, pack, packed_error

_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class Turn:
    """A turn that was asked for, as whoever waits for it sees it; `changed` tells to look."""

    request: Request
    changed: threading.Event = field(default_factory=threading.Event)
    #: Whether its time has come; it is run once `go` is set, by whoever has told the caller so.
    begun: bool = False
    go: threading.Event = field(default_factory=threading.Event)
    #: What came of it, packed.
    outcome: bytes | None = None
    #: Whether it was given up: nobody wants its outcome, or the service ends.
    given_up: bool = False

    @property
    def job(self) -> Job:
        return self.request.job


class Turns:
    """Runs turns, and knows of each operator the newest."""

    def __init__(self, engine: Engine, at_once: int, cancel: Callable[[Job], None]) -> None:
        self._engine = engine
        self._cancel = cancel
        self._threads = Threads("turns", at_once)
        self._beside = Beside()
        self._lock = threading.Lock()
        self._none_left = threading.Condition(self._lock)
        self._turns: list[Turn] = []
        self._incarnations: dict[str, int] = {}

    def submit(self, request: Request) -> Turn:
        """Have a turn run as soon as there is room; what its operator was asked for before is cut off.

        Raises StaleWriter for an operator that another has taken over, or that was asked for something newer.
        """
        turn = Turn(request)
        self.refuse_stale(request.job)
        with self._lock:
            older = [other for other in self._turns if other.job.operator == turn.job.operator]
            newer = [other for other in older if other.job.order > turn.job.order]
            if not newer:
                self._turns.append(turn)
        if newer:
            raise _overtaken(turn.job)
        for other in older:
            old, new = other.job.incarnation, turn.job.incarnation
            taken_over = old < new
            self.give_up(other, StaleWriter(turn.job.operator, old, new) if taken_over else _overtaken(other.job))
        self._threads.submit(lambda: self._run(turn))
        return turn

    def refuse_stale(self, job: Job) -> None:
        """Raise StaleWriter for an operator that another has taken over."""
        with self._lock:
            current = max(job.incarnation, self._incarnations.get(job.operator, 0))
            self._incarnations[job.operator] = current
        if job.incarnation < current:
            raise StaleWriter(job.operator, job.incarnation, current)

    def give_up(self, turn: Turn, why: ClewError | None = None) -> None:
        """Cut off a turn whose outcome nobody wants; whoever waits for it is told why, or that it is given back."""
        with self._lock:
            if turn.outcome is None and why is not None:
                turn.outcome = packed_error(turn.job.operator, why)
            # From now on, what comes of it counts for nothing.
            turn.given_up = True
        turn.changed.set()
        turn.go.set()
        self._cancel(turn.job)

    @property
    def beside(self) -> "Beside":
        """What lets something else run only while no turn runs alone."""
        return self._beside

    @property
    def running(self) -> int:
        """How many turns run, or wait to."""
        with self._lock:
            return len(self._turns)

    def drain(self, seconds: float) -> None:
        """Let the turns end that there are; those that have not after so many seconds are given back."""
        with self._none_left:
            self._none_left.wait_for(lambda: not self._turns, seconds)
            left = list(self._turns)
        for turn in left:
            self.give_up(turn)

    def close(self) -> None:
        self._threads.close()

    def _run(self, turn: Turn) -> None:
        with self._beside.passed(turn.request.alone):
            turn.begun = True
            turn.changed.set()
            turn.go.wait()
            outcome = None if turn.given_up else self._outcome(turn.request)
        with self._none_left:
            if not turn.given_up:
                turn.outcome = outcome
            self._turns.remove(turn)
            self._none_left.notify_all()
        turn.changed.set()

    def _outcome(self, request: Request) -> bytes:
        try:
            return pack(getattr(self._engine, request.method)(request.job, *request.arguments))
        except Exception as error:
            if not isinstance(error, ClewError):
                _LOG.exception("turn failed", extra={"operator": request.job.operator})
            return packed_error(request.job.operator, error)


def _overtaken(job: Job) -> EngineLost:
    return EngineLost(
        f"attempt {job.attempt} at turn {job.turn} of {job.operator} was cut off: its operator has asked for something "
        "newer since; if it has not, two processes run it, so stop one of them"
    )


class Beside:
    """Lets many pass together, or one alone: who must be alone waits for the others, and new ones wait for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = False
        self._wanted = 0

    @contextmanager
    def passed(self, alone: bool = False) -> Iterator[None]:
        """Wait for a place, and hold it while the block lasts."""
        with self._changed:
            self._wanted += alone
            if alone:
                self._changed.wait_for(lambda: not self._inside)
            else:
                self._changed.wait_for(lambda: not self._alone and not self._wanted)
            self._wanted -= alone
            self._inside += 1
            self._alone = alone
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._alone = False
                self._changed.notify_all()
