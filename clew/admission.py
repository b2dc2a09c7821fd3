"""What stands before a run: whose log it is, whether it has finished, what was changed since, what is missing."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from clew.errors import AlreadyRunning, GroupsRunning, NewerLog, RunFinished
from clew.ids import Capture, Port, writes_port
from clew.lineage.retention import Keep, kept
from clew.pipeline.graph import Graph, OperatorSpec
from clew.place import Log, masked
from clew.runtime.changes import Change, check_accepted, compare, is_as_it_was, plan, refuse
from clew.runtime.pending import read_logged, used_events
from clew.store.base import SUPERVISOR, Holder, KeptStore, Store, Topology
from clew.supervisor.tenure import LEASE, Tenure, lives, runs_all_groups, this_process

_LOG = logging.getLogger(__name__)


def topology(graph: Graph) -> Topology:
    """Return what a log must know of a graph."""
    links = tuple((link.sender, link.receiver) for link in graph.links)
    return Topology(graph.name, graph.fingerprint, tuple(graph.operators), links, graph.captures, _uncaptured(graph))


def _uncaptured(graph: Graph) -> tuple[str, ...]:
    """Name what lineage is not captured for: operators by their output ports, and the write actions of connections."""
    specs = graph.operators.values()
    # What sends no events has no Output Sets that lineage would have to tell apart.
    operators = [spec.name for spec in specs if spec.outputs and not _is_captured(graph, spec, spec.outputs)]
    writes = [Port(spec.name, writes_port(name)) for spec in specs for name in spec.sinks]
    missing = [str(port) for port in writes if not _is_captured(graph, graph.operators[port.operator], [port.name])]
    return (*operators, *missing)


def _is_captured(graph: Graph, spec: OperatorSpec, outputs: Collection[str]) -> bool:
    own = graph.captures.get(spec.name, Capture())
    return set(own.inputs).issuperset(spec.inputs) and set(own.outputs).issuperset(outputs)


def kept_events(graph: Graph, store: KeptStore) -> dict[Port, int]:
    """Return the first events that the scopes of a pipeline keep; a scope that does not say keeps everything."""
    keeps = [Keep(scope.start, scope.target, scope.keep, scope.keep_bytes) for scope in graph.scopes]
    return kept(store, keeps, time.time())


def is_finished(graph: Graph, store: Store, operators: Collection[str] = ()) -> bool:
    """Say whether every operator has ended, every write action is done, and every source has released what it read.

    Of all operators, or of those that are named.
    """
    asked = {name: spec for name, spec in graph.operators.items() if not operators or name in operators}
    states = {row.operator: row.status for row in store.operators() if row.operator in asked}
    if not all(states.get(name) == "finished" for name in operators or states):
        return False
    ports = [Port(spec.name, name) for spec in asked.values() for name in spec.sinks]
    if any(store.undone_writes(port, 1) for port in ports):
        return False
    return not any(_holds_effect(name, store) for name, spec in asked.items() if spec.is_source)


def _holds_effect(source: str, store: Store) -> bool:
    """Say whether a source's stored effect is still there: then Algorithm 1, Step 2.d is still to come."""
    action = store.last_read_action(source)
    event = store.read_event(source, action.connection, action.action) if action else None
    return event is not None and event.effect is not None


def refuse_foreign(graph: Graph, store: Store) -> None:
    """Refuse a log of another pipeline, or one that does not say whose it is; a new one becomes this pipeline's."""
    if store.owner() != graph.name:
        store.declare(topology(graph))


@contextmanager
def supervising(
    graph: Graph,
    store: Callable[[], KeptStore],
    holder: Holder,
    lease: float,
    report: Callable[[], Mapping[str, Any]],
    asked: Callable[[str], None],
    lost: Callable[[], None],
) -> Iterator[threading.Event]:
    """Have the role of a run's supervisor while the block lasts; raises AlreadyRunning where somebody else has it.

    Gives what is to be set when the run begins: what the block fails with from then on is the last that others hear of
    it. What was refused before was no run.
    """
    failure, begun = "", threading.Event()

    def told() -> Mapping[str, Any]:
        return {**report(), "error": failure}

    tenure = Tenure(store, SUPERVISOR, holder, lease, told, asked, lost)
    other = tenure.take_at_once()
    if other is not None:
        raise AlreadyRunning(graph.name, other.holder.host, other.holder.pid)
    try:
        yield begun
    except BaseException as error:
        if begun.is_set() and not isinstance(error, KeyboardInterrupt):
            failure = str(error) or type(error).__name__
        raise
    finally:
        tenure.close()


def refuse_threads(graph: Graph, store: KeptStore) -> None:
    """Refuse to run a group of a pipeline while another process runs all of them."""
    for row in store.processes():
        if row.role == SUPERVISOR and runs_all_groups(row) and lives(row):
            raise AlreadyRunning(graph.name, row.holder.host, row.holder.pid)


def refuse_groups(graph: Graph, store: KeptStore) -> None:
    """Refuse to run a pipeline in this process while others run its groups: they would take them from each other."""
    for row in store.processes():
        if row.role != SUPERVISOR and lives(row):
            raise GroupsRunning(graph.name, row.holder.host, row.holder.pid)


def refuse_processes(graph: Graph, store: KeptStore) -> None:
    """Refuse to do away with a log on which somebody works."""
    for row in store.processes():
        if lives(row):
            raise AlreadyRunning(graph.name, row.holder.host, row.holder.pid)


def accepted_change(graph: Graph, store: Store, accept: Sequence[str]) -> Change:
    """Return what going on with the pipeline as it is now does; refused where nobody has accepted what that costs."""
    check_accepted(graph, [row.operator for row in store.operators()], accept)
    change = change_of(graph, store)
    refuse(graph.name, change.findings, accept)
    return change


def change_of(graph: Graph, store: Store) -> Change:
    links = {receiver: sender for sender, receiver in store.links()}
    if is_as_it_was(graph, links, store.versions(), store.schema):
        return Change((), (), {})
    logged = read_logged(store)
    return plan(graph, logged, compare(graph, logged, lambda operator: used_events(store, operator), store.schema))


def declare_as_it_is(change: Change, graph: Graph, store: KeptStore) -> None:
    declared = topology(graph)
    if change.writes or set(declared.links) != set(store.links()):
        store.change(declared, change.writes)
    elif declared.captures != store.captures():
        store.declare(declared)
    for finding in change.findings:
        _LOG.warning("pipeline changed", extra={"operator": finding.operator, "what": finding.told})


def refuse_finished(graph: Graph, store: Store, url: str) -> None:
    """Raise RunFinished when the run that the log is of has finished, whatever the pipeline is now."""
    versions = store.versions()
    rows = [row for row in store.operators() if row.operator in versions or not versions]
    if rows and all(row.status == "finished" for row in rows) and is_finished(graph, store):
        raise RunFinished(graph.name, masked(url))


def validate(graph: Graph) -> None:
    """Let sources and sinks say what is missing, before a session is started."""
    for spec in graph.operators.values():
        if spec.source is not None:
            spec.source.validate()
        for sink in spec.sinks.values():
            sink.validate_target()


def clear(graph: Graph, place: Log) -> None:
    """Remove the log for a fresh start; refused where it is none of this pipeline, and while processes work on it."""
    if place.exists(graph.name):
        # What a newer Clew wrote cannot be read, but it is a log.
        with suppress(NewerLog):
            store = place.open(graph.name)
            try:
                store.declare(topology(graph))
                refuse_processes(graph, store)
                _take_to_remove(graph, store)
            finally:
                store.close()
    place.remove(graph.name)


def _take_to_remove(graph: Graph, store: KeptStore) -> None:
    """Take the role that goes with the log: of two who remove it at the same moment, the second finds the first."""
    holder = this_process()
    other = store.take_lease(SUPERVISOR, holder, LEASE)
    if other is not None and not lives(other):
        other = store.take_lease(SUPERVISOR, holder, LEASE, dead=other.holder.name)
    if other is not None:
        raise AlreadyRunning(graph.name, other.holder.host, other.holder.pid)
