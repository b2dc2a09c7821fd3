"""The paper's tables, as the log in memory has them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from clew.ids import Port
from clew.protocol.rows import Bodies
from clew.store.memory_rows import Rows, as_json


def event_log(log: Rows, receivers_of: Mapping[Port, Sequence[Port]]) -> list[tuple[Any, ...]]:
    """EVENT_LOG: events by receiver and Input Set, write actions, read actions, and states that were seen."""
    rows: list[tuple[Any, ...]] = []
    for port, sent in log.sent.items():
        for number in sent:
            receivers = receivers_of.get(port, ())
            if not receivers:
                rows.append((number, "done", port.operator, port.name, None, None, None))
            for receiver in receivers:
                for entry in log.entries[receiver][number]:
                    rows.append((number, entry.status, *port, *receiver, entry.input_set))
    for port, writes in log.writes.items():
        rows += [(n, status, port.operator, None, *port, None) for n, (_, status) in writes.items()]
    for (operator, connection, action), (event, input_set) in log.read_events.items():
        rows.append((action, event.status, operator, connection, None, None, input_set))
    for operator, events in log.state_events.items():
        finished = log.finished.get(operator, set())
        for state_id, (input_set, _) in events.items():
            status = "done" if input_set in finished else "undone"
            rows.append((state_id, status, operator, None, None, None, input_set))
    return rows


def event_data(log: Rows) -> list[tuple[Any, ...]]:
    """EVENT_DATA: what events hold, or where."""
    rows: list[tuple[Any, ...]] = []
    for port, sent in log.sent.items():
        for number, (header, bodies) in sent.items():
            if not header.end:
                text = json.dumps([header.rows, header.size, header.end])
                rows.append((number, *port, text, _place(bodies[0]) if bodies else None))
    for port, writes in log.writes.items():
        rows += [(n, port.operator, None, None, _place(row.bodies[0])) for n, (row, _) in writes.items() if row.bodies]
    for (operator, connection, action), (event, _) in log.read_events.items():
        if event.effect is not None:
            rows.append((action, operator, connection, None, _place(event.effect)))
    return rows


def read_actions(log: Rows) -> list[tuple[Any, ...]]:
    """READ_ACTION."""
    return [
        (row.action, "complete" if row.complete else "incomplete", operator, row.connection, row.description)
        for operator, actions in log.read_actions.items()
        for row in actions.values()
    ]


def states(log: Rows) -> list[tuple[Any, ...]]:
    """STATE: the latest, and those that Input Sets saw."""
    rows = [(r.state_id, o, as_json({"context": r.context, "state": r.state})) for o, r in log.states.items()]
    for operator, events in log.state_events.items():
        rows += [(state_id, operator, text) for state_id, (_, text) in events.items()]
    return rows


def event_lineage(log: Rows) -> list[tuple[Any, ...]]:
    """EVENT_LINEAGE."""
    return [(number, *port, s) for port, pairs in log.lineage.items() for number, s in pairs]


def _place(bodies: Bodies) -> Any:
    if bodies.data is not None:
        return bodies.data
    return f"file:{bodies.file}@{bodies.offset}+{sum(bodies.lengths)}"
