"""Garbage collection of a log in SQL (LOG.io, Section 3.6), the same for every SQL backend.

A port is trimmed logically, up to a mark; rows go when all their events are below it. So a collection costs
what it removes, runs are never rewritten (B1), and counters have the mark to stand on (C2).
"""

import json
from collections.abc import Iterable, Iterator, Mapping

from clew.ids import Port, writes_port
from clew.store.base import NO_PORTS, Collected
from clew.store.done import done_upto
from clew.store.intervals import Intervals
from clew.store.ledger import read_done, read_done_writes
from clew.store.lineage_rows import forget_lineage, last_set_upto
from clew.store.rowcodec import decode_named, sets_covered
from clew.store.sqllineage import collected
from clew.store.sqlread import files_in
from clew.store.statements import WEAR, Transaction

_MARK = """INSERT INTO collected (operator, port, upto) VALUES (?, ?, ?)
    ON CONFLICT (operator, port) DO UPDATE SET upto = excluded.upto"""
_BELOW_MARK = "operator = ? AND port = ? AND first <= ? AND first + count - 1 <= ?"


def collect(log: Transaction, grace: int, keep: Mapping[Port, int] = NO_PORTS) -> Collected:
    """Forget what is done, as `Store.collect` says; the caller provides a transaction that sees one snapshot."""
    files: set[str] = set()
    named = _first_named(log)
    removed = 0
    for port in _sending_ports(log):
        removed += _collect_port(log, port, grace, _first(named.get(port), keep.get(port)), files)
    _collect_writes(log, keep, files)
    for (operator,) in log.fetch("SELECT DISTINCT operator FROM done"):
        _collect_sets(log, operator, files)
    return Collected(removed, tuple(sorted(files - files_in(log))) if files else ())


def _first(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


def _sending_ports(log: Transaction) -> list[Port]:
    return [Port(operator, port) for operator, port in log.fetch("SELECT DISTINCT operator, port FROM sent")]


def _first_named(log: Transaction) -> dict[Port, int]:
    """Return, for each port, the first event that an undone write action names."""
    first_named: dict[Port, int] = {}
    done: dict[str, dict[str, Intervals]] = {}
    for operator, connection, number, events in log.fetch(
        "SELECT operator, connection, number, events FROM write_action"
    ):
        if operator not in done:
            done[operator] = read_done_writes(log, operator)
        if number not in done[operator].get(connection, Intervals()):
            for port, first, _ in decode_named(events):
                first_named[port] = min(first, first_named.get(port, first))
    for port, first in _held(log):
        first_named[port] = min(first, first_named.get(port, first))
    return first_named


def _held(log: Transaction) -> Iterator[tuple[Port, int]]:
    """Yield the events (sender, number) from which on what was set aside still needs them."""
    for operator, events in log.fetch("SELECT operator, events FROM aside WHERE status IN ('held', 'retry', 'drop')"):
        for name, first, _, _ in json.loads(events):
            for sender, port in log.fetch(
                "SELECT operator, port FROM link WHERE rec_operator = ? AND rec_port = ?", operator, name
            ):
                yield Port(sender, port), first


def _collect_port(log: Transaction, port: Port, grace: int, named: int | None, files: set[str]) -> int:
    before = collected(log, port)
    last = log.fetch(
        "SELECT first + count - 1 FROM sent WHERE operator = ? AND port = ? ORDER BY first DESC LIMIT 1", *port
    )[0][0]
    upto = last - grace if named is None else min(last - grace, named - 1)
    receivers = log.fetch("SELECT rec_operator, rec_port FROM link WHERE operator = ? AND port = ?", *port)
    for operator, name in receivers:
        upto = min(upto, done_upto(log, Port(operator, name), before))
    if upto <= before:
        return 0
    log.run(_MARK, *port, upto)
    rows = log.fetch(f"SELECT DISTINCT file FROM body WHERE {_BELOW_MARK} AND file IS NOT NULL", *port, upto, upto)
    files.update(file for (file,) in rows)
    for table in ("sent", "body"):
        log.run(f"DELETE FROM {table} WHERE {_BELOW_MARK}", *port, upto, upto)
    _wear(log, port, receivers, upto)
    forget_lineage(log, port, upto)
    for receiver in receivers:
        for table in ("ack", "rejoined"):
            log.run(f"DELETE FROM {table} WHERE {_BELOW_MARK}", *receiver, upto, upto)
    return int(upto - before)


def _wear(log: Transaction, port: Port, receivers: Iterable[tuple[str, str]], upto: int) -> None:
    """Remember the last Input Sets that lose events of a port up to a number; none after them does.

    They are numbered as they open, so of one input all before the last have lost their first event too.
    """
    log.run(WEAR, port.operator, "made", port.name, last_set_upto(log, port, upto))
    for receiver in receivers:
        taken = log.fetch(
            "SELECT first, count, input_set, size, skip FROM ack WHERE operator = ? AND port = ? AND first <= ? "
            "UNION ALL SELECT first, count, input_set, 0, 0 FROM rejoined "
            "WHERE operator = ? AND port = ? AND first <= ?",
            *receiver, upto, *receiver, upto,
        )  # fmt: skip
        covered = (sets_covered((s, size, skip), min(count, upto + 1 - first)) for first, count, s, size, skip in taken)
        operator, name = receiver
        log.run(WEAR, operator, "taken", name, max((first + count - 1 for first, count in covered), default=0))


def _collect_writes(log: Transaction, keep: Mapping[Port, int], files: set[str]) -> None:
    # Those that are done before the first that is not: what comes later waits, as events do.
    for operator, connection, first, count in log.fetch(
        "SELECT operator, connection, first, count FROM done_write WHERE first = 1"
    ):
        # Of a connection it is the mark of its write actions; no port has such a name.
        made = Port(operator, writes_port(connection))
        kept = keep.get(made)
        count = count if kept is None else min(count, kept - first)
        if first + count - 1 <= collected(log, made):
            continue
        log.run(_MARK, *made, first + count - 1)
        done = (operator, connection, first, first + count)
        where = "operator = ? AND connection = ? AND number >= ? AND number < ?"
        rows = log.fetch(f"SELECT DISTINCT file FROM write_body WHERE {where} AND file IS NOT NULL", *done)
        files.update(file for (file,) in rows)
        log.run(f"DELETE FROM write_body WHERE {where}", *done)
        log.run(f"DELETE FROM write_action WHERE {where}", *done)
        _wear(log, made, (), first + count - 1)
        forget_lineage(log, made, first + count - 1)


def _collect_sets(log: Transaction, operator: str, files: set[str]) -> None:
    """Forget what belongs to Input Sets that are done and of which no event is left."""
    done = read_done(log, operator)
    _collect_decisions(log, operator)
    labels = log.fetch("SELECT input_set FROM input_set WHERE operator = ?", operator)
    states = log.fetch("SELECT state_id, input_set FROM state_event WHERE operator = ?", operator)
    reads = log.fetch(
        "SELECT connection, action, input_set, file FROM read_event WHERE operator = ? AND input_set IS NOT NULL",
        operator,
    )
    if not labels and not states and not reads:
        return
    used = _used_sets(log, operator)
    for (input_set,) in labels:
        if input_set in done and input_set not in used:
            log.run("DELETE FROM input_set WHERE operator = ? AND input_set = ?", operator, input_set)
    for state_id, input_set in states:
        if input_set in done and input_set not in used:
            log.run("DELETE FROM state_event WHERE operator = ? AND state_id = ?", operator, state_id)
    for connection, action, input_set, file in reads:
        if input_set in done and input_set not in used:
            files.update([file] if file is not None else [])
            log.run(
                "DELETE FROM read_event WHERE operator = ? AND connection = ? AND action = ?",
                operator, connection, action,
            )  # fmt: skip


_COLLECTED_INPUT = (
    "SELECT 1 FROM link l JOIN collected c ON c.operator = l.operator AND c.port = l.port "
    "WHERE l.rec_operator = ? AND c.upto > 0 LIMIT 1"
)


def _collect_decisions(log: Transaction, operator: str) -> None:
    """Forget what was decided before the first event whose assignment is left, once events before it are forgotten.

    While all events are there, a run can be followed from its start, and that takes all decisions.
    """
    if not log.fetch(_COLLECTED_INPUT, operator):
        return
    first = log.fetch("SELECT min(seq) FROM ack WHERE operator = ?", operator)[0][0]
    if first is None:
        log.run("DELETE FROM decision WHERE operator = ?", operator)
    else:
        log.run("DELETE FROM decision WHERE operator = ? AND seq < ?", operator, first)


def _used_sets(log: Transaction, operator: str) -> Intervals:
    """Return the Input Sets that an event still in the log belongs to."""
    rows = log.fetch(
        "SELECT a.first, a.count, a.input_set, a.size, a.skip, coalesce(c.upto, 0) FROM ("
        "SELECT operator, port, first, count, input_set, size, skip FROM ack UNION ALL "
        "SELECT operator, port, first, count, input_set, 0, 0 FROM rejoined) a "
        "JOIN link l ON l.rec_operator = a.operator AND l.rec_port = a.port "
        "LEFT JOIN collected c ON c.operator = l.operator AND c.port = l.port WHERE a.operator = ?",
        operator,
    )
    return Intervals.of(_used_by(rows))


def _used_by(rows: Iterable[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    for first, count, input_set, size, skip, upto in rows:
        gone = max(upto - first + 1, 0)
        if gone < count:
            yield sets_covered((input_set, size, skip + gone), count - gone)
