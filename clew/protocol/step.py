"""A decision of the protocol as a value: what to write, in one transaction, and whom to wake after it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clew.ids import NONE_SET, InputSetId, Port
from clew.protocol.rows import AsideRow, Assignment, Bodies, EventRun, Label, Lineage, WriteRow


@dataclass(frozen=True, slots=True)
class LogEvents:
    """Log output events as undone, one entry per receiver, and store their bodies.

    Expects that they follow the last event of the port without a gap.
    """

    run: EventRun


@dataclass(frozen=True, slots=True)
class FixSchema:
    """Fix the schema of a port (Arrow IPC); expects that it has none or the same."""

    port: Port
    schema: bytes


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Assign Input Sets to consecutive events received on a port; the first carries number `seq`.

    Expects that they follow the last event acknowledged there without a gap. Events assigned to no
    Input Set are done at once.
    """

    receiver: Port
    first: int
    count: int
    seq: int
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Let consecutive events that were acknowledged before join a further Input Set, which took in another one's.

    `seq` is the number that the first of them carries. Expects the Input Set undone.
    """

    receiver: Port
    first: int
    count: int
    seq: int
    input_set: InputSetId


@dataclass(frozen=True, slots=True)
class LogDecision:
    """Log what the clock made an operator decide; `seq` is its place in the order of the events taken."""

    operator: str
    seq: int
    decision: Any


@dataclass(frozen=True, slots=True)
class OpenSets:
    """Remember the labels of Input Sets: of those that stay open after this transaction, and those lineage needs.

    One that ends without an Output Set gets the label `DROPPED`, so that it is not taken for one that made nothing.
    """

    operator: str
    sets: tuple[tuple[InputSetId, Label], ...]


@dataclass(frozen=True, slots=True)
class FinishSets:
    """Set to done all entries of consecutive Input Sets; expects them undone."""

    operator: str
    first: InputSetId
    count: int


@dataclass(frozen=True, slots=True)
class LogStateEvent:
    """Log the global state that an Input Set saw, as an event without ports, done with its Input Set."""

    operator: str
    state_id: int
    input_set: InputSetId
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoreState:
    """Store the operator's counters and global state; expects that `state_id` is above the last one."""

    operator: str
    state_id: int
    context: Mapping[str, Any]
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoreKeyed:
    """Store what is remembered of some keys: (generative function, key, JSON); None where nothing is any more."""

    operator: str
    rows: tuple[tuple[str, str, Any], ...]


@dataclass(frozen=True, slots=True)
class LogLineage:
    """Record which output events came from which Input Sets."""

    lineage: Lineage


@dataclass(frozen=True, slots=True)
class AddReadAction:
    """Add a read action as incomplete; expects that its id is above the last one."""

    operator: str
    connection: str
    action: int
    description: str


@dataclass(frozen=True, slots=True)
class CompleteReadAction:
    """Set a read action to complete; expects it incomplete."""

    operator: str
    connection: str
    action: int


@dataclass(frozen=True, slots=True)
class LogReadEvent:
    """Log a read action as an event, its effect as the event's data.

    A source's own read action is undone and in no Input Set (Algorithm 1, Step 2.b); a side-effect
    read action is done, in the Input Set it served (Algorithm 3, Step 4.5a).
    """

    operator: str
    connection: str
    action: int
    effect: Bodies
    input_set: InputSetId | None = None
    #: What was asked for, where it is a side-effect read action; a source's own has a row that says it.
    description: str | None = None


@dataclass(frozen=True, slots=True)
class FinishReadEvent:
    """Set a source's read action event to done; expects it undone."""

    operator: str
    connection: str
    action: int


@dataclass(frozen=True, slots=True)
class DropReadEvent:
    """Delete the data of a read action event, if it is still there (Algorithm 1, Step 2.d)."""

    operator: str
    connection: str
    action: int


@dataclass(frozen=True, slots=True)
class LogWrites:
    """Log consecutive write actions of a connection (`OP.Cx`) as undone, each with what it writes.

    Expects that they follow the last write action of the connection without a gap.
    """

    port: Port
    writes: tuple[WriteRow, ...]


@dataclass(frozen=True, slots=True)
class FinishWrites:
    """Set consecutive write actions to done; expects them undone."""

    port: Port
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """Set Input Sets, or records of them, aside; their events stay until each is resolved."""

    operator: str
    rows: tuple[AsideRow, ...]


@dataclass(frozen=True, slots=True)
class ResolveAside:
    """Say what became of something that was set aside: tried again as an Input Set, or dropped."""

    operator: str
    number: int
    retried_as: InputSetId | None


@dataclass(frozen=True, slots=True)
class ForgetPort:
    """Forget what was acknowledged on a receiving port that another sender, or none, leads to now.

    Of Input Sets up to `upto` the log then cannot say any more what they took there.
    """

    receiver: Port
    upto: InputSetId = NONE_SET


@dataclass(frozen=True, slots=True)
class ForgetKeys:
    """Forget what is remembered of all keys of an operator."""

    operator: str


@dataclass(frozen=True, slots=True)
class BeginAfter:
    """Let a receiving port begin after event `upto` of its sender: those before it are acknowledged and done at once.

    `seq` is the number that the first of them carries.
    """

    receiver: Port
    upto: int
    seq: int


@dataclass(frozen=True, slots=True)
class StoreVersion:
    """Store what the operator is, as it was declared; None where the pipeline has it no more."""

    operator: str
    version: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class SetOperator:
    """Set the operator's state."""

    operator: str
    status: Literal["running", "finished"]


Write = (
    LogEvents | FixSchema | Acknowledge | Rejoin | LogDecision | OpenSets | FinishSets | LogStateEvent | StoreState
    | StoreKeyed | LogLineage
    | AddReadAction | CompleteReadAction | LogReadEvent | FinishReadEvent | DropReadEvent | LogWrites
    | FinishWrites | SetAside | ResolveAside | ForgetPort | ForgetKeys | BeginAfter | StoreVersion | SetOperator
)  # fmt: skip


def owner_of(write: Write) -> str:
    """Return the operator whose row a write makes: no other may make it (F1)."""
    match write:
        case LogEvents(run):
            return run.port.operator
        case LogLineage(lineage):
            return lineage.port.operator
        case Acknowledge(receiver) | Rejoin(receiver) | ForgetPort(receiver) | BeginAfter(receiver):
            return receiver.operator
        case FixSchema(port) | LogWrites(port) | FinishWrites(port):
            return port.operator
        case _:
            return write.operator


@dataclass(frozen=True, slots=True)
class Step:
    """One decision of the protocol.

    S1: all `writes` commit in one transaction, or none does.
    S2: nothing in `sends` leaves the process before that commit.
    """

    writes: tuple[Write, ...] = ()
    sends: tuple[EventRun, ...] = ()
    #: Ports whose receivers must look into the log again.
    resends: tuple[Port, ...] = ()
    #: Whether the transaction must be synced by itself. What only acknowledges need not: lost, it is done again.
    durable: bool = True
