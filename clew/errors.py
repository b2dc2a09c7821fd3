"""What can go wrong, one class per failure; each says fact, expectation, cure."""

from dataclasses import dataclass, field, fields, is_dataclass

from clew.words import counted


class ClewError(Exception):
    """Any failure that Clew explains to its user.

    Subclasses are dataclasses: their fields are kept, also across a process boundary, which is why
    pickling rebuilds them from their fields and not from `args`.
    """

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        if not is_dataclass(self):
            return type(self), self.args
        return type(self), tuple(getattr(self, f.name) for f in fields(self))


@dataclass(eq=False)
class GraphError(ClewError):
    """The pipeline's declaration contradicts itself."""

    message: str
    location: str = ""

    def __str__(self) -> str:
        return f"{self.location}: {self.message}" if self.location else self.message


@dataclass(eq=False)
class GraphErrors(ClewError):
    """All that is wrong with a pipeline's declaration, found before anything starts."""

    pipeline: str
    errors: tuple[GraphError, ...]

    def __str__(self) -> str:
        lines = "\n".join(f"  {error}" for error in self.errors)
        return f"pipeline {self.pipeline} cannot run:\n{lines}"


@dataclass(eq=False)
class SinkAhead(ClewError):
    """A sink holds a write that the log has not made yet: the log is older than the sink."""

    operator: str
    sink: str
    number: int

    def __str__(self) -> str:
        return (
            f"{self.sink} holds write {self.number} of {self.operator}, which the log has not made yet: the log is "
            "older than what it has written, and new writes would be taken for old ones; put the newer log back, or "
            "start with --fresh and a sink that is empty"
        )


@dataclass(eq=False)
class StaleWriter(ClewError):
    """A writer of an older incarnation was refused (invariant F1)."""

    operator: str
    #: 0 when it was refused to become one.
    incarnation: int
    current: int

    def __str__(self) -> str:
        did = f"wrote as incarnation {self.incarnation}" if self.incarnation else "was to start"
        return (
            f"operator {self.operator} {did}, but the log is at {self.current}; another process took it over, so this "
            "one must stop"
        )


@dataclass(eq=False)
class UnexpectedRow(ClewError):
    """A row of the log is not as the writer expected it (invariant S1)."""

    what: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.what} is {self.found}, expected {self.expected}; was this operator restarted elsewhere?"


@dataclass(eq=False)
class GapInIds(ClewError):
    """A receiver saw an id that does not follow the one before (invariant C1)."""

    port: str
    expected: int
    found: int

    def __str__(self) -> str:
        return (
            f"{self.port} received event #{self.found}, expected #{self.expected}; the log has lost events or "
            "was changed by hand, so nothing more is read from it"
        )


@dataclass(eq=False)
class StoreFailed(ClewError):
    """The log store cannot go on; it is poisoned until it is opened again."""

    what: str
    cure: str = "mend the cause and run again: what was acknowledged is safe"

    def __str__(self) -> str:
        return f"{self.what}; {self.cure}"


@dataclass(eq=False)
class StoreUnreachable(StoreFailed):
    """The server of the log does not answer, or has gone in the middle: it may be there again when it is opened."""


@dataclass(eq=False)
class NewerLog(ClewError):
    """The log was made by a newer Clew."""

    found: int
    known: int
    log: str = ""

    def __str__(self) -> str:
        return (
            f"the log {self.log} has schema version {self.found}, this Clew knows up to {self.known}; "
            "upgrade Clew, or start a new log with --fresh"
        )


@dataclass(eq=False)
class WrongLog(ClewError):
    """The log belongs to another pipeline, or does not say whose it is."""

    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class GraphChanged(ClewError):
    """The pipeline is not what its run began with, in a way that concerns what waits in the log."""

    pipeline: str
    #: One fact each, with what can be done about it.
    changes: tuple[str, ...]

    def __str__(self) -> str:
        told = "".join(f"\n  {change}" for change in self.changes)
        return (
            f"pipeline {self.pipeline} is not as it was when its run began:{told}\n"
            "put it back as it was to go on, accept what can be accepted, or start from the beginning with --fresh"
        )


@dataclass(eq=False)
class RunFinished(ClewError):
    """A finished log is final."""

    pipeline: str
    log: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline} has finished in {self.log}, and a finished log is final; "
            "use --fresh to run it from the start in a new log"
        )


@dataclass(eq=False)
class UserFunctionFailed(ClewError):
    """The user's own code raised, on every attempt."""

    operator: str
    events: str
    kind: str
    message: str
    frames: str
    attempts: int = 1
    #: The record that it failed on, where the function takes single records.
    record: str = ""

    def __str__(self) -> str:
        where = f"{self.events}, {self.record}" if self.record else self.events
        frames = f"\n{self.frames}" if self.frames else ""
        # Without a line of the user's own, or a record that it failed on, what failed is a verb of Clew's.
        what = "the function" if self.frames or self.record else "its declaration, or what it is given,"
        return (
            f"operator {self.operator} failed on {where} ({counted(self.attempts, 'attempt')}): "
            f"{self.kind}: {self.message}{frames}\n"
            f"mend {what} and run again: the run resumes at this event"
        )


@dataclass(eq=False)
class OperatorFailed(ClewError):
    """An operator can make nothing of what it was given, though no code of the user's raised."""

    operator: str
    events: str
    reason: str
    #: The record that it failed on, where it takes single records.
    record: str = ""

    def __str__(self) -> str:
        where = f"{self.events}, {self.record}" if self.record else self.events
        return (
            f"operator {self.operator} failed on {where}: {self.reason}\n"
            "mend that and run again: the run resumes at this event"
        )


@dataclass(eq=False)
class NotPlaced(ClewError):
    """An operator cannot tell which Input Sets an event belongs to."""

    operator: str
    event: str
    reason: str
    frames: str = ""
    #: The record to blame, where it is one.
    record: str = ""

    def __str__(self) -> str:
        where = f"{self.event}, {self.record}" if self.record else self.event
        frames = f"\n{self.frames}" if self.frames else ""
        return (
            f"operator {self.operator} cannot place {where}: {self.reason}{frames}\n"
            'mend its declaration and run again, or let it set such events aside with on_error="quarantine"'
        )


@dataclass(eq=False)
class HookFailed(ClewError):
    """The setup hook of an operator raised: no record is to blame."""

    operator: str
    kind: str
    message: str
    frames: str

    def __str__(self) -> str:
        return (
            f"setup of operator {self.operator} failed: {self.kind}: {self.message}\n{self.frames}\n"
            "mend what it needs, or the hook itself, and run again: the run resumes where it stopped"
        )


@dataclass(eq=False)
class LookupFailed(ClewError):
    """A static table cannot be read, or is not as it was declared."""

    operator: str
    lookup: str
    what: str
    #: The user's own, where a function of theirs raised.
    frames: str = ""

    def __str__(self) -> str:
        cure = f"\n{self.frames}\nmend it, and run again" if self.frames else "; mend it, and run again"
        return f"lookup {self.lookup} of operator {self.operator}: {self.what}{cure}"


@dataclass(eq=False)
class TurnTimedOut(ClewError):
    """A turn lasted longer than its limit and was cut off."""

    operator: str
    events: str
    seconds: float

    def __str__(self) -> str:
        return (
            f"operator {self.operator} was cut off on {self.events}: it ran longer than its limit of "
            f"{self.seconds:g} s; make it faster or raise turn_timeout"
        )


@dataclass(eq=False)
class TypeRefused(ClewError):
    """A column's type cannot pass through Spark without loss."""

    column: str
    type: str
    why: str
    cure: str
    #: Where it happened, in a run.
    operator: str = ""
    events: str = ""

    def __str__(self) -> str:
        where = f"operator {self.operator} failed on {self.events}: " if self.operator else ""
        return f"{where}column {self.column} has type {self.type}: {self.why}; {self.cure}"


@dataclass(eq=False)
class SchemaChanged(ClewError):
    """A port produced records of another schema than the one it is fixed to."""

    port: str
    column: str
    found: str
    expected: str
    #: Whether the port's schema was declared; else its first event has fixed it.
    declared: bool = False
    #: Where its type can be changed: a verb of Clew's has no function of the user's.
    cure: str = "cast it in the function"

    def __str__(self) -> str:
        found = f"{self.port} produced column {self.column} as {self.found}"
        if self.declared:
            return (
                f"{found}, but this port is declared with {self.expected}; {self.cure}, or mend the declaration and "
                "start with --fresh"
            )
        return (
            f"{found}, but this port is fixed to {self.expected} since its first event; {self.cure}, or declare "
            "schema= and start with --fresh"
        )


@dataclass(eq=False)
class RecordRefused(ClewError):
    """A function of single records returned one that its port cannot carry."""

    found: str
    expected: str

    def __str__(self) -> str:
        return f"it returned {self.found}, expected {self.expected}"


@dataclass(eq=False)
class SourceFailed(ClewError):
    """A source cannot be read."""

    source: str
    what: str
    cure: str
    #: Whether the system could not be reached at all: it may be back soon.
    away: bool = False

    def __str__(self) -> str:
        return f"source {self.source}: {self.what}; {self.cure}"


@dataclass(eq=False)
class AnswerRefused(SourceFailed):
    """A system answered a read action, once and for all, and not with records: what asked for them is to blame."""


@dataclass(eq=False)
class SinkFailed(ClewError):
    """A write action was refused by the outside system."""

    sink: str
    what: str
    cure: str
    #: Seconds to wait before it is tried again; None where that cannot help.
    again: float | None = 0.0
    #: Whether the system could not be reached at all: it may be back soon.
    away: bool = False

    def __str__(self) -> str:
        return f"sink {self.sink}: {self.what}; {self.cure}"


@dataclass(eq=False)
class BodyDamaged(ClewError):
    """The body of an event is not what was written."""

    place: str

    def __str__(self) -> str:
        return f"the body at {self.place} does not match its checksum; restore the file from a backup of the log"


@dataclass(eq=False)
class EngineLost(ClewError):
    """The Spark driver died under a turn; the turn can be tried again on the next one."""

    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(eq=False)
class EngineFailed(ClewError):
    """Spark failed a job for a reason that is not the user's code; without an operator, a job of a verification."""

    operator: str
    what: str
    stack_file: str = ""

    def __str__(self) -> str:
        where = f"; the Java stack is in {self.stack_file}" if self.stack_file else ""
        if not self.operator:
            return f"Spark failed a job of the verification: {self.what}{where}; mend the cause and verify again"
        return f"operator {self.operator}: Spark failed the job: {self.what}{where}; mend the cause and run again"


@dataclass(eq=False)
class SetupFailed(ClewError):
    """Something that Clew needs on this machine is missing."""

    what: str
    cure: str

    def __str__(self) -> str:
        return f"{self.what}; {self.cure}"


@dataclass(eq=False)
class RunStopped(ClewError):
    """A group failed again and again, and the supervisor gave up."""

    group: str
    restarts: int
    cause: str = field(default="")

    def __str__(self) -> str:
        return (
            f"group {self.group} failed {self.restarts} times without committing anything; the last failure: "
            f"{self.cause}"
        )


@dataclass(eq=False)
class GroupFailed(ClewError):
    """The process of a group has ended for a reason that starting it again would not mend."""

    group: str
    cause: str

    def __str__(self) -> str:
        return f"group {self.group}: {self.cause}"


@dataclass(eq=False)
class AlreadyRunning(ClewError):
    """Another process runs the pipeline."""

    pipeline: str
    host: str
    pid: int

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline} is being run by process {self.pid} on {self.host}, expected nobody; let it "
            "work, or end it with `clew stop`"
        )


class GroupsRunning(AlreadyRunning):
    """Processes run groups of the pipeline, and nobody supervises them whom one could watch."""


@dataclass(eq=False)
class RoleLost(ClewError):
    """Another process has taken a group, or a whole run, over while this one was silent."""

    what: str

    def __str__(self) -> str:
        return (
            f"{self.what} was taken over by another process while this one was silent; it changes nothing any "
            "more, and can be started again to stand by"
        )


@dataclass(eq=False)
class NoSuchPort(ClewError):
    """Lineage was asked of a port that is not there."""

    port: str
    where: str
    known: list[str]

    def __str__(self) -> str:
        return f"there is no port {self.port} {self.where}; there are: {', '.join(self.known) or 'none'}"


@dataclass(eq=False)
class NoSuchEvent(ClewError):
    """Lineage was asked of an event that was never sent."""

    event: str
    port: str
    last: int

    def __str__(self) -> str:
        if not self.last:
            return f"{self.event} was never sent: {self.port} has sent no event yet; run the pipeline first"
        return f"{self.event} was never sent: {self.port} has sent events 1 to {self.last}; name one of them"


@dataclass(eq=False)
class NoSuchRecord(ClewError):
    """Lineage was asked of a record that an event does not have."""

    event: str
    place: int
    rows: int

    def __str__(self) -> str:
        return f"{self.event} has no record {self.place}; it has {counted(self.rows, 'record')}, counted from 0"


@dataclass(eq=False)
class EventExpired(ClewError):
    """Lineage was asked of an event that is no longer in the log."""

    event: str
    collected: int

    def __str__(self) -> str:
        return (
            f"{self.event} is no longer in the log, which has forgotten the events up to {self.collected} of that "
            "port; ask for a later one, or keep them longer before you run `clew gc`"
        )


@dataclass(eq=False)
class SetExpired(ClewError):
    """An Input Set cannot be looked at any more."""

    operator: str
    input_set: int

    def __str__(self) -> str:
        return (
            f"events of Input Set {self.input_set} of {self.operator} are no longer in the log, or may not all be; "
            "choose a later event, or keep them longer before you run `clew gc`"
        )


@dataclass(eq=False)
class SetDropped(ClewError):
    """An event all of whose Input Sets ended before a function was given them."""

    event: str
    operator: str

    def __str__(self) -> str:
        return (
            f"{self.event} is in no Input Set that a function of {self.operator} was given, so nothing can be run "
            "again; `clew trace forward` shows what became of it"
        )


@dataclass(eq=False)
class NoSuchFunction(ClewError):
    """An Input Set of the past is for a function that its operator has no more."""

    operator: str
    input_set: int
    function: str
    known: list[str]

    def __str__(self) -> str:
        return (
            f"Input Set {self.input_set} of {self.operator} is for the function {self.function}, but {self.operator} "
            f"has only {', '.join(self.known)}; give a function that name to run it again"
        )


@dataclass(eq=False)
class FormedOtherwise(ClewError):
    """An Input Set that other windows, or other inputs, have formed than its operator has now."""

    operator: str
    input_set: int

    def __str__(self) -> str:
        return (
            f"Input Set {self.input_set} of {self.operator} was formed by a window or by inputs that {self.operator} "
            "does not have now; put them back as they were to run it again"
        )


@dataclass(eq=False)
class SetOpen(ClewError):
    """An event all of whose Input Sets are still open."""

    event: str
    operator: str

    def __str__(self) -> str:
        return (
            f"{self.event} is in an Input Set of {self.operator} that is still open: nothing was made of it yet; let "
            "the run go on, or choose an earlier event"
        )


@dataclass(eq=False)
class CameTooLate(ClewError):
    """An event whose records were all too late for their windows."""

    event: str
    operator: str

    def __str__(self) -> str:
        return (
            f"{self.event} is in no Input Set of {self.operator}: all its records came too late for their windows; "
            "give the window late= to have them, or a longer lateness="
        )


@dataclass(eq=False)
class NoInputSet(ClewError):
    """An event that lineage leads to no Input Set of an operator from."""

    event: str
    operator: str

    def __str__(self) -> str:
        return (
            f"the log does not say which Input Set of {self.operator} {self.event} belongs to: none is on the paths of "
            "a lineage scope; let one lead there with pipeline.lineage(start, target), and run again"
        )


@dataclass(eq=False)
class NotAnOperator(ClewError):
    """What has no function of the user's cannot be run again."""

    name: str
    known: list[str]

    def __str__(self) -> str:
        return f"{self.name} has no function that could be run again; there are: {', '.join(self.known) or 'none'}"


@dataclass(eq=False)
class NotMadeBy(ClewError):
    """An event that an operator has neither made nor taken."""

    event: str
    operator: str

    def __str__(self) -> str:
        return (
            f"{self.event} is neither an event that {self.operator} made nor one that it took; name one of its own, as "
            "`clew trace` shows them"
        )


@dataclass(eq=False)
class OtherRead(ClewError):
    """A function that is run again reads something else than it did, for which the log has no answer."""

    operator: str
    asked: str
    known: str

    def __str__(self) -> str:
        return (
            f"{self.operator} now reads {self.asked}, where it read {self.known}: the log has no answer to that; let "
            "it read as it did, or run the pipeline again"
        )


@dataclass(eq=False)
class AnswersNotKept(ClewError):
    """An Input Set in quarantine that reads, so that it cannot be run again as it was."""

    operator: str
    input_set: int

    def __str__(self) -> str:
        return (
            f"Input Set {self.input_set} of {self.operator} was set aside, and the log does not have what its reads "
            "were answered: the answers of an attempt that failed are not kept; have it tried again with `clew "
            "quarantine retry` and a run, which keeps those of an attempt that succeeds, or choose another event"
        )


@dataclass(eq=False)
class NotCaptured(ClewError):
    """Lineage was asked of a port that it is not captured for."""

    port: str

    def __str__(self) -> str:
        return (
            f"no lineage is captured for {self.port}; take its lineage=False back, or let a scope lead there with "
            "pipeline.lineage(start, target), and run again: what was logged without it stays without"
        )
