"""Watches a run and tells a collector of it.

It looks at the run's figures and reads its log, as somebody in another process could; the run knows nothing of it, and
no turn or commit waits for it.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from clew.app.openlineage.delivery import Delivery, Send
from clew.app.openlineage.events import Events, State, Where
from clew.ids import Port, writes_port
from clew.lineage.extents import Extents, extents
from clew.pipeline.graph import Graph
from clew.run import Log, OperatorProgress, Progress
from clew.store.base import KeptStore

#: Seconds between two looks at the figures, and between two RUNNING events of an operator.
_LOOK, _EVERY = 0.2, 10.0
#: Seconds that the end of a run waits for the last events to arrive.
_PATIENCE = 3.0
_LOG = logging.getLogger(__name__)


class LogView:
    """Reads a run's log beside the run; opened once, because opening waits for commits, and reading does not."""

    def __init__(self, graph: Graph, place: Log) -> None:
        self._graph = graph
        self._place = place
        self._store: KeptStore | None = None

    def look(self) -> Extents | None:
        """Return what the log says of all ports now, or None when it cannot be read."""
        try:
            if self._store is None:
                if not self._place.exists(self._graph.name):
                    return None
                self._store = self._place.open(self._graph.name)
            return extents(self._store, self._ports())
        except Exception:
            # What is wrong with the log is the run's to say.
            self.close()
            return None

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with suppress(Exception):
                store.close()

    def _ports(self) -> Iterator[Port]:
        for spec in self._graph.operators.values():
            yield from (Port(spec.name, name) for name in (*spec.outputs, *map(writes_port, spec.sinks)))


class Observer:
    """Turns what is seen of a run into events."""

    def __init__(self, where: Where, progress: Progress, log: LogView | None, put: Callable[[Any], None]) -> None:
        self._where = where
        self._progress = progress
        self._log = log
        self._put = put
        self._events: Events | None = None
        #: Operators as they were last told of, and those that have ended.
        self._told: dict[str, OperatorProgress] = {}
        self._ended: set[str] = set()
        self._due = 0.0
        self._complained = False

    def observe(self) -> None:
        """Tell what has happened since the last look."""
        rows = self._progress.rows()
        if not rows or not self._begun():
            return
        due = time.monotonic() >= self._due
        if due:
            self._due = time.monotonic() + _EVERY
        self._tell(list(self._news(rows, due)))

    def finish(self, state: State, error: str) -> None:
        """Tell how the run ended; one that could not begin is not told of."""
        rows = self._progress.rows()
        if rows:
            self._begun(at_last=True)
            self.observe()
            left = [row for name, row in rows.items() if name not in self._ended]
            self._tell([("ABORT", row) for row in left])
            self._make(lambda events: events.of_pipeline(state, error))
        if self._log is not None:
            self._log.close()

    def _begun(self, at_last: bool = False) -> bool:
        """Say whether the run's identity is known; tells of its start when it becomes so."""
        if self._events is None:
            seen = self._log.look() if self._log is not None else None
            if seen is None and self._log is not None and not at_last:
                return False
            self._events = Events(self._where, uuid.uuid4().hex if seen is None else seen.run_id)
            self._make(lambda events: events.of_pipeline("START"))
        return True

    def _news(self, rows: Mapping[str, OperatorProgress], due: bool) -> Iterator[tuple[State, OperatorProgress]]:
        for name, row in rows.items():
            before = self._told.get(name)
            if before is None or (row.restarts > before.restarts and row.phase != "restarting"):
                yield "START", row
                self._ended.discard(name)
            if name in self._ended:
                continue
            if row.phase == "finished":
                yield "COMPLETE", row
            elif row.phase == "failed":
                yield "FAIL", row
            elif before is not None and due and _figures(row) != _figures(before):
                yield "RUNNING", row

    def _tell(self, news: list[tuple[State, OperatorProgress]]) -> None:
        seen = self._log.look() if news and self._log is not None else None
        for state, row in news:
            self._told[row.operator] = row
            if state in ("COMPLETE", "FAIL", "ABORT"):
                self._ended.add(row.operator)
            error = row.last_error if state == "FAIL" else ""
            self._make(partial(Events.of_operator, state=state, row=row, seen=seen, error=error))

    def _make(self, make: Callable[[Events], Any]) -> None:
        """Make an event and hand it on; what describes itself wrongly is told of once, and left out."""
        assert self._events is not None
        try:
            self._put(make(self._events))
        except Exception as error:
            if not self._complained:
                self._complained = True
                _LOG.warning("openlineage event left out", exc_info=error)


def _figures(row: OperatorProgress) -> tuple[int, ...]:
    return (row.turns, row.events_in, row.events_out, row.writes)


@contextmanager
def told(
    send: Send, place: str, where: Where, log: Log | None, progress: Progress, elsewhere: Callable[[], bool]
) -> Iterator[None]:
    """Tell a collector of the run that the block is; whatever becomes of that, the block's outcome stays its own.

    Of a run that goes on `elsewhere`, and is only shown here, who runs it tells.
    """
    delivery = Delivery(send, place)
    observer = Observer(where, progress, None if log is None else LogView(where.graph, log), delivery.put)
    over = threading.Event()
    ending: list[tuple[State, str]] = []

    def watch() -> None:
        while not over.wait(_LOOK):
            if not elsewhere():
                observer.observe()
        if not elsewhere():
            observer.finish(*ending[-1])

    thread = threading.Thread(target=watch, name="openlineage", daemon=True)
    thread.start()
    try:
        yield
        # What was told to stop, or waits for a decision, has stopped without an error, and can go on.
        ending.append(("COMPLETE" if progress.finished and not progress.quarantined else "ABORT", ""))
    except Exception as error:
        ending.append(("FAIL", f"{type(error).__name__}: {error}"))
        raise
    except BaseException:
        ending.append(("ABORT", ""))
        raise
    finally:
        until = time.monotonic() + _PATIENCE
        over.set()
        thread.join(_PATIENCE)
        delivery.close(until)
        _LOG.info("openlineage ends", extra={"sent": delivery.sent, "lost": delivery.lost})
        if delivery.told:
            progress.warnings.append(delivery.told)
