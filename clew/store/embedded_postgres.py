"""A PostgreSQL server of Clew's own, with its data in a directory: `embedded-postgres:DIR`.

Whoever opens such a log starts the server if it does not run. Who uses it says so with a lock that ends with the
process, however that ends, and the last one to leave stops the server. A process leaves when it calls `stop`, or when
it ends. One that is killed does not stop the server, which stays until the next one that uses it leaves.

In `DIR/postgres.d`, which no pipeline can be named as:

    data         PostgreSQL's own, of the user that it runs as
    server.log   what it says
    lock         held while the server is started or stopped
    users        held, shared, by every process that uses the server
    running      held by the processes of the server themselves, which inherit it: who gets it knows that none is left
    socket       where it listens, if that is not in here
"""

import atexit
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from clew.disk import make_directory, sync_directory
from clew.errors import SetupFailed, StoreFailed
from clew.store.postgres_binaries import Installation, RunsAs, installations, is_open_to_others, reachable, runs_as

SCHEME = "embedded-postgres:"

_PLACE = "postgres.d"
#: What commands leave in the directory of a pipeline, also before the server is there.
_OF_A_RUN = ("run.log", "workers.log", "bodies")
#: The longest path of a socket, with the name that PostgreSQL adds to its directory, and that of its lock file.
_LONGEST = 107 - len("/.s.PGSQL.5432.lock")
#: Seconds to wait for a server to answer or to end: it may have to recover first.
_PATIENCE = 120.0
#: Seconds for sessions that were just closed to be gone.
_SETTLES = 1.0
_PAUSE = 0.02
_SETTINGS = {
    "listen_addresses": "", "port": "5432", "unix_socket_permissions": "0700", "fsync": "on",
    "synchronous_commit": "on", "full_page_writes": "on", "max_connections": "200", "shared_buffers": "32MB",
    "max_wal_size": "256MB", "dynamic_shared_memory_type": "mmap", "log_checkpoints": "off",
    "log_min_error_statement": "panic", "lc_messages": "C",
}  # fmt: skip

_guard = threading.RLock()
#: The lock on `users` of each directory that this process uses, and the process that took it.
_used: dict[Path, tuple[int, int]] = {}
#: Servers that this process has started: as their parent it must see them end.
_started: list[subprocess.Popen[bytes]] = []


def ensure(directory: str | os.PathLike[str]) -> str:
    """Return the URL of a directory's server, which is started if it does not run, and made if there is none.

    This process uses it from now on: until it calls `stop`, or ends.
    """
    server = _Server(Path(os.path.abspath(directory)))
    with _guard, _explained(server):
        server.claim()
        with _locked(server.place / "lock"):
            _use(server)
            if not server.answers():
                server.start()
        return server.url


def stop(directory: str | os.PathLike[str]) -> bool:
    """Leave a directory's server, and stop it unless somebody else uses it; returns whether it does not run.

    Somebody else is another process that has called `ensure`, or any session that is connected.
    """
    server = _Server(Path(os.path.abspath(directory)))
    if not server.place.is_dir():
        return True
    with _guard, _explained(server), _locked(server.place / "lock"):
        _leave(server)
        with _held(server.place / "users") as alone:
            return alone and (server.has_ended() or (not server.is_connected() and server.stop()))


def is_made(directory: str | os.PathLike[str]) -> bool:
    """Say whether a directory has a server's data; starts nothing, and refuses what belongs to something else."""
    server = _Server(Path(os.path.abspath(directory)))
    with _explained(server):
        server.refuse_foreign()
        return server.version_file.exists()


def installation_for(directory: str | os.PathLike[str]) -> Installation:
    """Return the PostgreSQL that a directory's server is started from."""
    return _Server(Path(os.path.abspath(directory))).installation()


def shown(url: str) -> str | None:
    """Return how people name the log of a URL that `ensure` gave; None for any other."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        name = str(conninfo_to_dict(url).get("fallback_application_name", ""))
    except ProgrammingError:
        return None
    return name if name.startswith(SCHEME) else None


@dataclass(frozen=True)
class _Server:
    """The server of a directory."""

    directory: Path

    @property
    def place(self) -> Path:
        return self.directory / _PLACE

    @property
    def data(self) -> Path:
        return self.place / "data"

    @property
    def version_file(self) -> Path:
        return self.data / "PG_VERSION"

    @property
    def log(self) -> Path:
        return self.place / "server.log"

    @property
    def name(self) -> str:
        return f"{SCHEME}{self.directory}"

    @property
    def socket(self) -> Path:
        """The directory that it listens in."""
        with suppress(FileNotFoundError):
            return Path((self.place / "socket").read_text())
        return self.place / "s"

    @property
    def url(self) -> str:
        # The name is for the sessions, and for whoever has to show this URL.
        return f"postgresql://clew@/postgres?host={_quoted(self.socket)}&fallback_application_name={_quoted(self.name)}"

    def refuse_foreign(self) -> None:
        """Refuse a directory that holds something, and no server."""
        if not self.directory.exists() or self.place.is_dir():
            return
        for entry in sorted(self.directory.iterdir()):
            if not entry.is_dir() or any(not one.name.startswith(_OF_A_RUN) for one in entry.iterdir()):
                raise SetupFailed(
                    f"{self.directory} holds {entry.name}, and no log of Clew",
                    f"name a directory that is empty or does not exist: --log {SCHEME}DIR",
                )

    def claim(self) -> None:
        """Make the directory, if it is not there."""
        self.refuse_foreign()
        if not self.place.is_dir():
            new = not self.directory.exists()
            make_directory(self.place)
            for path in (self.directory, self.place) if new else (self.place,):
                # Another user may have to pass through, to what is its own; nobody may list what is there.
                path.chmod(0o711 if os.geteuid() == 0 else 0o700)

    def answers(self) -> bool:
        """Say whether it runs, and takes sessions."""
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=10).close()
        except psycopg.OperationalError as error:
            return "too many clients" in str(error)
        return True

    def has_ended(self) -> bool:
        """Say whether no process of the server is left."""
        _reap()
        with _held(self.place / "running") as free:
            return free

    def start(self) -> None:
        """Start it, and wait until it answers; the caller holds `lock`."""
        deadline = time.monotonic() + _PATIENCE
        while not self.has_ended():
            # Whoever started it may have been killed before it answered; or it was killed, and its sessions still end.
            if self.answers():
                return
            self._wait(deadline)
        runs = runs_as(self.data)
        self._refuse_closed(runs)
        chosen = self.installation()
        programs = reachable(chosen.programs, self.place, runs)
        if not self.version_file.exists():
            self._initialise(programs, runs)
        self._make_socket(runs)
        process = self._launch(programs, runs)
        while not self.answers():
            if process.poll() is not None:
                raise self._not_started(f"it ended with {process.returncode}")
            self._wait(deadline)

    def stop(self) -> bool:
        """Let it end, whoever is connected; returns whether it did."""
        with suppress(FileNotFoundError, ProcessLookupError):
            self._interrupt(int((self.data / "postmaster.pid").read_text().split("\n")[0]))
        deadline = time.monotonic() + _PATIENCE
        while not self.has_ended():
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE)
        self._remove_socket()
        return True

    def _interrupt(self, process: int) -> None:
        runs = runs_as(self.data)
        if not runs.other:
            os.kill(process, signal.SIGINT)
            return
        # The number is from a file that another user may write, so no more is done than that user could do.
        subprocess.run(["/bin/sh", "-c", 'kill -INT "$1"', "sh", str(process)], check=False, **runs.arguments)

    def is_connected(self) -> bool:
        """Say whether anybody has a session, or may have one."""
        import psycopg

        asked = "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        deadline = time.monotonic() + _SETTLES
        try:
            with psycopg.connect(self.url, connect_timeout=10, autocommit=True) as connection:
                while connection.execute(asked).fetchone() is not None:
                    if time.monotonic() > deadline:
                        return True
                    time.sleep(_PAUSE)
        except psycopg.Error:
            return True
        return False

    def installation(self) -> Installation:
        """Return the PostgreSQL to start: for data that is there, one of the same major version."""
        made_by = int(self.version_file.read_text()) if self.version_file.exists() else None
        found = []
        for one in installations():
            if made_by in (None, one.major):
                return one
            found.append(one.release)
        if made_by is not None and found:
            raise SetupFailed(
                f"the log {self.name} was made by PostgreSQL {made_by}, and there is only {', '.join(found)} here",
                f"install PostgreSQL {made_by}, or name another directory for a new log",
            )
        raise SetupFailed(
            f"there is no PostgreSQL here for the log {self.name}", 'install one with pip install "clew[embedded]"'
        )

    def _refuse_closed(self, runs: RunsAs) -> None:
        if runs.other and not is_open_to_others(self.data):
            raise SetupFailed(
                f"PostgreSQL refuses to run as root, and user {_name(runs.user)} cannot reach {self.directory}",
                "name a directory that every user may pass through to, or run as an ordinary user",
            )

    def _initialise(self, programs: Path, runs: RunsAs) -> None:
        """Make the data in a place of its own, so that nobody takes what is half made for the whole."""
        unfinished = self.place / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        runs.give(unfinished)
        options = ["-U", "clew", "-A", "peer", "-E", "UTF8", "--locale=C"]
        with open(self.log, "ab", opener=_private) as log:
            done = subprocess.run(
                [programs / "initdb", "-D", unfinished, *options], cwd=self.place, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, **runs.arguments,
            )  # fmt: skip
        if done.returncode:
            raise self._not_started(f"initdb ended with {done.returncode}")
        unfinished.rename(self.data)
        sync_directory(self.place)

    def _say_who_may_connect(self, runs: RunsAs) -> dict[str, str]:
        """Let in the user whose data it is, and root, by what the kernel says of who connects; returns settings."""
        users = sorted({"root", _name(runs.user)})
        written = {
            "pg_hba.conf": "local all clew peer map=clew\n",
            "pg_ident.conf": "".join(f'clew "{user}" clew\n' for user in users),
        }
        for name, text in written.items():
            (self.place / name).write_text(text)
            (self.place / name).chmod(0o644)
        return {"hba_file": str(self.place / "pg_hba.conf"), "ident_file": str(self.place / "pg_ident.conf")}

    def _make_socket(self, runs: RunsAs) -> None:
        """Make the directory of the socket: here, or in a shorter place, where the system allows no longer path."""
        self._remove_socket()
        inside = self.place / "s"
        if len(os.fsencode(inside)) > _LONGEST:
            inside = Path(tempfile.mkdtemp(prefix="clew-socket-"))
            (self.place / "socket").write_text(str(inside))
        inside.mkdir(mode=0o700, exist_ok=True)
        runs.give(inside)

    def _remove_socket(self) -> None:
        # Not in a directory that somebody else has made since, under a name that was ours.
        if self.socket.is_dir() and self.socket.stat().st_uid == runs_as(self.data).user:
            shutil.rmtree(self.socket, ignore_errors=True)
        (self.place / "socket").unlink(missing_ok=True)

    def _launch(self, programs: Path, runs: RunsAs) -> subprocess.Popen[bytes]:
        # A list of directories, which are quoted as names are.
        socket = '"{}"'.format(str(self.socket).replace('"', '""'))
        settings = {**_SETTINGS, "unix_socket_directories": socket, **self._say_who_may_connect(runs)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        # No process of an earlier server is left, so this speaks of none; its number may be another's by now.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        with _opened(self.place / "running") as running, open(self.log, "ab", opener=_private) as log:
            fcntl.flock(running, fcntl.LOCK_EX)
            process = subprocess.Popen(
                [programs / "postgres", "-D", self.data, *options], cwd=self.place, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True, pass_fds=[running], **runs.arguments,
            )  # fmt: skip
        _started.append(process)
        return process

    def _wait(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise self._not_started(f"it does not answer after {_PATIENCE:g} s")
        time.sleep(_PAUSE)

    def _not_started(self, why: str) -> StoreFailed:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        last = " | ".join(text.splitlines()[-5:])
        return StoreFailed(
            f"the PostgreSQL server of the log {self.name} does not start: {why}; it said: {last}",
            f"mend what it says in {self.log}, and run again: what was acknowledged is safe",
        )


def _use(server: _Server) -> None:
    """Note that this process uses a server; the caller holds `lock`."""
    holder, descriptor = _used.get(server.directory, (0, -1))
    # Not what a parent had before it forked, nor a lock in a directory that was removed since.
    if holder == os.getpid() and os.fstat(descriptor).st_nlink:
        return
    descriptor = _open(server.place / "users")
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    _used[server.directory] = (os.getpid(), descriptor)


def _leave(server: _Server) -> None:
    holder, descriptor = _used.pop(server.directory, (0, -1))
    if holder == os.getpid():
        # Released, and not only closed, for a process that was forked may have it too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@atexit.register
def _leave_all() -> None:
    for directory, (holder, _) in list(_used.items()):
        if holder == os.getpid():
            with suppress(Exception):
                stop(directory)


def _reap() -> None:
    _started[:] = [process for process in _started if process.poll() is None]


@contextmanager
def _explained(server: _Server) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SetupFailed(
            f"the log {server.name} cannot be used: {error.strerror}: {error.filename}",
            f"name a directory of your own: --log {SCHEME}DIR",
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock, waited for."""
    with _opened(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Hold a lock if nobody else does; gives whether it is held."""
    with _opened(path) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a file for a lock; it is closed, not unlocked: who has inherited it keeps the lock."""
    descriptor = _open(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _quoted(value: object) -> str:
    return quote(str(value), safe="")


__all__ = ["SCHEME", "ensure", "installation_for", "is_made", "shown", "stop"]
