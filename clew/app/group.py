"""`clew group`: one group of a pipeline, in this process. Imported without the other commands: it must be light."""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from clew.app.flags import PyFiles, Set, make_importable
from clew.app.logs import logged_to
from clew.app.settings import from_texts, in_force, words
from clew.app.target import Bodies, LogUrl, Target
from clew.app.terminal import explained
from clew.errors import RoleLost, RunFinished, SetupFailed
from clew.groups import Membership, engine_at, open_ahead, run_group
from clew.pipeline import absent
from clew.pipeline.graph import Graph
from clew.place import Log
from clew.runtime.engine import Engine, InlineEngine, refuse_frames
from clew.store.base import KeptStore
from clew.supervisor.processes import stopped_by

#: The exit code of a process whose group another one has now; what starts it may do so again.
_LOST = 75
#: Where Clew's own log goes unless a directory is named; who starts a group by hand wants to see it.
_STDERR = Path("/dev/stderr")


def group(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The group: an operator's name, or its group=.")] = "",
    pipeline: Annotated[
        str, typer.Option("--pipeline", metavar="FILE[:PIPELINE]", help="The file that declares the pipeline.")
    ] = "",
    log: LogUrl = None,
    bodies: Bodies = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="URL", help="The engine service: grpc://HOST:PORT, or file:PATH of its address; or inline."
        ),
    ] = "inline",
    token_file: Annotated[str | None, typer.Option(metavar="PATH", help="The file with the engine's token.")] = None,
    tls_ca: Annotated[
        str | None, typer.Option(metavar="PATH", help="The root certificate of an engine with TLS, in PEM form.")
    ] = None,
    accept: Annotated[list[str] | None, typer.Option("--accept", metavar="OPERATOR", help="As in `clew run`.")] = None,
    py_files: PyFiles = None,
    others: Set = None,
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write what is printed to NAME.log in this directory.")
    ] = None,
    spare: Annotated[
        bool, typer.Option("--spare", hidden=True, help="Get ready, and wait for a line on stdin that names the group.")
    ] = False,
    dead: Annotated[str | None, typer.Option(hidden=True, help="A process that had the group and has ended.")] = None,
) -> None:
    """Run one group of a pipeline: on any machine, beside other groups on the same log and the same engine service.

    Where two processes run the same group, one works, and the other stands by.
    """
    with explained():
        flags = {**from_texts(others or ()), "py_files": words(",".join(py_files or ()))}
        flags |= {"log": log or flags.get("log"), "bodies": bodies or flags.get("bodies")}
        settings = in_force(flags)
        make_importable(settings.py_files)
        if engine != "inline":
            # Functions of DataFrames are called by the engine service alone.
            absent.install()
        target = Target.parse(pipeline)
        graph = settings.applied_to(target.graph())
        place = Log.at(settings.log, graph.name, settings.bodies)
        stop = threading.Event()
        computes = _engine(engine, token_file, tls_ca, target, graph, stop)
        opened = None
        if spare:
            # What takes time is done before anybody waits for it.
            opened = open_ahead(place, graph.name)
            if isinstance(computes, InlineEngine):
                computes.warm()
            name, dead = _told(opened)
        _check(name, graph)
        if output is not None:
            _print_to(Path(output) / f"{name}.log")
        member = Membership(graph, name, place, settings.policy, tuple(accept or ()), settings.lease)
        try:
            said = _STDERR if output is None else Path(output) / f"{name}.log"
            with (
                logged_to(said, settings.log_level, pipeline=graph.name, group=name),
                stopped_by((signal.SIGTERM, signal.SIGINT), stop.set),
            ):
                run_group(member, computes, stop, dead, lambda text: typer.echo(text, err=True), opened)
        except RunFinished as finished:
            typer.echo(str(finished), err=True)
        except RoleLost as lost:
            typer.echo(str(lost), err=True)
            raise typer.Exit(_LOST) from None
        finally:
            computes.close()


def _engine(
    url: str, token_file: str | None, tls_ca: str | None, target: Target, graph: Graph, stop: threading.Event
) -> Engine:
    if url == "inline":
        refuse_frames(graph)
        return InlineEngine(graph)
    if token_file is None:
        raise SetupFailed(f"the engine at {url} asks for a token", "give --token-file as the engine service was given")
    return engine_at(url, token_file, graph, target.path, target.name, _roots(tls_ca), stop)


def _roots(file: str | None) -> bytes | None:
    """Read a root certificate; None stands for those that gRPC knows by itself."""
    if file is None:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise SetupFailed(
            f"{file} cannot be read ({error.strerror})", "give --tls-ca the certificate that the engine's is signed by"
        ) from error


def _told(opened: KeptStore | None) -> tuple[str, str | None]:
    """Wait to be told which group this is; ends with who would have told."""
    line = sys.stdin.readline()
    if not line:
        if opened is not None:
            opened.close()
        raise typer.Exit
    told = json.loads(line)
    return told["group"], told["dead"]


def _check(name: str, graph: Graph) -> None:
    if name not in graph.groups:
        raise SetupFailed(f"pipeline {graph.name} has no group {name!r}", f"name one of {', '.join(graph.groups)}")


def _print_to(file: Path) -> None:
    """Let everything that is printed from now on, by whatever means, go to a file."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)


if __name__ == "__main__":
    typer.run(group)
