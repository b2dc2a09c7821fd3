"""Algorithm 1: processing of a Source operator."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import count, islice
from typing import Any

from clew.ids import InputSetId, Port
from clew.protocol.log.context import Context
from clew.protocol.rows import END, Bodies, EventRun, Lineage
from clew.protocol.step import (
    AddReadAction,
    CompleteReadAction,
    DropReadEvent,
    FinishReadEvent,
    FixSchema,
    LogEvents,
    LogLineage,
    LogReadEvent,
    SetOperator,
    Step,
    Write,
)


def parts_of(connection: str) -> Iterator[str]:
    """Yield the connections that a stored effect is logged under, one row for each of its runs of bodies."""
    yield connection
    yield from (f"{connection}.{number}" for number in count(2))


def start_action(context: Context, connection: str, description: str) -> tuple[Context, Step]:
    """Step 1: take a new action id and add the read action as incomplete, with the state it starts from."""
    after = context.draft()
    action = after.actions[connection] = after.actions.get(connection, 0) + 1
    write = AddReadAction(after.operator, connection, action, description)
    return after, Step((write, after.store_state()))


def complete_action(context: Context, connection: str, *effects: Bodies) -> Step:
    """Step 2.b: the effect is stored; set the action to complete and log it as an undone event."""
    action = context.actions[connection]
    logged = [
        LogReadEvent(context.operator, part, action, effect) for part, effect in zip(parts_of(connection), effects)
    ]
    return Step((CompleteReadAction(context.operator, connection, action), *logged))


def complete_next(context: Context, connection: str, effects: Sequence[Bodies], seen: Any) -> tuple[Context, Step]:
    """Step 2.b where actions follow each other: what the next look must know is stored together with the effect."""
    after = context.draft()
    after.state["seen"] = deepcopy(seen)
    step = complete_action(context, connection, *effects)
    return after, Step((*step.writes, after.store_state()))


def emit(
    context: Context,
    connection: str,
    events: EventRun,
    offset: Any,
    last: bool,
    stored: int,
    schema: FixSchema | None = None,
    ends: bool = True,
    lineage: bool = False,
) -> tuple[Context, Step]:
    """Steps 2.c and 3: log output events with the offset of their end, in one transaction.

    `events` are numbered here. With the last one the action is settled: its event is done if its effect was stored
    (2.c), in as many runs of bodies as `stored` says, else the action is complete (3). With it goes the end of the
    stream (design, Section 3), unless other actions follow this one: then `ends` is False. Where `lineage` is captured,
    the action stands in the place of the Input Set that the events were made of.
    """
    after = context.draft()
    after.turn += 1
    # The source goes on changing its own offset; what is logged here must not change with it.
    after.state["offset"] = deepcopy(offset)
    action = after.actions[connection]
    headers = (*events.headers, END) if last and ends else events.headers
    port = Port(after.operator, "out")
    run = EventRun(port, after.sent.get("out", 0) + 1, headers, events.bodies)
    after.sent["out"] = run.last
    writes: list[Write] = [schema] if schema else []
    if headers:
        writes.append(LogEvents(run))
    if lineage and events.headers:
        counts = ((len(events.headers), 1),)
        writes.append(LogLineage(Lineage(port, run.first, InputSetId(action), counts)))
    if last:
        parts = islice(parts_of(connection), stored)
        writes += [FinishReadEvent(after.operator, part, action) for part in parts]
        writes += [] if stored else [CompleteReadAction(after.operator, connection, action)]
    if last and ends:
        after.finished = True
        writes.append(SetOperator(after.operator, "finished"))
    elif last:
        # The next action begins at its own start.
        del after.state["offset"]
    return after, Step((*writes, after.store_state()), (run,) if headers else ())


def drop_effect(context: Context, connection: str, stored: int = 1) -> Step:
    """Step 2.d: discard what was stored for the action; done again after a crash, it does nothing."""
    action = context.actions[connection]
    parts = islice(parts_of(connection), stored)
    return Step(tuple(DropReadEvent(context.operator, part, action) for part in parts), durable=False)


def end_stream(context: Context, connection: str, incomplete: bool) -> tuple[Context, Step]:
    """Log the end of a stream whose read actions followed each other, as an event of its own.

    `incomplete` says that another action was added, and that nothing was left for it to read.
    """
    after = context.draft()
    after.turn += 1
    run = EventRun(Port(after.operator, "out"), after.sent.get("out", 0) + 1, (END,))
    after.sent["out"] = run.last
    after.finished = True
    action = after.actions.get(connection, 0)
    settled = (CompleteReadAction(after.operator, connection, action),) if incomplete else ()
    writes = (LogEvents(run), *settled, SetOperator(after.operator, "finished"), after.store_state())
    return after, Step(writes, (run,))
