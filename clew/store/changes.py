"""Takes a changed pipeline over, the same for every SQL backend: all that the change does, in one transaction."""

from collections.abc import Sequence

from clew.faultpoint import fault_point
from clew.ids import Port
from clew.protocol.step import StoreVersion, Write, owner_of
from clew.store.base import Topology
from clew.store.identity import declare, take_over
from clew.store.ledger import read_ledger
from clew.store.statements import Transaction, statements_of

_LAST_SENT = """SELECT coalesce(
        (SELECT s.first + s.count - 1 FROM sent s WHERE s.operator = l.operator AND s.port = l.port
            ORDER BY s.first DESC LIMIT 1),
        (SELECT c.upto FROM collected c WHERE c.operator = l.operator AND c.port = l.port), 0)
    FROM link l WHERE l.rec_operator = ? AND l.rec_port = ?"""


def change(log: Transaction, topology: Topology, writes: Sequence[Write]) -> None:
    """Declare the topology and apply the writes, whosever they are, as `Store.change` says."""
    declare(log, topology)
    by_operator: dict[str, list[Write]] = {}
    for write in writes:
        by_operator.setdefault(owner_of(write), []).append(write)
    for operator, own in by_operator.items():
        _apply(log, operator, own)


def _apply(log: Transaction, operator: str, writes: Sequence[Write]) -> None:
    touched = any(not isinstance(write, StoreVersion) for write in writes)
    if touched:
        take_over(log, operator, None)
    ledger = read_ledger(log, operator)
    for write in writes:
        for statement in (*statements_of(write), *ledger.admit(write, lambda receiver: _last_sent(log, receiver))):
            log.run(statement.sql, *statement.values)
    if touched:
        fault_point("inside-commit", operator)


def _last_sent(log: Transaction, receiver: Port) -> int | None:
    return next((int(last) for (last,) in log.fetch(_LAST_SENT, *receiver)), None)
