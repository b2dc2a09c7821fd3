"""Where the log of a pipeline is kept: the only module that names concrete stores that outlive a run."""

import os
import re
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from clew.errors import SetupFailed, StoreFailed, WrongLog
from clew.store.base import KeptStore, LogReader

if TYPE_CHECKING:
    from clew.store.postgres_bell import PostgresBell

_EMBEDDED = "embedded-postgres"
#: The name of a log that has a directory of its own.
_LOG_FILE = "log.db"


@dataclass(frozen=True)
class Log:
    """Where a run's log is: a URL, and the directory of its event bodies."""

    #: As people name it; what a database is reached by is its `address`.
    url: str
    bodies: str | None
    #: The directory of the pipeline here, for what is not kept beside the log.
    home: str = ".clew"

    @classmethod
    def at(cls, url: str | None, pipeline: str, bodies: str | None = None) -> "Log":
        """Read `sqlite:///PATH`, `postgresql://...`, `embedded-postgres:DIR` or `memory:`; None is a file in .clew/."""
        home = Path(".clew") / pipeline
        url = url or f"sqlite:///{home / _LOG_FILE}"
        scheme = urlsplit(url).scheme
        if scheme == "memory":
            return cls(url, bodies, str(home))
        if scheme == "sqlite" and url.removeprefix("sqlite:///") not in (url, ""):
            return cls(url, str(Path(bodies or f"{_sqlite_path(url)}.bodies").resolve()), str(home))
        if scheme in ("postgresql", "postgres"):
            return cls(url, str(Path(bodies or home / "bodies").resolve()), str(home))
        if scheme == _EMBEDDED and (directory := _embedded_directory(url)) is not None:
            home = directory / pipeline
            return cls(url, str(Path(bodies or home / "bodies").resolve()), str(home))
        cure = "use sqlite:///PATH, postgresql://USER@HOST/DATABASE or embedded-postgres:DIR"
        raise SetupFailed(f"{url!r} is no log that Clew knows", cure)

    @property
    def is_kept(self) -> bool:
        """Whether it is anywhere but in the memory of this process."""
        return not self.url.startswith("memory")

    @property
    def directory(self) -> Path | None:
        """The directory of an embedded server; None for every other log."""
        return _embedded_directory(self.url)

    def address(self) -> str:
        """Return the URL by which the log is reached; starts an embedded server, which this process then uses."""
        if self.directory is None:
            return self.url
        from clew.store.embedded_postgres import ensure

        return ensure(self.directory)

    def anywhere(self) -> "Log":
        """Return the same log as processes in other directories name it."""
        if self.url.startswith("sqlite"):
            return replace(self, url=f"sqlite:///{os.path.abspath(_sqlite_path(self.url))}")
        if self.directory is not None:
            return replace(self, url=f"{_EMBEDDED}:{os.path.abspath(self.directory)}")
        return self

    @property
    def _is_made(self) -> bool:
        """Whether there is a server that could be asked; True where that is not Clew's to know."""
        if self.directory is None:
            return True
        from clew.store.embedded_postgres import is_made

        return is_made(self.directory)

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
            from clew.store.sqlite_exists import log_exists as log_in_file

            return log_in_file(_sqlite_path(self.url))
        if self.url.startswith("memory"):
            return False
        from clew.store.postgres_exists import log_exists

        return self._is_made and log_exists(self.address(), schema=f"clew_{pipeline}")

    def open(self, pipeline: str) -> KeptStore:
        """Open the log, making it if there is none."""
        if self.url.startswith("memory"):
            from clew.store.memory import MemoryStore

            return MemoryStore()
        if self.url.startswith("sqlite"):
            from clew.store.sqlite import SqliteStore

            path = _sqlite_path(self.url)
            make_directory(path.parent)
            return SqliteStore(path)
        from clew.store.postgres import PostgresStore

        return PostgresStore(self.address(), schema=f"clew_{pipeline}")

    def existing(self, pipeline: str) -> KeptStore:
        """Open the log of a pipeline that was run, to ask it something; makes none, and refuses that of another one.

        One that says of no pipeline is taken as it is: nobody has declared anything there.
        """
        self._refuse_missing(pipeline)
        store = self.open(pipeline)
        owner = store.owner()
        if owner not in (None, pipeline):
            store.close()
            raise WrongLog(f"this log is of pipeline {owner}, not {pipeline}; use another --log")
        return store

    def _refuse_missing(self, pipeline: str) -> None:
        if not self.exists(pipeline):
            raise SetupFailed(
                f"pipeline {pipeline} has no log at {masked(self.url)}",
                "run it there first, or name its log as `clew run --log` does",
            )

    def reader(self, pipeline: str) -> LogReader:
        """Open the log of a pipeline for reading alone, as any process may at any time; makes none."""
        self._refuse_missing(pipeline)
        reader = self._reader(pipeline)
        owner = reader.owner()
        if owner != pipeline:
            reader.close()
            raise WrongLog(f"the log {masked(self.url)} is of pipeline {owner}, not {pipeline}; name another one")
        return reader

    def visit(self, pipeline: str) -> LogReader:
        """Open it as `reader` does, for a process that others end: it leaves an embedded server with the reader."""
        if self.directory is None:
            return self.reader(pipeline)
        from clew.store.embedded_postgres import stop
        from clew.store.postgres_reader import PostgresReader

        try:
            reader = self.reader(pipeline)
        except BaseException:
            stop(self.directory)
            raise
        assert isinstance(reader, PostgresReader)
        reader.on_close = partial(stop, self.directory)
        return reader

    def _reader(self, pipeline: str) -> LogReader:
        if self.url.startswith("sqlite"):
            from clew.store.sqlite_reader import SqliteReader

            return SqliteReader(_sqlite_path(self.url))
        from clew.store.postgres_reader import PostgresReader

        return PostgresReader(self.address(), schema=f"clew_{pipeline}")

    def bell(self, pipeline: str) -> "PostgresBell":
        """Return what processes on this log wake each other with."""
        from clew.store.postgres_bell import PostgresBell

        return PostgresBell(self.address(), schema=f"clew_{pipeline}")

    def remove(self, pipeline: str) -> None:
        """Remove the log and its bodies, for a fresh start."""
        if self.url.startswith("sqlite"):
            for suffix in ("", "-wal", "-shm", "-journal"):
                Path(f"{_sqlite_path(self.url)}{suffix}").unlink(missing_ok=True)
        elif self.is_kept and self._is_made:
            from clew.store.postgres import drop_log

            drop_log(self.address(), schema=f"clew_{pipeline}")
        if self.bodies is not None:
            shutil.rmtree(self.bodies, ignore_errors=True)


def _sqlite_path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def _embedded_directory(url: str) -> Path | None:
    scheme, _, directory = url.partition(":")
    # With two slashes, as other URLs have them, too.
    return Path(directory.removeprefix("//")) if scheme == _EMBEDDED and directory.strip("/") else None


def make_directory(path: Path) -> None:
    """Make a directory that a log, or a file beside it, is to be in."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreFailed(
            f"cannot make the log directory {path}: {error.strerror}", "choose another one with --log sqlite:///PATH"
        ) from error


def masked(url: str) -> str:
    """Return a URL without its passwords, wherever they stand in it; that of an embedded server as people name it."""
    if f"{_EMBEDDED}%3A" in url:
        from clew.store.embedded_postgres import shown

        return shown(url) or url
    parts = urlsplit(url)
    if parts.password is not None:
        url = parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")).geturl()
    return re.sub(r"(password=)[^&\s]*", r"\1***", url)


__all__ = ["Log", "make_directory", "masked"]
