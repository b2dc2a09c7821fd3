"""`clew replay` and `clew diff`: Output Sets of the past, run once more."""

import pdb
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from functools import wraps
from types import GeneratorType
from typing import Annotated, Any

import typer

from clew.app.flags import Conf, Jars, Master, Packages, PyFiles, make_importable, spark_flags, spark_options
from clew.app.settings import in_force
from clew.app.target import Bodies, File, Json, LogUrl, Target
from clew.app.terminal import FAILED, explained, print_json
from clew.ids import InputSetId
from clew.pipeline.graph import Graph
from clew.retrace import Difference, Replayed, named_event
from clew.retrace import diff as compare
from clew.retrace import replay as run_again
from clew.run import program_of
from clew.words import counted

Operator = Annotated[
    str, typer.Argument(metavar="OPERATOR", help="An operator with a function: any but sources and sinks.")
]
#: How many differences of one Input Set, and how many Input Sets that differ, are shown.
_MOST = 5


def replay(
    file: File,
    operator: Operator,
    event: Annotated[
        str, typer.Option("--event", metavar="PORT#ID", help="An event that the operator made, or that it took.")
    ],
    debug: Annotated[bool, typer.Option("--pdb", help="Stop in the debugger inside your function.")] = False,
    log: LogUrl = None,
    bodies: Bodies = None,
    master: Master = None,
    conf: Conf = None,
    packages: Packages = None,
    jars: Jars = None,
    py_files: PyFiles = None,
    as_json: Json = False,
) -> None:
    """Run one Output Set again, alone, on the inputs it had, and compare it with what was logged.

    Nothing is logged or written. Reads are answered from the log. Functions on DataFrames need Spark, others no JVM.

    Exit codes: 0 it gives the same; 1 it does not, or it fails.
    """
    with explained():
        graph, given = _asked(file, log, bodies, spark_flags(master, conf, packages, jars, py_files))
        wrap = stopping if debug else None
        try:
            with redirect_stdout(sys.stdout if debug else sys.stderr):
                found = run_again(graph, operator, named_event(graph, event), wrap=wrap, **given)
        except DebuggerLeft:
            typer.echo("the debugger was left before the function had ended", err=True)
            raise typer.Exit(FAILED) from None
        if as_json:
            print_json([as_mapping(one) for one in found])
        else:
            for one in found:
                _print(one)
        if not all(one.same for one in found):
            raise typer.Exit(FAILED)


def diff(
    file: File,
    operator: Operator,
    log: LogUrl = None,
    bodies: Bodies = None,
    master: Master = None,
    conf: Conf = None,
    packages: Packages = None,
    jars: Jars = None,
    py_files: PyFiles = None,
    as_json: Json = False,
) -> None:
    """Show which outputs change when an operator's function is as it is now: all its logged Input Sets are run again.

    Exit codes: 0 nothing changes; 1 something does.
    """
    with explained():
        graph, given = _asked(file, log, bodies, spark_flags(master, conf, packages, jars, py_files))
        with redirect_stdout(sys.stderr):
            counts, others, expired = _gathered(compare(graph, operator, **given), as_json)
        if as_json:
            changed = [as_mapping(one) for one in others]
            print_json({"operator": operator, "input_sets": counts, "changed": changed, "expired": expired})
        else:
            for one in others[:_MOST]:
                _print(one)
            if len(others) > _MOST:
                typer.echo(f"and {counted(len(others) - _MOST, 'further Input Set')}")
            typer.echo(f"{len(others)} of {counted(counts, 'Input Set')} of {operator} give something else")
            if expired:
                what = f"{counted(len(expired), 'further Input Set')} {'was' if len(expired) == 1 else 'were'} not run"
                typer.echo(f"{what}: events may be lost to collection, or another window or input was there then")
        if others:
            raise typer.Exit(FAILED)


def _gathered(found: Iterable[Replayed], quiet: bool) -> tuple[int, list[Replayed], list[InputSetId]]:
    """Return how many Input Sets were run, those that give something else, and those that could not be run."""
    counts = 0
    others: list[Replayed] = []
    expired: list[InputSetId] = []
    for one in found:
        if one.expired:
            expired.append(one.input_set)
            continue
        counts += 1
        if not one.same:
            others.append(one)
        if counts % 1_000 == 0 and not quiet:
            typer.echo(f"{counts} Input Sets, {len(others)} differ", err=True)
    return counts, others, expired


def _asked(file: str, log: str | None, bodies: str | None, flags: Mapping[str, Any]) -> tuple[Graph, dict[str, Any]]:
    settings = in_force({"log": log, "bodies": bodies, **flags})
    make_importable(settings.py_files)
    target = Target.parse(file)
    graph = target.graph()
    options = spark_options("spark", settings, flags)
    program = program_of(target.path, target.name)
    return graph, {"log": settings.log, "bodies": settings.bodies, "options": options, "program": program}


class DebuggerLeft(BaseException):
    """Somebody has left the debugger. Not an Exception, or it would count as a failure of the function."""


class _Debugger(pdb.Pdb):
    """Knows whether somebody has left it: `runcall` returns as if the function had ended."""

    left = False

    def set_quit(self) -> None:
        self.left = True
        super().set_quit()


def stopping(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that stops in the debugger at the first line of another, also of one with `yield`."""

    @wraps(function)
    def stopped(*args: Any, **given: Any) -> Any:
        debugger = _Debugger()
        result = debugger.runcall(function, *args, **given)
        if isinstance(result, GeneratorType):
            # The call has only made it: its body runs here, while the debugger sees it.
            made = debugger.runcall(list, result)
            # A generator again, or what takes it would take something else than without the debugger.
            result = (one for one in made or ())
        if debugger.left:
            raise DebuggerLeft
        return result

    return stopped


def _print(one: Replayed) -> None:
    outputs = ", ".join(map(str, one.outputs[:_MOST])) or "nothing"
    more = f" and {len(one.outputs) - _MOST} more" if len(one.outputs) > _MOST else ""
    what = f"{one.operator}, Input Set {one.input_set} ({counted(len(one.events), 'event')}), logged as {outputs}{more}"
    if one.failure is not None:
        typer.echo(f"{what}: fails now with {one.failure.kind}: {one.failure.message}")
        if one.failure.frames:
            typer.echo(one.failure.frames)
        return
    typer.echo(f"{what}: {'the same again' if one.same else 'something else now'}")
    for difference in one.differences[:_MOST]:
        for line in _lines(difference):
            typer.echo(line)


def _lines(difference: Difference) -> Iterable[str]:
    yield f"  {difference.event or f'port {difference.port}'}"
    yield f"    logged {difference.logged}"
    yield f"    now    {difference.now}"


def as_mapping(one: Replayed) -> Mapping[str, Any]:
    """Return a replayed Input Set as JSON has it."""
    return {
        "operator": one.operator,
        "input_set": one.input_set,
        "inputs": [str(event) for event in one.events],
        "outputs": [str(event) for event in one.outputs],
        "same": one.same,
        "differences": [
            {"port": d.port, "event": d.event and str(d.event), "logged": d.logged, "now": d.now}
            for d in one.differences
        ],
        "failure": None if one.failure is None else f"{one.failure.kind}: {one.failure.message}",
    }
