"""What can happen in a run, by name, recorded as it happens when somebody asks for it.

The steps follow those that failure transparency is defined by: an execution is a sequence of steps, some of them
failures, and what it lets the outside observe must be explained by one without failures. A step is one line of
JSON; there are a few per turn, none per event, and recording one is one write to a file opened for appending, so
that a line survives the process that wrote it. With nobody listening a step costs one comparison.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from clew.errors import SetupFailed

#: Every kind of step, and what it says.
KINDS: dict[str, str] = {
    "started": "a process has begun to run the pipeline",
    "recovering": "an operator was taken over, by an incarnation of its own",
    "restored": "an operator has recovered and goes on from its log",
    "read": "a source has read events, which nobody has logged yet",
    "assigned": "events were assigned to Input Sets; nothing is logged yet",
    "generated": "Output Sets were computed; nothing is logged yet",
    "committed": "a transaction of the log is durable: events logged, events taken, write actions logged",
    "woken": "receivers may see the events of a port",
    "written": "write actions were performed: the outside can observe them",
    "settled": "write actions of an earlier incarnation were found to be performed already",
    "marked": "write actions are marked as done in the log",
    "failed": "a group has failed",
    "restarted": "a group that failed begins again",
    "fenced": "a writer that was taken over was refused",
    "finished": "an operator has ended",
    "collected": "what is done was removed from the log",
    "stopped": "the process has ended the run, or given it up",
}


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of a run."""

    kind: str
    operator: str = ""
    what: Mapping[str, Any] = field(default_factory=dict)
    process: int = 0
    at: float = 0.0


Listener = Callable[[TraceStep], None]
_listener: Listener | None = None


def recording() -> bool:
    """Say whether anybody listens; ask before computing what only a trace needs."""
    return _listener is not None


def record(kind: str, operator: str = "", **what: Any) -> None:
    """Tell whoever listens that a step was made."""
    if _listener is None:
        return
    assert kind in KINDS, f"{kind!r} is no step of a trace; expected one of {', '.join(KINDS)}"
    _listener(TraceStep(kind, operator, what, os.getpid(), time.time()))


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let `listener` hear the steps of this process, and nobody else."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


@contextmanager
def recorded(path: str, **about: Any) -> Iterator[None]:
    """Append the steps of this process to a file, one line each; other processes may append to it too.

    The first says what is recorded, `about` it; the last how it ended.
    """
    _refuse_other(path)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise SetupFailed(f"the trace {path} cannot be written: {error.strerror}", "name another file") from error
    lock = threading.Lock()

    def write(step: TraceStep) -> None:
        line = {"kind": step.kind, "operator": step.operator, "process": step.process, "at": round(step.at, 6)}
        data = json.dumps({**line, **step.what}, separators=(",", ":")).encode() + b"\n"
        with lock:
            os.write(descriptor, data)

    try:
        with listening(write):
            record("started", **about)
            try:
                yield
            except BaseException as error:
                record("stopped", error=f"{type(error).__name__}: {error}")
                raise
            record("stopped")
    finally:
        os.close(descriptor)


def _refuse_other(path: str) -> None:
    """Refuse to append to a file that is no trace; of one that a crash cut off there may be half a line."""
    with suppress(OSError), open(path, "rb") as file:
        line = file.readline(1 << 20)
        if line and not line.startswith(b'{"kind":"'):
            raise SetupFailed(f"{path} holds something else than a trace", "name a file that does not exist")


def load(path: str) -> Iterator[TraceStep]:
    """Read a trace; a last line that a crash cut off is left out."""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n"):
                return
            step = json.loads(line)
            known = [step.pop(name) for name in ("kind", "operator", "process", "at")]
            yield TraceStep(known[0], known[1], step, known[2], known[3])
