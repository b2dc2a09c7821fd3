"""What is asked of an executor, and what it answers: plain values. `execute` does the work."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clew.errors import (
    AnswerRefused,
    BodyDamaged,
    ClewError,
    HookFailed,
    SinkFailed,
    SourceFailed,
    StaleWriter,
    StoreFailed,
)
from clew.ids import InputSetId, Port
from clew.pipeline.contracts import WriteAction
from clew.protocol.log.alg3_generate import Productions
from clew.protocol.rows import Bodies, Header, LookupRow
from clew.runtime.bodies import BodyPlace
from clew.runtime.tracebacks import own_frames

#: Failures that are about neither the records nor the code.
_OUTSIDE = (BodyDamaged, StoreFailed, SourceFailed, SinkFailed, StaleWriter, HookFailed)

#: The schemas that ports are fixed to, as the log has them, by port name.
Schemas = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive events of one input port, by their bodies."""

    port: str
    first: int
    bodies: tuple[Bodies, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return Part, (self.port, self.first, self.bodies)

    def runs(self) -> Iterator[tuple[int, Bodies]]:
        """Yield the runs of bodies, each with the number of its first event."""
        first = self.first
        for run in self.bodies:
            yield first, run
            first += len(run)


@dataclass(frozen=True, slots=True)
class SetWork:
    """One Input Set to make an Output Set of."""

    number: InputSetId
    function: str
    key: Any
    parts: tuple[Part, ...]
    #: What it saw of the global state when it closed, where its function sees any.
    state: Any = None
    #: The records that it has, by their places in its event; None for all.
    only: tuple[int, ...] | None = None
    #: "aside": it is set aside, and makes nothing. "sift": the records that the function fails on are told as data.
    mode: Literal["", "aside", "sift"] = ""
    #: The answers that it got when it was run before (connection, what was asked, answer): it gets them again.
    answers: tuple[tuple[str, str, Bodies], ...] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        own = (self.number, self.function, self.key, self.parts, self.state, self.only, self.mode, self.answers)
        return SetWork, own


@dataclass(frozen=True, slots=True)
class GenerateTask:
    """Generate the Output Sets of some Input Sets, one after the other."""

    place: BodyPlace
    #: Those of the input ports, also where nothing was received yet, as far as they are known.
    inputs: Schemas
    outputs: Schemas
    sets: tuple[SetWork, ...]
    lookups: tuple[LookupRow, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Read some slices of a replayable source, one after the other."""

    place: BodyPlace
    snapshot: Any
    pieces: tuple[Any, ...]
    outputs: Schemas


@dataclass(frozen=True, slots=True)
class ObserveTask:
    """Perform a read action that is not replayable, and store its effect."""

    place: BodyPlace


@dataclass(frozen=True, slots=True)
class EffectTask:
    """Make events of a part of a stored effect."""

    place: BodyPlace
    effects: tuple[Bodies, ...]
    outputs: Schemas


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Perform write actions of one connection, in order; with `check`, only say which were applied."""

    root: str | None
    operator: str
    connection: str
    writes: tuple[tuple[WriteAction, tuple[tuple[bytes | None, tuple[Bodies, ...]], ...]], ...]
    check: bool = False


@dataclass(frozen=True, slots=True)
class FactsTask:
    """Compute the facts that a receiver's declaration needs now, for events made under another one."""

    root: str | None
    receiver: Port
    schema: bytes
    bodies: tuple[Bodies, ...]


Task = GenerateTask | ReadTask | ObserveTask | EffectTask | WriteTask | FactsTask


@dataclass(frozen=True, slots=True)
class Failure:
    """What stopped a task, or one of its Input Sets, as data."""

    number: InputSetId | None
    kind: str
    message: str
    frames: str
    #: Clew's own error, where it is one: it is raised as it is.
    error: ClewError | None = None
    #: The place of the record in its event, and the record, where the function takes single records.
    record: tuple[int, str] | None = None

    def told(self, attempts: int) -> dict[str, Any]:
        """Return the failure as JSON."""
        record = None if self.record is None else self.record[1]
        return {
            "kind": self.kind, "message": self.message, "frames": self.frames, "record": record, "attempts": attempts,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Events:
    """Events that a source task made, and the offset after each of its slices' last one."""

    headers: tuple[Header, ...]
    bodies: tuple[Bodies, ...]
    offset: Any
    schema: bytes | None
    #: How many pieces were read: a piece without records makes no event.
    pieces: int


@dataclass(frozen=True, slots=True)
class Written:
    """How far a write task came."""

    done: int
    applied: tuple[bool, ...] = ()
    failure: Failure | None = None


Result = tuple[Productions | Failure, ...] | Events | Bodies | Written | tuple[Any, ...] | Failure


def failure(error: Exception, number: InputSetId | None = None) -> Failure:
    """Describe an exception by its type, its message and the user's own frames."""
    if isinstance(error, _OUTSIDE) and not isinstance(error, AnswerRefused):
        return Failure(number, type(error).__name__, str(error), "", error)
    frames = own_frames(error)
    # A ClewError without frames of the user's is about the data or the declaration: it says all there is to say.
    kept = error if isinstance(error, ClewError) and not frames else None
    found = getattr(error, "__clew_record__", None)
    record = None if found is None else (found[0], _short(repr(found[1])))
    return Failure(number, type(error).__name__, str(error), frames, kept, record)


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."
