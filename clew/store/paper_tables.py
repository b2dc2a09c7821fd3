"""The paper's five tables (LOG.io, Section 3.2), one row per event, expanded from the runs of a SQL log.

The views of the same names say the same in SQL; tests hold the two to each other.
"""

import json
from collections.abc import Iterator
from typing import Any

from clew.ids import Port
from clew.protocol.rows import Bodies, Lineage
from clew.store.base import Table
from clew.store.intervals import Intervals
from clew.store.ledger import read_done, read_done_writes
from clew.store.rowcodec import decode_bodies, decode_headers, encode_json, set_of
from clew.store.statements import Transaction
from clew.store.tables_sql import ALL_LINEAGE

Row = tuple[Any, ...]


def paper_table(log: Transaction, name: Table) -> list[Row]:
    """Return the rows of one of the tables, sorted; None sorts first."""
    makers = {
        "EVENT_LOG": _event_log,
        "EVENT_DATA": _event_data,
        "READ_ACTION": _read_action,
        "STATE": _state,
        "EVENT_LINEAGE": _event_lineage,
    }
    return sorted(makers[name](log), key=_order)


def _order(row: Row) -> tuple[tuple[bool, str, Any], ...]:
    return tuple((value is not None, str(type(value)), value) for value in row)


def _event_log(log: Transaction) -> Iterator[Row]:
    done = {operator: read_done(log, operator) for (operator,) in log.fetch("SELECT DISTINCT operator FROM done")}
    receivers: dict[Port, list[Port]] = {}
    for sender, name, operator, port in log.fetch("SELECT operator, port, rec_operator, rec_port FROM link"):
        receivers.setdefault(Port(sender, name), []).append(Port(operator, port))
    assigned = _assignments(log)
    for port, number, _ in _headers(log):
        for receiver in receivers.get(port, ()):
            sets = assigned.get((receiver, number), [None])
            for input_set in sets:
                is_done = input_set == 0 or _is_done(done, receiver.operator, input_set)
                yield number, _status(is_done), *port, *receiver, input_set
        if port not in receivers:
            yield number, "done", *port, None, None, None
    yield from _write_entries(log)
    for action, is_done, operator, connection, input_set in log.fetch(
        "SELECT action, done, operator, connection, input_set FROM read_event"
    ):
        yield action, _status(is_done), operator, connection, None, None, input_set
    for state_id, operator, input_set in log.fetch("SELECT state_id, operator, input_set FROM state_event"):
        yield state_id, _status(_is_done(done, operator, input_set)), operator, None, None, None, input_set


def _write_entries(log: Transaction) -> Iterator[Row]:
    done: dict[str, dict[str, Intervals]] = {}
    for operator, connection, number in log.fetch("SELECT operator, connection, number FROM write_action"):
        if operator not in done:
            done[operator] = read_done_writes(log, operator)
        is_done = number in done[operator].get(connection, Intervals())
        yield number, _status(is_done), operator, None, operator, connection, None


def _event_data(log: Transaction) -> Iterator[Row]:
    bodies = {
        (Port(operator, port), first + index): decode_bodies(columns).cut(index, index + 1)
        for operator, port, first, *columns in log.fetch(
            "SELECT operator, port, first, count, size, lengths, checksums, file, start, data FROM body"
        )
        for index in range(columns[0])
    }
    for port, number, header in _headers(log):
        if not header.end:
            text = json.dumps([header.rows, header.size, header.end])
            found = bodies.get((port, number))
            yield number, *port, text, None if found is None else _place(found)
    for operator, number, *columns in log.fetch(
        "SELECT operator, number, count, size, lengths, checksums, file, start, data FROM write_body WHERE part = 0"
    ):
        yield number, operator, None, None, _place(decode_bodies(columns))
    for operator, connection, action, *columns in log.fetch(
        "SELECT operator, connection, action, count, size, lengths, checksums, file, start, data FROM read_event "
        "WHERE lengths IS NOT NULL"
    ):
        yield action, operator, connection, None, _place(decode_bodies(columns))


def _read_action(log: Transaction) -> Iterator[Row]:
    for action, complete, operator, connection, text in log.fetch(
        "SELECT action, complete, operator, connection, description FROM action"
    ):
        yield action, "complete" if complete else "incomplete", operator, connection, text


def _state(log: Transaction) -> Iterator[Row]:
    for state_id, operator, context, state in log.fetch("SELECT state_id, operator, context, state FROM latest_state"):
        yield state_id, operator, encode_json({"context": json.loads(context), "state": json.loads(state)})
    yield from log.fetch("SELECT state_id, operator, state FROM state_event")


def _event_lineage(log: Transaction) -> Iterator[Row]:
    marks = _collected(log)
    for operator, name, first, input_set, counts in log.fetch(
        f"SELECT operator, port, first, input_set, counts FROM {ALL_LINEAGE} l"
    ):
        port = Port(operator, name)
        run = Lineage(port, first, input_set, tuple((outputs, repeat) for outputs, repeat in json.loads(counts)))
        for number, origin in run.pairs():
            if number > marks.get(port, 0):
                yield number, *port, origin


def _headers(log: Transaction) -> Iterator[tuple[Port, int, Any]]:
    marks = _collected(log)
    for operator, name, first, headers, facts in log.fetch("SELECT operator, port, first, headers, facts FROM sent"):
        port = Port(operator, name)
        for number, header in enumerate(decode_headers(headers, facts), first):
            if number > marks.get(port, 0):
                yield port, number, header


def _collected(log: Transaction) -> dict[Port, int]:
    return {Port(operator, port): upto for operator, port, upto in log.fetch("SELECT * FROM collected")}


def _assignments(log: Transaction) -> dict[tuple[Port, int], list[int | None]]:
    sets: dict[tuple[Port, int], list[int | None]] = {}
    for operator, port, first, count, *columns in log.fetch(
        "SELECT operator, port, first, count, input_set, size, skip FROM ack UNION ALL "
        "SELECT operator, port, first, count, input_set, 0, 0 FROM rejoined"
    ):
        for index in range(count):
            key = (Port(operator, port), first + index)
            sets.setdefault(key, []).append(set_of((columns[0], columns[1], columns[2]), index))
    return sets


def _is_done(done: dict[str, Intervals], operator: str, input_set: int | None) -> bool:
    return input_set is not None and input_set in done.get(operator, Intervals())


def _status(is_done: object) -> str:
    return "done" if is_done else "undone"


def _place(bodies: Bodies) -> bytes | str:
    if bodies.data is not None:
        return bodies.data
    return f"file:{bodies.file}@{bodies.offset}+{sum(bodies.lengths)}"
