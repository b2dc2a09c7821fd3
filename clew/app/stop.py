"""`clew stop`."""

from typing import Annotated

import typer

from clew.app.flags import PyFiles, ready_to_load
from clew.app.target import Bodies, File, LogUrl, Target, run_again
from clew.app.terminal import FAILED, complain, explained
from clew.groups import stop_run
from clew.place import Log


def stop(
    file: File,
    log: LogUrl = None,
    bodies: Bodies = None,
    py_files: PyFiles = None,
    patience: Annotated[
        float, typer.Option(metavar="S", min=0.0, help="Seconds to wait for the turns in flight.")
    ] = 60,
) -> None:
    """Let a run end after the turns in flight, wherever its processes are. Nothing is lost; `clew run` resumes it."""
    with explained():
        settings = ready_to_load(py_files, {"log": log, "bodies": bodies})
        graph = Target.parse(file).graph()
        place = Log.at(settings.log, graph.name, settings.bodies)
        ended = stop_run(graph, place, patience, lambda text: typer.echo(text, err=True))
        if not ended:
            complain(f"it still runs after {patience:g} s; wait longer with --patience, or end its processes")
            raise typer.Exit(FAILED)
        typer.echo(f"stopped; `{run_again(file, log, py_files)}` resumes the run, with the flags that it had", err=True)
