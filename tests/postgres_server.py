"""A real PostgreSQL for tests: from the wheel, or one found on the machine, as root or not."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from clew.store.postgres_binaries import installations, reachable, runs_as

_PATIENCE = 60.0


class PostgresServer:
    """A PostgreSQL server of our own on the loopback, in a directory that goes with it."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="clew-pg-"))
        runs = runs_as()
        runs.give(self._directory)
        self._as_user = runs.arguments
        self._binaries = reachable(next(installations()).programs, self._directory, runs)
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
