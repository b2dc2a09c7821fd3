"""The address of a service in a file, which also tells whether it is there: its writer holds a lock on the file."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def published(path: Path, text: str) -> Iterator[None]:
    """Have an address in a file while the block lasts; who ends without leaving it leaves an address without lock."""
    own = path.with_name(f".{path.name}.{os.getpid()}")
    with own.open("w") as file:
        # Where a file system knows no locks, who looks takes the service for gone, and starts another one.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(f"{text}\n")
        file.flush()
        # Nobody sees it before it is whole, and locked.
        own.replace(path)
        try:
            yield
        finally:
            _withdraw(path, text)


def is_good(path: Path) -> bool:
    """Say whether who has written an address is still there; a port alone may be another program's by now."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _withdraw(path: Path, text: str) -> None:
    """Remove an address, unless another service has written its own there."""
    with suppress(OSError):
        if path.read_text().strip() == text:
            path.unlink()
