"""Records that came too late for their windows while others of their event did not, so that the event is taken."""

import pyarrow as pa

from clew.ids import Capture, EventId, InputSetId, Port
from clew.pipeline.dependencies import PLACE, placed
from clew.pipeline.graph import Graph, OperatorSpec
from clew.pipeline.timewindows import EventTime
from clew.protocol.rows import DROPPED
from clew.runtime.past import formed_as_now, records
from clew.store.base import KeptStore


def too_late(graph: Graph, store: KeptStore, root: str | None, operator: str, event: EventId) -> set[int]:
    """Return the places of the records of an event that no Input Set of an operator has, though some has the event.

    Where that cannot be told, none are.
    """
    spec = graph.operators.get(operator)
    if spec is None or not any(isinstance(function.window, EventTime) for function in spec.functions):
        return set()
    ports = [port for port, sender in spec.inputs.items() if sender == event.port]
    if not set(ports) <= set(store.captures().get(operator, Capture()).inputs):
        return set()
    sets = {number for port in ports for _, number in store.joined(Port(operator, port), event.number, 1)}
    if not sets:
        return set()
    table = placed(records(store, event, root), event.number)
    left = set(range(table.num_rows))
    for number in sorted(sets):
        own = _places(spec, store, number, event, table)
        if own is None:
            return set()
        left -= own
    return left


def _places(
    spec: OperatorSpec, store: KeptStore, number: InputSetId, event: EventId, table: pa.Table
) -> set[int] | None:
    """Return the places of the records of an event that an Input Set has; None where that cannot be told."""
    label = store.label(spec.name, number)
    if label is None or not formed_as_now(spec, store.versions(), number):
        return None
    if label == DROPPED:
        # A session that became part of another one, which has its records.
        return set()
    window = next((one.window for one in spec.functions if one.name == label[0]), None)
    seen = store.seen(spec.name, number)
    if window is None or (window.whole and seen is None):
        # An event that cannot be placed is set aside as a whole, and a session that is open may still grow.
        return None
    return set(window.select([(event.number, table)], label[1], seen)[PLACE].to_pylist())
