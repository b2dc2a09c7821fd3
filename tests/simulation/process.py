"""All runners of one pipeline on a log, stepped by one thread: what one process has, and another may take over."""

from clew.pipeline.graph import Graph
from clew.runtime.channels import Channels
from clew.runtime.engine import InlineEngine
from clew.runtime.progress import Progress
from clew.runtime.runner import Runner, Surroundings
from clew.store.base import Store
from clew.supervisor.threads import make_runner


class Process:
    """A process that runs a whole pipeline."""

    def __init__(self, graph: Graph, log: Store, bodies: str | None = None) -> None:
        progress = Progress()
        for spec in graph.operators.values():
            progress.add(spec.name, spec.group)
        around = Surroundings(graph, log, InlineEngine(graph), Channels(graph, log), progress, bodies)
        self.runners: list[Runner] = [make_runner(spec, around) for spec in graph.operators.values()]

    def run(self) -> None:
        """Recover everything, and let the operators take turns until all have finished."""
        for runner in self.runners:
            runner.recover()
        for _ in range(500):
            outcomes = [runner.step() for runner in self.runners]
            if "worked" not in outcomes and all(runner.finished for runner in self.runners):
                return
        raise AssertionError("no end")
