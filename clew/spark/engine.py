"""The Spark engine: one job per turn, tasks on executors, results back as plain values."""

import itertools
import logging
import os
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from clew.errors import ClewError, EngineFailed, EngineLost, SetupFailed, TurnTimedOut
from clew.pipeline.contracts import Framed, FrameSink, Streamed
from clew.pipeline.graph import Graph
from clew.runtime.bodies import BodyPlace
from clew.runtime.engine import Job, Ran
from clew.runtime.gate import Gate
from clew.runtime.task import GenerateTask, Task, WriteTask
from clew.spark.frames import generate_frames
from clew.spark.framewrites import write_frames
from clew.spark.observe import observe_frame
from clew.spark.options import SparkOptions
from clew.spark.output import FILE, LABEL
from clew.spark.program import Program
from clew.spark.session import cancel, forget_session, is_alive, is_local, open_session, require_classic
from clew.spark.stacks import keep_stack
from clew.spark.streams import SparkQuery, start_query
from clew.spark.threads import Threads
from clew.spark.versions import require_same_versions
from clew.spark.worker import PROGRAM, Raised, run_tasks

T = TypeVar("T")
_LOG = logging.getLogger(__name__)

#: How often a turn is given to a new session before it counts as failed.
_SESSIONS_PER_TURN = 3
#: How many DataFrame jobs of one turn run at once.
_FRAMES_AT_ONCE = 4
#: How long a function that was cut off may take to end, in seconds, before its thread is left behind.
_GRACE = 2.0


class SparkEngine:
    """Runs turns on a SparkSession: the user's, or one of Clew's own, which it rebuilds when the JVM dies."""

    def __init__(
        self,
        graph: Graph,
        *,
        spark: SparkSession | None = None,
        options: SparkOptions | None = None,
        program: Program | None = None,
        bodies: str | None = None,
        output: str = "",
        died: Callable[[], None] | None = None,
    ) -> None:
        self._graph = graph
        self._program = program or Program.of_graph(graph)
        self._own = spark is None
        self._options = options or SparkOptions()
        #: The file for what user code prints on workers.
        self._output = output
        #: What is called when the JVM dies, where nobody wants a new one.
        self._died = died
        self._lock = threading.Lock()
        self._generation = 0
        self._numbers = itertools.count(1)
        self._threads: dict[str, Threads] = {}
        self._sessions: dict[str, SparkSession] = {}
        self._streams: dict[str, SparkQuery] = {}
        self._overheads: dict[str, float] = {}
        #: What runs now, by its job group; and up to which job an operator's work was cancelled.
        self._groups: dict[str, tuple[Job, SparkSession]] = {}
        self._cancelled: dict[str, tuple[int, int, int]] = {}
        self._bodies = bodies
        self._attach(open_session(self._options) if spark is None else require_classic(spark))

    def _attach(self, session: SparkSession) -> None:
        self._spark = session
        self._sessions = {}
        self.parallelism = session.sparkContext.defaultParallelism
        session.sparkContext.addFile(self._program.write())
        context = session.sparkContext
        _LOG.info("session", extra={"master": context.master, "application": context.applicationId})
        if not (self._own and is_local(session)):
            # In a local session of Clew's own, workers are this interpreter.
            require_same_versions(session)
        if self._bodies is not None and not is_local(session):
            _prove_shared(session, self._bodies)

    def map(self, job: Job, tasks: Sequence[Task]) -> Ran:
        pickled = [pickle.dumps(task, pickle.HIGHEST_PROTOCOL) for task in tasks]
        timed = self._on_session(job, lambda spark: self._collect(spark, pickled))
        for _, result in timed:
            if isinstance(result, Raised):
                raise result.error
        return Ran([result for _, result in timed], max(seconds for seconds, _ in timed))

    def _collect(self, spark: SparkSession, tasks: list[bytes]) -> list[tuple[float, Any]]:
        rdd = spark.sparkContext.parallelize(tasks, len(tasks))
        return rdd.mapPartitions(partial(run_tasks, self._program.ref)).collect()

    def frames(self, job: Job, task: GenerateTask) -> Ran:
        """Run DataFrame functions: a few Input Sets at once, each with a job of its own."""
        spec = self._graph.operators[job.operator]
        start = time.monotonic()
        parts = [
            self._start(job, partial(generate_frames, spec, self._program.ref, group, job))
            for group in _together(spec, task)
        ]
        results = [result for part in parts for result in part.result()]
        seconds = time.monotonic() - start
        # What the shortest turn took counts as Spark's own part, which fewer events would not make shorter.
        overhead = self._overheads[job.operator] = min(seconds, self._overheads.get(job.operator, seconds))
        return Ran(results, seconds - overhead)

    def observe(self, job: Job, place: BodyPlace, rows: int) -> Ran:
        """Perform a read action that is a DataFrame; its tasks store what it gives."""
        source = self._graph.operators[job.operator].source
        assert isinstance(source, Framed)
        start = time.monotonic()
        return Ran(
            self._start(job, partial(observe_frame, source, place, job, rows)).result(), time.monotonic() - start
        )

    def write(self, job: Job, task: WriteTask) -> Ran:
        """Perform write actions of a sink that takes DataFrames."""
        sink = self._graph.operators[task.operator].sinks[task.connection]
        assert isinstance(sink, FrameSink)
        start = time.monotonic()
        written = self._start(job, partial(write_frames, sink, task)).result()
        return Ran(written, time.monotonic() - start)

    def stream(self, job: Job, checkpoint: str, gate: Gate) -> SparkQuery:
        """Start a streaming query in place of the one that its source had before."""
        source = self._graph.operators[job.operator].source
        assert isinstance(source, Streamed)
        self._stop_stream(job.operator)
        query = self._on_session(job, partial(start_query, source, checkpoint, gate, job), job.operator)
        with self._lock:
            self._streams[job.operator] = query
        return query

    def _stop_stream(self, operator: str) -> None:
        with self._lock:
            query = self._streams.pop(operator, None)
        if query is not None:
            query.stop()

    def _start(self, job: Job, compute: Callable[[SparkSession], list[Any]]) -> "Future[list[Any]]":
        """Compute in a thread of the operator's own; a thread that does not come back is left behind."""
        future: Future[list[Any]] = Future()

        def work() -> None:
            try:
                result = self._on_session(job, compute, job.operator, abandon)
            except BaseException as error:
                _resolve(future.set_exception, error)
            else:
                _resolve(future.set_result, result)

        def abandon(error: ClewError) -> None:
            with self._lock:
                left = self._threads.pop(job.operator, None)
            if left is not None:
                left.close()
            _resolve(future.set_exception, error)

        with self._lock:
            if job.operator not in self._threads:
                self._threads[job.operator] = Threads(f"frames-{job.operator}", _FRAMES_AT_ONCE)
            threads = self._threads[job.operator]
        threads.submit(work)
        return future

    @property
    def application(self) -> str:
        """The id of the Spark application."""
        return str(self._spark.sparkContext.applicationId)

    def is_alive(self) -> bool:
        """Say whether the driver JVM still answers."""
        return is_alive(self._spark)

    def cancel(self, job: Job) -> None:
        """Cancel a job, and all that its operator was asked for before, also what is yet to be submitted of it."""
        with self._lock:
            self._cancelled[job.operator] = max(job.order, self._cancelled.get(job.operator, job.order))
            found = [(group, spark) for group, (other, spark) in self._groups.items() if self._is_cancelled(other)]
        for group, spark in found:
            cancel(spark, group)

    def _is_cancelled(self, job: Job) -> bool:
        return job.operator in self._cancelled and job.order <= self._cancelled[job.operator]

    def close(self) -> None:
        for operator in list(self._streams):
            self._stop_stream(operator)
        for threads in self._threads.values():
            threads.close()
        if self._own and is_alive(self._spark):
            self._spark.stop()

    def _on_session(
        self,
        job: Job,
        compute: Callable[[SparkSession], T],
        own_session: str = "",
        abandon: Callable[[ClewError], None] | None = None,
    ) -> T:
        """Compute on the current session; on a new one if the JVM dies meanwhile."""
        for _ in range(_SESSIONS_PER_TURN):
            generation, spark = self._session(own_session)
            try:
                return self._limited(job, spark, compute, abandon)
            except ClewError:
                raise
            except Exception as error:
                if is_alive(spark):
                    raise explained(job.operator, str(job.turn), error) from error
            self._replace(generation)
        raise EngineLost(
            f"the Spark driver died {_SESSIONS_PER_TURN} times under one turn of {job.operator}; if it is short of "
            "memory, raise it with --conf spark.driver.memory=SIZE"
        )

    def _session(self, own_session: str) -> tuple[int, SparkSession]:
        with self._lock:
            if not own_session:
                return self._generation, self._spark
            # Temporary views and settings of one operator's functions must not leak into another's.
            if own_session not in self._sessions:
                self._sessions[own_session] = self._spark.newSession()
            return self._generation, self._sessions[own_session]

    def _replace(self, generation: int) -> None:
        """Start a new session in place of the dead one; the first thread to notice does it for all."""
        with self._lock:
            if generation != self._generation:
                return
            if self._died is not None:
                self._died()
            if not self._own:
                raise SetupFailed(
                    "the Spark session that was given to Clew has died",
                    "make a new session and run again: the run resumes where it was",
                )
            _LOG.warning("the Spark driver died, and a new session is started")
            forget_session()
            self._attach(open_session(self._options))
            self._generation += 1

    def _limited(
        self,
        job: Job,
        spark: SparkSession,
        compute: Callable[[SparkSession], T],
        abandon: Callable[[ClewError], None] | None,
    ) -> T:
        """Run a job under its own group, which is cancelled at the turn's time limit.

        A DataFrame function that hangs while it builds its plan has no job to cancel: `abandon` is told of it.
        """
        context = spark.sparkContext
        group = f"{job.operator}-{job.turn}-{next(self._numbers)}-{uuid.uuid4().hex[:8]}"
        context.setJobGroup(group, f"{job.operator}, turn {job.turn}: {job.about}", interruptOnCancel=True)
        context.setLocalProperty("spark.scheduler.pool", job.operator)
        context.setLocalProperty(LABEL, f"{job.operator}, turn {job.turn}")
        context.setLocalProperty(FILE, self._output)
        context.setLocalProperty(PROGRAM, self._program.ref.text)
        late, ended = threading.Event(), threading.Event()
        with self._lock:
            self._groups[group] = (job, spark)
            cancelled = self._is_cancelled(job)
        if cancelled:
            cancel(spark, group)

        def cut_off() -> None:
            late.set()
            cancel(spark, group)
            if abandon is not None and not ended.wait(_GRACE):
                abandon(TurnTimedOut(job.operator, job.about, job.timeout))

        timer = threading.Timer(job.timeout, cut_off)
        timer.daemon = True
        timer.start()
        try:
            return compute(spark)
        except Exception:
            if late.is_set():
                raise TurnTimedOut(job.operator, job.about, job.timeout) from None
            raise
        finally:
            ended.set()
            timer.cancel()
            with self._lock:
                del self._groups[group]


def _resolve(settle: Callable[[Any], None], value: Any) -> None:
    """Give a future its value, unless it was given up before."""
    with suppress(InvalidStateError):
        settle(value)


def _together(spec: Any, task: GenerateTask) -> list[GenerateTask]:
    """Cut a turn into jobs: all Input Sets of a row-local function in one, the others one by one."""
    groups: list[list[Any]] = []
    for work in task.sets:
        row_local = spec.function(work.function).row_local
        if groups and row_local and groups[-1][-1].function == work.function:
            groups[-1].append(work)
        else:
            groups.append([work])
    return [replace(task, sets=tuple(group)) for group in groups]


def explained(operator: str, about: str, error: Exception) -> ClewError:
    """Say what Spark failed on, in one line; the Java stack goes to a file, named by what the job was about."""
    text = str(error)
    if isinstance(error, Py4JJavaError | PySparkException):
        path = keep_stack("-".join(filter(None, (operator, about, str(int(time.time() * 1000))))), error)
        _LOG.warning("job failed", extra={"operator": operator, "stack": path})
        return EngineFailed(operator, cause_of(text)[:400], path)
    return EngineFailed(operator, f"{type(error).__name__}: {text}"[:400])


def cause_of(text: str) -> str:
    """Return the line that says why a job failed: the end of a worker's traceback, or what Java says first."""
    _, _, traceback = text.partition("Traceback (most recent call last):\n")
    ends = [line for line in traceback.splitlines() if line.strip() and not line[0].isspace()]
    causes = [line for line in text.splitlines() if "Exception" in line or "exited" in line or "crashed" in line]
    return next(iter([*ends, *causes, *text.strip().splitlines()]), "no reason given").strip(": ")


def _prove_shared(spark: SparkSession, root: str) -> None:
    """Show that executors write where the driver reads: event bodies must be seen by all of them."""
    probe = f".probe-{uuid.uuid4().hex}"
    Path(root).mkdir(parents=True, exist_ok=True)
    path = Path(root) / probe

    def write(_: Any) -> list[str]:
        Path(root).mkdir(parents=True, exist_ok=True)
        (Path(root) / probe).write_text("here")
        return [os.uname().nodename]

    (host,) = spark.sparkContext.parallelize([0], 1).mapPartitions(write).collect()
    try:
        path.read_text()
    except OSError as error:
        raise SetupFailed(
            f"an executor on {host} wrote to {root}, but the driver does not see it there",
            "put the bodies on a path that all executors share, with --bodies DIR",
        ) from error
    path.unlink()
