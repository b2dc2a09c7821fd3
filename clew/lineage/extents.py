"""Which events of a port are in the log, and what their records look like."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clew.ids import Port
from clew.store.base import KeptStore


@dataclass(frozen=True, slots=True)
class Extent:
    """The events of one port that can be asked for."""

    #: The first and the last event that are in the log; where there are none, the last is before the first.
    first: int
    last: int
    #: The schema that the port is fixed to; None before its first event, and for write actions.
    schema: bytes | None
    #: Whether the log says what they were made of.
    captured: bool


@dataclass(frozen=True, slots=True)
class Extents:
    """What a log says of some ports, and of who runs the operators."""

    run_id: str
    ports: Mapping[Port, Extent]
    #: Operator -> its incarnation.
    incarnations: Mapping[str, int]


def extents(log: KeptStore, ports: Iterable[Port]) -> Extents:
    """Read what a log says of ports; its cost does not grow with the log."""
    captures = log.captures()
    found = {}
    for port in ports:
        captured = port.operator in captures and port.name in captures[port.operator].outputs
        collected, last = log.extent(port)
        # The end of the stream is an event too, which was made of nothing and holds nothing.
        last -= int(log.ends(port))
        found[port] = Extent(collected + 1, last, log.schema(port), captured)
    return Extents(log.run_id, found, {row.operator: row.incarnation for row in log.operators()})
