"""Wires groups as processes: one group of a pipeline in this process, and all of them, each in one of its own."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from clew.admission import (
    accepted_change,
    clear,
    declare_as_it_is,
    is_finished,
    kept_events,
    refuse_finished,
    refuse_foreign,
    refuse_threads,
    supervising,
    validate,
)
from clew.errors import ClewError, RoleLost, SetupFailed, StoreUnreachable
from clew.pipeline.graph import Graph
from clew.place import Log, masked
from clew.run import conclude, program_of
from clew.runtime.absence import Stopped
from clew.runtime.changes import Change
from clew.runtime.channels import Channels
from clew.runtime.collect import collect
from clew.runtime.engine import Engine
from clew.runtime.lookups import keep_lookups
from clew.runtime.progress import OperatorProgress, Progress
from clew.runtime.runner import Surroundings
from clew.store.base import SUPERVISOR, Holder, KeptStore, ProcessRow, group_role
from clew.store.reopening import reopened
from clew.supervisor.processes import Commands, ProcessSupervisor
from clew.supervisor.tenure import LEASE, Tenure, lives, this_process
from clew.supervisor.threads import Policy, Supervisor

_LOG = logging.getLogger(__name__)
#: Seconds for which a log that cannot be reached is waited for.
PATIENCE = 300.0
#: The role of declaring the pipeline to its log, which is had for a moment only.
_SETUP = "setup"
#: Seconds between two looks at a run that another process supervises.
_LOOK = 0.5


def shared_log(place: Log, pipeline: str) -> KeptStore:
    """Open a log that several processes can work on; refuses those that are for one process."""
    if not place.url.startswith(("postgresql:", "postgres:", "embedded-postgres:")):
        raise SetupFailed(
            f"groups as processes need a log that they can share, and {place.url} is for one process",
            "use --log postgresql://USER@HOST/DATABASE, or --log embedded-postgres:DIR, which needs no server",
        )
    return place.open(pipeline)


def engine_at(
    url: str,
    token_file: str,
    graph: Graph,
    path: str,
    name: str | None,
    roots: bytes | None = None,
    stop: threading.Event | None = None,
) -> Engine:
    """Return the engine service at a URL, or at the one that a file holds: `file:PATH`.

    `roots` is the root certificate of a service with TLS. When `stop` is set, it is not waited for any more.
    """
    from clew.spark.client import RemoteEngine
    from clew.spark.program import fingerprint

    def address() -> tuple[str, str]:
        where = Path(url.removeprefix("file:")).read_text().strip() if url.startswith("file:") else url
        return where, Path(token_file).read_text().strip()

    return RemoteEngine(address, fingerprint(graph, program_of(path, name)), roots=roots, stop=stop)


@dataclass(frozen=True)
class Membership:
    """What a process that runs one group is told."""

    graph: Graph
    group: str
    place: Log
    policy: Policy
    #: Operators that may go on though they were changed.
    accept: Sequence[str] = ()
    lease: float = LEASE
    #: Seconds for which a log that cannot be reached is waited for.
    patience: float = PATIENCE


def open_ahead(place: Log, pipeline: str) -> KeptStore | None:
    """Open the log of a run before it is needed; None where that fails now: who needs it finds out what is wrong."""
    with suppress(ClewError):
        return shared_log(place, pipeline)
    return None


def run_group(
    told: Membership,
    engine: Engine,
    stop: threading.Event,
    dead: str | None = None,
    tell: Callable[[str], None] = lambda text: None,
    opened: KeptStore | None = None,
) -> Progress:
    """Run one group of a pipeline until it has finished, or until it is stopped; returns its figures.

    Where another process has the group, this one stands by, and takes its place when it is silent for too long. `dead`
    names a process that is known to have ended. `opened` is the log, where it was opened before; it is closed here.
    """
    progress, holder = Progress(), this_process()
    was_away = False
    while True:
        try:
            store = opened or reopened(partial(shared_log, told.place, told.graph.name), told.patience, stop)
        except StoreUnreachable:
            if stop.is_set():
                return progress
            raise
        opened = None
        try:
            if was_away:
                _let_others_speak(told, store, holder, stop)
            _work_on(told, store, holder, engine, progress, stop, dead, tell)
            return progress
        except Stopped:
            return progress
        except StoreUnreachable as error:
            if stop.is_set():
                # As after a crash: what was under way is found by who goes on.
                return progress
            # What was under way is not known to be logged: the group recovers, as it does after any failure.
            _LOG.warning("the log was lost", extra={"group": told.group, "error": str(error)})
            was_away = True
        finally:
            store.close()


def _let_others_speak(told: Membership, store: KeptStore, holder: Holder, stop: threading.Event) -> None:
    """Give who has the group time to say so: while the log was away nobody could be heard, and that is no silence."""
    role = group_role(told.group)
    if not any(row.role == role and row.holder == holder for row in store.processes()):
        stop.wait(told.lease)


def _work_on(
    told: Membership,
    store: KeptStore,
    holder: Holder,
    engine: Engine,
    progress: Progress,
    stop: threading.Event,
    dead: str | None,
    tell: Callable[[str], None],
) -> None:
    change = _admitted(told, store, holder, stop)
    work = _Work(told, store, engine, progress, change, stop)
    tenure = Tenure(lambda: store, group_role(told.group), holder, told.lease, work.report, work.asked, work.lost)
    try:
        if tenure.wait_for(stop, lambda row: tell(_stands_by(told.group, row)), dead):
            work.run()
    finally:
        tenure.close()


def _stands_by(group: str, row: ProcessRow) -> str:
    return f"group {group} is run by process {row.holder.pid} on {row.holder.host}; this one takes over when it is gone"


def _admitted(told: Membership, store: KeptStore, holder: Holder, stop: threading.Event) -> Change:
    """Declare the pipeline to its log, one process at a time: what one has changed the next finds as it is."""
    while (other := store.take_lease(_SETUP, holder, told.lease)) is not None:
        if stop.wait(min(0.05, max(other.left, 0.01))):
            raise Stopped
    try:
        refuse_threads(told.graph, store)
        refuse_foreign(told.graph, store)
        refuse_finished(told.graph, store, told.place.url)
        change = accepted_change(told.graph, store, told.accept)
        declare_as_it_is(change, told.graph, store)
        keep_lookups(told.graph, store, told.place.bodies)
        return change
    finally:
        store.release_lease(_SETUP, holder)


class _Work:
    """The work of one group in this process, and what is said of it."""

    def __init__(
        self,
        told: Membership,
        store: KeptStore,
        engine: Engine,
        progress: Progress,
        change: Change,
        stop: threading.Event,
    ) -> None:
        self._told, self._progress, self._stop = told, progress, stop
        self._bell = told.place.bell(told.graph.name)
        here = told.graph.groups[told.group]
        channels = Channels(told.graph, store, here, self._bell.ring)
        own: dict[str, Any] = {"patience": told.patience, "retaken": change.retaken}
        around = Surroundings(told.graph, store, engine, channels, progress, told.place.bodies, **own)
        self._channels = channels
        self._supervisor = Supervisor(around, told.policy, (told.group,), stop)
        self._error: BaseException | None = None
        self._is_lost = False

    def run(self) -> None:
        self._bell.listen(self._channels.news)
        try:
            self._supervisor.run()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._bell.close()
        if self._is_lost:
            raise RoleLost(f"group {self._told.group}")

    def report(self) -> Mapping[str, Any]:
        """Return what others may know of this process."""
        rows = {name: row._asdict() for name, row in self._progress.rows().items()}
        return {"operators": rows, "error": "" if self._error is None else str(self._error)}

    def asked(self, what: str) -> None:
        """Do as others ask."""
        if what == "stop":
            self._stop.set()

    def lost(self) -> None:
        """End, because another process has the group; what this one still does is refused by the log."""
        self._is_lost = True
        self._supervisor.stop()


class Door:
    """The log of a run, opened again when its server was away."""

    def __init__(
        self,
        place: Log,
        pipeline: str,
        stop: threading.Event,
        patience: float = PATIENCE,
        open: Callable[[str], KeptStore] | None = None,
    ) -> None:
        self._open = partial(open or partial(shared_log, place), pipeline)
        self._stop, self._patience = stop, patience
        self.store = self._open()

    def reopen(self) -> None:
        self.store.close()
        self.store = reopened(self._open, self._patience, self._stop)

    def close(self) -> None:
        self.store.close()


def run_processes(
    graph: Graph,
    place: Log,
    commands: Commands,
    policy: Policy,
    progress: Progress,
    *,
    fresh: bool = False,
    accept: Sequence[str] = (),
    lease: float = LEASE,
    stop: threading.Event | None = None,
    begins: Callable[[], None] = lambda: None,
) -> Progress:
    """Run a pipeline with a process for each group; returns its figures. Raises AlreadyRunning where somebody does so.

    `stop`, when it is set, ends the run after the turns in flight.
    """
    if fresh:
        clear(graph, place)
    over, stop = threading.Event(), stop or threading.Event()
    door = Door(place, graph.name, stop)
    try:
        holder = this_process()
        told = Membership(graph, "", place, policy, accept, lease)

        def finished(operators: Sequence[str]) -> bool:
            return is_finished(graph, door.store, operators)

        supervisor = ProcessSupervisor(graph, door, commands, policy, progress, lease, stop, finished)

        def asked(_: str) -> None:
            supervisor.stop()

        with supervising(graph, lambda: door.store, holder, lease, supervisor.report, asked, supervisor.lose) as begun:
            _admitted(told, door.store, holder, stop)
            validate(graph)
            begins()
            begun.set()
            collector = _collector(graph, door, place, policy, over)
            try:
                supervisor.run()
            finally:
                over.set()
                if collector is not None:
                    collector.join()
            if supervisor.lost:
                raise RoleLost(f"the run of pipeline {graph.name}")
        conclude(graph, door.store, progress)
        return progress
    except Stopped:
        # Before anything was begun.
        conclude(graph, door.store, progress)
        return progress
    finally:
        door.close()


def _collector(graph: Graph, door: Door, place: Log, policy: Policy, over: threading.Event) -> threading.Thread | None:
    every = policy.collect_every
    if every is None:
        return None

    def work() -> None:
        while not over.wait(every):
            with suppress(ClewError):
                collect(door.store, place.bodies, kept_events(graph, door.store))

    thread = threading.Thread(target=work, name="collector")
    thread.start()
    return thread


def attend(graph: Graph, place: Log, progress: Progress, stop: threading.Event) -> bool:
    """Show the progress of a run that another process supervises, until that ends, or until `stop` is set.

    False is said of a supervisor that died: somebody should take its place. Raises what the run failed with.
    """
    door = Door(place, graph.name, stop, open=place.open)
    with closing(door):
        while True:
            try:
                rows = {row.role: row for row in door.store.processes()}
            except StoreUnreachable:
                door.reopen()
                continue
            for row in rows.values():
                for figures in row.report.get("operators", {}).values():
                    progress.put(OperatorProgress(**figures))
            if not lives(rows[SUPERVISOR]):
                break
            if stop.wait(_LOOK):
                return True
        last = rows[SUPERVISOR]
        if failure := last.report.get("error"):
            raise ClewError(
                f"the run of process {last.holder.pid} on {last.holder.host}, which this showed, failed: {failure}"
            )
        conclude(graph, door.store, progress)
        # Who was asked to stop and was killed meanwhile was not to be followed by another.
        return progress.finished or last.given_up or last.asked == "stop"


def stop_run(graph: Graph, place: Log, patience: float, tell: Callable[[str], None]) -> bool:
    """Ask all processes of a run to end after their turns, and wait for them; says whether they have."""
    if not place.exists(graph.name):
        raise SetupFailed(f"pipeline {graph.name} has no log at {masked(place.url)}", "name the log that it runs on")
    with closing(place.existing(graph.name)) as store:
        there = sum(map(lives, store.processes()))
        if not there:
            tell(f"nobody runs pipeline {graph.name}")
            return True
        store.ask_processes("stop")
        tell(f"asked {there} process{'' if there == 1 else 'es'} of pipeline {graph.name} to stop")
        until = time.monotonic() + patience
        while any(map(lives, store.processes())):
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True
