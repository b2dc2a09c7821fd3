"""Names of the things a log speaks of."""

from typing import NamedTuple, NewType


class Port(NamedTuple):
    """A port of an operator: the place where events are numbered or received."""

    operator: str
    name: str

    def __str__(self) -> str:
        return f"{self.operator}.{self.name}"

    @property
    def told(self) -> str:
        """The port as people name it: write actions by their connection."""
        return f"{self.operator}.{self.name.removeprefix(WRITES)}"

    @classmethod
    def parse(cls, text: str) -> "Port":
        """Read `operator.port`; a bare operator means its port `out`."""
        operator, _, name = text.partition(".")
        return cls(operator, name or "out")


class EventId(NamedTuple):
    """An event: the port that sent it and its number there, counted from 1."""

    port: Port
    number: int

    def __str__(self) -> str:
        return f"{self.port}#{self.number}"

    @property
    def told(self) -> str:
        """The event as people name it."""
        return f"{self.port.told}#{self.number}"


InputSetId = NewType("InputSetId", int)


class Capture(NamedTuple):
    """The ports of an operator that lineage is captured for (LOG.io, Section 3.1): IN and OUT.

    A connection for write actions is among the outputs, by the name that `writes_port` gives it.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    #: Whether an Output Set cannot be made again without the key of its Input Set, so that it is kept.
    labels: bool = False


#: What lineage puts before the name of a connection for its write actions; no port has such a name.
WRITES = "writes:"


def writes_port(connection: str) -> str:
    """Return the name under which lineage knows the write actions of a connection."""
    return f"{WRITES}{connection}"


#: The Input Set of events that belong to none: acknowledged and done at once.
NONE_SET = InputSetId(0)
