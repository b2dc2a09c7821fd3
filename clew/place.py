"""Where the log of a pipeline is kept: the only module that names concrete stores that outlive a run."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from clew.errors import SetupFailed, StoreFailed, WrongLog
from clew.store.base import KeptStore, LogReader
from clew.store.memory import MemoryStore

if TYPE_CHECKING:
    from clew.store.postgres_bell import PostgresBell

#: The name of a log that has a directory of its own.
_LOG_FILE = "log.db"


@dataclass(frozen=True)
class Log:
    """Where a run's log is: a URL, and the directory of its event bodies."""

    url: str
    bodies: str | None
    #: The directory of the pipeline here, for what is not kept beside the log.
    home: str = ".clew"

    @classmethod
    def at(cls, url: str | None, pipeline: str, bodies: str | None = None) -> "Log":
        """Read `sqlite:///PATH`, `postgresql://...` or `memory:`; None is a file under .clew/ here."""
        home = Path(".clew") / pipeline
        url = url or f"sqlite:///{home / _LOG_FILE}"
        scheme = urlsplit(url).scheme
        if scheme == "memory":
            return cls(url, bodies, str(home))
        if scheme == "sqlite" and url.removeprefix("sqlite:///") not in (url, ""):
            return cls(url, str(Path(bodies or f"{_sqlite_path(url)}.bodies").resolve()), str(home))
        if scheme in ("postgresql", "postgres"):
            return cls(url, str(Path(bodies or home / "bodies").resolve()), str(home))
        raise SetupFailed(f"{url!r} is no log that Clew knows", "use sqlite:///PATH or postgresql://USER@HOST/DATABASE")

    @property
    def is_kept(self) -> bool:
        """Whether it is anywhere but in the memory of this process."""
        return not self.url.startswith("memory")

    def beside(self, name: str) -> Path | None:
        """Return where a file of the run is kept, as `run.log`; None where the log itself is in no file."""
        if not self.is_kept:
            return None
        if not self.url.startswith("sqlite"):
            return Path(self.home) / name
        path = _sqlite_path(self.url)
        # In a directory of the log's own it needs no name of its own.
        return path.with_name(name if path.name == _LOG_FILE else f"{path.name}.{name}")

    def exists(self, pipeline: str) -> bool:
        """Say whether there is a log already; opens nothing that is not there."""
        if self.url.startswith("sqlite"):
            return _sqlite_path(self.url).exists()
        if self.url.startswith("memory"):
            return False
        from clew.store.postgres_exists import log_exists

        return log_exists(self.url, schema=f"clew_{pipeline}")

    def open(self, pipeline: str) -> KeptStore:
        """Open the log, making it if there is none."""
        if self.url.startswith("memory"):
            return MemoryStore()
        if self.url.startswith("sqlite"):
            from clew.store.sqlite import SqliteStore

            path = _sqlite_path(self.url)
            make_directory(path.parent)
            return SqliteStore(path)
        from clew.store.postgres import PostgresStore

        return PostgresStore(self.url, schema=f"clew_{pipeline}")

    def reader(self, pipeline: str) -> LogReader:
        """Open the log of a pipeline for reading alone, as any process may at any time; makes none."""
        if not self.exists(pipeline):
            raise SetupFailed(
                f"pipeline {pipeline} has no log at {masked(self.url)}",
                "run it there first, or name its log as `clew run --log` does",
            )
        reader = self._reader(pipeline)
        owner = reader.owner()
        if owner != pipeline:
            reader.close()
            raise WrongLog(f"the log {masked(self.url)} is of pipeline {owner}, not {pipeline}; name another one")
        return reader

    def _reader(self, pipeline: str) -> LogReader:
        if self.url.startswith("sqlite"):
            from clew.store.sqlite_reader import SqliteReader

            return SqliteReader(_sqlite_path(self.url))
        from clew.store.postgres_reader import PostgresReader

        return PostgresReader(self.url, schema=f"clew_{pipeline}")

    def bell(self, pipeline: str) -> "PostgresBell":
        """Return what processes on this log wake each other with."""
        from clew.store.postgres_bell import PostgresBell

        return PostgresBell(self.url, schema=f"clew_{pipeline}")

    def remove(self, pipeline: str) -> None:
        """Remove the log and its bodies, for a fresh start."""
        if self.url.startswith("sqlite"):
            for suffix in ("", "-wal", "-shm", "-journal"):
                Path(f"{_sqlite_path(self.url)}{suffix}").unlink(missing_ok=True)
        elif self.url.startswith("postgres"):
            from clew.store.postgres import drop_log

            drop_log(self.url, schema=f"clew_{pipeline}")
        if self.bodies is not None:
            shutil.rmtree(self.bodies, ignore_errors=True)


def _sqlite_path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def make_directory(path: Path) -> None:
    """Make a directory that a log, or a file beside it, is to be in."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreFailed(
            f"cannot make the log directory {path}: {error.strerror}", "choose another one with --log sqlite:///PATH"
        ) from error


def masked(url: str) -> str:
    """Return a URL without its passwords, wherever they stand in it."""
    parts = urlsplit(url)
    if parts.password is not None:
        url = parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")).geturl()
    return re.sub(r"(password=)[^&\s]*", r"\1***", url)


__all__ = ["Log", "make_directory", "masked"]
