"""What the runtime asks of an engine, and the inline engine, which runs everything in this process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from clew.errors import SetupFailed
from clew.pipeline.graph import Graph
from clew.protocol.log.alg3_generate import Productions
from clew.runtime.task import Failure, GenerateTask, Task, execute


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


class Engine(Protocol):
    """Where records are touched."""

    #: How many tasks run at once.
    parallelism: int

    def map(self, job: Job, tasks: Sequence[Task]) -> list[Any]:
        """Run the tasks and return their results in order.

        Raises TurnTimedOut, EngineFailed, or EngineLost when the turn can be tried again as it is.
        """

    def frames(self, job: Job, task: GenerateTask) -> list[Productions | Failure]:
        """Generate the Output Sets of DataFrame functions, in the order of the Input Sets."""

    def close(self) -> None:
        """Release everything."""


class InlineEngine:
    """Runs tasks in this process, one after the other: for simulation and unit tests."""

    parallelism = 1

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def map(self, job: Job, tasks: Sequence[Task]) -> list[Any]:
        return [execute(self._graph, task) for task in tasks]

    def frames(self, job: Job, task: GenerateTask) -> list[Productions | Failure]:
        raise SetupFailed(
            f"operator {job.operator} works on DataFrames, which the inline engine has not",
            "run it with the Spark engine",
        )

    def close(self) -> None:
        return None
