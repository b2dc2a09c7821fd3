"""What the log holds of a run that was cut off, as far as a change of the pipeline may concern it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from clew.ids import EventId, InputSetId, Port
from clew.protocol.rows import StateRow
from clew.store.base import Store


@dataclass(frozen=True)
class Held:
    """What one operator has before it: all that would be lost if it were gone."""

    state: StateRow | None = None
    #: The version that the log has of it; None for an operator of an older log, or one that is gone.
    version: Mapping[str, Any] | None = None
    #: Input port -> the events that are sent to it and not taken, and those that are taken and not done.
    waiting: Mapping[str, range] = field(default_factory=dict)
    taken: Mapping[str, frozenset[int]] = field(default_factory=dict)
    #: Open Input Set -> its events: (input port, number).
    open: Mapping[InputSetId, frozenset[tuple[str, int]]] = field(default_factory=dict)
    #: Connection -> the write actions that are not done, in order.
    writes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: What is set aside and not resolved, by its number; and the input ports that it came on.
    aside: tuple[int, ...] = ()
    aside_ports: frozenset[str] = frozenset()
    #: Whether a source has chosen what it reads.
    reading: bool = False

    @property
    def begun(self) -> bool:
        return self.state is not None or self.reading

    @property
    def flushed(self) -> bool:
        return self.state is not None and bool(self.state.context.get("flushed") or self.state.context.get("finished"))

    def counter(self, name: str, of: str) -> int:
        """Return one of the counters that STATE keeps by port or connection."""
        return int(self.state.context.get(name, {}).get(of, 0)) if self.state is not None else 0

    def on(self, port: str) -> list[int]:
        """Return the events that wait on an input port, and those that are taken and not done, in order."""
        return sorted({*self.waiting.get(port, ()), *self.taken.get(port, ())})


@dataclass(frozen=True)
class Logged:
    """A run as its log has it."""

    links: Mapping[Port, Port]
    operators: Mapping[str, Held]
    #: Output ports whose last event is the end of the stream.
    ended: frozenset[Port] = frozenset()
    #: Whether the log says what operators were declared to be; one of an older Clew does not.
    told: bool = True

    def of(self, operator: str) -> Held:
        return self.operators.get(operator, Held())

    def sent(self, port: Port) -> int:
        return self.of(port.operator).counter("sent", port.name)


def read_logged(store: Store) -> Logged:
    """Read what waits in a log."""
    links = {receiver: sender for sender, receiver in store.links()}
    versions = store.versions()
    states = {row.operator: store.state(row.operator) for row in store.operators()}
    sent = {
        Port(operator, port): last
        for operator, state in states.items()
        if state is not None
        for port, last in state.context.get("sent", {}).items()
    }
    ended = frozenset(port for port, last in sent.items() if _is_end(store, port, last))
    operators = {
        operator: _held(store, operator, state, versions.get(operator), links, sent, ended)
        for operator, state in states.items()
    }
    return Logged(links, operators, ended, bool(versions))


def _is_end(store: Store, port: Port, last: int) -> bool:
    return any(header.end for run in store.events(port, last, 1) for header in run.headers)


def _held(
    store: Store,
    operator: str,
    state: StateRow | None,
    version: Mapping[str, Any] | None,
    links: Mapping[Port, Port],
    sent: Mapping[Port, int],
    ended: frozenset[Port],
) -> Held:
    held = Held(state)
    waiting = {
        # An end is no event that anybody would miss.
        receiver.name: range(held.counter("latest", receiver.name) + 1, sent.get(sender, 0) + 1 - (sender in ended))
        for receiver, sender in links.items()
        if receiver.operator == operator
    }
    taken: dict[str, set[int]] = {}
    opened: dict[InputSetId, set[tuple[str, int]]] = {}
    for member in store.members(operator):
        numbers = range(member.first, member.first + member.count)
        taken.setdefault(member.port.name, set()).update(numbers)
        opened.setdefault(member.input_set, set()).update((member.port.name, number) for number in numbers)
    asides = [row for row in store.asides(operator) if row.status in ("held", "retry", "drop")]
    return Held(
        state, version, waiting,
        {port: frozenset(numbers) for port, numbers in taken.items()},
        {number: frozenset(events) for number, events in opened.items()},
        {name: _undone(store, Port(operator, name), last) for name, last in _writes(state)},
        tuple(row.number for row in asides), frozenset(event[0] for row in asides for event in row.events),
        store.last_read_action(operator) is not None,
    )  # fmt: skip


def _writes(state: StateRow | None) -> Iterator[tuple[str, int]]:
    yield from state.context.get("writes", {}).items() if state is not None else ()


def _undone(store: Store, port: Port, last: int) -> tuple[int, ...]:
    return tuple(row.number for row in store.undone_writes(port, last))


def used_events(store: Store, operator: str) -> set[tuple[str, int]]:
    """Return the events of an operator that are in an Input Set that is done: (input port, number)."""
    done = (row for row in store.table("EVENT_LOG") if row[1] == "done" and row[4] == operator)
    # 0 is the Input Set of those that belong to none.
    return {(port, number) for number, _, _, _, _, port, input_set in done if input_set}


def named(sender: Port, numbers: Iterable[int]) -> str:
    """Name events, consecutive ones as a range, shortened where there are many."""
    runs = [(run[0], run[-1]) for run in consecutive(numbers)]
    names = [f"{EventId(sender, a)}" if a == b else f"{EventId(sender, a)}..{b}" for a, b in runs[:4]]
    more = sum(b - a + 1 for a, b in runs[4:])
    return ", ".join(names) + (f" and {more} more" if more else "")


def consecutive(numbers: Iterable[int]) -> list[list[int]]:
    """Return the numbers as runs of consecutive ones."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs
