"""Input Sets of the past, as the log has them: to be looked at, or to be run once more."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from clew.errors import FormedOtherwise, NoSuchFunction, RecordRefused, SchemaChanged, SetExpired, TypeRefused
from clew.ids import WRITES, Capture, EventId, InputSetId, Port
from clew.pipeline.graph import Graph, OperatorSpec
from clew.pipeline.schema import from_bytes
from clew.pipeline.windows import Each
from clew.protocol.log.alg3_generate import Productions
from clew.protocol.rows import Bodies, Label, LookupRow, Member
from clew.runtime.bodies import BodyPlace, load
from clew.runtime.codec import checksum, decode, decode_stream
from clew.runtime.engine import Engine, Job
from clew.runtime.lookups import kept_bytes
from clew.runtime.task import Failure, GenerateTask, Part, SetWork
from clew.store.base import KeptStore, Worn

#: Records by output port, one table for each event.
Outputs = Mapping[str, Sequence[pa.Table]]


@dataclass(frozen=True)
class Past:
    """One Input Set: all that its function saw, and the Output Set that was logged."""

    spec: OperatorSpec
    work: SetWork
    events: tuple[EventId, ...]
    #: By port, as far as the log tells: those it has forgotten, or has no lineage of, are not among them.
    outputs: Mapping[str, tuple[EventId, ...]]
    #: The places of its records that were set aside.
    without: tuple[int, ...] = ()


def records(store: KeptStore, event: EventId, root: str | None) -> pa.Table:
    """Return the records of an event, or those that a write action writes."""
    if event.port.name.startswith(WRITES):
        return _written(store, event, root)
    schema = store.schema(event.port)
    for run in store.events(event.port, event.number, 1):
        for body in load(root, run.bodies):
            assert schema is not None, f"{event.port} has events but no schema"
            return decode(body, from_bytes(schema))
    return pa.table({}) if schema is None else from_bytes(schema).empty_table()


def _written(store: KeptStore, event: EventId, root: str | None) -> pa.Table:
    row = store.write_action(event.port, event.number)
    if row is None:
        return pa.table({})
    own = [decode_stream(body) for body in load(root, row.bodies)]
    named = [EventId(port, first + index) for port, first, count in row.events for index in range(count)]
    return pa.concat_tables([*own, *(records(store, one, root) for one in named)] or [pa.table({})])


def past(graph: Graph, store: KeptStore, operator: str, number: InputSetId, root: str | None) -> Past:
    """Return an Input Set as its function saw it; raises SetExpired where some of it is no longer in the log."""
    spec = graph.operators[operator]
    if not formed_as_now(spec, store.versions(), number):
        raise FormedOtherwise(operator, number)
    captured = [port for port in store.captures().get(operator, Capture()).outputs if port in spec.outputs]
    members = store.inputs_of(operator, number, 1)
    function, key = _label(spec, store, number)
    worn = store.worn(operator)
    known = [port for port in captured if number > worn.made.get(port, 0)]
    if not members or (captured and not known) or _lacks_events(spec, worn, number, function):
        raise SetExpired(operator, number)
    only, without, failing = _told(spec, store, number, members)
    work = SetWork(
        number, function, key,
        tuple(_part(spec, store, member, root) for member in members),
        store.seen(operator, number),
        only,
        "sift" if failing else "",
        tuple((event.connection, event.description or "", _inline(event.effect, root))
              for _, event in store.reads_of(operator, number, 1)),
    )  # fmt: skip
    events = tuple(EventId(spec.inputs[m.port.name], m.first + i) for m in members for i in range(m.count))
    outputs: dict[str, list[EventId]] = {}
    for port, event, _ in store.outputs_of(operator, number, 1):
        outputs.setdefault(port.name, []).append(EventId(port, event))
    made = {
        port: tuple(outputs.get(port, ()))
        for port in dict.fromkeys((*known, *outputs))
        if port in known or port not in spec.outputs
    }
    return Past(spec, work, events, made, without)


def formed_as_now(spec: OperatorSpec, versions: Mapping[str, Any], number: InputSetId) -> bool:
    """Say whether an Input Set was formed by the windows and inputs that its operator has now."""
    if spec.name not in versions:
        # Logs from before versions say of no operator what it was.
        return not versions
    version = versions[spec.name]
    was, now = version["parts"], spec.version
    if _windows(was["window"]) != _windows(now["window"]) or was["inputs"] != now["inputs"]:
        return False
    changed = {"window", "inputs"} & set(version["changes"])
    return not changed or number > version.get("formed", number)


def _windows(part: str) -> Any:
    """Return what a version says of windows, whatever their functions are called."""
    try:
        windows, end = json.JSONDecoder().raw_decode(part)
    except ValueError:
        # Of a general operator, in other words.
        return part
    return list(windows.values()), part[end:]


def made_as_now(spec: OperatorSpec, versions: Mapping[str, Any], number: InputSetId) -> bool:
    """Say whether an Output Set was made by what its operator is now."""
    if not formed_as_now(spec, versions, number) or spec.name not in versions:
        return not versions
    version = versions[spec.name]
    return bool(version["parts"].get("code") == spec.version["code"] and number > version["mixed"])


def _lacks_events(spec: OperatorSpec, worn: Worn, number: InputSetId, function: str) -> bool:
    """Say whether events of an Input Set may be gone, though some are there."""
    return not has_one_event(spec, function) and any(number <= worn.taken.get(port, 0) for port in spec.inputs)


def has_one_event(spec: OperatorSpec, function: str) -> bool:
    """Say whether every Input Set of a function has one event, so that it is there or is not."""
    return isinstance(spec.function(function).window, Each) and spec.general is None


def _label(spec: OperatorSpec, store: KeptStore, number: InputSetId) -> Label:
    """Return which function the Input Set is for, and its key: not kept where there is one function, without keys.

    Where an operator has one function, it is that one, whatever it was called then.
    """
    function, key = store.label(spec.name, number) or (spec.functions[0].name, None)
    known = [one.name for one in spec.functions]
    if function in known:
        return function, key
    if len(known) > 1:
        raise NoSuchFunction(spec.name, number, function, known)
    return known[0], key


def _told(
    spec: OperatorSpec, store: KeptStore, number: InputSetId, members: Sequence[Member]
) -> tuple[tuple[int, ...] | None, tuple[int, ...], bool]:
    """Return which records it has, None for all; which of its own were set aside; and whether it still has such.

    Records that were tried again are in another Input Set now, and those that were given up are in none.
    """
    again = store.retried_as(spec.name, number)
    only = None if again is None else again.records
    own = [(row.status, place) for row in store.asides_of(spec.name, number, 1) for place in row.records or ()]
    gone = {place for status, place in own if status in ("retried", "dropped")}
    if gone:
        places = only if only is not None else range(sum(_rows(spec, store, member) for member in members))
        only = tuple(place for place in places if place not in gone)
    return only, tuple(place for _, place in own), len(gone) < len(own)


def _rows(spec: OperatorSpec, store: KeptStore, member: Member) -> int:
    runs = store.events(spec.inputs[member.port.name], member.first, member.count)
    return sum(header.rows for run in runs for header in run.headers)


def _part(spec: OperatorSpec, store: KeptStore, member: Member, root: str | None) -> Part:
    sender = spec.inputs[member.port.name]
    runs = store.events(sender, member.first, member.count)
    bodies = tuple(_inline(one, root) for run in runs for one in run.bodies)
    return Part(member.port.name, member.first, bodies)


def _inline(bodies: Bodies | None, root: str | None) -> Bodies:
    """Return bodies as they are, with their data: what is run again writes no files, and reads none."""
    assert bodies is not None, "a read action that served an Input Set keeps its effect"
    if bodies.data is not None:
        return bodies
    parts = [bytes(body) for body in load(root, (bodies,))]
    return Bodies(bodies.lengths, tuple(map(checksum, parts)), b"".join(parts))


def run_again(store: KeptStore, engine: Engine, sets: Sequence[Past], root: str | None) -> Iterator[Outputs | Failure]:
    """Run Input Sets of one operator once more, each alone, with the answers that it got; nothing is logged."""
    spec = sets[0].spec
    inputs = {port: schema for port, sender in spec.inputs.items() if (schema := store.schema(sender)) is not None}
    outputs = {port: schema for port in spec.outputs if (schema := store.schema(Port(spec.name, port))) is not None}
    kept = tuple(_with_data(row, root) for row in store.lookups(spec.name))
    # In a place without a directory everything stays in memory.
    place = BodyPlace(None, spec.name, 0, 0, durable=False)
    job = Job(spec.name, 0, 0, "run again", spec.settings.turn_timeout, spec.settings.deterministic)
    for one in sets:
        result = _run(engine, job, one, GenerateTask(place, inputs, outputs, (one.work,), kept))
        if isinstance(result, Failure) and result.kind in _OF_SCHEMAS:
            # A function that was changed may give other columns, which are then told as they are.
            other = _run(engine, job, one, GenerateTask(place, inputs, {}, (one.work,), kept))
            result = result if isinstance(other, Failure) else other
        yield result if isinstance(result, Failure) else _tables(result, outputs)


#: Failures because a port is fixed to another schema.
_OF_SCHEMAS = (SchemaChanged.__name__, TypeRefused.__name__, RecordRefused.__name__)


def _run(engine: Engine, job: Job, one: Past, task: GenerateTask) -> Productions | Failure:
    frames = one.spec.function(one.work.function).style == "dataframe"
    (result,) = engine.frames(job, task).results if frames else engine.map(job, [task]).results[0]
    made: Productions | Failure = result
    return made


def _with_data(row: LookupRow, root: str | None) -> LookupRow:
    return row if row.data is not None else replace(row, data=bytes(kept_bytes(root, row)))


def _tables(made: Productions, known: Mapping[str, bytes]) -> Outputs:
    learned = {schema.port.name: schema.schema for schema in made.schemas}
    found: dict[str, list[pa.Table]] = {}
    for port, output in made.outputs.items():
        schema = learned.get(port, known.get(port))
        if output.headers and schema is not None:
            found[port] = [decode(body, from_bytes(schema)) for body in load(None, output.bodies)]
    return found
