"""Leases of a log in memory: threads of one process may share the roles of a run as processes do."""

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clew.store.base import Holder, ProcessRow


@dataclass
class _Lease:
    holder: Holder
    starts: int
    seen: float
    #: None when it was given up.
    until: float | None
    asked: str = ""
    report: str = "{}"


class MemoryLeases:
    """Who has which role, in memory."""

    def __init__(self) -> None:
        self._leases: dict[str, _Lease] = {}
        self._leases_lock = threading.Lock()

    def take_lease(
        self, role: str, holder: Holder, seconds: float, dead: str | None = None, stood_by: bool = False
    ) -> ProcessRow | None:
        with self._leases_lock:
            now, lease = time.monotonic(), self._leases.get(role)
            free = lease is None or lease.until is None or lease.until <= now
            if lease is not None and not free and lease.holder.name not in (dead, holder.name):
                return _row(role, lease, now)
            starts = 1 if lease is None else lease.starts + (lease.holder.name != holder.name)
            asked = lease.asked if lease is not None and stood_by else ""
            self._leases[role] = _Lease(holder, starts, now, now + seconds, asked)
            return None

    def renew_lease(self, role: str, holder: Holder, seconds: float, report: Mapping[str, Any]) -> str | None:
        with self._leases_lock:
            now, lease = time.monotonic(), self._leases.get(role)
            if lease is None or lease.until is None or lease.holder.name != holder.name:
                return None
            lease.seen, lease.until, lease.report = now, now + seconds, json.dumps(report)
            return lease.asked

    def release_lease(self, role: str, holder: Holder) -> None:
        with self._leases_lock:
            lease = self._leases.get(role)
            if lease is not None and lease.holder.name == holder.name:
                lease.until = None

    def ask_processes(self, what: str) -> int:
        with self._leases_lock:
            now = time.monotonic()
            asked = [lease for lease in self._leases.values() if lease.until is not None and lease.until > now]
            for lease in asked:
                lease.asked = what
            return len(asked)

    def processes(self) -> list[ProcessRow]:
        with self._leases_lock:
            now = time.monotonic()
            return [_row(role, lease, now) for role, lease in sorted(self._leases.items())]


def _row(role: str, lease: _Lease, now: float) -> ProcessRow:
    left = 0.0 if lease.until is None else lease.until - now
    report = json.loads(lease.report)
    return ProcessRow(
        role, lease.holder, lease.starts, now - lease.seen, left, lease.until is None, report, lease.asked
    )
