"""How commands speak: results on stdout, all else on stderr, a failure as one message and an exit code."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import typer

from clew.errors import ClewError, RunFinished

if TYPE_CHECKING:
    from rich.console import Console

#: Exit codes, besides 0 and click's 2 for a wrong command line.
FAILED = 1
ALREADY_FINISHED = 3
UNDECIDED = 4
QUARANTINED = 5
INTERRUPTED = 130

#: Columns for what is no terminal: wide enough that no line of a table is cut or folded.
_WIDE = 240


def results() -> "Console":
    """Return the console for what a command was asked for."""
    return console_on(sys.stdout)


def notices() -> "Console":
    """Return the console for everything else."""
    return console_on(sys.stderr)


def console_on(file: TextIO) -> "Console":
    """Return a console that writes text as it is: names and messages of users may hold brackets and colons."""
    # Imported here: the process of a group shows nothing.
    from rich.console import Console

    terminal = file.isatty()
    width = None if terminal else _WIDE
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False, soft_wrap=not terminal)


def print_json(value: Any) -> None:
    """Write one line of JSON on stdout."""
    typer.echo(json.dumps(value, default=str))


def complain(message: object) -> None:
    """Write what went wrong on stderr."""
    typer.echo(f"error: {message}", err=True)


@contextmanager
def explained() -> Iterator[None]:
    """Turn a failure into its message and an exit code."""
    try:
        yield
    except RunFinished as finished:
        typer.echo(str(finished), err=True)
        raise typer.Exit(ALREADY_FINISHED) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise
    except Exception as error:
        complain(message_of(error))
        raise typer.Exit(FAILED) from None


def message_of(error: Exception) -> str:
    """Return what to tell the user of an error."""
    if isinstance(error, ClewError):
        return str(error)
    # Not foreseen, so a mistake of ours: who wants to report it gets the traceback.
    if os.environ.get("CLEW_DEBUG"):
        raise error
    return (
        f"{type(error).__name__}: {error}; this is a failure that Clew did not expect: set CLEW_DEBUG=1 to see where, "
        "and report it"
    )
