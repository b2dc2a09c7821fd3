"""Wires what is asked of a run afterwards: where an event came from, and where it went."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from clew.errors import SetupFailed
from clew.ids import EventId, Port, writes_port
from clew.lineage.trace import Trace, backward, forward
from clew.pipeline.graph import Graph
from clew.run import Log, masked
from clew.runtime.past import records
from clew.store.base import KeptStore


@contextmanager
def opened(graph: Graph, log: str | None, bodies: str | None) -> Iterator[tuple[KeptStore, Log]]:
    """Open the log of a pipeline that was run; makes none."""
    place = Log.at(log, graph.name, bodies)
    if not place.exists(graph.name):
        raise SetupFailed(f"pipeline {graph.name} has no log at {masked(place.url)}", "run it there first")
    store = place.open(graph.name)
    try:
        yield store, place
    finally:
        store.close()


def trace_back(
    graph: Graph, event: EventId, to: Port | None = None, *, log: str | None = None, bodies: str | None = None
) -> Trace:
    """Return what an event was made of, to the sources or only along the paths from port `to`."""
    with opened(graph, log, bodies) as (store, _):
        return backward(store, event, to)


def trace_forward(
    graph: Graph, event: EventId, to: Port | None = None, *, log: str | None = None, bodies: str | None = None
) -> Trace:
    """Return what was made of an event, to the ends of the pipeline or only along the paths to port `to`."""
    with opened(graph, log, bodies) as (store, _):
        return forward(store, event, to)


def records_of(graph: Graph, event: EventId, *, log: str | None = None, bodies: str | None = None) -> pa.Table:
    """Return the records of an event, from the log."""
    with opened(graph, log, bodies) as (store, place):
        return records(store, event, place.bodies)


def named_port(graph: Graph, text: str) -> Port:
    """Read `OPERATOR.PORT`, or `OPERATOR`; of one that only writes, it is its write actions."""
    port = Port.parse(text)
    spec = graph.operators.get(port.operator)
    if spec is not None and port.name not in spec.outputs:
        for connection in spec.sinks:
            if port.name == connection or text == spec.name:
                return Port(spec.name, writes_port(connection))
    return port


def named_event(graph: Graph, text: str) -> EventId:
    """Read `OPERATOR.PORT#NUMBER`."""
    name, _, number = text.rpartition("#")
    if not name or not number.isdigit():
        raise SetupFailed(f"{text!r} is no event", "name one as OPERATOR.PORT#NUMBER, for example paid.out#17")
    return EventId(named_port(graph, name), int(number))


__all__ = ["Trace", "named_event", "named_port", "opened", "records_of", "trace_back", "trace_forward"]
