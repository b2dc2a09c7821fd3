"""What a disk is worth as the place of a log: how fast it syncs, what file system it has, how much room is left."""

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

#: As much as a small transaction writes.
_PAGE = b"\0" * 4096
_MOST = 500
#: File systems whose locks and syncs go over a network; SQLite's own pages warn of them.
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "davfs", "fuse.sshfs"}


@dataclass(frozen=True)
class Disk:
    """A directory's disk; `directory` is the nearest one that exists."""

    directory: str
    file_system: str
    free: int
    #: Writes of a page, each synced, in a second; None where nothing may be written.
    syncs: float | None

    @property
    def on_network(self) -> bool:
        return self.file_system in _NETWORK


def examine(directory: Path, seconds: float = 1.0) -> Disk:
    """Measure a disk, for about so many seconds; leaves nothing behind."""
    there = directory.resolve()
    while not there.is_dir():
        there = there.parent
    return Disk(str(there), file_system(there), shutil.disk_usage(there).free, _syncs(there, seconds))


def file_system(path: Path, mounts: str = "/proc/self/mounts") -> str:
    """Return the kind of file system that holds a path; `unknown` where the system does not tell."""
    best, kind = "", "unknown"
    try:
        lines = Path(mounts).read_text().splitlines()
    except OSError:
        return kind
    for line in lines:
        _, point, found, *_ = line.split(" ")
        # The kernel writes blanks in names so.
        point = point.replace("\\040", " ")
        inside = path.is_relative_to(point)
        if inside and len(point) >= len(best):
            best, kind = point, found
    return kind


def _syncs(directory: Path, seconds: float) -> float | None:
    try:
        descriptor, name = tempfile.mkstemp(prefix=".clew-doctor-", dir=directory)
    except OSError:
        return None
    try:
        count, began = 0, time.monotonic()
        while count < _MOST and time.monotonic() - began < seconds:
            os.write(descriptor, _PAGE)
            os.fsync(descriptor)
            count += 1
        return count / max(time.monotonic() - began, 1e-6)
    except OSError:
        return None
    finally:
        os.close(descriptor)
        os.unlink(name)
