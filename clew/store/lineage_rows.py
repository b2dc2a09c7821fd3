"""Rows of lineage in SQL: two tables, and the ways through them.

Nearly all lineage comes in order: a turn's Input Sets follow those of the turn before. Such a row is in
`ordered_lineage`, in one tree by its events; and since Input Sets ascend there as events do (O1 in
`clew.store.ledger`), a search that halves what is left finds them too. The rest, such as that of sessions and keyed
windows that close as they like, is in `lineage`, with an index of events and one of Input Sets.
"""

from collections.abc import Iterator

from clew.ids import InputSetId, Port
from clew.protocol.rows import Lineage
from clew.store.rowcodec import decode_counts
from clew.store.statements import Transaction

_TABLES = ("ordered_lineage", "lineage")
#: Rows that hold an event begin at it, or they are the last to begin before it.
_OF_EVENTS = {
    table: f"""SELECT first, input_set, counts FROM {table}
        WHERE operator = ? AND port = ? AND first <= ? AND first >= coalesce((
            SELECT max(b.first) FROM {table} b WHERE b.operator = ? AND b.port = ? AND b.first <= ?), 0)
        ORDER BY first"""
    for table in _TABLES
}
_OF_SETS = """SELECT first, input_set, counts FROM lineage
    WHERE operator = ? AND port = ? AND input_set <= ? AND input_set >= coalesce((
        SELECT max(b.input_set) FROM lineage b WHERE b.operator = ? AND b.port = ? AND b.input_set <= ?), 0)"""
#: The last number whose row begins at most at an Input Set: found between the first event and the last, by halves. Each
#: of these is asked for by itself: for both at once SQLite goes through all rows.
_BEGINS = """(SELECT l.input_set <= ? FROM ordered_lineage l WHERE l.operator = ? AND l.port = ?
    AND l.first <= (low + high + 1) / 2 ORDER BY l.first DESC LIMIT 1)"""
_LAST_EVENT = f"""WITH RECURSIVE probe (low, high) AS (
        SELECT (SELECT min(first) - 1 FROM ordered_lineage WHERE operator = ? AND port = ?),
            (SELECT max(first) FROM ordered_lineage WHERE operator = ? AND port = ?)
        UNION ALL
        SELECT CASE WHEN {_BEGINS} THEN (low + high + 1) / 2 ELSE low END,
            CASE WHEN {_BEGINS} THEN high ELSE (low + high + 1) / 2 - 1 END
        FROM probe WHERE low < high)
    SELECT max(low) FROM probe"""
_FIRST_SET = """SELECT min(input_set) FROM {table} WHERE operator = ? AND port = ? AND first + count > ? AND first >=
    coalesce((SELECT max(b.first) FROM {table} b WHERE b.operator = ? AND b.port = ? AND b.first <= ?), 0)"""
#: The ports of an operator that have lineage, one step down the index for each.
_PORTS = """WITH RECURSIVE found (port) AS (
        SELECT min(port) FROM {table} WHERE operator = ?
        UNION ALL
        SELECT (SELECT min(l.port) FROM {table} l WHERE l.operator = ? AND l.port > found.port)
        FROM found WHERE found.port IS NOT NULL)
    SELECT port FROM found WHERE port IS NOT NULL"""
_LAST_ROW = """SELECT first, input_set, counts FROM ordered_lineage
    WHERE operator = ? AND port = ? ORDER BY first DESC LIMIT 1"""


def lineage_of_events(log: Transaction, port: Port, low: int, high: int) -> Iterator[Lineage]:
    """Yield all rows that may hold events from `low` to `high`."""
    for sql in _OF_EVENTS.values():
        for row in log.fetch(sql, *port, high, *port, low):
            yield _lineage(port, *row)


def lineage_of_sets(log: Transaction, port: Port, low: int, high: int) -> Iterator[Lineage]:
    """Yield all rows that may hold Input Sets from `low` to `high`."""
    # A read action of a source gives many rows, so the first of them is after the last that begins before it.
    begin, end = (log.fetch(_LAST_EVENT, *port, *port, *(number, *port) * 2)[0][0] for number in (low - 1, high))
    if end is not None:
        for row in log.fetch(_OF_EVENTS["ordered_lineage"], *port, end, *port, begin):
            yield _lineage(port, *row)
    for row in log.fetch(_OF_SETS, *port, high, *port, low):
        yield _lineage(port, *row)


def ports_of_lineage(log: Transaction, operator: str) -> list[Port]:
    """Return the ports of an operator that have lineage."""
    names = {name for table in _TABLES for (name,) in log.fetch(_PORTS.format(table=table), operator, operator)}
    return [Port(operator, name) for name in sorted(names)]


def first_set_from(log: Transaction, port: Port, number: int) -> InputSetId | None:
    """Return an Input Set before which none is that events of a port from a number on were made of."""
    rows = [log.fetch(_FIRST_SET.format(table=t), *port, number, *port, number)[0][0] for t in _TABLES]
    return min((InputSetId(found) for found in rows if found is not None), default=None)


def last_ordered_sets(log: Transaction, operator: str) -> dict[str, int]:
    """Return the last Input Set of the ordered lineage of each port."""
    found: dict[str, int] = {}
    for (name,) in log.fetch(_PORTS.format(table="ordered_lineage"), operator, operator):
        port = Port(operator, name)
        found.update((name, _lineage(port, *row).end_set - 1) for row in log.fetch(_LAST_ROW, *port))
    return found


def last_set_upto(log: Transaction, port: Port, upto: int) -> int:
    """Return the last Input Set that events up to a number came from; 0 for none."""
    return max((row.last_set(upto) or 0 for row in lineage_of_events(log, port, 0, upto)), default=0)


def forget_lineage(log: Transaction, port: Port, upto: int) -> None:
    """Remove the rows all of whose events are at most at a number; a row without any goes with the event before it."""
    for table in _TABLES:
        log.run(
            f"DELETE FROM {table} WHERE operator = ? AND port = ? AND first <= ? AND first + count - 1 <= ?",
            *port, upto + 1, upto,
        )  # fmt: skip


def _lineage(port: Port, first: int, input_set: int, counts: str) -> Lineage:
    return Lineage(port, first, InputSetId(input_set), decode_counts(counts))
