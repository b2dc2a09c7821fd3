"""Leases in SQL: who has which role in a run, the same for every SQL backend. The time is the caller's to say."""

import json
from collections.abc import Mapping
from typing import Any

from clew.store.base import Holder, ProcessRow
from clew.store.statements import Transaction

_TAKE = """INSERT INTO process (role, holder, host, pid, starts, seen, until, asked, report)
    VALUES (?, ?, ?, ?, 1, ?, ?, '', '{}')
    ON CONFLICT (role) DO UPDATE SET holder = excluded.holder, host = excluded.host, pid = excluded.pid,
        starts = process.starts + CASE WHEN process.holder = excluded.holder THEN 0 ELSE 1 END,
        seen = excluded.seen, until = excluded.until, report = '{}',
        asked = CASE WHEN ? = 1 THEN process.asked ELSE '' END
    WHERE process.until <= ? OR process.holder = ? OR process.holder = excluded.holder"""
_RENEW = "UPDATE process SET seen = ?, until = ?, report = ? WHERE role = ? AND holder = ? AND until > 0"
_RELEASE = "UPDATE process SET seen = ?, until = 0 WHERE role = ? AND holder = ?"
_ROWS = "SELECT role, holder, host, pid, starts, seen, until, report, asked FROM process"


def take_lease(
    log: Transaction, now: int, role: str, holder: Holder, seconds: float, dead: str | None, stood_by: bool
) -> ProcessRow | None:
    """Take a role where it is to be had; returns who has it otherwise."""
    until = now + int(seconds * 1000)
    log.run(_TAKE, role, holder.name, holder.host, holder.pid, now, until, int(stood_by), now, dead or "")
    (row,) = (_row(now, *row) for row in log.fetch(f"{_ROWS} WHERE role = ?", role))
    return None if row.holder.name == holder.name else row


def renew_lease(
    log: Transaction, now: int, role: str, holder: Holder, seconds: float, report: Mapping[str, Any]
) -> str | None:
    """Keep a role; also one whose time is up, while nobody else has taken it."""
    log.run(_RENEW, now, now + int(seconds * 1000), json.dumps(report), role, holder.name)
    rows = log.fetch("SELECT asked FROM process WHERE role = ? AND holder = ? AND until > 0", role, holder.name)
    return next((str(asked) for (asked,) in rows), None)


def release_lease(log: Transaction, now: int, role: str, holder: Holder) -> None:
    """Give a role up."""
    log.run(_RELEASE, now, role, holder.name)


def ask_processes(log: Transaction, now: int, what: str) -> int:
    """Ask everybody whose time is not up."""
    asked = log.fetch("SELECT role FROM process WHERE until > ?", now)
    for (role,) in asked:
        log.run("UPDATE process SET asked = ? WHERE role = ?", what, role)
    return len(asked)


def processes(log: Transaction, now: int) -> list[ProcessRow]:
    """Return all rows, by role."""
    return sorted((_row(now, *row) for row in log.fetch(_ROWS)), key=lambda row: row.role)


def _row(
    now: int, role: str, holder: str, host: str, pid: int, starts: int, seen: int, until: int, report: str, asked: str
) -> ProcessRow:
    known = Holder(holder, host, pid)
    left = (until - now) / 1000 if until else 0.0
    return ProcessRow(role, known, starts, (now - seen) / 1000, left, until == 0, json.loads(report), asked)
