"""What commands work on: a pipeline in a file, and its log."""

import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from clew.pipeline.declare import Pipeline
from clew.pipeline.graph import Graph
from clew.pipeline.load import load
from clew.run import masked

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE[:PIPELINE]",
        help="A Python file; PIPELINE is the variable's name, needed where the file has several.",
        show_default=False,
    ),
]
LogUrl = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="URL",
        help=(
            "The log: sqlite:///PATH, postgresql://USER@HOST/DATABASE or embedded-postgres:DIR. "
            "[default: .clew/PIPELINE/log.db here]"
        ),
        show_default=False,
    ),
]
Bodies = Annotated[
    str | None,
    typer.Option(
        "--bodies",
        metavar="DIR",
        help="The directory of large event bodies, which all Spark executors must see. [default: beside the log]",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in one line of JSON.", show_default=False)]


@dataclass(frozen=True, slots=True)
class Target:
    """A pipeline in a file, as written on the command line."""

    path: str
    name: str | None

    @classmethod
    def parse(cls, text: str) -> "Target":
        path, _, name = text.rpartition(":")
        if path and name.isidentifier() and not Path(text).exists():
            return cls(path, name)
        return cls(text, None)

    def pipeline(self) -> Pipeline:
        """Import the file; what it prints goes to stderr, for stdout holds the command's own answer."""
        with redirect_stdout(sys.stderr):
            return load(self.path, self.name)

    def graph(self) -> Graph:
        return self.pipeline().graph()


def named(file: str, log: str | None, py_files: Sequence[str] | None = None) -> str:
    """Return the words of a command line that name a pipeline and its log as this one does."""
    given = {"--log": masked(log) if log else "", "--py-files": ",".join(py_files or ())}
    return " ".join([file, *(f"{flag} {value}" for flag, value in given.items() if value)])


def run_again(file: str, log: str | None, py_files: Sequence[str] | None = None) -> str:
    """Return the command that starts or resumes a run."""
    return f"clew run {named(file, log, py_files)}"


def near(location: str) -> str:
    """Return `file:line` relative to where the user is, if that is shorter."""
    file, _, line = location.rpartition(":")
    try:
        return f"{Path(file).relative_to(Path.cwd())}:{line}"
    except ValueError:
        return location


def split_location(text: str) -> tuple[str, str]:
    """Split `file:line: message`."""
    match = re.match(r"(.+?:\d+): (.*)", text, re.DOTALL)
    return (match[1], match[2]) if match else ("", text)
