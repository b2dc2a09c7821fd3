"""Whose log it is and who runs its operators: the same for every SQL backend."""

from clew.errors import WrongLog
from clew.store.base import Topology
from clew.store.statements import Transaction

#: Tables of which any row shows that a run has left something behind.
_TRACES = ("sent", "collected", "ack", "done", "latest_state", "action", "write_action", "done_write")
_META = "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


def has_events(log: Transaction) -> bool:
    """Return whether a run has left anything in the log."""
    return any(log.fetch(f"SELECT 1 FROM {table} LIMIT 1") for table in _TRACES)


def declare(log: Transaction, topology: Topology) -> None:
    """Say whose log this is; raises WrongLog when it is another pipeline's."""
    owner = log.fetch("SELECT value FROM meta WHERE key = 'pipeline'")
    if owner and owner[0][0] != topology.pipeline:
        raise WrongLog(f"this log is of pipeline {owner[0][0]}, not {topology.pipeline}; use another --log")
    if not owner and has_events(log):
        raise WrongLog("this log has events but does not say of which pipeline; restore its table meta")
    log.run(_META, "pipeline", topology.pipeline)
    log.run(_META, "fingerprint", topology.fingerprint)
    for operator in topology.operators:
        log.run(
            "INSERT INTO operator (name, status, incarnation) VALUES (?, 'dead', 0) ON CONFLICT (name) DO NOTHING",
            operator,
        )
    links = {(*sender, *receiver) for sender, receiver in topology.links}
    if links != set(log.fetch("SELECT operator, port, rec_operator, rec_port FROM link")):
        log.run("DELETE FROM link")
        for link in sorted(links):
            log.run("INSERT INTO link (operator, port, rec_operator, rec_port) VALUES (?, ?, ?, ?)", *link)


def take_over(log: Transaction, operator: str) -> int:
    """Give the operator a new incarnation (F1) and return it."""
    log.run(
        "INSERT INTO operator (name, status, incarnation) VALUES (?, 'restarted', 1) "
        "ON CONFLICT (name) DO UPDATE SET status = 'restarted', incarnation = operator.incarnation + 1",
        operator,
    )
    incarnation: int = log.fetch("SELECT incarnation FROM operator WHERE name = ?", operator)[0][0]
    return incarnation
