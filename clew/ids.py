"""Names of the things a log speaks of."""

from typing import NamedTuple, NewType


class Port(NamedTuple):
    """A port of an operator: the place where events are numbered or received."""

    operator: str
    name: str

    def __str__(self) -> str:
        return f"{self.operator}.{self.name}"

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


InputSetId = NewType("InputSetId", int)

#: The Input Set of events that belong to none: acknowledged and done at once.
NONE_SET = InputSetId(0)
