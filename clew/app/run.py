"""`clew run`."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TextIO

import typer

from clew import __version__
from clew.app.figures import as_mapping, summary
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
from clew.app.logs import heard, logged_to, own_log
from clew.app.settings import GroupsAs, Settings, in_force
from clew.app.target import Bodies, File, LogUrl, Target, named, run_again
from clew.app.terminal import (
    ALREADY_FINISHED,
    FAILED,
    INTERRUPTED,
    QUARANTINED,
    complain,
    explained,
    message_of,
    print_json,
)
from clew.app.watch import Display, display_for, watching
from clew.errors import AlreadyRunning, ClewError, GroupsRunning, NewerLog, RunFinished, SetupFailed
from clew.pipeline.graph import Graph
from clew.run import Log, Progress, Recovery, RunStatus, SparkOptions, changes, masked, program_of
from clew.run import run as run_pipeline
from clew.run import status as read_status
from clew.supervisor.processes import stopped_by

#: Seconds between two collections where --gc says no more.
_COLLECT_EVERY = 30.0

#: Seconds in which a process that was killed lets go of its port, and between two attempts to have it.
_LETS_GO, _PORT = 5.0, 0.05
#: What is said by who showed what another process did, until that gave no sign of life any more.
_TAKES_OVER = ("that process gives no sign of life, and this one takes its place",)

Outcome = Literal["finished", "stopped", "already-finished", "quarantined", "failed", "interrupted"]
_CODES: dict[Outcome, int] = {
    "finished": 0, "stopped": 0, "already-finished": ALREADY_FINISHED, "quarantined": QUARANTINED, "failed": FAILED,
    "interrupted": INTERRUPTED,
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What `clew run` was asked to do."""

    file: str
    settings: Settings
    fresh: bool
    recovery: Recovery
    as_json: bool
    trace: str | None = None
    #: The log as it was named on the command line.
    named: str | None = None
    #: The Python files that were named there.
    py_files: Sequence[str] = ()
    options: SparkOptions = field(default_factory=SparkOptions)
    accept: tuple[str, ...] = ()

    @property
    def log(self) -> str | None:
        return self.settings.log

    @property
    def bodies(self) -> str | None:
        return self.settings.bodies

    @property
    def again(self) -> str:
        """The command that resumes this run."""
        return run_again(self.file, self.named, self.py_files)


@dataclass
class Report:
    """What became of it."""

    outcome: Outcome = "finished"
    message: str = ""
    resumed: bool = False
    progress: Progress = field(default_factory=Progress)
    seconds: float = 0.0
    #: Who runs the pipeline, where this command only shows what another process does; and whether that has ended.
    shown: str = ""
    shown_to_its_end: bool = False
    #: Whether this command took the place of one that it showed before.
    follows: bool = False


def run(
    file: File,
    log: LogUrl = None,
    bodies: Bodies = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the log and start from the beginning.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --fresh removes a log.")] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            metavar="OPERATOR",
            help="Go on though this operator was changed, at the cost that `clew check --log` tells; `all` for all.",
        ),
    ] = None,
    recovery: Annotated[
        Recovery, typer.Option(help="none runs without any log: faster, and nothing survives a failure.")
    ] = "log",
    engine: EngineFlag = None,
    master: Master = None,
    conf: Conf = None,
    packages: Packages = None,
    jars: Jars = None,
    py_files: PyFiles = None,
    groups: Annotated[
        GroupsAs | None,
        typer.Option(help="processes runs each group in one of its own, on a log in PostgreSQL. [default: threads]"),
    ] = None,
    gc: Annotated[bool, typer.Option("--gc", help=f"Collect beside the run, every {_COLLECT_EVERY:g} s.")] = False,
    gc_every: Annotated[float | None, typer.Option(metavar="S", min=0.1, help="The same, every S seconds.")] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve the run's figures there, for Prometheus.")
    ] = None,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="Append every step of the run to FILE, as JSON lines.")
    ] = None,
    others: Set = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON on stdout.")] = False,
) -> None:
    """Run a pipeline to its end, or go on with a run that was cut off.

    Exit codes: 0 it has finished, or was told to stop; 1 it failed, and running it again resumes it; 2 the command
    line is wrong; 3 this log holds a finished run already, which is final; 5 it waits for what is in quarantine;
    130 it was interrupted.
    """
    with explained():
        flags = spark_flags(master, conf, packages, jars, py_files, others)
        flags |= {"log": log or flags.get("log"), "bodies": bodies or flags.get("bodies")}
        flags |= {"engine": engine or flags.get("engine"), "gc_every": gc_every or flags.get("gc_every")}
        flags |= {"metrics": metrics or flags.get("metrics"), "groups": groups or flags.get("groups")}
        settings = in_force(flags)
        if gc and settings.gc_every is None:
            settings = settings.model_copy(update={"gc_every": _COLLECT_EVERY})
        request = Request(
            file,
            settings,
            fresh,
            recovery,
            as_json,
            trace,
            flags["log"],
            flags.get("py_files", ()),
            spark_options(settings.engine, settings, flags),
            tuple(accept or ()),
        )
        make_importable(settings.py_files)
        target = Target.parse(file)
        graph = settings.applied_to(target.graph())
        display = display_for(graph.name)
        resumed, announcement = _announcement(graph, request, may_ask=not yes)
        with logged_to(_own_log_file(graph, request), settings.log_level, pipeline=graph.name):
            begun = {"resumed": resumed, "engine": settings.engine, "fresh": fresh, "clew": __version__}
            own_log().info("run starts", extra=begun)
            report = _run(graph, target, request, display, announcement)
            report.resumed = resumed or report.follows
            figures = [as_mapping(row) for row in report.progress.rows().values()]
            ended = {"outcome": report.outcome, "seconds": report.seconds, "error": report.message}
            level = logging.ERROR if report.outcome == "failed" else logging.INFO
            own_log().log(level, "run ends", extra={**ended, "operators": figures})
        _tell(graph, request, report, display)
        raise typer.Exit(_CODES[report.outcome])


def _announcement(graph: Graph, request: Request, may_ask: bool) -> tuple[bool, list[str]]:
    """Return whether a run is resumed, and what is to be said when it begins; asks where that is to be."""
    said: list[str] = []
    resumed = False
    if request.recovery == "none":
        said.append(f"warning: --recovery none keeps no log of pipeline {graph.name}: nothing survives a failure")
    else:
        url = masked(Log.at(request.log, graph.name, request.bodies).url)
        before = _status_before(graph, request)
        if request.fresh and isinstance(before, NewerLog | RunStatus) and may_ask:
            _confirm(graph, before, url)
        if request.fresh or not isinstance(before, RunStatus) or not before.started:
            said.append(f"new run of pipeline {graph.name}, log {url}")
            said += _given_up(before)
        elif not before.finished:
            said.append(f"resuming run {before.run_id} of pipeline {graph.name}: {before.events} events logged")
            said += _accepted(graph, request)
            resumed = True
    if request.settings.engine == "spark":
        # It takes seconds, in which nothing else would be seen to happen.
        said.append(f"starting Spark{f' on {request.settings.master}' if request.settings.master else ''}")
    return resumed, said


def _given_up(before: RunStatus | NewerLog | None) -> list[str]:
    """Say what goes with the log that --fresh removes, and nobody has decided on."""
    held = sum(operator.quarantined for operator in before.operators) if isinstance(before, RunStatus) else 0
    return [f"given up with the run before: {held} in quarantine"] if held else []


def _accepted(graph: Graph, request: Request) -> list[str]:
    """Say what is not as it was; what must be accepted first is the run's own to say."""
    return [
        f"changed: {found.told}"
        for found in changes(graph, request.log, request.bodies) or ()
        if found.compatible or (found.accept and {found.operator, "all"} & set(request.accept))
    ]


def _status_before(graph: Graph, request: Request) -> RunStatus | NewerLog | None:
    try:
        return read_status(graph, request.log, request.bodies)
    except NewerLog as newer:
        # It can still be replaced.
        if request.fresh:
            return newer
        raise


def _confirm(graph: Graph, before: RunStatus | NewerLog, url: str) -> None:
    """Ask before work is thrown away; where nobody can answer, --fresh was the answer."""
    if not sys.stdin.isatty():
        return
    if isinstance(before, NewerLog):
        what = f"The log {url} was made by a newer Clew."
    elif before.finished or not before.started:
        return
    else:
        what = f"The log {url} holds an unfinished run of pipeline {graph.name}: {before.events} events logged."
        what = " ".join([what, *(f"{told.capitalize()}." for told in _given_up(before))])
    if not typer.confirm(f"{what} Remove it and start from the beginning?", err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(FAILED)


class _Figures(ExitStack):
    """Serves the run's figures, if that was asked for; who does not ask does not wait for the library."""

    def __init__(self, address: str | None, pipeline: str, progress: Progress, say: Callable[[str], None]) -> None:
        super().__init__()
        self._address, self._pipeline, self._progress, self._say = address, pipeline, progress, say
        self._served = False

    def serve(self, patience: float = 0.0) -> None:
        """Serve them from now on; raises SetupFailed where that cannot be done, nor within some seconds."""
        if self._address is None or self._served:
            return
        from clew.app.metrics import served

        until = time.monotonic() + patience
        while True:
            try:
                port = self.enter_context(served(self._address, self._pipeline, self._progress))
                break
            except SetupFailed:
                if time.monotonic() >= until:
                    raise
                time.sleep(_PORT)
        self._served = True
        self._say(f"figures for Prometheus on port {port}")


def _told_of(graph: Graph, request: Request, report: Report, display: Display) -> AbstractContextManager[None]:
    """Tell a collector of OpenLineage of the run, if that was asked for; else nothing is even imported."""
    if request.settings.openlineage is None:
        return nullcontext()
    place = request.settings.openlineage
    from clew.app.openlineage.delivery import send_to

    # First, because it says so where the library is missing. On a terminal lines must not tear the live table.
    send = send_to(place, display.say if display.stays and sys.stdout.isatty() else _print_to(sys.stdout))
    from clew.app.openlineage.events import Where
    from clew.app.openlineage.observer import told

    log = Log.at(request.log, graph.name, request.bodies)
    # One that is in memory cannot be read from outside, by us or by a command.
    kept = request.recovery == "log" and log.is_kept
    namespace = request.settings.openlineage_namespace or graph.name
    where = Where(graph, namespace, request.file, masked(log.url) if kept else None, request.named is not None)
    return told(send, place, where, log if kept else None, report.progress, lambda: bool(report.shown))


def _print_to(out: TextIO) -> Callable[[str], None]:
    return lambda line: print(line, file=out, flush=True)


def _run(graph: Graph, target: Target, request: Request, display: Display, announcement: Sequence[str]) -> Report:
    report, stop = Report(), threading.Event()
    began = time.monotonic()

    figures = _Figures(request.settings.metrics, graph.name, report.progress, display.say)

    def begins() -> None:
        # A process that has just died may still have the port, until the last of its threads is gone.
        figures.serve(_LETS_GO if report.follows else 0.0)
        for text in _TAKES_OVER if report.follows else announcement:
            display.say(text)

    def shows(running: AlreadyRunning) -> None:
        report.shown, report.follows = f"process {running.pid} on {running.host}", False
        display.say(f"pipeline {graph.name} is run by {report.shown}: this shows what it does")
        for told in _accepted(graph, request):
            display.say(f"{told}; what is run now is the pipeline as it was")
        # Who runs it serves them there already, most likely.
        with suppress(SetupFailed):
            figures.serve()

    # What user code prints would otherwise stand before the line of JSON.
    own_stdout = redirect_stdout(sys.stderr) if request.as_json else nullcontext()
    try:
        with (
            figures,
            watching(display, graph, report.progress),
            heard(display.say),
            _interruptible(display, report),
            stopped_by((signal.SIGTERM,), stop.set),
            own_stdout,
            _told_of(graph, request, report, display),
        ):
            _perform(graph, target, request, report, begins, shows, stop)
        if report.progress.quarantined:
            report.outcome, report.message = "quarantined", _held(request, report.progress.quarantined)
        elif not report.progress.finished:
            report.outcome, report.message = "stopped", _left(report) or _stopped(graph, request)
    except RunFinished as finished:
        report.outcome, report.message = "already-finished", str(finished)
    except Exception as error:
        report.outcome, report.message = "failed", message_of(error)
    except KeyboardInterrupt:
        report.outcome, report.message = "interrupted", _left(report) or _interrupted(graph, request)
    report.seconds = round(time.monotonic() - began, 3)
    return report


def _own_log_file(graph: Graph, request: Request) -> Path | None:
    """Return the file of Clew's own log; a run that keeps no log keeps none of this kind either."""
    if request.recovery == "none":
        return None
    return Log.at(request.log, graph.name, request.bodies).beside("run.log")


def _perform(
    graph: Graph,
    target: Target,
    request: Request,
    report: Report,
    begins: Callable[[], None],
    shows: Callable[[AlreadyRunning], None],
    stop: threading.Event,
) -> None:
    """Run the pipeline, or show what another process does that runs it already."""
    apart = request.settings.groups == "processes"
    given = (graph, request, report.progress, begins, stop)
    work = _apart(*given) if apart else _here(target, *given)
    while True:
        try:
            work()
            return
        except GroupsRunning:
            # There is nobody to watch, and nobody's place to take.
            raise
        except AlreadyRunning as running:
            if request.fresh:
                raise
            shows(running)
            ended = _attend(graph, request, report.progress, stop)
            if ended or stop.is_set():
                report.shown_to_its_end = not stop.is_set()
                return
            report.shown, report.follows = "", True


def _attend(graph: Graph, request: Request, progress: Progress, stop: threading.Event) -> bool:
    from clew.groups import attend

    return attend(graph, Log.at(request.log, graph.name, request.bodies), progress, stop)


def _left(report: Report) -> str:
    """Say of the run of another process that it is shown no more, if that is all that ends."""
    goes_on = report.shown and not report.shown_to_its_end
    return f"not shown any more; {report.shown} goes on with the run" if goes_on else ""


def _here(
    target: Target,
    graph: Graph,
    request: Request,
    progress: Progress,
    begins: Callable[[], None],
    stop: threading.Event,
) -> Callable[[], object]:
    """Return what runs the groups as threads of this process."""
    return partial(
        run_pipeline,
        graph,
        log=request.log,
        bodies=request.bodies,
        fresh=request.fresh,
        accept=request.accept,
        recovery=request.recovery,
        engine=request.settings.engine,
        options=request.options,
        program=program_of(target.path, target.name) if request.settings.engine == "spark" else None,
        policy=request.settings.policy,
        progress=progress,
        trace=request.trace,
        lease=request.settings.lease,
        stop=stop,
        begins=begins,
    )


def _apart(
    graph: Graph, request: Request, progress: Progress, begins: Callable[[], None], stop: threading.Event
) -> Callable[[], object]:
    """Return what runs the groups as processes."""
    from clew.app.processes import commands_of
    from clew.groups import run_processes

    if request.recovery == "none" or request.trace is not None:
        what = "--recovery none" if request.recovery == "none" else "--trace"
        raise SetupFailed(f"{what} is for groups that are threads of one process", "leave it out, or --groups threads")
    place = Log.at(request.log, graph.name, request.bodies)
    commands = commands_of(request.file, graph, place, request.settings, request.options, request.accept)
    told = request.settings
    return partial(
        run_processes, graph, place, commands, told.policy, progress,
        fresh=request.fresh, accept=request.accept, lease=told.lease, stop=stop, begins=begins,
    )  # fmt: skip


def _stopped(graph: Graph, request: Request) -> str:
    if request.recovery == "none":
        return f"stopped; pipeline {graph.name} has no log, so the next run starts from the beginning"
    return f"stopped after the turns in flight; `{request.again}` resumes the run where it stopped"


def _held(request: Request, number: int) -> str:
    return (
        f"everything is done but for what is in quarantine ({number}): the run ends when each is tried again or "
        f"dropped; `clew quarantine list {named(request.file, request.named, request.py_files)}` shows what it is"
    )


def _interrupted(graph: Graph, request: Request) -> str:
    if request.recovery == "none":
        return f"interrupted; pipeline {graph.name} has no log, so the next run starts from the beginning"
    return f"interrupted; `{request.again}` resumes the run where it stopped"


@contextmanager
def _interruptible(display: Display, report: Report) -> Iterator[None]:
    """Let the first Ctrl-C end the run after the turns in flight, and the second at once."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread hears signals.
        yield
        return

    def stop(signum: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if not report.shown:
            display.say("stopping after the turns in flight; press Ctrl-C again to stop at once")
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _tell(graph: Graph, request: Request, report: Report, display: Display) -> None:
    """Say how it ended: figures on stdout, a failure on stderr."""
    for warning in report.progress.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if request.as_json:
        print_json(_as_json(graph, request, report))
    else:
        _summarise(graph, report, display)
    if report.outcome == "failed":
        complain(report.message)
    elif report.message:
        typer.echo(report.message, err=True)


def _summarise(graph: Graph, report: Report, display: Display) -> None:
    # A live table on the same terminal has just shown the figures.
    if not (display.stays and sys.stdout.isatty()):
        for row in report.progress.rows().values():
            typer.echo(summary(row))
    if report.outcome == "finished":
        typer.echo(f"pipeline {graph.name} has finished in {report.seconds:.1f} s")


def _as_json(graph: Graph, request: Request, report: Report) -> dict[str, object]:
    logged = request.recovery == "log"
    return {
        "pipeline": graph.name,
        "outcome": report.outcome,
        "error": report.message or None,
        "warnings": report.progress.warnings,
        "log": masked(Log.at(request.log, graph.name, request.bodies).url) if logged else None,
        "run": _run_id(graph, request) if logged else None,
        "resumed": report.resumed,
        "seconds": report.seconds,
        "operators": [as_mapping(row) for row in report.progress.rows().values()],
    }


def _run_id(graph: Graph, request: Request) -> str | None:
    """Ask the log whose run it was; after a failure of the log itself it may not answer."""
    with suppress(ClewError):
        status = read_status(graph, request.log, request.bodies)
        return status.run_id if status is not None else None
    return None
