"""What the runtime asks of an engine, and the inline engine, which runs everything in this process."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from clew.errors import ClewError, SetupFailed
from clew.pipeline.contracts import Framed, FrameSink, Streamed
from clew.pipeline.graph import Graph, OperatorSpec
from clew.runtime.bodies import BodyPlace
from clew.runtime.execute import execute
from clew.runtime.gate import Gate
from clew.runtime.task import GenerateTask, Task, WriteTask


@dataclass(frozen=True, slots=True)
class Job:
    """What an engine needs to know of a turn besides its tasks."""

    operator: str
    incarnation: int
    turn: int
    #: What the turn works on, for messages and for the Spark UI.
    about: str
    timeout: float
    deterministic: bool = False
    #: Which request for this turn it is, where an engine in another process is asked.
    attempt: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """Where it comes among the jobs of its operator: what comes later is asked for in place of what came before."""
        return self.incarnation, self.turn, self.attempt


@dataclass(frozen=True, slots=True)
class Ran:
    """The results of a job's tasks, in order, and how long the longest of them worked.

    The time is that of the work itself, without what Spark takes to plan and schedule: a turn's size follows it.
    """

    results: list[Any]
    seconds: float


class Query(Protocol):
    """A streaming query that an engine runs."""

    @property
    def id(self) -> str:
        """The query's identity: its checkpoint keeps it over restarts."""

    def ended(self) -> bool:
        """Say whether it runs no more; raises EngineLost when nobody can say."""

    def failure(self) -> ClewError | None:
        """Return what it failed of, where it has ended by that."""

    def stop(self) -> None:
        """Stop it, whatever it is doing: a batch that was not logged comes again at the next start."""


class Engine(Protocol):
    """Where records are touched."""

    #: How many tasks run at once.
    parallelism: int

    def map(self, job: Job, tasks: Sequence[Task]) -> Ran:
        """Run the tasks.

        Raises TurnTimedOut, EngineFailed, or EngineLost when the turn can be tried again as it is.
        """

    def frames(self, job: Job, task: GenerateTask) -> Ran:
        """Generate the Output Sets of DataFrame functions; results are Productions and Failures, in order."""

    def observe(self, job: Job, place: BodyPlace, rows: int) -> Ran:
        """Perform the read action of a source that is a DataFrame, and store its effect, `rows` to an event.

        Results are runs of bodies, in order, at least one; or one Failure.
        """

    def stream(self, job: Job, checkpoint: str, gate: Gate) -> Query:
        """Start the query of a source that is one; an earlier one of the same source is stopped first.

        Each of its batches is offered at the gate, and stored to the place that this gives; the query goes on when the
        gate lets it. Raises a ClewError when it cannot be started.
        """

    def write(self, job: Job, task: WriteTask) -> Ran:
        """Perform write actions of a sink that takes DataFrames, in order; the one result is a Written."""

    def close(self) -> None:
        """Release everything."""


class InlineEngine:
    """Runs tasks in this process, one after the other: for simulation and unit tests."""

    parallelism = 1

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def warm(self) -> None:
        """Do what the first turn would take long for: given a Python value for the first time, pyarrow loads pandas."""
        pa.array([0])

    def map(self, job: Job, tasks: Sequence[Task]) -> Ran:
        start = time.monotonic()
        results = [execute(self._graph, task) for task in tasks]
        return Ran(results, time.monotonic() - start)

    def frames(self, job: Job, task: GenerateTask) -> Ran:
        raise AssertionError(_REFUSED)

    def observe(self, job: Job, place: BodyPlace, rows: int) -> Ran:
        raise AssertionError(_REFUSED)

    def stream(self, job: Job, checkpoint: str, gate: Gate) -> Query:
        raise AssertionError(_REFUSED)

    def write(self, job: Job, task: WriteTask) -> Ran:
        raise AssertionError(_REFUSED)

    def close(self) -> None:
        return None


_REFUSED = "a pipeline with DataFrames is refused by `refuse_frames` before it comes here"


def refuse_frames(graph: Graph) -> None:
    """Raise SetupFailed for a pipeline that needs Spark, before anything of it is in a log."""
    for spec in graph.operators.values():
        for what in _frames(spec):
            raise SetupFailed(f"{what}, which the inline engine has not", "run it with the Spark engine")


def _frames(spec: OperatorSpec) -> Iterator[str]:
    if isinstance(spec.source, Framed):
        yield f"source {spec.name} is a DataFrame"
    if isinstance(spec.source, Streamed):
        yield f"source {spec.name} is a streaming query"
    if any(function.style == "dataframe" for function in spec.functions):
        yield f"operator {spec.name} works on DataFrames"
    if any(isinstance(sink, FrameSink) for sink in spec.sinks.values()):
        yield f"the sink of {spec.name} takes DataFrames"
