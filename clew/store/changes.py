"""Whether a log can go on with a pipeline that was changed since its run began."""

from collections.abc import Collection, Iterator, Mapping

from clew.errors import GraphChanged
from clew.ids import Port
from clew.protocol.rows import StateRow
from clew.store.base import Store, Topology

States = Mapping[str, StateRow]


def refuse_changes(store: Store, topology: Topology, connections: Collection[Port]) -> None:
    """Raise GraphChanged when events or writes of the log would wait for nobody, or would never reach somebody new.

    `connections` are those that the pipeline writes to now. Functions may change: what is logged stays as it is.
    """
    found = {row.operator: store.state(row.operator) for row in store.operators()}
    states = {operator: state for operator, state in found.items() if state is not None}
    if not states or store.owner() != topology.pipeline:
        # It has not begun, or it is another pipeline's, which the store itself refuses.
        return
    changes = (
        *_links(store, topology, states),
        *_operators(found, topology, states),
        *_writes(store, connections, states),
    )
    if changes:
        raise GraphChanged(topology.pipeline, changes)


def _links(store: Store, topology: Topology, states: States) -> Iterator[str]:
    before, now = set(store.links()), set(topology.links)
    for sender, receiver in sorted(before - now):
        yield f"{sender} no longer leads to {receiver}, where {_events(_waiting(store, receiver))} wait"
    for sender, receiver in sorted(now - before):
        sent = states[sender.operator].context["sent"].get(sender.name, 0) if sender.operator in states else 0
        yield f"{sender} now leads to {receiver}, after {_events(sent)} were sent on it"


def _operators(known: Collection[str], topology: Topology, states: States) -> Iterator[str]:
    for operator in sorted(states.keys() - set(topology.operators)):
        yield f"operator {operator} is gone"
    for operator in sorted(set(topology.operators) - set(known)):
        yield f"operator {operator} is new"


def _writes(store: Store, connections: Collection[Port], states: States) -> Iterator[str]:
    ports = {Port(operator, name) for operator, state in states.items() for name in state.context["writes"]}
    for port in sorted(ports - set(connections)):
        undone = store.undone_writes(port, 1)
        if undone:
            last = states[port.operator].context["writes"][port.name]
            yield f"{port} is no longer written to, where {last - undone[0].number + 1} writes wait"


def _waiting(store: Store, receiver: Port) -> int:
    """Count the events that the receiver has not taken, and those that it has taken and is not done with."""
    taken = {
        number
        for member in store.members(receiver.operator)
        if member.port == receiver
        for number in range(member.first, member.first + member.count)
    }
    return store.backlog(receiver).events + len(taken)


def _events(count: int) -> str:
    return f"{count} event{'s' if count != 1 else ''}"
