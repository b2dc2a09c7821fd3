"""`clew engine`."""

import os
import signal
import sys
import threading
from typing import Annotated

import typer

from clew.app.flags import (
    Conf,
    EngineFlag,
    Jars,
    Master,
    Packages,
    PyFiles,
    Set,
    make_importable,
    spark_flags,
    spark_options,
)
from clew.app.settings import address, in_force
from clew.app.target import Bodies, File, Target
from clew.app.terminal import complain, explained
from clew.errors import SetupFailed
from clew.run import program_of
from clew.serve import Listening, ServiceOptions, computing_for, serve

#: The exit code where the Spark driver has died: whoever started the engine starts the next one.
_DIED = 70


def engine(
    file: File,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where it listens; with port 0 on any that is free.")
    ] = "127.0.0.1:0",
    token_file: Annotated[
        str, typer.Option(metavar="FILE", help="The secret that callers must know; made if it is not there.")
    ] = ".clew/engine.token",
    address_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where it writes its URL once it serves.")
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(metavar="FILE", help="A certificate, in PEM form.")] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="The key of the certificate.")] = None,
    idle: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=1, help="End when nobody has called for so long.")
    ] = None,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long turns in flight have when it is told to end.")
    ] = 30.0,
    workers_log: Annotated[
        str, typer.Option(metavar="FILE", help="Append what functions print on workers to this file.")
    ] = "",
    bodies: Bodies = None,
    engine: EngineFlag = None,
    master: Master = None,
    conf: Conf = None,
    packages: Packages = None,
    jars: Jars = None,
    py_files: PyFiles = None,
    others: Set = None,
) -> None:
    """Serve the Spark engine of a pipeline to groups of operators in other processes.

    It keeps nothing: when it dies, the turns in flight are tried again on the next one. Exit codes: 0 it was told to
    end, or nobody has called for long; 1 it could not start; 2 the command line is wrong; 70 its Spark driver died.
    """
    with explained():
        flags = spark_flags(master, conf, packages, jars, py_files, others)
        flags |= {"bodies": bodies or flags.get("bodies"), "engine": engine or flags.get("engine")}
        settings = in_force(flags)
        options = ServiceOptions(token_file, _listening(listen, tls_cert, tls_key), address_file, idle, grace)
        make_importable(settings.py_files)
        target = Target.parse(file)
        graph = settings.applied_to(target.graph())
        stop = _told_to_end()
        spark = spark_options(settings.engine, settings, flags)
        program = program_of(target.path, target.name)
        computing = computing_for(graph, settings.engine, spark, program, settings.bodies, _died, workers_log)
        ended = serve(graph, program, options, computing, stop, _died, lambda text: print(text, flush=True))
        computing.close()
        if not ended:
            # Somebody holds the line who does not answer any more; nothing is lost by leaving.
            os._exit(0)


def _listening(listen: str, certificate: str | None, key: str | None) -> Listening:
    place = address(listen)
    if place is None:
        raise SetupFailed(f"--listen {listen} is no HOST:PORT", "give it as in 127.0.0.1:7077")
    if (certificate is None) != (key is None):
        raise SetupFailed("TLS needs a certificate and its key", "give both --tls-cert and --tls-key, or neither")
    return Listening(*place, certificate, key)


def _told_to_end() -> threading.Event:
    """Return what is set when the process is told to end; the second time it ends at once."""
    stop = threading.Event()

    def end(signum: int, frame: object) -> None:
        signal.signal(signum, signal.SIG_DFL)
        stop.set()

    if threading.current_thread() is threading.main_thread():
        # Only the main thread hears signals.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
    return stop


def _died() -> None:
    """End at once: what is asked of an engine without Spark is asked of the next one, and counts as its death."""
    complain(
        "the Spark driver has died, and the engine with it; start it again: it has lost nothing but turns in flight"
    )
    sys.stderr.flush()
    os._exit(_DIED)
