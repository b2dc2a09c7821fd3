"""How long lineage is kept (LOG.io, Section 3.6): sliding by time and by size, scope by scope.

A scope keeps the events of its target that are young enough, and everything on its paths that they can have come from.
Collection removes whole prefixes, so for each port it is enough to know the first event that must stay.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from clew.ids import Port
from clew.lineage.steps import Connections
from clew.store.base import Lineages


@dataclass(frozen=True, slots=True)
class Keep:
    """What is kept of a scope: events of the target of so many seconds, and as many as these bytes have room for.

    The bytes are those of all events on the scope's paths, save what stays anyway, since something is still to be made
    of it. None is no limit.
    """

    start: Port
    target: Port
    seconds: float | None = None
    bytes: int | None = None


def kept(log: Lineages, keeps: Iterable[Keep], now: float) -> dict[Port, int]:
    """Return, for the ports on the paths of some scopes, the first event that is to stay."""
    known = Connections(log)
    first: dict[Port, int] = {}
    for keep in keeps:
        for port, number in _of_scope(log, known, keep, now).items():
            first[port] = min(number, first.get(port, number))
    return first


def _of_scope(log: Lineages, known: Connections, keep: Keep, now: float) -> dict[Port, int]:
    collected, last = log.extent(keep.target)
    oldest = collected + 1
    if keep.seconds is not None:
        oldest = max(oldest, log.made_before(keep.target, now - keep.seconds) + 1)
    if keep.bytes is None:
        return _needed(log, known, keep, oldest)
    room = keep.bytes + _size(log, _needed(log, known, keep, last + 1))
    if _size(log, _needed(log, known, keep, oldest)) <= room:
        return _needed(log, known, keep, oldest)
    # What is needed shrinks with every event of the target that is given up.
    low, high = oldest, last + 1
    while low < high:
        middle = (low + high) // 2
        if _size(log, _needed(log, known, keep, middle)) <= room:
            high = middle
        else:
            low = middle + 1
    return _needed(log, known, keep, low)


def _needed(log: Lineages, known: Connections, keep: Keep, oldest: int) -> dict[Port, int]:
    """Return the first event of each port on the paths that those of the target from `oldest` on can have come from.

    Of those that are still to be made of what is undone, too.
    """
    paths = [port for port in known.before(keep.target) if keep.start in known.before(port)]
    if not paths:
        # The log knows no such path, as when one of the ports has a new name: nobody can say what is not needed.
        return {port: log.extent(port)[0] + 1 for port in known.all_ports()}
    needed = {port: _undone(log, known, port) for port in paths}
    needed[keep.target] = oldest
    # The target first: each port after all that it leads to.
    for port in sorted(paths, key=lambda one: (known.depth(one.operator), one), reverse=True):
        input_set = None if port == keep.start else log.first_set(port, needed[port])
        if input_set is None:
            continue
        for name, number in log.first_inputs(port.operator, input_set).items():
            sender = known.senders.get(Port(port.operator, name))
            if sender in needed:
                needed[sender] = min(number, needed[sender])
    return needed


def _undone(log: Lineages, known: Connections, port: Port) -> int:
    """Return the first event of a port that some receiver is not done with; one past the last where all are.

    What was set aside is done for the run, and yet something may still be made of it.
    """
    receivers = known.receivers.get(port, ())
    held = (
        first
        for receiver in receivers
        for row in log.asides(receiver.operator)
        if row.status in ("held", "retry")
        for name, first, _, _ in row.events
        if name == receiver.name
    )
    after = log.extent(port)[1] + 1
    return min((*map(log.undone_from, receivers), *held), default=after)


def _size(log: Lineages, needed: dict[Port, int]) -> int:
    return sum(log.bytes_from(port, number) for port, number in needed.items())
