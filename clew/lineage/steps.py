"""One step of lineage: an Input Set, what went into it, and what came out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from clew.ids import Capture, EventId, InputSetId, Port
from clew.protocol.log.runs import consecutive
from clew.protocol.rows import DROPPED, AsideRow, ReadEventRow
from clew.store.base import Lineages


@dataclass(frozen=True, slots=True)
class Read:
    """A read action: of a source, or one that served an Input Set (Algorithm 4)."""

    operator: str
    connection: str
    action: int
    description: str

    def __str__(self) -> str:
        return f"{self.operator}.{self.connection}#{self.action}"


@dataclass(frozen=True, slots=True)
class Step:
    """An Input Set of an operator, as far as it was asked for: events in, events or write actions out."""

    operator: str
    input_set: InputSetId
    inputs: tuple[EventId, ...]
    outputs: tuple[EventId, ...]
    reads: tuple[Read, ...] = ()
    #: What of it was set aside, because its function failed on it.
    asides: tuple[AsideRow, ...] = ()
    #: Whether it ended without being given to a function: it was dropped, or its events joined another one.
    dropped: bool = False


class Connections:
    """The connections of a pipeline, and what lineage is captured of it, as its log has them."""

    def __init__(self, log: Lineages) -> None:
        self.captures: Mapping[str, Capture] = log.captures()
        self.senders: dict[Port, Port] = {}
        self.receivers: dict[Port, list[Port]] = {}
        for sender, receiver in log.links():
            self.senders[receiver] = sender
            self.receivers.setdefault(sender, []).append(receiver)
        self._depths: dict[str, int] = {}

    def captured(self, operator: str) -> Capture:
        return self.captures.get(operator, Capture())

    def is_captured(self, port: Port) -> bool:
        """Say whether it is captured what events of a port are made of."""
        return port.name in self.captured(port.operator).outputs

    def ports(self, operator: str) -> set[Port]:
        """Return the ports that an operator sends on, as far as anything is known of them."""
        sending = {port for port in self.receivers if port.operator == operator}
        return sending | {Port(operator, name) for name in self.captured(operator).outputs}

    def all_ports(self) -> set[Port]:
        """Return the ports that anything is sent on, as far as anything is known of them."""
        operators = {one.operator for pair in self.senders.items() for one in pair} | set(self.captures)
        return {port for operator in operators for port in self.ports(operator)}

    def is_source(self, operator: str) -> bool:
        """Say whether an operator receives from none."""
        return not any(receiver.operator == operator for receiver in self.senders)

    def inputs(self, operator: str) -> dict[str, Port]:
        """Return who sends to an operator, by its input ports."""
        return {receiver.name: sender for receiver, sender in self.senders.items() if receiver.operator == operator}

    def depth(self, operator: str) -> int:
        """Return how many operators lie before one, at most."""
        if operator not in self._depths:
            # Once each: along every path it would be asked as often as there are paths.
            before = {sender.operator for sender in self.inputs(operator).values()}
            self._depths[operator] = 1 + max(map(self.depth, before), default=0)
        return self._depths[operator]

    def before(self, port: Port) -> set[Port]:
        """Return the ports whose events can have a part in those of a port, itself among them."""
        found, ahead = {port}, [port]
        while ahead:
            operator = ahead.pop().operator
            senders = {sender for receiver, sender in self.senders.items() if receiver.operator == operator} - found
            found |= senders
            ahead += senders
        return found

    def after(self, port: Port) -> set[Port]:
        """Return the ports whose events those of a port can have a part in, itself among them."""
        found, ahead = {port}, [port]
        while ahead:
            receivers = self.receivers.get(ahead.pop(), ())
            sent = {made for receiver in receivers for made in self.ports(receiver.operator)} - found
            found |= sent
            ahead += sent
        return found


def steps_back(log: Lineages, known: Connections, port: Port, numbers: Iterable[int]) -> list[Step]:
    """Return what events of a port were made of, one step back."""
    outputs: dict[InputSetId, list[EventId]] = {}
    for first, count in consecutive(sorted(numbers)):
        for number, input_set in log.origins(port, first, count):
            outputs.setdefault(input_set, []).append(EventId(port, number))
    if known.is_source(port.operator):
        return [_of_source(log, port, action, made) for action, made in sorted(outputs.items())]
    inputs = _inputs(log, known, port.operator, sorted(outputs))
    reads = _reads(log, port.operator, sorted(outputs))
    return [
        Step(port.operator, input_set, tuple(inputs.get(input_set, ())), tuple(made), tuple(reads.get(input_set, ())))
        for input_set, made in sorted(outputs.items())
    ]


def pairs(
    log: Lineages, known: Connections, port: Port, first: int, count: int
) -> Iterator[tuple[EventId, EventId, InputSetId]]:
    """Yield the lineage relation of some events of a port: (input event, output event, Input Set between them).

    They are the pairs of `steps_back`, each once. Events of a source have no input events.
    """
    if known.is_source(port.operator):
        return
    made = log.origins(port, first, count)
    inputs = _inputs(log, known, port.operator, sorted({input_set for _, input_set in made}))
    for number, input_set in made:
        output = EventId(port, number)
        for event in inputs.get(input_set, ()):
            yield event, output, input_set


def steps_forward(log: Lineages, known: Connections, port: Port, numbers: Sequence[int]) -> list[Step]:
    """Return what events of a port were made into, one step forward, at all their receivers."""
    return [
        step
        for receiver in known.receivers.get(port, ())
        if receiver.name in known.captured(receiver.operator).inputs
        for step in _at(log, receiver, port, numbers)
    ]


def _at(log: Lineages, receiver: Port, port: Port, numbers: Sequence[int]) -> Iterator[Step]:
    inputs: dict[InputSetId, list[EventId]] = {}
    for first, count in consecutive(sorted(numbers)):
        for number, input_set in log.joined(receiver, first, count):
            inputs.setdefault(input_set, []).append(EventId(port, number))
    outputs: dict[InputSetId, list[EventId]] = {}
    for first, count in consecutive(sorted(inputs)):
        for made, number, input_set in log.outputs_of(receiver.operator, InputSetId(first), count):
            outputs.setdefault(input_set, []).append(EventId(made, number))
    reads = _reads(log, receiver.operator, sorted(inputs))
    asides = _asides(log, receiver.operator, sorted(inputs))
    for input_set, taken in sorted(inputs.items()):
        made_of = tuple(outputs.get(input_set, ()))
        dropped = not made_of and log.label(receiver.operator, input_set) == DROPPED
        yield Step(
            receiver.operator, input_set, tuple(taken), made_of, tuple(reads.get(input_set, ())),
            tuple(asides.get(input_set, ())), dropped,
        )  # fmt: skip


def _inputs(
    log: Lineages, known: Connections, operator: str, sets: Sequence[InputSetId]
) -> dict[InputSetId, list[EventId]]:
    """Return the events of some Input Sets, of the ports that lineage is captured for."""
    inputs = set(known.captured(operator).inputs)
    found: dict[InputSetId, list[EventId]] = {}
    for first, count in consecutive(sets):
        for member in log.inputs_of(operator, InputSetId(first), count):
            if member.port.name in inputs:
                sender = known.senders[member.port]
                numbers = range(member.first, member.first + member.count)
                found.setdefault(member.input_set, []).extend(EventId(sender, number) for number in numbers)
    return found


def _reads(log: Lineages, operator: str, sets: Sequence[InputSetId]) -> dict[InputSetId, list[Read]]:
    found: dict[InputSetId, list[Read]] = {}
    for first, count in consecutive(sets):
        for input_set, event in log.reads_of(operator, InputSetId(first), count):
            found.setdefault(input_set, []).append(_read(operator, event))
    return found


def _asides(log: Lineages, operator: str, sets: Sequence[InputSetId]) -> dict[InputSetId, list[AsideRow]]:
    found: dict[InputSetId, list[AsideRow]] = {}
    for first, count in consecutive(sets):
        for row in log.asides_of(operator, InputSetId(first), count):
            found.setdefault(row.input_set, []).append(row)
    return found


def _read(operator: str, event: ReadEventRow) -> Read:
    return Read(operator, event.connection, event.action, event.description or "")


def _of_source(log: Lineages, port: Port, action: InputSetId, made: Sequence[EventId]) -> Step:
    row = log.read_action(port.operator, action)
    reads = () if row is None else (Read(port.operator, row.connection, row.action, row.description),)
    return Step(port.operator, action, (), tuple(made), reads)
