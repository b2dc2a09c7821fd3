"""The contract of a log store. One suite of tests, `tests/store/`, holds every backend to it.

Invariants, by the names that assertions, tests and docs use:

S1  A commit applies all its writes, or none of them.
F1  Fencing: a commit carries an incarnation; unless it is the operator's current one, the commit is
    refused with StaleWriter and changes nothing. `take_over` makes a new one, durable before it returns;
    it is refused in the same way to a process that another one has followed (`claim`).
    An operator writes rows of its own only.
C1  Numbers of a port are consecutive from 1, and so are those acknowledged on a receiving port.
C2  Counters outlive rows: collection never makes a number come again.
B1  Runs of bodies never change.
D1  A commit that was asked to be durable survives kill -9 and power loss when it returns. One that
    was not is made durable by the next durable commit of the same store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol

from clew.ids import Capture, InputSetId, Port
from clew.protocol.rows import (
    AsideRow,
    Bodies,
    EventRun,
    Label,
    LookupRow,
    Member,
    OperatorRow,
    ReadActionRow,
    ReadEventRow,
    StateRow,
    Status,
    WriteRow,
)
from clew.protocol.step import Write

#: The schema of the log's tables; a log with a higher one is refused with NewerLog.
SCHEMA_VERSION = 6

Table = Literal["EVENT_LOG", "EVENT_DATA", "READ_ACTION", "STATE", "EVENT_LINEAGE"]

#: Columns of the paper's tables (LOG.io, Section 3.2), in order; `Store.table` gives rows of these.
TABLES: dict[Table, tuple[str, ...]] = {
    "EVENT_LOG": ("event_id", "status", "send_op", "send_p", "rec_op", "rec_p", "inset_id"),
    "EVENT_DATA": ("event_id", "send_op", "send_p", "header", "body"),
    "READ_ACTION": ("action_id", "status", "op_id", "conn_id", "action_desc"),
    "STATE": ("state_id", "op_id", "state"),
    "EVENT_LINEAGE": ("event_id", "send_op", "send_p", "inset_id"),
}


@dataclass(frozen=True, slots=True)
class Topology:
    """Whose log it is: the pipeline, its operators and its connections (sender, receiver)."""

    pipeline: str
    fingerprint: str
    operators: tuple[str, ...]
    links: tuple[tuple[Port, Port], ...]
    #: The ports that lineage is captured for, by operator.
    captures: Mapping[str, Capture] = field(default_factory=dict)
    #: Operators of which it is not captured for all ports, and write actions (`OPERATOR.writes:CONNECTION`) of which it
    #: is not: the log remembers those that ever were such.
    uncaptured: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits on a connection: events and bytes not yet acknowledged by the receiver."""

    events: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection removed, and the body files that no row refers to any more."""

    events: int
    files: tuple[str, ...]


#: No port of which events are kept.
NO_PORTS: Mapping[Port, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Entry:
    """An event at one receiver, in one Input Set; of a write action, the connection is its receiver."""

    number: int
    receiver: Port
    #: None while the event is not acknowledged, and of write actions; 0 for the Input Set none.
    input_set: InputSetId | None
    status: Status


class Store(Protocol):
    """Where the log lives. All methods may be called from any thread."""

    @property
    def run_id(self) -> str:
        """The identity of the run: made with the log, never again."""

    def declare(self, topology: Topology) -> None:
        """Say whose log this is.

        Each receiving port has one sender. A log that was declared before takes the new connections; whether it should
        is for `clew.runtime.changes` to say.
        Raises WrongLog when it is another pipeline's, or when it has events but no identity.
        """

    def change(self, topology: Topology, writes: Sequence[Write]) -> None:
        """Declare a pipeline that was changed, with all that the change does, in one durable transaction (S1).

        An operator that something else than its version is written of gets a new incarnation, so that whoever ran it
        before is refused (F1). Raises what `declare` and `commit` raise.
        """

    def versions(self) -> dict[str, Any]:
        """Return what operators were declared to be when they were last taken over; without those that are gone."""

    def owner(self) -> str | None:
        """Return the name of the pipeline whose log this is, or None when it was never declared."""

    def links(self) -> list[tuple[Port, Port]]:
        """Return the connections (sender, receiver) that were declared last."""

    def claim(self) -> None:
        """Make this store's process the one that runs the pipeline, before it takes any operator over.

        A process may be frozen between two takeovers and wake up when another one has the run: from now on, stores that
        claimed it before are refused every takeover (F1). One that never claimed the run may always take over.
        """

    def take_over(self, operator: str) -> int:
        """Fence off whoever ran the operator before; return the new incarnation, durable (F1).

        The operator's state becomes "restarted".
        """

    def commit(self, operator: str, incarnation: int, writes: Sequence[Write], durable: bool = True) -> None:
        """Apply all writes in one transaction (S1, F1, D1).

        Raises StaleWriter, UnexpectedRow when a row is not as a write expects, or StoreFailed, after
        which every further call raises StoreFailed until the store is opened again.
        """

    def operators(self) -> list[OperatorRow]:
        """Return all declared operators; one that never ran is "dead" with incarnation 0."""

    def state(self, operator: str) -> StateRow | None:
        """Return the latest STATE of the operator."""

    def keyed(self, operator: str) -> list[tuple[str, str, Any]]:
        """Return what STATE has of the operator's keys: (generative function, key, value), sorted."""

    def asides(self, operator: str) -> list[AsideRow]:
        """Return everything of the operator that was ever set aside and is in the log, in order of its numbers."""

    def decide_asides(self, operator: str, numbers: Sequence[int], status: Literal["retry", "drop"]) -> int:
        """Say what is to become of things that were set aside and are not resolved; returns how many it was said of.

        This is a person's word and not the operator's, so it needs no incarnation. Durable when it returns.
        """

    def lookups(self, operator: str) -> list[LookupRow]:
        """Return the lookups whose content the run keeps for the operator, by name."""

    def keep_lookup(self, operator: str, row: LookupRow) -> None:
        """Say which content a lookup has in this run; the first word holds. Durable when it returns."""

    def schema(self, port: Port) -> bytes | None:
        """Return the schema that a port is fixed to."""

    def unacknowledged(self, receiver: Port, after: int, max_events: int, max_bytes: int) -> list[EventRun]:
        """Return the events sent to `receiver` with numbers above `after`, in order.

        At most `max_events`, and at most `max_bytes` of bodies, but at least one event if there is any.
        """

    def backlog(self, receiver: Port) -> Backlog:
        """Return what waits on the connection to `receiver`."""

    def members(self, operator: str) -> list[Member]:
        """Return the acknowledged, undone entries of the operator's input, ordered by (seq, Input Set).

        Adjacent events of one Input Set may come as one Member: with count n it covers n consecutive
        events with consecutive seq numbers.
        """

    def open_sets(self, operator: str) -> dict[InputSetId, Label]:
        """Return the labels of the operator's Input Sets that are not done."""

    def events(self, port: Port, first: int, count: int) -> list[EventRun]:
        """Return events of a port with their bodies, in order, whatever their status."""

    def last_read_action(self, operator: str) -> ReadActionRow | None:
        """Return the source's latest read action (not a side-effect one)."""

    def read_event(self, operator: str, connection: str, action: int) -> ReadEventRow | None:
        """Return a read action's event."""

    def undone_writes(self, port: Port, limit: int) -> list[WriteRow]:
        """Return the undone write actions of a connection, in order of their numbers."""

    def collect(self, grace: int = 0, keep: Mapping[Port, int] = NO_PORTS) -> Collected:
        """Forget what is done: for each port, the events up to the last one before which all are done.

        "Done" is: every receiver's entry is done, no undone write action names the event, and nothing that was set
        aside and is not resolved holds it. Their
        entries, bodies and lineage go together, as do finished write actions, their Input Sets'
        labels, state events, side-effect read events and decisions. The last `grace` events of a port stay, and those
        from `keep[port]` on; so do the lineage of write actions, and what an Input Set needs of which any event stays.
        Durable when it returns, because the caller removes files next.
        The latest STATE, counters and schemas stay (C2). Only whole prefixes go, so that every
        backend keeps the same rows. `files` lists the body files no row refers to any more, of all
        those that the collected rows referred to; the caller removes them.
        """

    def referenced_files(self) -> set[str]:
        """Return the names of all body files that some row refers to."""

    def table(self, name: Table) -> list[tuple[Any, ...]]:
        """Return one of the paper's tables, one row per event, sorted; see TABLES.

        EVENT_LOG: an entry per event, receiver and Input Set; inset_id None while unacknowledged, 0 for
        the Input Set none. A port without a receiver: status done, rec_op and rec_p None. A write
        action: send_p None, rec_p the connection. A source's read action: send_p the connection, rec_op
        and rec_p None. A side-effect read: the same with inset_id. A state event: all ports None,
        send_op the operator, event_id the state_id.
        EVENT_DATA: header as JSON text of [rows, size, end], body as bytes when inline, else
        'file:NAME@OFFSET+LENGTH'. End-of-stream events and write actions without bodies have none.
        STATE: the JSON text of {"context": ..., "state": ...} with sorted keys.
        """

    def close(self) -> None:
        """Release everything; a closed store cannot be used again."""


@dataclass(frozen=True, slots=True)
class Worn:
    """Up to which Input Set those of an operator may have lost events, as to collection; later ones are whole."""

    #: By input port, of the events that they took; by output port, of those that were made of them.
    taken: Mapping[str, int]
    made: Mapping[str, int]


class Lineages(Protocol):
    """What lineage asks of a log. Each answer costs what it holds, however long the log is.

    Only what is still in the log is told. Write actions are asked for as events of the port `writes_port(connection)`.
    """

    def captures(self) -> dict[str, Capture]:
        """Return the ports that lineage is captured for, by operator, as they were declared last."""

    def links(self) -> list[tuple[Port, Port]]:
        """Return the connections (sender, receiver) that were declared last."""

    def extent(self, port: Port) -> tuple[int, int]:
        """Return up to which event a port was collected, and the last that was ever sent there; 0 for none."""

    def ends(self, port: Port) -> bool:
        """Say whether the last event of a port is the end of its stream, which holds no records."""

    def worn(self, operator: str) -> Worn:
        """Return which Input Sets of an operator may have lost events."""

    def origins(self, port: Port, first: int, count: int) -> list[tuple[int, InputSetId]]:
        """Return which Input Sets some events were made of: (number, Input Set), in order.

        Of a source it is the read action, in the place of an Input Set.
        """

    def inputs_of(self, operator: str, first: InputSetId, count: int) -> list[Member]:
        """Return the events of some Input Sets, open ones too, as `Store.members` does: in the order of taking."""

    def joined(self, receiver: Port, first: int, count: int) -> list[tuple[int, InputSetId]]:
        """Return the Input Sets that events received on a port belong to: (number, Input Set), sorted."""

    def passed_over(self, receiver: Port, first: int, count: int) -> list[int]:
        """Return which events received on a port were acknowledged and are in no Input Set, in order."""

    def outputs_of(self, operator: str, first: InputSetId, count: int) -> list[tuple[Port, int, InputSetId]]:
        """Return the events and write actions that some Input Sets were made into, sorted."""

    def reads_of(self, operator: str, first: InputSetId, count: int) -> list[tuple[InputSetId, ReadEventRow]]:
        """Return the side-effect read actions that served some Input Sets, sorted by connection and number."""

    def read_action(self, operator: str, action: int) -> ReadActionRow | None:
        """Return a read action of a source."""

    def write_action(self, port: Port, number: int) -> WriteRow | None:
        """Return a write action, done or not; None where it is no longer in the log."""

    def made_before(self, port: Port, time: float) -> int:
        """Return the last event, or write action, of a port that was logged before a time (seconds since the epoch)."""

    def bytes_from(self, port: Port, number: int) -> int:
        """Return how many bytes of bodies the events of a port from a number on have, to the nearest run."""

    def undone_from(self, receiver: Port) -> int:
        """Return the first event of a receiving port that is not done there; one past the last where all are."""

    def first_set(self, port: Port, number: int) -> InputSetId | None:
        """Return an Input Set before which none is that events of a port from a number on were made of."""

    def first_inputs(self, operator: str, input_set: InputSetId) -> dict[str, int]:
        """Return, by input port, the first event that is in an Input Set from the given one on."""

    def asides(self, operator: str) -> list[AsideRow]:
        """Return what of the operator was set aside, as `Store.asides` does."""

    def asides_of(self, operator: str, first: InputSetId, count: int) -> list[AsideRow]:
        """Return what of some Input Sets was set aside, in order of its numbers."""

    def retried_as(self, operator: str, input_set: InputSetId) -> AsideRow | None:
        """Return what was set aside before and tried again as an Input Set; None where it is no such one."""

    def label(self, operator: str, input_set: InputSetId) -> Label | None:
        """Return which function and key an Input Set is for; None where that is not kept."""

    def seen(self, operator: str, input_set: InputSetId) -> Any:
        """Return what an Input Set saw of the global state; None where it saw none."""


#: The role of keeping the processes of a run alive.
SUPERVISOR = "supervisor"
_GROUP = "group "


def group_role(group: str) -> str:
    """Return the role of running a group."""
    return f"{_GROUP}{group}"


def group_of(role: str) -> str | None:
    """Return the group that a role is of; None where it is another role."""
    return role.removeprefix(_GROUP) if role.startswith(_GROUP) else None


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that may have roles in a run: a name that no other process ever has, and where it is."""

    name: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """Who has a role in a run, or had it last."""

    role: str
    holder: Holder
    #: How many processes have had the role since the log was made.
    starts: int
    #: Seconds since it was heard of last, and for which the role is still its own; below 0 where its time is up.
    silent: float
    left: float
    #: Whether it gave the role up by itself; then nothing of it is left.
    given_up: bool
    #: What it said of itself last, as JSON.
    report: Mapping[str, Any]
    #: What it was asked to do, and may not have heard yet.
    asked: str = ""


class Leases(Protocol):
    """Who has which role in a run that several processes share: its supervisor, each of its groups.

    A lease says who should work, so that two do not get into each other's way. Who may, is for the incarnation of an
    operator to say (F1): a process that has lost its lease and does not know it yet is refused by the log.
    """

    def take_lease(
        self, role: str, holder: Holder, seconds: float, dead: str | None = None, stood_by: bool = False
    ) -> ProcessRow | None:
        """Take a role for some seconds; returns who has it, or None when it is the holder's now.

        It is to be had where nobody ever had it, where its time is up, where `dead` names who has it, and by who has it
        already. All see it when it returns, as all of these, and it is durable where several machines share the log.
        What was asked of the one before is asked of who `stood_by` meanwhile too, and of nobody else.
        """

    def renew_lease(self, role: str, holder: Holder, seconds: float, report: Mapping[str, Any]) -> str | None:
        """Keep a role for some seconds from now on, and say something of oneself.

        Returns what the holder is asked to do, "" for nothing; or None when the role is another's now.
        """

    def release_lease(self, role: str, holder: Holder) -> None:
        """Give a role up, if it is still the holder's."""

    def ask_processes(self, what: str) -> int:
        """Ask everybody who has a role to do something, such as "stop"; returns how many were asked."""

    def processes(self) -> list[ProcessRow]:
        """Return who has, or had last, each role, by role."""


class KeptStore(Store, Lineages, Leases, Protocol):
    """A store that outlives its run, can be asked where things came from, and knows who works on it."""


class LogReader(Lineages, Protocol):
    """A log that was opened for reading alone: beside a run, and by as many processes as one likes. For one thread.

    Write actions are asked for as events of the port `writes_port(connection)`, here too.
    """

    def owner(self) -> str | None:
        """Return the name of the pipeline whose log this is, as `Store.owner` does."""

    def ports(self) -> list[Port]:
        """Return the ports that events were sent on, or may be, in order; write actions have theirs."""

    def schema(self, port: Port) -> bytes | None:
        """Return the schema that a port is fixed to."""

    def events(self, port: Port, first: int, count: int) -> list[EventRun]:
        """Return events of a port with their bodies, as `Store.events` does."""

    def headers(self, port: Port, first: int, count: int) -> list[EventRun]:
        """Return events of a port without their bodies; write actions have no headers."""

    def entries(self, port: Port, first: int, count: int) -> list[Entry]:
        """Return the entries of some events of a port, by receiver, number and Input Set; EVENT_LOG has them too.

        A port without a receiver has none.
        """

    def close(self) -> None:
        """Release everything; a closed reader cannot be used again."""


__all__ = [
    "NO_PORTS", "SCHEMA_VERSION", "SUPERVISOR", "TABLES", "Backlog", "Bodies", "Collected", "Entry", "Holder",
    "KeptStore", "Leases", "Lineages", "LogReader", "ProcessRow", "Store", "Table", "Topology", "Worn", "group_of",
    "group_role",
]  # fmt: skip
