"""Wires the engine service: an engine behind an address that it writes down, until it is told to end."""

import os
import secrets
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from clew.errors import SetupFailed
from clew.pipeline.graph import Graph
from clew.runtime.engine import Engine, InlineEngine, Job, refuse_frames
from clew.spark.archive import ClassArchive
from clew.spark.java import find_java
from clew.spark.options import SparkOptions
from clew.spark.program import fingerprint
from clew.spark.service import AT_ONCE, EngineService, Listening, Served
from clew.supervisor.address import published

if TYPE_CHECKING:
    from clew.spark.client import Address
    from clew.spark.program import Program

#: Seconds between two looks at whether the service is still wanted, and its driver still there.
_LOOK = 0.5
#: Seconds that the JVM may take to write down which classes it has loaded.
_ARCHIVING = 60.0
#: Seconds that callers may take to hang up when a service has ended.
_FAREWELL = 5.0


@dataclass(frozen=True)
class ServiceOptions:
    """How a service is found, and how long it stays.

    - `token_file`: where its token is; made where it is not there.
    - `address_file`: where it writes its URL once it serves.
    - `idle`: seconds without a call after which it ends by itself; None to stay.
    - `grace`: seconds that the turns in flight have when it is told to end.
    """

    token_file: str
    listening: Listening = field(default_factory=Listening)
    address_file: str | None = None
    idle: float | None = None
    grace: float = 30.0
    at_once: int = AT_ONCE


@dataclass(frozen=True)
class Computing:
    """An engine, and what a service asks of it besides turns."""

    engine: Engine
    cancel: Callable[[Job], None] = lambda job: None
    is_alive: Callable[[], bool] = lambda: True
    application: str = ""
    #: What is left to do when the engine is closed.
    afterwards: Callable[[], None] = lambda: None

    def close(self) -> None:
        self.engine.close()
        self.afterwards()


def serve(
    graph: Graph,
    program: "Program",
    options: ServiceOptions,
    computing: Computing,
    stop: threading.Event,
    died: Callable[[], None],
    say: Callable[[str], None],
) -> bool:
    """Serve until `stop` is set, or nobody has called for long; says whether all callers have hung up.

    `died` is called when the Spark driver is gone; it is not to return.
    """
    token = token_in(options.token_file)
    served = Served(
        fingerprint(graph, program), token, options.listening, computing.application, options.idle, options.at_once
    )
    service = EngineService(computing.engine, served, computing.cancel)
    where = options.address_file
    with nullcontext() if where is None else published(Path(where), service.url):
        say(f"engine of pipeline {graph.name} at {service.url}, pid {os.getpid()}")
        while not stop.wait(_LOOK):
            if options.idle is not None and service.quiet_for() > options.idle:
                say(f"nobody has called for {options.idle:g} s: the engine ends")
                break
            if not computing.is_alive():
                died()
    ender = threading.Thread(target=service.end, args=(options.grace,), daemon=True)
    ender.start()
    ender.join(options.grace + _FAREWELL)
    return not ender.is_alive()


def computing_for(
    graph: Graph,
    engine: Literal["spark", "inline"],
    options: SparkOptions,
    program: "Program",
    bodies: str | None,
    died: Callable[[], None],
    output: str = "",
) -> Computing:
    """Make the engine that is to be served: on a session of Clew's own, on that of `spark-submit`, or inline.

    `output` is the file for what user code prints on workers.
    """
    if engine == "inline":
        options.refuse_inline()
        refuse_frames(graph)
        return Computing(InlineEngine(graph))
    # Imported here: who only asks for help must not pay for pyspark.
    from clew.spark.engine import SparkEngine
    from clew.spark.session import end_jvm, submitted_session

    session = submitted_session()
    if session is not None:
        options.refuse("under spark-submit, which has made the session", "give them to spark-submit")
        spark = SparkEngine(graph, spark=session, program=program, bodies=bodies, output=output, died=died)
        return Computing(spark, spark.cancel, spark.is_alive, spark.application)
    archive = ClassArchive.of(find_java())
    applied = archive.applied_to(options)
    spark = SparkEngine(graph, options=applied, program=program, bodies=bodies, output=output, died=died)
    afterwards = partial(archive.keep, partial(end_jvm, _ARCHIVING))
    return Computing(spark, spark.cancel, spark.is_alive, spark.application, afterwards)


def token_in(path: str) -> str:
    """Return the token in a file, which is made, readable by its owner alone, where there is none."""
    file = Path(path)
    if not file.exists():
        own = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                out.write(secrets.token_urlsafe(32))
            # Whoever was first wins: all others take what is there then.
            with suppress(FileExistsError):
                os.link(own, file)
        except OSError as error:
            raise SetupFailed(
                f"no token can be written to {path} ({error.strerror})", "give another --token-file"
            ) from error
        finally:
            with suppress(OSError):
                own.unlink()
    token = file.read_text().strip()
    if not token:
        raise SetupFailed(f"the token file {path} is empty", "remove it: the engine makes a new one")
    return token


def address_at(address_file: str, token_file: str) -> "Address":
    """Return what tells a client where a service is now, which may have been started anew."""
    return lambda: (Path(address_file).read_text().strip(), Path(token_file).read_text().strip())


__all__ = [
    "AT_ONCE", "Computing", "Listening", "ServiceOptions", "address_at", "computing_for", "serve", "token_in",
]  # fmt: skip
