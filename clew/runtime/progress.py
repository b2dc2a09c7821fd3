"""What a run has done so far, for people to look at; nothing decides on it."""

import threading
import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Phase = Literal["waiting", "recovering", "running", "blocked", "finished", "restarting", "failed"]


class Clock:
    """Measures a turn's time inside the engine's jobs; used as `with clock:` around them."""

    def __init__(self) -> None:
        #: Seconds of work that the engine reported.
        self.work = 0.0
        #: Processor seconds of this thread inside the engine: pickling, talking to Spark.
        self.engine = 0.0
        self._since = 0.0

    def __enter__(self) -> "Clock":
        self._since = time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.engine += time.thread_time() - self._since


class OperatorProgress(NamedTuple):
    """One operator's figures since the run started in this process."""

    operator: str
    group: str
    phase: Phase = "waiting"
    events_in: int = 0
    events_out: int = 0
    writes: int = 0
    backlog: int = 0
    turns: int = 0
    turn_events: int = 0
    restarts: int = 0
    last_error: str = ""
    last_commit: float = 0.0
    #: Records and bytes of the events that it sent.
    records: int = 0
    bytes: int = 0
    #: Records that came too late for their window.
    late: int = 0
    #: Write actions that are logged and not known to be done.
    pending_writes: int = 0


#: Seconds: upper bounds of the groups that commits are counted in.
COMMIT_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class CommitTimes:
    """How long an operator's commits took: how many in each group, the last for all that took longer."""

    counts: tuple[int, ...] = (0,) * (len(COMMIT_BOUNDS) + 1)
    seconds: float = 0.0

    def with_one(self, seconds: float) -> "CommitTimes":
        at = bisect_left(COMMIT_BOUNDS, seconds)
        counts = tuple(count + (index == at) for index, count in enumerate(self.counts))
        return CommitTimes(counts, self.seconds + seconds)


@dataclass
class Progress:
    """The figures of all operators of a run; safe to read from any thread."""

    _rows: dict[str, OperatorProgress] = field(default_factory=dict)
    _commits: dict[str, CommitTimes] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    started: float = field(default_factory=time.time)
    #: Processor seconds that this process's threads spent inside the engine's jobs; the benchmarks read it.
    engine_seconds: float = 0.0
    #: How many Input Sets and records are set aside when the run ends, and nobody has decided on them.
    quarantined: int = 0
    #: Whether the run has come to its end, and was not stopped before.
    finished: bool = False
    #: What a person should know though the run goes on.
    warnings: list[str] = field(default_factory=list)

    def add(self, operator: str, group: str) -> None:
        with self._lock:
            self._rows[operator] = OperatorProgress(operator, group)

    def put(self, row: OperatorProgress) -> None:
        """Take the figures of an operator from elsewhere."""
        with self._lock:
            self._rows[row.operator] = row

    def set(self, operator: str, **figures: object) -> None:
        with self._lock:
            # The names are checked when they are set, by _replace itself.
            self._rows[operator] = self._rows[operator]._replace(**figures)  # type: ignore[arg-type]

    def turn(self, operator: str, taken: int, sent: int, backlog: int, clock: Clock) -> None:
        """Count one committed turn."""
        with self._lock:
            row = self._rows[operator]
            self._rows[operator] = row._replace(
                phase="running",
                events_in=row.events_in + taken,
                events_out=row.events_out + sent,
                backlog=backlog,
                turns=row.turns + 1,
                turn_events=max(taken, sent),
                last_commit=time.time(),
            )
            self.engine_seconds += clock.engine

    def committed(self, operator: str, seconds: float, records: int, size: int) -> None:
        """Count one transaction, and what the events logged in it hold."""
        with self._lock:
            self._commits[operator] = self._commits.get(operator, CommitTimes()).with_one(seconds)
            row = self._rows.get(operator)
            if row is not None and (records or size):
                self._rows[operator] = row._replace(records=row.records + records, bytes=row.bytes + size)

    def commits(self) -> Mapping[str, CommitTimes]:
        """Return how long the commits of each operator took."""
        with self._lock:
            return dict(self._commits)

    def wrote(self, operator: str, count: int, clock: Clock) -> None:
        """Count write actions that were performed."""
        with self._lock:
            self.engine_seconds += clock.engine
            row = self._rows[operator]
            self._rows[operator] = row._replace(writes=row.writes + count)

    def rows(self) -> Mapping[str, OperatorProgress]:
        """Return the figures of each operator, by its name."""
        with self._lock:
            return dict(self._rows)
