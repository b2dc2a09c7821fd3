"""A terminal that runs the commands of a page as a reader does: by a shell, in one directory, one after the other."""

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from typer.testing import CliRunner

from clew.app.main import app

#: What a shell says of a process that was ended by kill -9.
KILLED = 128 + signal.SIGKILL
#: Of the terminal, in characters.
WIDTH = "120"


@dataclass
class Terminal:
    """Runs commands; one that ends in `&` goes on beside the others until the terminal is closed."""

    directory: Path
    environment: dict[str, str] = field(default_factory=dict)
    beside: list["subprocess.Popen[str]"] = field(default_factory=list)

    def run(self, command: str) -> tuple[int, str]:
        """Return the exit code of a command and what it printed, on stdout and on stderr."""
        if command.endswith("&"):
            return 0, self._begin(command.removesuffix("&").strip())
        if command.startswith("clew ") and "|" not in command and "--engine spark" not in command:
            return self._call(shlex.split(command)[1:])
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.directory, env=self._environment(), timeout=900, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        # A shell that has become the command itself, as for a single one, cannot tell how it ended.
        if done.returncode == -signal.SIGKILL:
            return KILLED, f"{done.stdout}Killed\n"
        return done.returncode, done.stdout

    def _call(self, words: list[str]) -> tuple[int, str]:
        """Call the command line in this process: another one would pay a second of imports for each command.

        Commands that are to die, and those that start Spark, have processes of their own.
        """
        path = list(sys.path)
        try:
            with chdir(self.directory):
                done = CliRunner().invoke(app, words, env={"COLUMNS": WIDTH, **self.environment})
        finally:
            sys.path[:] = path
            for name, module in list(sys.modules.items()):
                if (getattr(module, "__file__", None) or "").startswith(str(self.directory)):
                    del sys.modules[name]
        return done.exit_code, done.output

    def close(self) -> None:
        """End what was started beside the others."""
        for process in self.beside:
            process.terminate()
            process.communicate()

    def _begin(self, command: str) -> str:
        """Start a server; return its first line, by which it says that it is ready."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=self.directory, env=self._environment(), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.beside.append(process)
        assert process.stdout is not None
        return process.stdout.readline()

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        return {**os.environ, "PATH": path, "COLUMNS": WIDTH, **self.environment}


@contextmanager
def terminal(directory: Path, **environment: str) -> Iterator[Terminal]:
    """Open a terminal in a directory; servers that are started there have a port of their own."""
    opened = Terminal(directory, {"BANK_PORT": str(free_port()), **environment})
    try:
        yield opened
    finally:
        opened.close()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
