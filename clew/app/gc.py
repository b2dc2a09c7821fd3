"""`clew gc`."""

import typer

from clew.app.flags import PyFiles, ready_to_load
from clew.app.target import Bodies, File, Json, LogUrl, Target, run_again
from clew.app.terminal import FAILED, complain, explained, print_json
from clew.run import Log, masked
from clew.run import gc as collect


def gc(file: File, log: LogUrl = None, bodies: Bodies = None, py_files: PyFiles = None, as_json: Json = False) -> None:
    """Remove from a log what is done: its events, their bodies and lineage. Safe while the run goes on."""
    with explained():
        named, settings = log, ready_to_load(py_files, {"log": log, "bodies": bodies})
        log, bodies = settings.log, settings.bodies
        graph = Target.parse(file).graph()
        place = Log.at(log, graph.name, bodies)
        if not place.exists(graph.name):
            no_log(graph.name, place, run_again(file, named, py_files), as_json)
        collected = collect(graph, log, bodies)
        if as_json:
            print_json({"log": masked(place.url), "events": collected.events, "files": list(collected.files)})
            return
        what = f"{collected.events} events and {len(collected.files)} body files"
        typer.echo(f"removed {what} from {masked(place.url)}")


def no_log(pipeline: str, place: Log, again: str, as_json: bool) -> None:
    """Say that there is no log, and end."""
    if as_json:
        print_json({"pipeline": pipeline, "log": masked(place.url), "exists": False})
    complain(f"pipeline {pipeline} has no log at {masked(place.url)}: it has not been run there; `{again}` starts it")
    raise typer.Exit(FAILED)
