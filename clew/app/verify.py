"""`clew verify`."""

import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Annotated

import typer

from clew.app.flags import Conf, Jars, Master, Packages, PyFiles, make_importable, spark_flags, spark_options
from clew.app.gc import no_log
from clew.app.logs import heard
from clew.app.settings import in_force
from clew.app.target import Bodies, File, Json, LogUrl, Target, run_again
from clew.app.terminal import explained, notices, print_json
from clew.app.verdict import as_mapping, exit_code, print_verdict
from clew.run import Log, Verifier, masked, program_of
from clew.run import verify as judge


def verify(
    file: File,
    log: LogUrl = None,
    bodies: Bodies = None,
    trace: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Judge also what the run was traced to; may be given more than once."),
    ] = None,
    engine: Annotated[
        Verifier, typer.Option(help="auto is inline (this process), and Spark for large runs and for DataFrames.")
    ] = "auto",
    master: Master = None,
    conf: Conf = None,
    packages: Packages = None,
    jars: Jars = None,
    py_files: PyFiles = None,
    as_json: Json = False,
) -> None:
    """Say whether a run without failures could have left what a finished run has left. Changes nothing.

    It goes through the log, computes what deterministic functions give again, and reads the sources and the sinks.

    Exit codes: 0 it is explained; 1 it is not, or there is no log; 2 the command line is wrong; 4 it cannot be decided;
    130 it was interrupted.
    """
    with explained():
        flags = spark_flags(master, conf, packages, jars, py_files)
        settings = in_force({"log": log, "bodies": bodies, **flags})
        make_importable(settings.py_files)
        target = Target.parse(file)
        graph = target.graph()
        place = Log.at(settings.log, graph.name, settings.bodies)
        if not place.exists(graph.name):
            no_log(graph.name, place, run_again(file, log, py_files), as_json)
        began = time.monotonic()
        # What user code prints would otherwise stand before the answer.
        with redirect_stdout(sys.stderr), heard(lambda text: typer.echo(text, err=True)):
            verdict = judge(
                graph, log=settings.log, bodies=settings.bodies, engine=engine,
                options=spark_options(engine, settings, flags),
                program=lambda: program_of(target.path, target.name), trace=trace or (), progress=_progress(),
            )  # fmt: skip
        seconds = round(time.monotonic() - began, 3)
        if as_json:
            about = {"pipeline": graph.name, "log": masked(place.url)}
            print_json({**about, **as_mapping(verdict), "seconds": seconds})
        else:
            print_verdict(verdict)
        raise typer.Exit(exit_code(verdict))


def _progress() -> Callable[[str], None]:
    """Return what tells a person at a terminal how far it is."""
    console = notices()
    if not console.is_terminal:
        return lambda what: None
    return lambda what: console.print(f"verifying: {what}")
