"""What every operator's loop has in common: its place in the run, and one step at a time."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from clew import trace
from clew.errors import AnswerRefused, ClewError, OperatorFailed, TypeRefused, UserFunctionFailed
from clew.faultpoint import fault_point
from clew.ids import Capture, EventId, Port
from clew.pipeline.graph import Graph, OperatorSpec
from clew.pipeline.schema import from_bytes, to_bytes
from clew.protocol.log.alg7_output import recover_output
from clew.protocol.log.context import Context, fresh
from clew.protocol.step import FixSchema, SetOperator, Step
from clew.runtime.absence import Absence
from clew.runtime.bodies import BodyPlace
from clew.runtime.channels import Channels
from clew.runtime.engine import Engine, Job
from clew.runtime.pace import Pace
from clew.runtime.perform import Writer
from clew.runtime.progress import Progress
from clew.runtime.task import Failure
from clew.store.base import Store

#: What one step did: some work; nothing, for lack of input or of room, or because something is set aside and nobody has
#: decided on it; or the operator has finished.
Outcome = Literal["worked", "idle", "blocked", "held", "finished"]


@dataclass(frozen=True)
class Surroundings:
    """What the operators of a run share."""

    graph: Graph
    store: Store
    engine: Engine
    channels: Channels
    progress: Progress
    #: The directory of event bodies, which all executors see; None keeps all bodies inline.
    bodies: str | None = None
    #: Whether body files are synced; only a run without recovery does without.
    durable_bodies: bool = True
    #: The time, in microseconds since the epoch.
    now: Callable[[], int] = lambda: time.time_ns() // 1_000
    #: The first events that collection leaves, by port.
    keep: Callable[[], Mapping[Port, int]] = dict
    #: Seconds for which an outside system that cannot be reached is waited for; 0 leaves it to the operator's attempts.
    patience: float = 0.0
    #: Set when the run is to end.
    stop: threading.Event = field(default_factory=threading.Event)
    #: Operators whose window changed: their pending events are assigned anew, and the version is logged with that.
    retaken: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Runner(ABC):
    """Runs one operator, one turn at a time, in one incarnation."""

    def __init__(self, spec: OperatorSpec, around: Surroundings) -> None:
        self.spec = spec
        self.around = around
        self.context: Context = fresh(spec.name, spec.inputs, spec.outputs, spec.logic.initial())
        self.pace = Pace(spec.settings.turn_seconds, spec.settings.max_turn_events)
        self.absence = Absence(around.patience, around.stop)
        self.writer = Writer(spec.name, 0, around.store, around.channels, around.progress)
        self._schemas: dict[Port, bytes] = {}
        #: By input port, while nothing has come there, the schema of what would come; None where that stays unknown.
        self._expected: dict[str, bytes | None] = {}
        self.capture = around.graph.captures.get(spec.name, Capture())

    @property
    def finished(self) -> bool:
        return self.context.finished

    def recover(self) -> None:
        """Take the operator over and bring it to where its log says it was (Section 4.1)."""
        name = self.spec.name
        self.around.progress.set(name, phase="recovering")
        incarnation = self.around.store.take_over(name)
        trace.record("recovering", name, incarnation=incarnation)
        fault_point("after-take-over", name)
        self.writer = Writer(name, incarnation, self.around.store, self.around.channels, self.around.progress)
        self.writer.perform(recover_output(Port(name, port) for port in self.spec.outputs))
        fault_point("after-resend", name)
        self._recover()
        fault_point("before-running", name)
        status: Literal["running", "finished"] = "finished" if self.finished else "running"
        self.writer.perform(Step((SetOperator(name, status),), durable=False))
        trace.record("restored", name, incarnation=incarnation, turn=self.context.turn)
        self.around.progress.set(name, phase="finished" if self.finished else "running")

    @abstractmethod
    def _recover(self) -> None:
        """Recover what is particular to this kind of operator."""

    @abstractmethod
    def step(self) -> Outcome:
        """Do one turn, if there is anything to do."""

    def patience(self) -> float | None:
        """Return after how many seconds it has something to do though nothing comes; None for never."""
        return None

    def place(self, turn: int) -> BodyPlace:
        around = self.around
        return BodyPlace(around.bodies, self.spec.name, self.writer.incarnation, turn, around.durable_bodies)

    def job(self, turn: int, about: str) -> Job:
        settings = self.spec.settings
        return Job(self.spec.name, self.writer.incarnation, turn, about, settings.turn_timeout, settings.deterministic)

    def schemas(self, ports: dict[str, Port]) -> dict[str, bytes]:
        """Return the schemas that these ports are fixed to, by the names given."""
        found = {name: self._schema(port) for name, port in ports.items()}
        return {name: schema for name, schema in found.items() if schema is not None}

    @property
    def late(self) -> int:
        """How many records have come too late for their windows since the run began."""
        windows = self.context.state.values() if self.spec.general is None else ()
        return sum(own.get("late", 0) for own in windows)

    def input_schemas(self, context: Context) -> dict[str, bytes]:
        """Return the schemas of the input ports, also of those on which nothing has come, as far as they are known."""
        found = {name: self._input_schema(name, context) for name in self.spec.inputs}
        return {name: schema for name, schema in found.items() if schema is not None}

    def _input_schema(self, name: str, context: Context) -> bytes | None:
        ended, sender = name in context.ended, self.spec.inputs[name]
        if context.latest.get(name, 0) > int(ended):
            return self._schema(sender)
        if name not in self._expected:
            known = self.around.graph.schema(sender, self._logged)
            schema = None if known is None else to_bytes(known)
            # All that is before an input that has ended has ended too, so nobody will know more.
            if schema is None and not ended:
                return None
            self._expected[name] = schema
        return self._expected[name]

    def _logged(self, port: Port) -> pa.Schema | None:
        schema = self._schema(port)
        return None if schema is None else from_bytes(schema)

    def output_schemas(self) -> dict[str, bytes]:
        return self.schemas({port: Port(self.spec.name, port) for port in self.spec.outputs})

    def fixed(self, learned: FixSchema) -> None:
        """Remember a schema that was just committed."""
        self._schemas[learned.port] = learned.schema

    def _schema(self, port: Port) -> bytes | None:
        # A schema never changes once it is fixed, so it is read once.
        if port not in self._schemas:
            schema = self.around.store.schema(port)
            if schema is None:
                return None
            self._schemas[port] = schema
        return self._schemas[port]

    def _next(self) -> str:
        """Name what a source was about to send: several tasks read for it at once, so it is not known which failed."""
        first = EventId(Port(self.spec.name, "out"), self.context.sent.get("out", 0) + 1)
        return f"{first} or a later event"

    def failed(self, failure: Failure, about: str, attempts: int) -> ClewError:
        """Return the error that a user should see for a failure in a task."""
        record = "" if failure.record is None else f"record {failure.record[0]} {failure.record[1]}"
        if type(failure.error) in (ClewError, AnswerRefused):
            # It says what is wrong, and not where.
            return OperatorFailed(self.spec.name, about, failure.message, record)
        if failure.error is not None and failure.record is None:
            if isinstance(failure.error, TypeRefused):
                return replace(
                    failure.error, operator=self.spec.name, events=self._next() if self.spec.is_source else about
                )
            return failure.error
        return UserFunctionFailed(
            self.spec.name, about, failure.kind, failure.message, failure.frames, attempts, record
        )
