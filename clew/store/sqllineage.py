"""What a log in SQL answers to lineage. Every way leads through an index, so that an answer costs what it holds.

Runs that hold an event, or an Input Set, begin at it, or they are the last to begin before it (R1 and R2 in
`clew.protocol.log.runs`).
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from clew.ids import NONE_SET, WRITES, Capture, InputSetId, Port
from clew.protocol.log.runs import REJOINED_AT_MOST
from clew.protocol.rows import AsideRow, Label, Member, ReadActionRow, ReadEventRow, WriteRow, label_of
from clew.store.base import Worn
from clew.store.done import done_upto
from clew.store.identity import captures
from clew.store.lineage_rows import first_set_from, lineage_of_events, lineage_of_sets, ports_of_lineage
from clew.store.rowcodec import (
    ASIDE_COLUMNS,
    decode_aside,
    decode_bodies,
    decode_headers,
    decode_named,
    events_covered,
    set_of,
    sets_covered,
)
from clew.store.statements import Transaction

#: One number is asked for as a range: for that SQLite takes the index of Input Sets, and for equality the primary key,
#: by which it goes through all rows of an operator.
_INPUTS = """SELECT port, first, count, seq, input_set, size, skip FROM ack
        WHERE operator = ? AND input_set >= ? AND input_set <= ?
    UNION ALL SELECT port, first, count, seq, input_set, 0, 0 FROM rejoined
        WHERE operator = ? AND input_set >= ? AND input_set <= ?
    UNION ALL SELECT port, first, count, seq, input_set, size, skip FROM ack
        WHERE operator = ? AND size > 0 AND input_set < ? AND input_set >= (
            SELECT max(b.input_set) FROM ack b WHERE b.operator = ? AND b.size > 0 AND b.input_set < ?)"""
_JOINED = """SELECT first, count, input_set, size, skip FROM ack
        WHERE operator = ? AND port = ? AND first <= ? AND first >= coalesce((
            SELECT max(b.first) FROM ack b WHERE b.operator = ? AND b.port = ? AND b.first <= ?), 0)
    UNION ALL SELECT first, count, input_set, 0, 0 FROM rejoined
        WHERE operator = ? AND port = ? AND first <= ? AND first > ?"""
_READS = """SELECT input_set, connection, action, done, description, count, size, lengths, checksums, file, start, data
    FROM read_event WHERE operator = ? AND input_set >= ? AND input_set <= ? ORDER BY connection, action"""

_FIRST_INPUTS = """SELECT port, min(first) FROM ack WHERE operator = ? AND input_set >= ? GROUP BY port
    UNION ALL SELECT port, min(first) FROM rejoined WHERE operator = ? AND input_set >= ? GROUP BY port"""
_ASIDES = f"SELECT {ASIDE_COLUMNS} FROM aside WHERE operator = ? AND input_set >= ? AND input_set <= ?"
_RETRIED = f"SELECT {ASIDE_COLUMNS} FROM aside WHERE operator = ? AND retried_as >= ? AND retried_as <= ?"
_WRITE = "SELECT events FROM write_action WHERE operator = ? AND connection = ? AND number = ?"
_WRITTEN = """SELECT count, size, lengths, checksums, file, start, data FROM write_body
    WHERE operator = ? AND connection = ? AND number = ? ORDER BY part"""
_LAST_HEADERS = "SELECT headers, facts FROM sent WHERE operator = ? AND port = ? ORDER BY first DESC LIMIT 1"


class SqlLineage(ABC):
    """Answers lineage from rows in SQL."""

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Transaction]:
        """Open the log for queries."""

    @abstractmethod
    def _snapshot(self) -> AbstractContextManager[Transaction]:
        """Open the log for queries that all see the same commits."""

    def captures(self) -> dict[str, Capture]:
        with self._reading() as log:
            return captures(log)

    def extent(self, port: Port) -> tuple[int, int]:
        with self._snapshot() as log:
            mark = collected(log, port)
            return mark, max(mark, last_sent(log, port))

    def ends(self, port: Port) -> bool:
        with self._reading() as log:
            rows = log.fetch(_LAST_HEADERS, *port)
        return any(decode_headers(headers, facts)[-1].end for headers, facts in rows)

    def worn(self, operator: str) -> Worn:
        with self._reading() as log:
            rows = log.fetch("SELECT side, port, input_set FROM worn WHERE operator = ? AND input_set > 0", operator)
        taken, made = ({port: number for own, port, number in rows if own == side} for side in ("taken", "made"))
        return Worn(taken, made)

    def origins(self, port: Port, first: int, count: int) -> list[tuple[int, InputSetId]]:
        with self._snapshot() as log:
            low, high = max(first, collected(log, port) + 1), first + count - 1
            return sorted(pair for row in lineage_of_events(log, port, low, high) for pair in row.within(low, high))

    def inputs_of(self, operator: str, first: InputSetId, count: int) -> list[Member]:
        low, high = first, first + count - 1
        asked = (operator, low, high)
        with self._snapshot() as log:
            rows = log.fetch(_INPUTS, *asked, *asked, operator, low, operator, low)
            marks = _collected_inputs(log, operator)
        found = [
            member
            for port, start, length, seq, *columns in rows
            for member in _members(Port(operator, port), start, length, seq, (columns[0], columns[1], columns[2]))
            if low <= member.input_set <= high
        ]
        kept = [left for member in found for left in _after(member, marks.get(member.port.name, 0))]
        return sorted(kept, key=lambda member: (member.seq, member.input_set))

    def joined(self, receiver: Port, first: int, count: int) -> list[tuple[int, InputSetId]]:
        taken = self._taken(receiver, first, count)
        return [(number, input_set) for number, input_set in taken if input_set != NONE_SET]

    def passed_over(self, receiver: Port, first: int, count: int) -> list[int]:
        # The Input Set none comes first of those of an event, which may have joined another one later.
        latest = dict(self._taken(receiver, first, count))
        return [number for number, input_set in latest.items() if input_set == NONE_SET]

    def _taken(self, receiver: Port, first: int, count: int) -> list[tuple[int, InputSetId]]:
        with self._snapshot() as log:
            low = max(first, _collected_inputs(log, receiver.operator).get(receiver.name, 0) + 1)
            return taken_between(log, receiver, low, first + count - 1)

    def outputs_of(self, operator: str, first: InputSetId, count: int) -> list[tuple[Port, int, InputSetId]]:
        low, high = first, first + count - 1
        found = []
        with self._snapshot() as log:
            for port in ports_of_lineage(log, operator):
                mark = collected(log, port)
                made = (pair for row in lineage_of_sets(log, port, low, high) for pair in row.of_sets(low, high))
                found += [(port, number, input_set) for number, input_set in made if number > mark]
        return sorted(found)

    def reads_of(self, operator: str, first: InputSetId, count: int) -> list[tuple[InputSetId, ReadEventRow]]:
        with self._reading() as log:
            rows = log.fetch(_READS, operator, first, first + count - 1)
        found = []
        for input_set, connection, action, done, description, *columns in rows:
            effect = None if columns[2] is None else decode_bodies(columns)
            event = ReadEventRow(action, connection, "done" if done else "undone", effect, description)
            found.append((InputSetId(input_set), event))
        return found

    def read_action(self, operator: str, action: int) -> ReadActionRow | None:
        with self._reading() as log:
            rows = log.fetch(
                "SELECT action, connection, description, complete FROM action WHERE operator = ? AND action = ?",
                operator, action,
            )  # fmt: skip
        return next((ReadActionRow(number, c, text, bool(complete)) for number, c, text, complete in rows), None)

    def write_action(self, port: Port, number: int) -> WriteRow | None:
        asked = (port.operator, port.name.removeprefix(WRITES), number)
        with self._snapshot() as log:
            if number <= collected(log, port):
                return None
            bodies = tuple(decode_bodies(columns) for columns in log.fetch(_WRITTEN, *asked))
            for (named,) in log.fetch(_WRITE, *asked):
                return WriteRow(number, decode_named(named), bodies)
        return None

    def made_before(self, port: Port, time: float) -> int:
        sql = (
            "SELECT first + count - 1 FROM sent WHERE operator = ? AND port = ? AND at < ? ORDER BY first DESC LIMIT 1"
        )
        if port.name.startswith(WRITES):
            port = Port(port.operator, port.name.removeprefix(WRITES))
            sql = "SELECT max(number) FROM write_action WHERE operator = ? AND connection = ? AND at < ?"
        with self._reading() as log:
            rows = log.fetch(sql, *port, int(time * 1000))
        return (rows[0][0] or 0) if rows else 0

    def bytes_from(self, port: Port, number: int) -> int:
        with self._reading() as log:
            rows = log.fetch(
                "SELECT coalesce(sum(bytes), 0) FROM sent WHERE operator = ? AND port = ? AND first >= coalesce(("
                "SELECT max(b.first) FROM sent b WHERE b.operator = ? AND b.port = ? AND b.first <= ?), 0) "
                "AND first + count > ?",
                *port, *port, number, number,
            )  # fmt: skip
        return int(rows[0][0])

    def undone_from(self, receiver: Port) -> int:
        with self._snapshot() as log:
            mark = _collected_inputs(log, receiver.operator).get(receiver.name, 0)
            return done_upto(log, receiver, mark) + 1

    def first_set(self, port: Port, number: int) -> InputSetId | None:
        with self._reading() as log:
            return first_set_from(log, port, number)

    def first_inputs(self, operator: str, input_set: InputSetId) -> dict[str, int]:
        with self._snapshot() as log:
            rows = log.fetch(_FIRST_INPUTS, operator, input_set, operator, input_set)
            before = log.fetch(_INPUTS, *(operator, 0, -1) * 2, *(operator, input_set) * 2)
            marks = _collected_inputs(log, operator)
        found: dict[str, int] = {}
        for port, first in rows:
            found[port] = min(first, found.get(port, first))
        for port, first, count, _, *columns in before:
            start, sets = sets_covered((columns[0], columns[1], columns[2]), count)
            if start + sets > input_set:
                at, _ = events_covered((columns[0], columns[1], columns[2]), count, input_set)
                found[port] = min(first + at, found.get(port, first + at))
        return {port: max(first, marks.get(port, 0) + 1) for port, first in found.items()}

    def asides_of(self, operator: str, first: InputSetId, count: int) -> list[AsideRow]:
        with self._reading() as log:
            rows = log.fetch(_ASIDES, operator, first, first + count - 1)
        return [decode_aside(*row) for row in sorted(rows)]

    def retried_as(self, operator: str, input_set: InputSetId) -> AsideRow | None:
        with self._reading() as log:
            rows = log.fetch(_RETRIED, operator, input_set, input_set)
        return next((decode_aside(*row) for row in sorted(rows)), None)

    def label(self, operator: str, input_set: InputSetId) -> Label | None:
        with self._reading() as log:
            rows = log.fetch("SELECT label FROM input_set WHERE operator = ? AND input_set = ?", operator, input_set)
        return next((label_of(text) for (text,) in rows), None)

    def seen(self, operator: str, input_set: InputSetId) -> Any:
        with self._reading() as log:
            rows = log.fetch("SELECT state FROM state_event WHERE operator = ? AND input_set = ?", operator, input_set)
        return next((json.loads(text) for (text,) in rows), None)


def taken_between(log: Transaction, receiver: Port, low: int, high: int) -> list[tuple[int, InputSetId]]:
    """Return the Input Sets of the events from `low` to `high` that a port has taken, sorted; 0 for the one none."""
    rows = log.fetch(_JOINED, *receiver, high, *receiver, low, *receiver, high, low - REJOINED_AT_MOST)
    return sorted(
        (number, set_of((columns[0], columns[1], columns[2]), number - start))
        for start, length, *columns in rows
        for number in range(max(low, start), min(high, start + length - 1) + 1)
    )


def _members(port: Port, first: int, count: int, seq: int, columns: tuple[int, int, int]) -> Iterator[Member]:
    begin, sets = sets_covered(columns, count)
    for number in range(begin, begin + sets):
        start, length = events_covered(columns, count, number)
        yield Member(seq + start, port, first + start, length, InputSetId(number))


def _after(member: Member, mark: int) -> Iterator[Member]:
    """Yield what is left of a member when the events up to `mark` are gone."""
    gone = max(mark - member.first + 1, 0)
    if gone < member.count:
        yield Member(member.seq + gone, member.port, member.first + gone, member.count - gone, member.input_set)


def collected(log: Transaction, port: Port) -> int:
    rows = log.fetch("SELECT upto FROM collected WHERE operator = ? AND port = ?", *port)
    return rows[0][0] if rows else 0


def _collected_inputs(log: Transaction, operator: str) -> dict[str, int]:
    """Return up to which event each input port's sender was collected."""
    rows = log.fetch(
        "SELECT l.rec_port, c.upto FROM link l JOIN collected c ON c.operator = l.operator AND c.port = l.port "
        "WHERE l.rec_operator = ?",
        operator,
    )
    return dict(rows)


def last_sent(log: Transaction, port: Port) -> int:
    """Return the last event of a port that is in the log; 0 where there is none."""
    sql = "SELECT first + count - 1 FROM sent WHERE operator = ? AND port = ? ORDER BY first DESC LIMIT 1"
    if port.name.startswith(WRITES):
        port = Port(port.operator, port.name.removeprefix(WRITES))
        sql = "SELECT max(number) FROM write_action WHERE operator = ? AND connection = ?"
    rows = log.fetch(sql, *port)
    return (rows[0][0] or 0) if rows else 0
