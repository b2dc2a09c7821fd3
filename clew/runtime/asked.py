"""Which of the reads that served an Input Set were made for which of its records."""

from collections.abc import Sequence

from clew.ids import EventId
from clew.lineage.steps import Step
from clew.pipeline.enriched import Enriched
from clew.pipeline.graph import Graph
from clew.pipeline.lookups import parameters_of
from clew.runtime.past import made_as_now, records
from clew.store.base import KeptStore


def asked_of_records(
    graph: Graph, store: KeptStore, root: str | None, step: Step
) -> tuple[EventId, Sequence[str | None]] | None:
    """Return the event of an Input Set, and what was asked for each of its records; None where that cannot be told.

    It can where an `enrich` is declared deterministic and asks by the record alone: then its `ask` is called once more.
    """
    spec = graph.operators.get(step.operator)
    run = spec.functions[0].run if spec is not None and spec.functions else None
    if spec is None or not isinstance(run, Enriched) or len(parameters_of(run.asks)) != 1:
        return None
    if not spec.settings.deterministic or not made_as_now(spec, store.versions(), step.input_set):
        return None
    for member in store.inputs_of(spec.name, step.input_set, 1):
        event = EventId(spec.inputs[member.port.name], member.first)
        actions = [_action(run, record) for record in records(store, event, root).to_pylist()]
        # Where it asks for something else now, it tells nothing of what it asked for then.
        return (event, actions) if {read.description for read in step.reads} <= set(actions) else None
    return None


def _action(run: Enriched, record: dict[str, object]) -> str | None:
    try:
        action: object = run.asks(record)
    except Exception:
        action = None
    # A record that it fails on, or asks no text for, was set aside, and no answer to it was kept.
    return action if isinstance(action, str) else None
