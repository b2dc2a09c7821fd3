"""Wires a run: the only module that names concrete engines, and, with `place`, concrete stores."""

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow as pa

from clew import trace as tracing
from clew.admission import (
    accepted_change,
    change_of,
    clear,
    declare_as_it_is,
    is_finished,
    kept_events,
    refuse_finished,
    refuse_foreign,
    refuse_groups,
    supervising,
    topology,
    validate,
)
from clew.errors import ClewError, RoleLost, SetupFailed
from clew.model.certificate import Verdict
from clew.pipeline.declare import Pipeline
from clew.pipeline.graph import Graph
from clew.place import Log, make_directory, masked
from clew.runtime.changes import Finding
from clew.runtime.channels import Channels
from clew.runtime.collect import collect
from clew.runtime.engine import Engine, InlineEngine, refuse_frames
from clew.runtime.lookups import keep_lookups
from clew.runtime.progress import COMMIT_BOUNDS, CommitTimes, OperatorProgress, Progress
from clew.runtime.quarantine import Quarantined, quarantined, records_of
from clew.runtime.runner import Surroundings
from clew.runtime.status import OperatorStatus, ProcessStatus, RunStatus, read_status
from clew.spark.java import Java, find_java
from clew.spark.options import SparkOptions
from clew.store.base import Collected, KeptStore, Store
from clew.store.disk import Disk
from clew.store.disk import examine as examine_disk
from clew.store.ephemeral import EphemeralStore
from clew.store.postgres_binaries import Installation
from clew.supervisor.chaos import Chaos, ChaosOutcome, ChaosPlace
from clew.supervisor.schedule import KINDS, ChaosFault, Kind, draw, kinds_for
from clew.supervisor.tenure import LEASE, lives, this_process
from clew.supervisor.threads import Policy, Supervisor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from clew.model.work import Compute
    from clew.spark.health import SparkHealth
    from clew.spark.program import Program
    from clew.store.postgres_health import PostgresHealth

# Who uses Clew as a library decides where its log goes; without a decision it is silent.
logging.getLogger("clew").addHandler(logging.NullHandler())
_LOG = logging.getLogger(__name__)

T = TypeVar("T")
Recovery = Literal["log", "none"]
Verifier = Literal["auto", "inline", "spark"]

#: A run of more events than this is verified on Spark, unless somebody says otherwise.
_LARGE = 100_000


def run(
    pipeline: Pipeline | Graph,
    *,
    log: str | None = None,
    bodies: str | None = None,
    fresh: bool = False,
    accept: Sequence[str] = (),
    recovery: Recovery = "log",
    engine: "Engine | Literal['spark', 'inline']" = "spark",
    spark: "SparkSession | None" = None,
    master: str | None = None,
    options: SparkOptions | None = None,
    program: "Program | None" = None,
    policy: Policy | None = None,
    progress: Progress | None = None,
    trace: str | None = None,
    lease: float = LEASE,
    stop: threading.Event | None = None,
    begins: Callable[[], None] = lambda: None,
) -> Progress:
    """Run a pipeline to its end, or go on with a run that was cut off; returns its figures.

    Raises AlreadyRunning while another process runs it, which is known by its signs of life: one that was silent for
    longer than its `lease` is replaced. `stop`, when it is set, ends the run after the turns in flight.

    `spark` is a session that you already have; without one Clew makes its own, on `master`, or with `options`, which
    are those of `spark-submit`. What user code prints on workers is in `workers.log` beside the log. `recovery="none"`
    runs the same turns with no log at all: it is the baseline of every overhead that is measured, and nothing survives
    it. `trace` names a file that every step of the run is appended to. `accept` names operators that were changed since
    the run began in a way that costs something, as the refusal says; "all" names all. `begins` is called when nothing
    is left that could refuse the run, before a session is started.
    """
    graph = pipeline.graph() if isinstance(pipeline, Pipeline) else pipeline
    place = Log.at(log, graph.name, bodies)
    options = _options(engine, spark, master, options)
    if engine == "inline":
        refuse_frames(graph)
    if recovery == "none":
        if trace is not None:
            raise SetupFailed("a run without a log leaves no trace", "leave out --trace, or --recovery none")
        validate(graph)
        begins()
        return _run_without_log(graph, engine, spark, options, program, policy, progress, stop)
    if fresh:
        clear(graph, place)
    progress, stop = progress or Progress(), stop or threading.Event()
    with closing(place.open(graph.name)) as store:
        refuse_foreign(graph, store)
        refuse_finished(graph, store, place.url)
        # Here too, because who runs another pipeline under this name must not be shown, nor taken the place of.
        accepted_change(graph, store, accept)
        with _in_charge(graph, store, lease, progress, stop) as begun:
            refuse_groups(graph, store)
            change = accepted_change(graph, store, accept)
            validate(graph)
            declare_as_it_is(change, graph, store)
            progress.warnings += keep_lookups(graph, store, place.bodies)
            begins()
            begun.set()
            computes = engine_for(graph, engine, spark, options, program, place.bodies, place.beside("workers.log"))
            with closing(computes), _traced(trace, graph, store):
                keep = partial(kept_events, graph, store)
                around = Surroundings(
                    graph, store, computes, Channels(graph, store), progress, place.bodies,
                    keep=keep, retaken=change.retaken,
                )  # fmt: skip
                return _supervise(around, policy, stop)


@contextmanager
def _in_charge(
    graph: Graph, store: KeptStore, lease: float, progress: Progress, stop: threading.Event
) -> Iterator[threading.Event]:
    """Be the one process that runs a pipeline, while the block lasts; who is asked to stop, or replaced, stops."""
    replaced = threading.Event()

    def report() -> Mapping[str, Any]:
        return {"operators": {name: row._asdict() for name, row in progress.rows().items()}}

    def asked(what: str) -> None:
        if what == "stop":
            stop.set()

    def lost() -> None:
        replaced.set()
        stop.set()

    with supervising(graph, lambda: store, this_process(threads=True), lease, report, asked, lost) as begun:
        yield begun
        if replaced.is_set():
            raise RoleLost(f"the run of pipeline {graph.name}")


def _traced(path: str | None, graph: Graph, store: Store) -> AbstractContextManager[None]:
    if path is None:
        return nullcontext()
    return tracing.recorded(path, pipeline=graph.name, run=store.run_id)


def gc(pipeline: Graph, log: str | None = None, bodies: str | None = None) -> Collected:
    """Remove what is done from a log, and body files that nothing refers to."""
    place = Log.at(log, pipeline.name, bodies)
    store = place.open(pipeline.name)
    try:
        # What can go is told by the log's own connections, whatever the pipeline is now.
        refuse_foreign(pipeline, store)
        return collect(store, place.bodies, kept_events(pipeline, store))
    finally:
        store.close()


def quarantine_of(pipeline: Graph, log: str | None = None, bodies: str | None = None) -> list[Quarantined]:
    """Return what functions of a run failed on and was set aside."""
    place = Log.at(log, pipeline.name, bodies)
    with closing(place.existing(pipeline.name)) as store:
        return quarantined(pipeline, store)


def quarantined_records(
    pipeline: Graph, one: Quarantined, log: str | None = None, bodies: str | None = None
) -> dict[str, pa.Table]:
    """Return the records of something that was set aside, by input port."""
    place = Log.at(log, pipeline.name, bodies)
    with closing(place.existing(pipeline.name)) as store:
        return records_of(pipeline, store, one, place.bodies)


def decide_quarantined(
    pipeline: Graph,
    chosen: Sequence[Quarantined],
    what: Literal["retry", "drop"],
    log: str | None = None,
    bodies: str | None = None,
) -> int:
    """Say what the next run is to do with what was set aside; returns of how many it could be said."""
    place = Log.at(log, pipeline.name, bodies)
    for one in chosen:
        if not one.open:
            left = ", ".join(other.id for other in quarantine_of(pipeline, log, bodies) if other.open)
            raise ClewError(
                f"{one.id} was {'dropped' if one.row.status == 'dropped' else 'tried again'} by an earlier run, "
                f"expected something that is still in quarantine; there is {left or 'nothing left'}"
                f"{': name one, or --all' if left else ', so there is nothing to decide'}"
            )
    lost = [one.id for one in chosen if not one.placed]
    if what == "retry" and lost:
        raise ClewError(
            f"{lost[0]} cannot be tried again: its event had no place in any window, and they have gone on; "
            "drop it, and send its records once more from a source"
        )
    by_operator: dict[str, list[int]] = {}
    for one in chosen:
        by_operator.setdefault(one.operator, []).append(one.row.number)
    with closing(place.existing(pipeline.name)) as store:
        return sum(store.decide_asides(operator, numbers, what) for operator, numbers in by_operator.items())


def chaos(
    pipeline: Graph,
    command: Callable[[str], Sequence[str]],
    place: Log,
    directory: Path,
    faults: Sequence[ChaosFault],
    tell: Callable[[str], None],
) -> ChaosOutcome:
    """Run a pipeline under faults, in a process of its own that is started again until it has finished.

    `command` returns what starts the run, given the URL of its log; its trace and its output are in `directory`. What
    is in quarantine when all else is done is dropped: only a run that has finished can be judged.
    """
    from clew.store.outage import outage_of

    def drop() -> int:
        held = [one for one in quarantine_of(pipeline, place.url, place.bodies) if one.open]
        return decide_quarantined(pipeline, held, "drop", place.url, place.bodies)

    url, outage = outage_of(place.address())
    return Chaos(command(url), ChaosPlace(directory), faults, outage, drop, tell).run()


def status(pipeline: Graph, log: str | None = None, bodies: str | None = None) -> RunStatus | None:
    """Return what the log says of a run, or None when there is no log.

    It makes no log and changes nothing in one, so that it can be asked at any time, also while the run goes on.
    """
    place = Log.at(log, pipeline.name, bodies)
    if not place.exists(pipeline.name):
        return None
    with closing(place.existing(pipeline.name)) as store:
        return read_status(pipeline, store, masked(place.url), lives)


def verify(
    pipeline: Pipeline | Graph,
    *,
    log: str | None = None,
    bodies: str | None = None,
    engine: Verifier = "auto",
    spark: "SparkSession | None" = None,
    master: str | None = None,
    options: SparkOptions | None = None,
    program: "Callable[[], Program] | None" = None,
    trace: Sequence[str] = (),
    progress: Callable[[str], None] = lambda what: None,
) -> Verdict:
    """Judge a finished run: could it have happened without failures? Changes nothing.

    `engine="auto"` verifies in this process, and on Spark where the run is large, or where a deterministic operator
    takes DataFrames; `program` gives the code for its executors. `trace` names files that the run was traced to.
    `progress` hears what is looked at.
    """
    # Who only runs a pipeline does not wait for its judge.
    from clew.model.verify import verify as judge

    graph = pipeline.graph() if isinstance(pipeline, Pipeline) else pipeline
    place = Log.at(log, graph.name, bodies)
    if not place.exists(graph.name):
        raise SetupFailed(f"pipeline {graph.name} has no log at {masked(place.url)}", "run it there first")
    steps = _steps(trace) if trace else None
    options = _options(engine, spark, master, options)
    with _verifier(graph, place, engine, spark, options, program, progress) as compute:
        return judge(graph, place.address(), place.bodies, compute=compute, trace=steps, progress=progress)


@contextmanager
def _verifier(
    graph: Graph,
    place: Log,
    engine: Verifier,
    spark: Any,
    options: SparkOptions,
    program: "Callable[[], Program] | None",
    progress: Callable[[str], None],
) -> "Iterator[Compute]":
    from clew.model.work import Here

    if engine == "inline" or (engine == "auto" and not _needs_spark(graph, place)):
        yield Here(graph)
        return
    # It takes seconds, in which nothing else would be seen to happen.
    progress("Spark")
    from clew.spark.verify import SparkCompute

    compute = SparkCompute(graph, spark=spark, options=options, program=program() if program else None)
    try:
        yield compute
    finally:
        compute.close()


def _needs_spark(graph: Graph, place: Log) -> bool:
    from clew.model.verify import size

    deterministic = [spec for spec in graph.operators.values() if spec.settings.deterministic]
    if any(function.style == "dataframe" for spec in deterministic for function in spec.functions):
        return True
    return size(graph, place.address()) > _LARGE


def _steps(paths: Sequence[str]) -> Iterator[tracing.TraceStep]:
    """Read traces, one after the other; says at once when one is not there, or does not begin as one."""
    for path in paths:
        if not os.path.isfile(path):
            raise SetupFailed(f"there is no trace {path}", "name a file that `clew run --trace` has written")
        next(_loaded(path), None)
    return (step for path in paths for step in _loaded(path))


def _loaded(path: str) -> Iterator[tracing.TraceStep]:
    try:
        yield from tracing.load(path)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise SetupFailed(
            f"{path} is no trace ({type(error).__name__}: {error})", "name a file that `clew run --trace` has written"
        ) from error


@dataclass(frozen=True)
class Health:
    """What was found out about the places that a run needs; a failure is said, not raised."""

    java: Java
    disk: Disk
    #: Of an embedded server that is not made yet, what it would be made with.
    postgres: "PostgresHealth | Installation | ClewError | None"
    spark: "SparkHealth | ClewError | None"


def examine(log: str | None, bodies: str | None, options: SparkOptions | None) -> Health:
    """Look at what a run would need here; starts a session only where `options` are given."""
    place = Log.at(log, "doctor", bodies)
    beside = place.beside("run.log")
    # A log in PostgreSQL has its bodies on a disk all the same.
    directory = Path(place.bodies) if place.bodies and not place.url.startswith("sqlite") else beside and beside.parent
    disk = examine_disk(directory or Path())
    postgres = None if place.url.startswith(("sqlite", "memory")) else _asked(lambda: _ask_postgres(place))
    spark = _asked(lambda: _ask_spark(options)) if options is not None else None
    return Health(find_java(), disk, postgres, spark)


def _ask_postgres(place: Log) -> "PostgresHealth | Installation":
    from clew.store.embedded_postgres import installation_for, is_made
    from clew.store.postgres_health import ask

    if place.directory is not None and not is_made(place.directory):
        return installation_for(place.directory)
    return ask(place.address())


def _ask_spark(options: SparkOptions) -> "SparkHealth":
    from clew.spark.health import ask

    return ask(options)


def _asked(ask: Callable[[], T]) -> T | ClewError:
    try:
        return ask()
    except ClewError as error:
        return error


def program_of(path: str, name: str | None) -> "Program":
    """Return the code of a pipeline file, to be sent to Spark executors."""
    from clew.spark.program import Program

    return Program.of_file(path, name)


def changes(pipeline: Graph, log: str | None = None, bodies: str | None = None) -> tuple[Finding, ...] | None:
    """Return what is not as it was when the run began, or None when there is no log; changes nothing."""
    place = Log.at(log, pipeline.name, bodies)
    if not place.exists(pipeline.name):
        return None
    with closing(place.open(pipeline.name)) as store:
        refuse_foreign(pipeline, store)
        return change_of(pipeline, store).findings


def _options(engine: Any, spark: Any, master: str | None, options: SparkOptions | None) -> SparkOptions:
    """Put `master` and `options` together; refuse them where they could have no effect."""
    options = options or SparkOptions()
    options = replace(options, master=master or options.master)
    if spark is not None:
        options.refuse("with a session that was given to Clew", "set them where you make that session")
    if engine == "inline":
        options.refuse_inline()
    return options


def engine_for(
    graph: Graph,
    engine: "Engine | Literal['spark', 'inline']",
    spark: Any,
    options: SparkOptions,
    program: "Program | None",
    bodies: str | None,
    output: Path | None = None,
) -> Engine:
    """Return what computes: in this process, on Spark, or an engine that was given."""
    if engine == "inline":
        return InlineEngine(graph)
    if engine == "spark":
        # Imported here: commands that need no JVM must not pay for pyspark.
        from clew.spark.engine import SparkEngine

        printed = ""
        if output is not None:
            make_directory(output.parent)
            printed = str(output.resolve())
        return SparkEngine(graph, spark=spark, options=options, program=program, bodies=bodies, output=printed)
    return engine


def _run_without_log(
    graph: Graph,
    engine: "Engine | Literal['spark', 'inline']",
    spark: Any,
    options: SparkOptions,
    program: "Program | None",
    policy: Policy | None,
    progress: Progress | None,
    stop: threading.Event | None,
) -> Progress:
    # In memory where the machine has such a place: a slow baseline would flatter the log.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="clew-", dir=memory) as bodies:
        store = EphemeralStore(lambda name: Path(bodies, name).unlink(missing_ok=True))
        store.declare(topology(graph))
        keep_lookups(graph, store, bodies, durable=False)
        with closing(engine_for(graph, engine, spark, options, program, bodies)) as computes:
            channels, progress = Channels(graph, store), progress or Progress()
            around = Surroundings(graph, store, computes, channels, progress, bodies, durable_bodies=False)
            return _supervise(around, policy, stop)


def _supervise(around: Surroundings, policy: Policy | None, stop: threading.Event | None) -> Progress:
    around.store.claim()
    Supervisor(around, policy, asked=stop).run()
    conclude(around.graph, around.store, around.progress)
    return around.progress


def conclude(graph: Graph, store: Store, progress: Progress) -> None:
    """Say in its figures what has become of a run that nobody works on any more."""
    progress.quarantined = sum(one.open for one in quarantined(graph, store))
    progress.finished = is_finished(graph, store)


__all__ = [
    "COMMIT_BOUNDS", "LEASE", "ChaosFault", "ChaosOutcome", "ChaosPlace", "CommitTimes", "Finding", "Health",
    "Installation", "KINDS", "Kind", "Log", "OperatorProgress", "OperatorStatus", "Policy", "ProcessStatus", "Progress",
    "Quarantined", "Recovery", "RunStatus", "SparkOptions", "Verdict", "Verifier", "changes", "chaos", "conclude",
    "decide_quarantined", "draw", "engine_for", "examine",
    "gc", "is_finished", "kinds_for", "masked", "program_of", "quarantine_of", "quarantined_records", "run",
    "status", "topology", "verify",
]  # fmt: skip
