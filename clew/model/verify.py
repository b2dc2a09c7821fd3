"""Verifies a finished run: opens its log, goes through it, and says what it came to."""

from collections.abc import Callable, Iterable

from clew.model.certificate import Verdict
from clew.model.checker import Checker
from clew.model.read import opened_log
from clew.model.retraction import check_trace
from clew.model.work import Compute, Here
from clew.pipeline.graph import Graph
from clew.trace import TraceStep


def verify(
    graph: Graph,
    url: str,
    bodies: str | None,
    *,
    compute: Compute | None = None,
    trace: Iterable[TraceStep] | None = None,
    progress: Callable[[str], None] = lambda operator: None,
) -> Verdict:
    """Judge the run whose log is at `url`, with what its sources and sinks hold now."""
    with opened_log(url, graph.name, bodies) as log:
        verdict = Checker(graph, log, compute or Here(graph)).check(progress)
        if trace is not None:
            verdict.findings += check_trace(log, trace)
        return verdict


def size(graph: Graph, url: str) -> int:
    """Return how many events the log of a run holds, without looking at any of them."""
    with opened_log(url, graph.name, None) as log:
        return log.size()
