"""What user code prints in a Python worker: each line goes, with its operator and turn, into a file of the run.

A worker knows both from the properties of the job that its task belongs to. Where the file's directory cannot be seen,
on another machine, the lines go to the executor's own stderr, as Spark has it.
"""

import os
import sys
import time
from typing import Any, TextIO

from pyspark import TaskContext

#: The properties of a job: what its lines are marked with, and the file that they go to.
LABEL, FILE = "clew.label", "clew.output"
#: A line that never ends is cut here, so that it is not kept in memory.
_LONGEST = 64 << 10


class WorkerOutput:
    """Takes the place of `sys.stdout` or `sys.stderr` in a worker."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rest = ""
        self._of = ("", "")

    def write(self, text: str) -> int:
        # What is printed between two jobs is still the earlier one's.
        of = _job() or self._of
        if of != self._of:
            # What an earlier job left without an end of line is still that job's.
            self.flush()
            self._of = of
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > _LONGEST:
            lines, self._rest = [*lines, self._rest], ""
        if lines:
            self._put(lines)
        return len(text)

    def flush(self) -> None:
        if self._rest:
            rest, self._rest = self._rest, ""
            self._put([rest])

    def _put(self, lines: list[str]) -> None:
        label, file = self._of
        if not label:
            self._stream.write("".join(f"{line}\n" for line in lines))
            self._stream.flush()
            return
        text = "".join(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {label}: {line}\n" for line in lines)
        if not _append(file, text):
            self._stream.write(text)
            self._stream.flush()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        # Whatever else a stream can do, the one behind does: fileno, buffer.
        return getattr(self._stream, name)


def _job() -> tuple[str, str] | None:
    context = TaskContext.get()
    if context is None:
        return None
    return context.getLocalProperty(LABEL) or "", context.getLocalProperty(FILE) or ""


def _append(file: str, text: str) -> bool:
    """Append in one call, so that lines of several workers do not mix; the directory is the driver's to make."""
    try:
        out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError:
        return False
    try:
        os.write(out, text.encode(errors="backslashreplace"))
    finally:
        os.close(out)
    return True


def install() -> None:
    """Hear from now on what is printed in this process."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, WorkerOutput):
            setattr(sys, name, WorkerOutput(stream))
