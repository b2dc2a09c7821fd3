"""Where event bodies live: inline in the log when small, else one file per task attempt.

A file is created exclusively, written once, synced with its directory before any row refers to it, and never
opened for writing again (B1). Its name holds operator, incarnation and turn, and a random suffix of the attempt,
so that two attempts of one task never share a file.
"""

import mmap
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from clew.disk import make_directory, sync_directory
from clew.errors import BodyDamaged, StoreFailed
from clew.protocol.rows import Bodies
from clew.runtime.codec import checksum

#: Bodies whose mean size is at least this go to a file. Measured on SQLite: with 10 events in a turn rows are cheaper
#: up to about 4 KB (0.8 ms against 1.5), with 100 files are from there on (5.1 against 3.8; at 16 KB 28 against 10).
INLINE_LIMIT = 4096
#: What one task returns inline at most, all bodies together; results pass through the driver.
INLINE_TOTAL = 8 << 20
#: The largest body that travels with a task or with its result; larger ones never do where there is a directory.
INLINE_BODY = 1 << 20


@dataclass(frozen=True, slots=True)
class BodyPlace:
    """Where tasks of one turn put bodies: a directory that all executors see, or None for inline only."""

    root: str | None
    operator: str
    incarnation: int
    turn: int
    durable: bool = True

    def store(self, stretches: Sequence[Sequence[bytes]]) -> list[Bodies]:
        """Store some runs of bodies, all in one file or all inline; return them in the same order."""
        count = sum(len(run) for run in stretches)
        size = sum(len(body) for run in stretches for body in run)
        small = size <= INLINE_BODY or not any(len(body) > INLINE_BODY for run in stretches for body in run)
        if self.root is None or count == 0 or (small and size < min(INLINE_LIMIT * count, INLINE_TOTAL)):
            return [_inline(run) for run in stretches]
        return self._file(stretches)

    def spill(self, runs: Sequence[Bodies]) -> list[Bodies]:
        """Put inline bodies into a file that serves this turn only; collection finds it unreferenced afterwards."""
        inline = [run for run in runs if run.data is not None]
        name = self._name()
        write_file(Path(str(self.root)) / name, [run.data for run in inline if run.data is not None], durable=False)
        spilt, offset = [], 0
        for run in runs:
            if run.data is None:
                spilt.append(run)
            else:
                spilt.append(Bodies(run.lengths, run.checksums, None, name, offset))
                offset += len(run.data)
        return spilt

    def _name(self) -> str:
        return f"{self.operator}/{self.incarnation}-{self.turn}-{secrets.token_hex(6)}"

    def _file(self, stretches: Sequence[Sequence[bytes]]) -> list[Bodies]:
        name = self._name()
        write_file(Path(str(self.root)) / name, [body for run in stretches for body in run], self.durable)
        stored, offset = [], 0
        for run in stretches:
            lengths = tuple(len(body) for body in run)
            stored.append(Bodies(lengths, tuple(checksum(body) for body in run), None, name, offset))
            offset += sum(lengths)
        return stored


def _inline(run: Sequence[bytes]) -> Bodies:
    return Bodies(tuple(len(body) for body in run), tuple(checksum(body) for body in run), b"".join(run))


def write_file(path: Path, parts: Sequence[bytes], durable: bool) -> None:
    """Create a file with this content; synced with its directory when it returns, if `durable`."""
    try:
        if durable:
            make_directory(path.parent)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as out:
            out.writelines(parts)
            if durable:
                out.flush()
                os.fsync(out.fileno())
        if durable:
            sync_directory(path.parent)
    except OSError as error:
        # On a disk that fails this may fail too; collection finds the file unreferenced.
        with suppress(OSError):
            path.unlink()
        raise StoreFailed(f"cannot write event bodies to {path.parent}: {error.strerror or error}") from error


def load(root: str | None, runs: Sequence[Bodies]) -> Iterator[memoryview]:
    """Yield the bodies of some runs one by one, each checked against its checksum."""
    for run in runs:
        data = _read(root, run)
        at = 0
        for length, expected in zip(run.lengths, run.checksums):
            body = data[at : at + length]
            if len(body) != length or checksum(body) != expected:
                raise BodyDamaged(f"{run.file or 'the log'}@{run.offset + at}+{length}")
            yield body
            at += length


def _read(root: str | None, run: Bodies) -> memoryview:
    if run.data is not None:
        return memoryview(run.data)
    return mapped(f"{root}/{run.file}")[run.offset : run.offset + sum(run.lengths)]


@lru_cache(maxsize=16)
def mapped(path: str) -> memoryview:
    """Map a body file; it never changes (B1), so the next events from it need no call to the system."""
    try:
        with open(path, "rb") as source:
            return memoryview(mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise BodyDamaged(f"{path} ({error})") from error


def attempt_of(name: str) -> tuple[int, int]:
    """Return (incarnation, turn) from the name of a body file."""
    incarnation, turn, _ = name.rpartition("/")[2].split("-", 2)
    return int(incarnation), int(turn)
