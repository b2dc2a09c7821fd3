"""Algorithm 1: processing of a Source operator."""

from copy import deepcopy
from typing import Any

from clew.ids import Port
from clew.protocol.log.context import Context
from clew.protocol.rows import END, Bodies, EventRun
from clew.protocol.step import (
    AddReadAction,
    CompleteReadAction,
    DropReadEvent,
    FinishReadEvent,
    FixSchema,
    LogEvents,
    LogReadEvent,
    SetOperator,
    Step,
    Write,
)


def start_action(context: Context, connection: str, description: str) -> tuple[Context, Step]:
    """Step 1: take a new action id and add the read action as incomplete, with the state it starts from."""
    after = context.draft()
    action = after.actions[connection] = after.actions.get(connection, 0) + 1
    write = AddReadAction(after.operator, connection, action, description)
    return after, Step((write, after.store_state()))


def complete_action(context: Context, connection: str, effect: Bodies) -> Step:
    """Step 2.b: the effect is stored; set the action to complete and log it as an undone event."""
    action = context.actions[connection]
    return Step(
        (
            CompleteReadAction(context.operator, connection, action),
            LogReadEvent(context.operator, connection, action, effect),
        )
    )


def emit(
    context: Context,
    connection: str,
    events: EventRun,
    offset: Any,
    last: bool,
    stored: bool,
    schema: FixSchema | None = None,
) -> tuple[Context, Step]:
    """Steps 2.c and 3: log output events with the offset of their end, in one transaction.

    `events` are numbered here. With the last one goes the end of the stream (design, Section 3), and the
    action is settled: its event is done if its effect was stored (2.c), else it is complete (3).
    """
    after = context.draft()
    after.turn += 1
    # The source goes on changing its own offset; what is logged here must not change with it.
    after.state["offset"] = deepcopy(offset)
    action = after.actions[connection]
    headers = (*events.headers, END) if last else events.headers
    port = Port(after.operator, "out")
    run = EventRun(port, after.sent.get("out", 0) + 1, headers, events.bodies)
    after.sent["out"] = run.last
    writes: list[Write] = [schema] if schema else []
    if headers:
        writes.append(LogEvents(run))
    if last:
        after.finished = True
        settle = FinishReadEvent if stored else CompleteReadAction
        writes += [settle(after.operator, connection, action), SetOperator(after.operator, "finished")]
    return after, Step((*writes, after.store_state()), (run,) if headers else ())


def drop_effect(context: Context, connection: str) -> Step:
    """Step 2.d: discard what was stored for the action; done again after a crash, it does nothing."""
    return Step((DropReadEvent(context.operator, connection, context.actions[connection]),), durable=False)
