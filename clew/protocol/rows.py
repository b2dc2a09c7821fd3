"""What the log holds, as values: events and their bodies in runs, assignments, lineage, state."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from clew.ids import InputSetId, Port

#: Which generative function an Input Set is for, and the operator's key for it: JSON, tuples in the place of lists.
Label = tuple[str, Any]
#: The label of an Input Set that ended without an Output Set: no function was given it, and none can have this name.
DROPPED: Label = ("not given to any", None)
Status = Literal["undone", "done"]


def label_of(text: str) -> Label:
    """Read a label back from JSON, where tuples have become lists, which nothing can be looked up by."""
    function, key = json.loads(text)
    return function, _hashable(key)


def _hashable(key: Any) -> Any:
    return tuple(_hashable(part) for part in key) if isinstance(key, list) else key


@dataclass(frozen=True, slots=True)
class Header:
    """What control knows of one event without opening its body."""

    rows: int
    size: int
    #: Receiver port -> (fingerprint of the declaration, facts computed for it).
    facts: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    #: Whether this event is the end of its port's stream.
    end: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Thousands travel with a turn; the way that dataclasses are pickled by default is three times slower.
        return Header, (self.rows, self.size, self.facts, self.end)


#: The header of an end-of-stream event, which has no records and no body.
END = Header(0, 0, {}, True)


@dataclass(frozen=True, slots=True)
class Bodies:
    """The bodies of consecutive events, in one place: inline, or one stretch of one file.

    B1: a run of bodies never changes; a file is never written again once a row refers to it.
    """

    lengths: tuple[int, ...]
    checksums: tuple[int, ...]
    data: bytes | None = None
    file: str | None = None
    offset: int = 0

    def __len__(self) -> int:
        return len(self.lengths)

    def __reduce__(self) -> tuple[Any, ...]:
        return Bodies, (self.lengths, self.checksums, self.data, self.file, self.offset)

    def cut(self, start: int, stop: int) -> "Bodies":
        """Return the bodies from index `start` up to `stop`."""
        if start == 0 and stop >= len(self.lengths):
            return self
        before = sum(self.lengths[:start])
        lengths = self.lengths[start:stop]
        data = None if self.data is None else self.data[before : before + sum(lengths)]
        return Bodies(lengths, self.checksums[start:stop], data, self.file, self.offset + before if self.file else 0)


@dataclass(frozen=True, slots=True)
class EventRun:
    """Consecutive events of one port, from `first` on."""

    port: Port
    first: int
    headers: tuple[Header, ...]
    bodies: tuple[Bodies, ...] = ()

    @property
    def last(self) -> int:
        return self.first + len(self.headers) - 1

    @property
    def size(self) -> int:
        return sum(header.size for header in self.headers)

    def cut(self, start: int, stop: int) -> "EventRun":
        """Return the events from index `start` up to `stop`."""
        if start == 0 and stop >= len(self.headers):
            return self
        return EventRun(self.port, self.first + start, self.headers[start:stop], cut_bodies(self.bodies, start, stop))


def cut_bodies(bodies: tuple[Bodies, ...], start: int, stop: int) -> tuple[Bodies, ...]:
    """Return the part of some runs of bodies from index `start` up to `stop`."""
    parts, at = [], 0
    for run in bodies:
        low, high = max(start - at, 0), min(stop - at, len(run))
        if low < high:
            parts.append(run.cut(low, high))
        at += len(run)
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Own:
    """Assignment: each event has an Input Set of its own, numbered from `first` on."""

    first: InputSetId


@dataclass(frozen=True, slots=True)
class Every:
    """Assignment: every `size` events share an Input Set, numbered from `first` on.

    `skip` events of the first Input Set came before this run.
    """

    first: InputSetId
    size: int
    skip: int = 0


@dataclass(frozen=True, slots=True)
class Listed:
    """Assignment: all events of the run belong to all the Input Sets listed; none of them: to `none`."""

    sets: tuple[InputSetId, ...]


Assignment = Own | Every | Listed


def sets_of(assignment: Assignment, index: int) -> tuple[InputSetId, ...]:
    """Return the Input Sets of the event at `index` of a run so assigned."""
    match assignment:
        case Own(first):
            return (InputSetId(first + index),)
        case Every(first, size, skip):
            return (InputSetId(first + (skip + index) // size),)
        case Listed(sets):
            return sets


@dataclass(frozen=True, slots=True)
class Member:
    """Events of an Input Set that is still open: what Algorithm 9 processes again, in order of `seq`."""

    seq: int
    port: Port
    first: int
    count: int
    input_set: InputSetId


@dataclass(frozen=True, slots=True)
class Lineage:
    """Which events of a port came from which Input Sets.

    The events are consecutive from `first` on, the Input Sets from `input_set` on; `counts` is
    run-length coded: (outputs per Input Set, for how many Input Sets), zeros included.
    """

    port: Port
    first: int
    input_set: InputSetId
    counts: tuple[tuple[int, int], ...]

    def extent(self) -> tuple[int, int]:
        """Return how many events there are, and of how many Input Sets."""
        if len(self.counts) == 1:  # As it is of nearly all turns.
            outputs, repeat = self.counts[0]
            return outputs * repeat, repeat
        return sum(outputs * repeat for outputs, repeat in self.counts), sum(repeat for _, repeat in self.counts)

    @property
    def end_set(self) -> InputSetId:
        """The Input Set after the last one."""
        return InputSetId(self.input_set + self.extent()[1])

    def pairs(self) -> Iterator[tuple[int, InputSetId]]:
        """Yield (event number, Input Set)."""
        number, input_set = self.first, self.input_set
        for outputs, repeat in self.counts:
            for _ in range(repeat):
                for _ in range(outputs):
                    yield number, input_set
                    number += 1
                input_set = InputSetId(input_set + 1)

    def within(self, low: int, high: int) -> Iterator[tuple[int, InputSetId]]:
        """Yield the pairs of the events from `low` to `high`; costs what it yields, and the length of `counts`."""
        number, input_set = self.first, self.input_set
        for outputs, repeat in self.counts:
            made = outputs * repeat
            for at in range(max(low, number), min(high, number + made - 1) + 1):
                yield at, InputSetId(input_set + (at - number) // outputs)
            number, input_set = number + made, InputSetId(input_set + repeat)

    def last_set(self, upto: int) -> InputSetId | None:
        """Return the last Input Set that an event up to a number came from."""
        number, input_set, found = self.first, self.input_set, None
        for outputs, repeat in self.counts:
            sets = min(repeat, -(-(upto + 1 - number) // outputs)) if outputs else 0
            if sets > 0:
                found = InputSetId(input_set + sets - 1)
            number, input_set = number + outputs * repeat, InputSetId(input_set + repeat)
        return found

    def of_sets(self, low: int, high: int) -> Iterator[tuple[int, InputSetId]]:
        """Yield the pairs of the Input Sets from `low` to `high`; costs what it yields, and the length of `counts`."""
        number, input_set = self.first, self.input_set
        for outputs, repeat in self.counts:
            for at in range(max(low, input_set), min(high, input_set + repeat - 1) + 1):
                begin = number + (at - input_set) * outputs
                yield from ((event, InputSetId(at)) for event in range(begin, begin + outputs))
            number, input_set = number + outputs * repeat, InputSetId(input_set + repeat)


@dataclass(frozen=True, slots=True)
class StateRow:
    """The latest STATE of an operator: its counters (LOG.io context) and its global state, both JSON."""

    state_id: int
    context: Mapping[str, Any]
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReadActionRow:
    """A read action of a source."""

    action: int
    connection: str
    description: str
    complete: bool


@dataclass(frozen=True, slots=True)
class ReadEventRow:
    """A read action's event: where its effect is stored."""

    action: int
    connection: str
    status: Status
    effect: Bodies | None
    #: What a side-effect read action asked for.
    description: str | None = None


@dataclass(frozen=True, slots=True)
class WriteRow:
    """A write action that is undone: what it writes is its own bodies, or the events it names."""

    number: int
    #: The events whose records are written: (sender port, first, count).
    events: tuple[tuple[Port, int, int], ...]
    bodies: tuple[Bodies, ...] = ()


AsideStatus = Literal["held", "retry", "drop", "retried", "dropped"]


@dataclass(frozen=True, slots=True)
class AsideRow:
    """An Input Set, or records of it, that its function fails on: set aside, with the error, until somebody decides.

    held     nobody has decided yet
    retry    it is to be tried again; drop: it is to be given up: what a person asked for
    retried  it was, as the Input Set `retried_as`; dropped: it was given up
    """

    number: int
    input_set: InputSetId
    label: Label
    #: What the Input Set saw of the global state.
    state: Any
    #: Its events: (input port, first, count, number of the first in the order of taking).
    events: tuple[tuple[str, int, int, int], ...]
    #: The records that are set aside, by their places in the event; None for all.
    records: tuple[int, ...] | None
    #: kind, message, frames, record, attempts.
    error: Mapping[str, Any]
    status: AsideStatus = "held"
    retried_as: int | None = None


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """An operator's state and who runs it."""

    operator: str
    status: Literal["restarted", "running", "dead", "finished"]
    incarnation: int


@dataclass(frozen=True, slots=True)
class LookupRow:
    """The content of a lookup that a run keeps: its hash, and itself where there is no place for files."""

    name: str
    digest: str
    data: bytes | None = None
