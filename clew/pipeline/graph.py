"""A declared pipeline as a value: its operators, their ports and connections, and what is wrong with them."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa

from clew.errors import GraphError, GraphErrors
from clew.ids import Capture, Port
from clew.pipeline.contracts import Connection, Sink, Source
from clew.pipeline.lookups import Besides, Content, Lookup
from clew.pipeline.misfits import misfits
from clew.pipeline.operators import LateRecords, Operator, OperatorLogic, WindowLogic
from clew.pipeline.schema import fixed, untyped
from clew.pipeline.scopes import Scope, captures, resolved, wrong
from clew.pipeline.versions import Version, version_of
from clew.pipeline.windows import Batch, Each, Window

Style = Literal["arrow", "dataframe", "general"]


@dataclass(frozen=True)
class Generative:
    """One generative function of an operator."""

    name: str
    run: Callable[..., Any]
    style: Style
    window: Window
    outputs: tuple[str, ...]
    row_local: bool = False
    besides: Besides = field(default_factory=Besides)

    def arguments(self, lookups: Mapping[str, Content], resources: Any) -> dict[str, Any]:
        """Return what its function takes by name, in the form in which it takes it."""
        form = getattr(self.run, "lookup_form", "table")
        return self.besides.arguments({name: getattr(one, form) for name, one in lookups.items()}, resources)


def late_function(of: Generative, ports: tuple[str, ...]) -> tuple[Generative, ...]:
    """Return what passes the late records of a function's window on, where it has a port for them.

    With several inputs each has a port of its own, for its records have columns of their own.
    """
    port = of.window.late_port
    if port is None:
        return ()
    names = (port,) if len(ports) == 1 else tuple(f"{port}_{name}" for name in ports)
    return (Generative(f"{of.name}-late", _Pass(names), "arrow", LateRecords(of.window), names),)


@dataclass(frozen=True)
class _Pass:
    """A function that gives the records of each input on an output of its own."""

    ports: tuple[str, ...]

    def __call__(self, *tables: pa.Table) -> dict[str, pa.Table]:
        return dict(zip(self.ports, tables))

    def passes(self, port: str, inputs: Sequence[str]) -> Sequence[str]:
        return [inputs[self.ports.index(port)]]


@dataclass(frozen=True)
class Capacity:
    """How much may wait on a connection before its sender must."""

    events: int = 10_000
    bytes: int = 64 << 20


@dataclass(frozen=True)
class Settings:
    """How an operator is run: what `**settings` of any declaration may say.

    - `group`: operators of one group fail and restart together; by default each is a group of its own.
    - `deterministic`: the same input gives the same output, so that `clew verify` may compute it again.
    - `attempts`: how often a turn, a read or a write is tried before it counts as failed.
    - `turn_timeout`: seconds after which a turn is cut off.
    - `turn_seconds`: how long a turn is to take; it grows or shrinks towards that.
    - `max_turn_events`: the most events of a turn.
    - `capacity`: how much may wait on each connection to a receiver: a `Capacity`, or a number of events.
    - `after_write`: receivers see an event only after the write actions logged with it are done, for operators
      downstream that read what this one writes (LOG.io, Section 3.5.1: Steps 5 and 6 exchanged).
    - `on_error`: what happens to an Input Set, or a record, that the function fails on at every attempt: the run stops
      (`"stop"`), or it is set aside, with its error, and the rest goes on (`"quarantine"`).
    - `lineage`: whether the log says which of its output events came from which input events.
    - `depends`: attribute dependencies (LOG.io, Section 7.3): output columns by the input columns whose value they
      have, so that `clew trace back --record` can tell which records can have contributed to one.
    """

    group: str = ""
    deterministic: bool = False
    attempts: int = 3
    turn_timeout: float = 300.0
    turn_seconds: float = 0.25
    max_turn_events: int = 8_192
    capacity: Capacity = Capacity()
    after_write: bool = False
    on_error: str = "stop"
    lineage: bool = True
    depends: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OperatorSpec:
    """One operator of a pipeline, as declared."""

    name: str
    location: str
    settings: Settings
    #: Input port name -> the sender's port.
    inputs: Mapping[str, Port] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    functions: tuple[Generative, ...] = ()
    general: Operator | None = None
    source: Source | None = None
    #: Connections for write actions, by name.
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    #: Connections for side-effect read actions, by name.
    reads: Mapping[str, Connection] = field(default_factory=dict)
    #: Declared schemas by output port.
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)
    #: Whether Clew brings it along, and nothing of the user's is called in it.
    built_in: bool = False

    @property
    def is_source(self) -> bool:
        return self.source is not None

    @property
    def is_sink(self) -> bool:
        """Whether it only passes its input to a write connection, with no function of its own."""
        return not self.functions and self.source is None

    @property
    def group(self) -> str:
        return self.settings.group or self.name

    @cached_property
    def logic(self) -> WindowLogic | OperatorLogic:
        """Control's decisions for this operator."""
        if self.general is not None:
            return OperatorLogic(self.general)
        if self.is_sink:
            return WindowLogic({"write": Batch()}, tuple(self.inputs))
        return WindowLogic({f.name: f.window for f in self.functions}, tuple(self.inputs))

    @property
    def lookups(self) -> Mapping[str, Lookup]:
        """All lookups of its functions; no two of one name."""
        return {name: one for function in self.functions for name, one in function.besides.lookups.items()}

    @cached_property
    def version(self) -> Version:
        """What it is, part by part, so that a change can be told."""
        return version_of(self)

    def passed(self, port: str) -> tuple[Port, ...]:
        """Return the senders whose records leave by an output port as they came, with no column more or less."""
        function = next((f for f in self.functions if port in f.outputs), None)
        passes = None if function is None else getattr(function.run, "passes", None)
        return () if passes is None else tuple(self.inputs[name] for name in passes(port, tuple(self.inputs)))

    def function(self, name: str) -> Generative:
        return next(f for f in self.functions if f.name == name)


@dataclass(frozen=True)
class Link:
    """A connection between two operators."""

    sender: Port
    receiver: Port


@dataclass(frozen=True)
class Graph:
    """A pipeline that has been checked."""

    name: str
    operators: Mapping[str, OperatorSpec]
    #: Between which ports lineage is captured; everywhere where there are none.
    scopes: tuple[Scope, ...] = ()

    @cached_property
    def captures(self) -> Mapping[str, Capture]:
        """The ports that lineage is captured for, by operator; operators without any are left out."""
        return captures(self.operators, self.scopes)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        return tuple(
            Link(sender, Port(spec.name, port))
            for spec in self.operators.values()
            for port, sender in spec.inputs.items()
        )

    def receivers(self, sender: Port) -> tuple[Port, ...]:
        return tuple(link.receiver for link in self.links if link.sender == sender)

    def schema(self, port: Port, logged: Callable[[Port], pa.Schema | None]) -> pa.Schema | None:
        """Return the schema of an output port, also of one that has sent nothing yet, where it is known.

        It is the one that the log has, the one that was declared, or that of the records that the port passes on.
        """
        found = logged(port)
        if found is not None:
            return found
        spec = self.operators[port.operator]
        if port.name in spec.schemas:
            return fixed(spec.schemas[port.name])
        passed = [self.schema(sender, logged) for sender in spec.passed(port.name)]
        known = [schema for schema in passed if schema is not None]
        # Inputs that differ tell nothing: the port's schema will be that of its first event.
        return known[0] if known and all(schema == known[0] for schema in known) else None

    @cached_property
    def declared_untyped(self) -> frozenset[str]:
        """The columns that some declared schema has as null: the user says that they stay so."""
        schemas = [schema for spec in self.operators.values() for schema in spec.schemas.values()]
        return frozenset(field.name for schema in schemas for field in untyped(schema))

    def sender(self, receiver: Port) -> Port:
        return self.operators[receiver.operator].inputs[receiver.name]

    @cached_property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """Operators by group, in order of declaration."""
        groups: dict[str, tuple[str, ...]] = {}
        for spec in self.operators.values():
            groups[spec.group] = (*groups.get(spec.group, ()), spec.name)
        return groups

    @cached_property
    def fingerprint(self) -> str:
        """Name the shape of the graph: operators and links."""
        shape = [*sorted(self.operators), *sorted(f"{link.sender}>{link.receiver}" for link in self.links)]
        return hashlib.sha256("\n".join(shape).encode()).hexdigest()[:16]


def build(
    name: str,
    specs: Sequence[OperatorSpec],
    errors: Sequence[GraphError] = (),
    location: str = "",
    scopes: Sequence[Scope] = (),
) -> Graph:
    """Check the operators of the pipeline declared at `location` and return the graph.

    Raises GraphErrors with everything that is wrong, each error with the line of the user's file.
    """
    found = [*errors, *_duplicates(specs), *_own_ports(specs), *_unknown_ports(specs), *_unsafe_sinks(specs)]
    found += [*_no_source(name, specs, location), *_cycles(specs), *misfits(specs)]
    operators = {spec.name: spec for spec in specs}
    between = tuple(resolved(scope, operators) for scope in scopes)
    if not found:
        found = [error for scope in between for error in wrong(scope, operators)]
    if found:
        raise GraphErrors(name, tuple(found))
    return Graph(name, operators, between)


def warnings(graph: Graph) -> Iterator[str]:
    """Say what will work but may surprise."""
    if not any(spec.sinks for spec in graph.operators.values()):
        first = next(iter(graph.operators.values()))
        yield f"{first.location}: pipeline {graph.name} has no sink, so it writes nothing; add one with .sink(...)"
    for spec in graph.operators.values():
        for function in spec.functions:
            if function.style == "dataframe" and isinstance(function.window, Each) and not function.row_local:
                yield (
                    f"{spec.location}: {spec.name} costs one Spark job per event; use window=Batch(), declare "
                    "row_local=True, or take a pyarrow.Table"
                )


def _duplicates(specs: Sequence[OperatorSpec]) -> Iterator[GraphError]:
    first: dict[str, OperatorSpec] = {}
    for spec in specs:
        if spec.name in first:
            yield GraphError(
                f"operator {spec.name} is declared twice (first at {first[spec.name].location}); its name is its "
                "identity in the log, so give one of them name=",
                spec.location,
            )
        first.setdefault(spec.name, spec)


def _own_ports(specs: Sequence[OperatorSpec]) -> Iterator[GraphError]:
    for spec in specs:
        named = (("output port", spec.outputs), ("generative function", tuple(f.name for f in spec.functions)))
        for what, names in named:
            for name in sorted({name for name in names if names.count(name) > 1}):
                yield GraphError(f"operator {spec.name} has more than one {what} {name}; rename one", spec.location)
        for port in spec.schemas:
            if port not in spec.outputs:
                have = ", ".join(spec.outputs) or "no output ports"
                yield GraphError(f"{spec.name} declares a schema for port {port}, but has {have}", spec.location)


def _unknown_ports(specs: Sequence[OperatorSpec]) -> Iterator[GraphError]:
    known = {Port(spec.name, port) for spec in specs for port in spec.outputs}
    for spec in specs:
        for sender in spec.inputs.values():
            if sender not in known:
                ports = ", ".join(str(p) for p in sorted(known) if p.operator == sender.operator)
                have = f"it has {ports}" if ports else "no such operator has been declared"
                yield GraphError(f"{spec.name} reads from unknown port {sender}; {have}", spec.location)


def _unsafe_sinks(specs: Sequence[OperatorSpec]) -> Iterator[GraphError]:
    for spec in specs:
        for sink in spec.sinks.values():
            if not (sink.transactional or sink.idempotent or sink.checkable):
                yield GraphError(
                    f"{spec.name} writes to {sink.describe()}, which can be neither checked nor repeated safely; after "
                    "a crash nobody could say whether a write was applied: use a transactional sink, or declare it "
                    "idempotent or checkable if it is",
                    spec.location,
                )


def _no_source(name: str, specs: Sequence[OperatorSpec], location: str) -> Iterator[GraphError]:
    if not any(spec.is_source for spec in specs):
        yield GraphError(f"pipeline {name} has no source; declare one with pipeline.source(name, ...)", location)


def _cycles(specs: Sequence[OperatorSpec]) -> list[GraphError]:
    # The first of a name: one that has the name of what it reads from is wrong, but no cycle.
    by_name: dict[str, OperatorSpec] = {}
    for spec in specs:
        by_name.setdefault(spec.name, spec)
    settled: set[str] = set()
    errors: list[GraphError] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in settled or name not in by_name:
            return
        if name in path:
            # The path leads from receivers to senders; people read it the way events go.
            loop = " -> ".join(reversed((*path[path.index(name) :], name)))
            errors.append(
                GraphError(f"operators form a cycle: {loop}; a pipeline must have none", by_name[name].location)
            )
            settled.update(path)
            return
        for sender in by_name[name].inputs.values():
            visit(sender.operator, (*path, name))
        settled.add(name)

    for name in by_name:
        visit(name, ())
    return errors
