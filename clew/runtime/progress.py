"""What a run has done so far, for people to look at; nothing decides on it."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Phase = Literal["waiting", "recovering", "running", "blocked", "finished", "restarting", "failed"]


@dataclass(frozen=True, slots=True)
class OperatorProgress:
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


@dataclass
class Progress:
    """The figures of all operators of a run; safe to read from any thread."""

    _rows: dict[str, OperatorProgress] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    started: float = field(default_factory=time.time)
    #: Processor seconds that control spent in turns, outside the engine's jobs; the benchmarks read it.
    control_seconds: float = 0.0

    def add(self, operator: str, group: str) -> None:
        with self._lock:
            self._rows[operator] = OperatorProgress(operator, group)

    def set(self, operator: str, **figures: object) -> None:
        with self._lock:
            self._rows[operator] = replace(self._rows[operator], **figures)  # type: ignore[arg-type]

    def turn(self, operator: str, taken: int, sent: int, backlog: int, control: float) -> None:
        """Count one committed turn."""
        with self._lock:
            row = self._rows[operator]
            self._rows[operator] = replace(
                row,
                phase="running",
                events_in=row.events_in + taken,
                events_out=row.events_out + sent,
                backlog=backlog,
                turns=row.turns + 1,
                turn_events=max(taken, sent),
                last_commit=time.time(),
            )
            self.control_seconds += control

    def wrote(self, operator: str, count: int) -> None:
        with self._lock:
            row = self._rows[operator]
            self._rows[operator] = replace(row, writes=row.writes + count)

    def rows(self) -> Mapping[str, OperatorProgress]:
        with self._lock:
            return dict(self._rows)
