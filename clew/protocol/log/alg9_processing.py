"""Algorithm 9: recovery of an operator's processing, Steps 1 and 2."""

from collections.abc import Iterable, Mapping
from typing import Any

from clew.ids import InputSetId
from clew.protocol.log.context import Arrival, Context, InputSet, Logic, restore
from clew.protocol.rows import Label, Member, StateRow


def recover_processing(
    context: Context,
    logic: Logic,
    row: StateRow | None,
    members: Iterable[Member],
    labels: Mapping[InputSetId, Label],
    keyed: Iterable[tuple[str, str, Any]] = (),
    headers: Mapping[tuple[str, int], Arrival] | None = None,
) -> Context:
    """Rebuild global state, counters and Input Sets as they were.

    Step 1: `row` is the latest STATE, `keyed` what it has of keys: (function, key, value). Step 2: `members` are the
    acknowledged, undone events in the order in which they were taken; each joins again only the Input Set it is
    assigned to (2.b), and updates the global state only where STATE does not hold that update yet. In Clew the turn's
    transaction holds both, so `headers` is empty; it is there for logs that store STATE with generation only, as in the
    paper. Such a log generates before it acknowledges the next event, and has no events that are done at once.
    Step 2.c, triggering, is the first thing that the next turn does (Algorithm 2).
    """
    after = restore(context, row)
    for function, key, value in keyed:
        after.keyed[function, key] = value
    by_number = {number: InputSet(number, label) for number, label in labels.items()}
    for member in members:
        for index in range(member.count):
            _catch_up(after, logic, member, index, headers or {})
            by_number[member.input_set].add(member.port.name, member.first + index, member.seq + index)
    for _, opened in sorted(by_number.items()):
        if opened.spans:
            after.opened[opened.label] = opened
    after.settle()
    after.opened.forget_alarms()
    return after


def _catch_up(
    context: Context, logic: Logic, member: Member, index: int, headers: Mapping[tuple[str, int], Arrival]
) -> None:
    """Step 2.b: let the event update global state and counters, if STATE was stored before it did."""
    port, number = member.port.name, member.first + index
    context.input_set = max(context.input_set, member.input_set)
    if number > context.latest.get(port, 0):
        # Its Input Sets are known; what counts here is what assigning does to the global state.
        logic.assign(headers[port, number], context.memory([]))
        context.latest[port] = number
        context.seq = max(context.seq, member.seq + index)
