"""Which records of an Input Set can have contributed to some of its Output Set, by the log and the declarations."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, wraps
from typing import Any

import pyarrow as pa

from clew.ids import EventId, InputSetId
from clew.pipeline.dependencies import EVENT, PLACE, contributing, dependencies, placed
from clew.pipeline.graph import Graph
from clew.pipeline.records import PerRecord
from clew.pipeline.schema import from_bytes
from clew.runtime.bodies import load
from clew.runtime.codec import decode
from clew.runtime.engine import InlineEngine
from clew.runtime.past import Past, has_one_event, past, records, run_again
from clew.runtime.task import Failure
from clew.store.base import KeptStore

#: Places of records, by event.
Places = Mapping[EventId, tuple[int, ...]]


def contributions(
    graph: Graph, store: KeptStore, root: str | None
) -> Callable[[str, InputSetId, Places], dict[EventId, set[int]]]:
    """Return what finds, for records of an Output Set, those of its Input Set that can have a part in them."""

    # Records of one Output Set are asked for one after the other.
    @lru_cache(maxsize=4)
    def read(operator: str, input_set: InputSetId) -> tuple[Past, dict[str, pa.Table]]:
        one = past(graph, store, operator, input_set, root)
        return one, _tables(one, store)

    @lru_cache(maxsize=64)
    def of(event: EventId) -> pa.Table:
        return records(store, event, root)

    @lru_cache(maxsize=4)
    def makers(operator: str, input_set: InputSetId) -> tuple[int, ...] | None:
        return _makers(graph, store, root, read(operator, input_set)[0])

    def find(operator: str, input_set: InputSetId, outputs: Places) -> dict[EventId, set[int]]:
        if graph.operators[operator].is_sink:
            return _written(graph, store, operator, input_set, outputs, of)
        one, tables = read(operator, input_set)
        found: dict[EventId, set[int]] = {}
        for event, places in outputs.items():
            made = of(event)
            for port, table in tables.items():
                known = dependencies(one.spec, one.spec.function(one.work.function), port, table.schema)
                if (rows := makers(operator, input_set)) is not None:
                    table = table.take(pa.array(sorted({rows[place] for place in places}), pa.int64()))
                chosen = contributing(known, made, places, table)
                for number, place in zip(chosen[EVENT].to_pylist(), chosen[PLACE].to_pylist()):
                    found.setdefault(EventId(one.spec.inputs[port], number), set()).add(place)
        return found

    return find


def _tables(one: Past, store: KeptStore) -> dict[str, pa.Table]:
    """Return the records of an Input Set by port, as its function saw them, each with where it comes from."""
    window = one.spec.function(one.work.function).window
    events: dict[str, list[tuple[int, pa.Table]]] = {}
    for part in one.work.parts:
        stored = store.schema(one.spec.inputs[part.port])
        assert stored is not None, f"{one.spec.inputs[part.port]} has events but no schema"
        for index, body in enumerate(load(None, part.bodies)):
            number = part.first + index
            events.setdefault(part.port, []).append((number, placed(decode(body, from_bytes(stored)), number)))
    if one.spec.general is not None:
        return {port: pa.concat_tables([table for _, table in own]) for port, own in events.items()}
    selected = {port: window.select(own, one.work.key, one.work.state) for port, own in events.items()}
    return {port: _own(table, one) for port, table in selected.items()}


def _own(table: pa.Table, one: Past) -> pa.Table:
    """Leave out records that it was not tried again with, and those that were set aside."""
    if one.work.only is None and not one.without:
        return table
    places = range(table.num_rows) if one.work.only is None else one.work.only
    return table.take(pa.array([place for place in places if place not in one.without], pa.int64()))


def _makers(graph: Graph, store: KeptStore, root: str | None, one: Past) -> tuple[int, ...] | None:
    """Return of which record of its event each record is that a flat_map made; None where that cannot be told.

    It is run again, which tells it where it is declared deterministic and gives what it gave.
    """
    function = one.spec.function(one.work.function)
    run: Any = function.run
    events = [event for made in one.outputs.values() for event in made]
    told = isinstance(run, PerRecord) and run.verb == "flat_map" and one.spec.settings.deterministic
    if not told or not has_one_event(one.spec, function.name) or len(events) != 1:
        return None
    counts: list[int] = []

    @wraps(run.function)
    def counted(*record: Any, **given: Any) -> list[Any]:
        own = list(run.function(*record, **given) or ())
        counts.append(len(own))
        return own

    spec = replace(one.spec, functions=(replace(function, run=replace(run, function=counted)),))
    engine = InlineEngine(replace(graph, operators={**graph.operators, spec.name: spec}))
    (result,) = run_again(store, engine, [replace(one, spec=spec)], root)
    made = () if isinstance(result, Failure) else result.get(events[0].port.name, ())
    same = len(made) == 1 and made[0].num_rows == sum(counts) and made[0].equals(records(store, events[0], root))
    return tuple(place for place, count in enumerate(counts) for _ in range(count)) if same else None


def _written(
    graph: Graph,
    store: KeptStore,
    operator: str,
    input_set: InputSetId,
    outputs: Places,
    of: Callable[[EventId], pa.Table],
) -> dict[EventId, set[int]]:
    """A write action writes the records of its events, one after the other."""
    spec = graph.operators[operator]
    wanted = {place for places in outputs.values() for place in places}
    found: dict[EventId, set[int]] = {}
    before = 0
    for member in store.inputs_of(operator, input_set, 1):
        for number in range(member.first, member.first + member.count):
            event = EventId(spec.inputs[member.port.name], number)
            rows = of(event).num_rows
            own = {place - before for place in wanted if before <= place < before + rows}
            if own:
                found[event] = own
            before += rows
    return found
