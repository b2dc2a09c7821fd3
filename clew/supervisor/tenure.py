"""A role in a run that this process has, kept by a thread of its own for as long as it works."""

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clew.errors import ClewError
from clew.store.base import Holder, Leases, ProcessRow

_LOG = logging.getLogger(__name__)
#: How often a role is renewed while its time lasts.
_RENEWALS = 4
#: Seconds between two looks at a role that another process has.
_LOOK = 0.2

#: Seconds for which a process keeps its role without a sign of life.
LEASE = 5.0
#: Those in this process that keep a role: its number alone would not tell one run in it from the next.
_KEEPING: set[str] = set()


#: What the name of a process begins with that runs all groups by itself, as threads.
_THREADS = "threads-"


def this_process(threads: bool = False) -> Holder:
    """Return what this process is known by; another word every time. Who runs all groups says so."""
    return Holder(f"{_THREADS if threads else ''}{uuid.uuid4().hex}", socket.gethostname(), os.getpid())


def runs_all_groups(row: ProcessRow) -> bool:
    """Say whether who has a role runs all groups by itself."""
    return row.holder.name.startswith(_THREADS)


def lives(row: ProcessRow) -> bool:
    """Say whether who has a role is there, as far as can be told from here."""
    if row.left <= 0 or not is_here(row):
        return row.left > 0
    return row.holder.name in _KEEPING if row.holder.pid == os.getpid() else is_running(row.holder.pid)


def is_here(row: ProcessRow) -> bool:
    """Say whether who has a role is on this machine."""
    return row.left > 0 and row.holder.host == socket.gethostname()


def is_running(pid: int) -> bool:
    """Say whether there is such a process, and it is more than what is left of one until its parent looks."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class Tenure:
    """Has a role, and keeps it: renews its lease, passes on what it is asked, and tells when another one has it."""

    def __init__(
        self,
        store: Callable[[], Leases],
        role: str,
        holder: Holder,
        seconds: float,
        report: Callable[[], Mapping[str, Any]],
        asked: Callable[[str], None],
        lost: Callable[[], None],
    ) -> None:
        self._store, self._role, self._holder, self._seconds = store, role, holder, seconds
        self._report, self._asked, self._lost = report, asked, lost
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, dead: str | None = None, stood_by: bool = False) -> ProcessRow | None:
        """Take the role, once it is to be had; returns who has it."""
        other = self._store().take_lease(self._role, self._holder, self._seconds, dead, stood_by)
        if other is None:
            _KEEPING.add(self._holder.name)
            self._thread = threading.Thread(target=self._keep, name=f"lease-{self._role}", daemon=True)
            self._thread.start()
        return other

    def take_at_once(self) -> ProcessRow | None:
        """Take the role, also where its time is not up but who has it is known to be gone; returns who has it."""
        other = self.take()
        return other if other is None or lives(other) else self.take(dead=other.holder.name)

    def wait_for(self, stop: threading.Event, tell: Callable[[ProcessRow], None], dead: str | None = None) -> bool:
        """Take the role as soon as it is to be had; `tell` hears who has it until then. False when told to stop."""
        told: str | None = None
        while not stop.is_set():
            other = self.take(dead, stood_by=told is not None)
            asked = self._still_asked() if other is None and told is not None else other.asked if other else ""
            if asked:
                # What is asked of who has the role is asked of who stands by too.
                self._asked(asked)
                return False
            if other is None:
                return True
            if other.holder.name != told:
                told = other.holder.name
                tell(other)
            stop.wait(min(_LOOK, max(other.left, 0.01)))
        return False

    def _still_asked(self) -> str:
        """Return what was asked of the one before, who may have ended because of it."""
        return self._store().renew_lease(self._role, self._holder, self._seconds, self._report()) or ""

    def close(self) -> None:
        """Give the role up, with a last word."""
        self._over.set()
        if self._thread is None:
            return
        self._thread.join()
        _KEEPING.discard(self._holder.name)
        try:
            store = self._store()
            if store.renew_lease(self._role, self._holder, self._seconds, self._report()) is not None:
                store.release_lease(self._role, self._holder)
        except ClewError as error:
            # It is to be had when its time is up.
            _LOG.debug("role not given up", extra={"role": self._role, "error": str(error)})

    def _keep(self) -> None:
        while not self._over.wait(self._seconds / _RENEWALS):
            try:
                asked = self._store().renew_lease(self._role, self._holder, self._seconds, self._report())
            except ClewError as error:
                # Who works with the log finds out by itself.
                _LOG.debug("role not renewed", extra={"role": self._role, "error": str(error)})
                continue
            if asked is None:
                self._lost()
                return
            if asked:
                self._asked(asked)
