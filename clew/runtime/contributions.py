"""Which records of an Input Set can have contributed to some of its Output Set, by the log and the declarations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, wraps
from typing import Any

import pyarrow as pa

from clew.errors import GraphError, SetExpired
from clew.ids import WRITES, EventId, InputSetId, Port
from clew.pipeline.dependencies import EVENT, PLACE, contributing, dependencies, placed
from clew.pipeline.equality import same_records
from clew.pipeline.graph import Graph, OperatorSpec
from clew.pipeline.misfits import misnamed
from clew.pipeline.records import PerRecord
from clew.pipeline.schema import from_bytes
from clew.protocol.rows import WriteRow
from clew.runtime.bodies import load
from clew.runtime.codec import decode
from clew.runtime.engine import InlineEngine
from clew.runtime.past import Past, has_one_event, made_as_now, past, records, run_again
from clew.runtime.task import Failure
from clew.store.base import KeptStore

#: Places of records, by event.
Places = Mapping[EventId, tuple[int, ...]]
#: By input port: records, and their schemas.
Tables = Mapping[str, pa.Table]
Schemas = Mapping[str, pa.Schema]

#: Finds, for records of the Output Set of an Input Set, those of some of its events that can have a part in them.
Find = Callable[[str, InputSetId, Sequence[EventId], Places], dict[EventId, set[int]]]


@dataclass
class Notes:
    """What whoever reads the answers must know of them: filled as records are asked for."""

    #: Input Sets, by operator, of which all records are found: their operator was declared otherwise then,
    widened: set[tuple[str, InputSetId]] = field(default_factory=set)
    #: or gives other records now, though it is declared deterministic.
    changed: set[tuple[str, InputSetId]] = field(default_factory=set)


def contributions(graph: Graph, store: KeptStore, root: str | None, notes: Notes) -> Find:
    """Return what finds records that contributed.

    What an operator is declared to be now tells nothing of Output Sets that were made when it was something else, and
    of what collection has worn not all is known: of these all records are found. Of the former `notes` tell.
    """
    versions = store.versions()

    # Records of one Output Set are asked for one after the other.
    @lru_cache(maxsize=4)
    def read(operator: str, input_set: InputSetId) -> tuple[Past, Tables, Schemas] | None:
        spec = graph.operators.get(operator)
        if spec is None or not made_as_now(spec, versions, input_set):
            notes.widened.add((operator, input_set))
            return None
        _check_declared(spec, store)
        try:
            one = past(graph, store, operator, input_set, root)
        except SetExpired:
            return None
        return one, _tables(one, store), _schemas(graph, store, one)

    @lru_cache(maxsize=64)
    def of(event: EventId) -> pa.Table:
        return records(store, event, root)

    @lru_cache(maxsize=4)
    def makers(operator: str, input_set: InputSetId) -> tuple[int, ...] | None:
        known = read(operator, input_set)
        return None if known is None else _makers(graph, store, root, known[0], notes)

    def find(
        operator: str, input_set: InputSetId, inputs: Sequence[EventId], outputs: Places
    ) -> dict[EventId, set[int]]:
        found: dict[EventId, set[int]] = {}
        for event, places in outputs.items():
            row = store.write_action(event.port, event.number) if event.port.name.startswith(WRITES) else None
            if row is not None and row.events:
                own = _named(row, places, of)
            elif (known := read(operator, input_set)) is None:
                own = {one: set(range(of(one).num_rows)) for one in inputs}
            else:
                own = _narrowed(*known, of(event), places, makers(operator, input_set))
            for one, chosen in own.items():
                found.setdefault(one, set()).update(chosen)
        return found

    return find


def _check_declared(spec: OperatorSpec, store: KeptStore) -> None:
    """Refuse a declaration that names what the records do not have: it would leave out none, and nobody would know."""
    if not spec.settings.depends:
        return
    inputs = {port: _schema(store, sender) for port, sender in spec.inputs.items()}
    outputs = {port: _schema(store, Port(spec.name, port)) for port in spec.outputs}
    wrong = misnamed(spec, inputs, {**outputs, **dict.fromkeys(spec.sinks)})
    if wrong is not None:
        raise GraphError(wrong, spec.location)


def _schema(store: KeptStore, port: Port) -> pa.Schema | None:
    stored = store.schema(port)
    return None if stored is None else from_bytes(stored)


def _schemas(graph: Graph, store: KeptStore, one: Past) -> Schemas:
    """Return the schemas of the records that the function of an Input Set saw, by port, as far as they are known."""
    window = one.spec.function(one.work.function).window
    known = {port: graph.schema(sender, partial(_schema, store)) for port, sender in one.spec.inputs.items()}
    return {
        port: schema if one.spec.general is not None else window.extend(schema)
        for port, schema in known.items()
        if schema is not None
    }


def _narrowed(
    one: Past, tables: Tables, schemas: Schemas, made: pa.Table, places: tuple[int, ...], makers: tuple[int, ...] | None
) -> dict[EventId, set[int]]:
    """Return the records of an Input Set that windows and attribute dependencies leave for some of an event."""
    found: dict[EventId, set[int]] = {}
    for port, table in tables.items():
        known = dependencies(one.spec, one.spec.function(one.work.function), port, schemas)
        chosen = contributing(known, made, places, table, makers)
        for number, place in zip(chosen[EVENT].to_pylist(), chosen[PLACE].to_pylist()):
            found.setdefault(EventId(one.spec.inputs[port], number), set()).add(place)
    return found


def _named(row: WriteRow, places: tuple[int, ...], of: Callable[[EventId], pa.Table]) -> dict[EventId, set[int]]:
    """A write action of a sink writes the records of the events that it names, one after the other."""
    found: dict[EventId, set[int]] = {}
    before = 0
    for port, first, count in row.events:
        for event in (EventId(port, number) for number in range(first, first + count)):
            rows = of(event).num_rows
            own = {place - before for place in places if before <= place < before + rows}
            if own:
                found[event] = own
            before += rows
    return found


def _tables(one: Past, store: KeptStore) -> Tables:
    """Return the records of an Input Set by port, as its function saw them, each with where it comes from."""
    window = one.spec.function(one.work.function).window
    events: dict[str, list[tuple[int, pa.Table]]] = {}
    for part in one.work.parts:
        schema = _schema(store, one.spec.inputs[part.port])
        assert schema is not None, f"{one.spec.inputs[part.port]} has events but no schema"
        for index, body in enumerate(load(None, part.bodies)):
            number = part.first + index
            events.setdefault(part.port, []).append((number, placed(decode(body, schema), number)))
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


def _makers(graph: Graph, store: KeptStore, root: str | None, one: Past, notes: Notes) -> tuple[int, ...] | None:
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
        # It may fail on a record, which is set aside.
        counts.append(0)
        own = list(run.function(*record, **given) or ())
        counts[-1] = len(own)
        return own

    spec = replace(one.spec, functions=(replace(function, run=replace(run, function=counted)),))
    engine = InlineEngine(replace(graph, operators={**graph.operators, spec.name: spec}))
    (result,) = run_again(store, engine, [replace(one, spec=spec)], root)
    made = () if isinstance(result, Failure) else result.get(events[0].port.name, ())
    places = range(len(counts)) if one.work.only is None else one.work.only
    known = [count for place, count in zip(places, counts) if place not in one.without]
    if len(made) == 1 and made[0].num_rows == sum(known) and same_records(made[0], records(store, events[0], root)):
        return tuple(place for place, count in enumerate(known) for _ in range(count))
    notes.changed.add((spec.name, one.work.number))
    return None
