"""Whose log it is and who runs its operators: the same for every SQL backend."""

import base64
import json
import uuid
from collections.abc import Sequence
from typing import Any

from clew.errors import StaleWriter, WrongLog
from clew.ids import Capture
from clew.protocol.rows import LookupRow
from clew.store.base import Topology
from clew.store.statements import VERSION_KEY, Transaction

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
    log.run(_META, "captures", json.dumps(topology.captures))
    before = [
        name for (text,) in log.fetch("SELECT value FROM meta WHERE key = 'uncaptured'") for name in json.loads(text)
    ]
    log.run(_META, "uncaptured", json.dumps(sorted({*before, *topology.uncaptured})))
    # Those that are there are left alone: a process that froze in a commit may hold their rows.
    known = {name for (name,) in log.fetch("SELECT name FROM operator")}
    for operator in topology.operators:
        if operator not in known:
            log.run("INSERT INTO operator (name, status, incarnation) VALUES (?, 'dead', 0)", operator)
    links = {(*sender, *receiver) for sender, receiver in topology.links}
    if links != set(log.fetch("SELECT operator, port, rec_operator, rec_port FROM link")):
        log.run("DELETE FROM link")
        for link in sorted(links):
            log.run("INSERT INTO link (operator, port, rec_operator, rec_port) VALUES (?, ?, ?, ?)", *link)


def versions(log: Transaction) -> dict[str, Any]:
    """Return what operators were declared to be, by operator."""
    rows = log.fetch("SELECT key, value FROM meta")
    return {key.removeprefix(VERSION_KEY): json.loads(text) for key, text in rows if key.startswith(VERSION_KEY)}


def captures(log: Transaction) -> dict[str, Capture]:
    """Return the ports that lineage is captured for, by operator; a log from before they were declared has none."""
    for (text,) in log.fetch("SELECT value FROM meta WHERE key = 'captures'"):
        found = json.loads(text).items()
        return {operator: Capture(tuple(ins), tuple(outs), labels) for operator, (ins, outs, labels) in found}
    return {}


def claim(log: Transaction) -> str:
    """Write down that a new process runs the pipeline; returns the token that it is known by."""
    token = uuid.uuid4().hex
    log.run(_META, "claim", token)
    return token


def take_over(log: Transaction, operator: str, token: str | None) -> int:
    """Give the operator a new incarnation and return it; refused to a process whose claim is not the last (F1)."""
    log.run(
        "INSERT INTO operator (name, status, incarnation) VALUES (?, 'restarted', 1) "
        "ON CONFLICT (name) DO UPDATE SET status = 'restarted', incarnation = operator.incarnation + 1",
        operator,
    )
    incarnation: int = log.fetch("SELECT incarnation FROM operator WHERE name = ?", operator)[0][0]
    # Asked while this transaction holds the operator's row: a process that claims the run later will find it taken.
    if token is not None and log.fetch("SELECT value FROM meta WHERE key = 'claim'") != [(token,)]:
        raise StaleWriter(operator, 0, incarnation - 1)
    return incarnation


def decide_asides(log: Transaction, operator: str, numbers: Sequence[int], status: str) -> int:
    """Say what is to become of things that were set aside, where that is not done yet."""
    known = log.fetch("SELECT number FROM aside WHERE operator = ? AND status IN ('held', 'retry', 'drop')", operator)
    asked = [number for (number,) in known if number in set(numbers)]
    for number in asked:
        log.run("UPDATE aside SET status = ? WHERE operator = ? AND number = ?", status, operator, number)
    return len(asked)


#: Lookups are settings of a run that are fixed when it begins, so they are kept with its identity.
_LOOKUP = "lookup:"


def keep_lookup(log: Transaction, operator: str, row: LookupRow) -> None:
    """Say which content a lookup has in this run, unless that was said before."""
    data = None if row.data is None else base64.b64encode(row.data).decode()
    log.run(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING",
        f"{_LOOKUP}{operator}.{row.name}",
        json.dumps({"sha256": row.digest, "data": data}),
    )


def kept_lookups(log: Transaction, operator: str) -> list[LookupRow]:
    """Return the lookups that the run keeps for an operator, by name."""
    own = f"{_LOOKUP}{operator}."
    rows = sorted(row for row in log.fetch("SELECT key, value FROM meta") if row[0].startswith(own))
    return [_lookup(key.removeprefix(own), json.loads(value)) for key, value in rows]


def _lookup(name: str, kept: dict[str, str | None]) -> LookupRow:
    data = kept["data"]
    return LookupRow(name, str(kept["sha256"]), None if data is None else base64.b64decode(data))
