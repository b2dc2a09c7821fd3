"""Names that survive a power failure: the sync of a file does not cover its name, nor that of its directory."""

import os
from contextlib import suppress
from functools import lru_cache


def sync_file(path: str | os.PathLike[str]) -> None:
    """Make the content of a file durable."""
    _sync(path, os.O_RDONLY)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in a directory durable."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: str | os.PathLike[str], flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: str | os.PathLike[str]) -> None:
    """Make a directory, and those above it that are missing; its name is durable when this returns."""
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        os.makedirs(path, exist_ok=True)
        _sync_above.cache_clear()
    _sync_above(path)


@lru_cache(maxsize=256)
def _sync_above(path: str) -> None:
    """Sync all directories above this one in which it, or one that leads to it, may be a new name.

    Also when it was there already: who made it may have died before it was synced. Where we may not write, or on
    another file system, there is no new name of ours.
    """
    parent = os.path.dirname(path)
    while not os.path.ismount(path) and os.access(parent, os.W_OK):
        # A directory that may be written but not read cannot be opened to be synced.
        with suppress(PermissionError):
            sync_directory(parent)
        path, parent = parent, os.path.dirname(parent)
