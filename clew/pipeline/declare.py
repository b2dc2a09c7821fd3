"""How a user declares a pipeline. Declaring never starts anything."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from clew.errors import GraphError
from clew.ids import Port
from clew.pipeline.arguments import (
    Unknown,
    wrong_function,
    wrong_predicate,
    wrong_sink,
    wrong_source,
    wrong_window,
)
from clew.pipeline.builtin import Numbered, Stamped
from clew.pipeline.columns import Declared, types_of
from clew.pipeline.contracts import Connection, Sink, Source
from clew.pipeline.functions import Sql
from clew.pipeline.graph import (
    Generative,
    Graph,
    OperatorSpec,
    Settings,
    Style,
    build,
    late_function,
)
from clew.pipeline.hints import Verb
from clew.pipeline.location import caller
from clew.pipeline.lookups import Lookup
from clew.pipeline.onpandas import OnPandas
from clew.pipeline.operators import Operator
from clew.pipeline.reading import BESIDES, NAME, SETTINGS, Reading, Role, is_name
from clew.pipeline.records import Filter, PerRecord
from clew.pipeline.scopes import Scope
from clew.pipeline.times import Duration, microseconds
from clew.pipeline.verbs import Stream
from clew.pipeline.windows import Batch, Each, Window

Function = TypeVar("Function", bound=Callable[..., Any])


class Pipeline:
    """A pipeline under declaration: sources, operators, sinks and how they are connected."""

    def __init__(self, name: str) -> None:
        if not is_name(name):
            raise GraphError(f"{name!r} cannot name a pipeline; use letters, digits, - and _", caller())
        self.name = name
        self._location = caller()
        self._specs: list[OperatorSpec] = []
        self._read = Reading()
        self._declared: dict[int, str] = {}
        # Functions are kept so that their ids stay theirs.
        self._functions: list[Callable[..., Any]] = []
        # Decorators that were called but have decorated nothing yet.
        self._pending: list[str] = []
        self._scopes: list[Scope] = []

    def source(self, name: str, source: Source, **settings: Any) -> Stream:
        """Declare a source; its events leave by the port `out`."""
        where = caller()
        if not self._read.right(wrong_source(source, name), where):
            source = Unknown()
        self._add(
            OperatorSpec(
                name, where, self._read.settings(settings, name, where), outputs=("out",), source=source,
                schemas=self._read.schemas(source.schema(), ("out",), name, where),
            )
        )  # fmt: skip
        return Stream(Port(name, "out"), self)

    def operator(
        self,
        *inputs: Any,
        name: str | None = None,
        window: Window | None = None,
        outputs: Sequence[str] = ("out",),
        schema: Declared = None,
        row_local: bool = False,
        **settings: Any,
    ) -> Callable[[Function], Function]:
        """Declare the decorated function as an operator and return the function unchanged.

        Its annotation (`pyarrow.Table`, `pandas.DataFrame` or `pyspark.sql.DataFrame`) chooses how it runs. Each
        parameter receives the records of one input, in the order given here.
        """
        where = caller()
        sent = _names(outputs)
        self._pending.append(where)

        def declare(function: Function) -> Function:
            self._decorated(where)
            if not self._read.right(wrong_function(function, name or "an operator"), where):
                return self._unusable(function, name, where, sent)
            own = name or function.__name__
            # A copy: a decorator may be kept and used again.
            given = dict(settings)
            besides = self._read.taking((function,), self._read.besides(given, own, where), own, where)
            kind, parameters = self._read.inspect(function, own, where, besides)
            ports = self._inputs(inputs, own, where, parameters)
            run, how = run_of(function, kind, sent, schema)
            formed = self.window_of(window, Each(), own, where)
            made = Generative(function.__name__, run, how, formed, sent, row_local, besides)
            self._declare(own, where, ports, made, given, schema)
            self._remember(function, own)
            return function

        return declare

    def also(
        self,
        operator: Any,
        *,
        window: Window | None = None,
        outputs: Sequence[str],
        lookups: Mapping[str, Lookup] | None = None,
        setup: Callable[[], Any] | None = None,
    ) -> Callable[[Function], Function]:
        """Declare the decorated function as a further generative function of an operator.

        It sees the same events through a window of its own, sends on ports of its own, and has its own lookups and
        setup hook.
        """
        where = caller()
        sent = _names(outputs)
        self._pending.append(where)

        def declare(function: Function) -> Function:
            self._decorated(where)
            own = self._port(operator, where).operator
            if not self._read.right(wrong_function(function, own), where):
                return function
            given = self._read.besides({"lookups": lookups, "setup": setup}, own, where)
            besides = self._read.taking((function,), given, own, where)
            kind, parameters = self._read.inspect(function, own, where, besides)
            self._read.check_ports(sent, own, where)
            run, how = run_of(function, kind, sent)
            formed = self.window_of(window, Each(), own, where)
            made = Generative(function.__name__, run, how, formed, sent, besides=besides)
            self._extend(own, made, parameters, where)
            return function

        return declare

    def map(self, stream: Any, *, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """Declare the decorated function as one that is called with each record; see `Stream.map`."""
        return self._decorate("map", stream, name, settings)

    def flat_map(self, stream: Any, *, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """Declare the decorated function as one that makes any number of records of each; see `Stream.flat_map`."""
        return self._decorate("flat_map", stream, name, settings)

    def filter(self, stream: Any, *, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """Declare the decorated function as one that says which records are kept; see `Stream.filter`."""
        return self._decorate("filter", stream, name, settings)

    def sql(self, name: str, text: str, *, window: Window | None = None, schema: Any = None, **given: Any) -> Stream:
        """Declare a query as an operator; its tables are the inputs by the names given: `sql("x", "...", paid=paid)`.

        What is named like a setting, `lookups` or `setup` is that; all others are inputs. Lookups are tables too.
        """
        where = caller()
        settings, given = self.settings_apart(given)
        besides = self._read.besides(settings, name, where)
        for both in sorted(set(given).intersection(besides.lookups)):
            self._read.wrong(f"{name} has an input and a lookup of the name {both}; give one of them another", where)
        besides = replace(besides, passed=tuple(besides.lookups))
        ports = self._inputs(tuple(given.values()), name, where, tuple(given))
        run = Sql(text, tuple(given))
        formed = self.window_of(window, Batch(), name, where)
        made = Generative("sql", run, "dataframe", formed, ("out",), besides=besides)
        return self._declare(name, where, ports, made, settings, schema)

    def per_record(
        self, verb: Verb, stream: Any, function: Any, name: str | None, settings: Mapping[str, Any]
    ) -> Stream:
        """Declare a function of single records; `Stream.map` and its like call this."""
        where = caller()
        own = name or self.name_for(stream, function, verb)
        if verb == "filter" and self._read.right(wrong_predicate(function, own), where) and not callable(function):
            return self.built(verb, (stream,), Filter(function), Each(), own, settings)
        if not callable(function):
            # A predicate was looked at already.
            self._read.right(None if verb == "filter" else wrong_function(function, own), where)
            self._unusable(function, own, where, ("out",))
            return Stream(Port(own, "out"), self)
        given = dict(settings)
        schema = given.pop("schema", None)
        besides = self._read.taking((function,), self._read.besides(given, own, where), own, where)
        run, told = self._read.record_function(verb, function, own, where, besides)
        declared = told if schema is None else schema
        if isinstance(run, PerRecord):
            run = replace(run, declared=types_of(declared, ("out",)).get("out", {}))
        ports = self._inputs((stream,), own, where, ("in",))
        made = Generative(verb, run, "arrow", Each(), ("out",), besides=besides)
        return self._declare(own, where, ports, made, given, declared)

    def of_record(
        self, role: Role, function: Any, name: str, settings: Mapping[str, Any]
    ) -> tuple[Any, pa.Schema | None]:
        """Read the annotations of a function that another verb calls with a record; `branch` and `enrich` call this."""
        return self._read.of_record(role, function, name, settings, caller())

    def built(
        self,
        verb: str,
        inputs: Sequence[Any],
        function: Callable[..., Any],
        window: Window,
        name: str | None,
        settings: Mapping[str, Any],
        outputs: tuple[str, ...] = ("out",),
        calls: Sequence[Callable[..., Any]] = (),
        reads: Mapping[str, Connection] | None = None,
    ) -> Stream:
        """Declare one of Clew's own functions; verbs of streams call this.

        `calls` are the user's functions that it calls: these may take lookups. Without any it is deterministic; else
        that is for the user to declare.
        """
        where = caller()
        own = name or self.name_for(inputs[0], None, verb)
        names = ("in",) if len(inputs) == 1 else tuple(f"in{i + 1}" for i in range(len(inputs)))
        given = {**({} if calls else {"deterministic": True}), **settings}
        schema = given.pop("schema", None)
        called = [one for one in calls if self._read.right(wrong_function(one, own), where)]
        besides = self._read.besides(given, own, where)
        # What is no function was told, and takes nothing.
        besides = self._read.taking(called, besides, own, where) if len(called) == len(calls) else besides
        formed = self.window_of(window, Each(), own, where)
        made = Generative(verb, function, "arrow", formed, outputs, besides=besides)
        ports = self._inputs(inputs, own, where, names)
        return self._declare(own, where, ports, made, given, schema, built_in=not calls, reads=reads)

    def settings_apart(
        self, given: Mapping[str, Any], settings: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what of some arguments are settings, by their names, and what are not.

        Where settings are given by themselves, none of the others is one.
        """
        names = (*SETTINGS, *BESIDES) if settings is None else ()
        own = {name: value for name, value in given.items() if name in names}
        return {**own, **(settings or {})}, {name: value for name, value in given.items() if name not in names}

    def window_of(self, window: Any, default: Window, name: str, where: str | None = None) -> Window:
        """Return a window as it was given, or the default for none; also for something that is no window."""
        if window is None:
            return default
        return window if self._read.right(wrong_window(window, name), where or caller()) else default

    def wrong(self, message: str | None) -> None:
        """Keep what is wrong with the line that declares now, if anything; verbs of streams call this."""
        self._read.right(message, caller())

    def name_for(self, stream: Any, function: Any, verb: str) -> str:
        """Return the name of an operator that was given none: its function's, or one made of its input and its verb."""
        called = getattr(function, "__name__", "<lambda>")
        if NAME.fullmatch(called):
            return str(called)
        taken = {spec.name for spec in self._specs}
        base = f"{self._port(stream, caller()).operator}_{verb}"
        numbered = (f"{base}_{number}" for number in range(2, len(taken) + 3))
        return next(name for name in (base, *numbered) if name not in taken)

    def _decorate(
        self, verb: Verb, stream: Any, name: str | None, settings: Mapping[str, Any]
    ) -> Callable[[Function], Function]:
        where = caller()
        self._pending.append(where)

        def declare(function: Function) -> Function:
            self._decorated(where)
            made = self.per_record(verb, stream, function, name, settings)
            self._remember(function, made.port.operator)
            return function

        return declare

    def _declare(
        self,
        own: str,
        where: str,
        ports: dict[str, Port],
        generative: Generative,
        settings: Mapping[str, Any],
        schema: Declared,
        built_in: bool = False,
        reads: Mapping[str, Connection] | None = None,
    ) -> Stream:
        """Add an operator with one generative function; returns its first output."""
        asked = self._read.asked(reads, own, where)
        late = late_function(generative, tuple(ports))
        self._read.check_window(generative, own, len(ports), where)
        sent = generative.outputs
        self._add(
            OperatorSpec(
                own, where, self._read.settings(settings, own, where), ports, (*sent, *_outputs(late)),
                (generative, *late), reads=asked, schemas=self._read.schemas(schema, sent, own, where),
                built_in=built_in,
            )
        )  # fmt: skip
        return Stream(Port(own, sent[0] if sent else "out"), self)

    def general(
        self,
        name: str,
        operator: Operator,
        *inputs: Any,
        ports: Sequence[str] | None = None,
        outputs: Sequence[str] = ("out",),
        reads: Mapping[str, Connection] | None = None,
        writes: Mapping[str, Sink] | None = None,
        schema: Declared = None,
        calls: Sequence[Callable[..., Any]] | None = None,
        **settings: Any,
    ) -> Stream:
        """Declare a general operator: your own subclass of `Operator`.

        Where it calls functions that take lookups by name, as those of `Stream.enrich` do, `calls` names these.
        """
        where = caller()
        sent = _names(outputs)
        besides = self._read.besides(settings, name, where)
        if calls is not None:
            self._read.taking(
                [one for one in calls if self._read.right(wrong_function(one, name), where)], besides, name, where
            )
        written = {key: one for key, one in (writes or {}).items() if self._read.right(wrong_sink(one, name), where)}
        asked = self._read.asked(reads, name, where)
        names = ("in",) if len(inputs) == 1 else tuple(f"in{i + 1}" for i in range(len(inputs)))
        received = self._inputs(inputs, name, where, _names(ports) if ports else names)
        self._add(
            OperatorSpec(
                name, where, self._read.settings(settings, name, where), received, sent,
                self._read.generatives(operator, name, sent, where, besides), operator, sinks=written,
                reads=asked, schemas=self._read.schemas(schema, sent, name, where), built_in=_is_built_in(operator),
            )
        )  # fmt: skip
        return Stream(Port(name, sent[0] if sent else "out"), self)

    def sink(self, stream: Any, sink: Sink, *, name: str | None = None, **settings: Any) -> None:
        """Write every event of `stream` to `sink`."""
        where = caller()
        port = self._port(stream, where)
        own = name or (f"{port.operator}_sink" if port.name == "out" else f"{port.operator}_{port.name}_sink")
        sinks = {"out": sink} if self._read.right(wrong_sink(sink, own), where) else {}
        self._add(OperatorSpec(own, where, self._read.settings(settings, own, where), {"in": port}, sinks=sinks))

    def lineage(self, start: Any, target: Any, *, keep: Duration | None = None, keep_bytes: int | None = None) -> None:
        """Capture lineage along all paths from one output port to another, or to a sink, named by its name.

        Without this it is captured everywhere. Each call adds a scope. Collection leaves what the events of the target
        of the last `keep` ("7 days") came from, in at most `keep_bytes` of event bodies; without them, everything.
        """
        where = caller()
        ports = self._port(start, where), self._port(target, where)
        seconds = None
        try:
            seconds = None if keep is None else microseconds(keep) / 1e6
        except GraphError as wrong:
            self._read.wrong(f"lineage is to be kept for {keep!r}: {wrong.message}", where)
        if keep_bytes is not None and (not isinstance(keep_bytes, int) or keep_bytes < 1):
            self._read.wrong(f"lineage is to be kept in {keep_bytes!r} bytes; give a whole number, 1 or more", where)
            keep_bytes = None
        self._scopes.append(Scope(*ports, where, seconds, keep_bytes))

    def port(self, text: str) -> Stream:
        """Return the port written as `operator.port`, also one that is declared later."""
        return Stream(Port.parse(text), self)

    @property
    def wrong_so_far(self) -> tuple[GraphError, ...]:
        """What is wrong with the lines that were declared until now, each by itself."""
        return tuple(self._read.errors)

    def graph(self) -> Graph:
        """Check everything and return the pipeline as a value; raises GraphErrors."""
        idle = [
            GraphError("this decorates nothing; write @ and its inputs above a function", at) for at in self._pending
        ]
        return build(self.name, self._specs, [*self._read.errors, *idle], self._location, self._scopes)

    def _add(self, spec: OperatorSpec) -> None:
        if not is_name(spec.name):
            self._read.wrong(f"{spec.name!r} cannot name an operator; use letters, digits, - and _", spec.location)
        self._read.check_ports((*spec.inputs, *spec.outputs), spec.name, spec.location)
        self._specs.append(spec)

    def _extend(self, name: str, generative: Generative, parameters: Sequence[str], where: str) -> None:
        for index, spec in enumerate(self._specs):
            if spec.name == name:
                self._read.count(generative.name, len(parameters), len(spec.inputs), where)
                self._read.check_window(generative, name, len(spec.inputs), where)
                for both in sorted(set(spec.lookups).intersection(generative.besides.lookups)):
                    self._read.wrong(f"{name} has two lookups of the name {both}; give one of them another", where)
                own = (generative, *late_function(generative, tuple(spec.inputs)))
                self._specs[index] = replace(
                    spec, functions=(*spec.functions, *own), outputs=(*spec.outputs, *_outputs(own))
                )
                return
        self._read.wrong(f"{generative.name} is declared for unknown operator {name}", where)

    def _unusable(self, function: Function, name: str | None, where: str, outputs: tuple[str, ...]) -> Function:
        """Add an operator whose function is none, so that what reads from it is not wrong for that."""
        if name is not None:
            self._add(OperatorSpec(name, where, Settings(), outputs=outputs))
        return function

    def _decorated(self, where: str) -> None:
        # A decorator that is kept and used again is pending only once.
        if where in self._pending:
            self._pending.remove(where)

    def _remember(self, function: Callable[..., Any], name: str) -> None:
        self._declared[id(function)] = name
        self._functions.append(function)

    def _port(self, stream: Any, where: str) -> Port:
        if isinstance(stream, Stream):
            return stream.port
        if isinstance(stream, str):
            return Port.parse(stream)
        if id(stream) in self._declared:
            return Port(self._declared[id(stream)], "out")
        called = getattr(stream, "__name__", repr(stream))
        self._read.wrong(
            f"{called} is not an operator of pipeline {self.name}; decorate it with @pipeline.operator", where
        )
        return Port(str(called), "out")

    def _inputs(self, inputs: Sequence[Any], name: str, where: str, ports: Sequence[str]) -> dict[str, Port]:
        if not inputs:
            self._read.wrong(f"operator {name} has no input; give it what it reads from", where)
        self._read.count(f"operator {name}", len(ports), len(inputs), where)
        if len(set(ports)) < len(ports):
            self._read.wrong(f"operator {name} has two input ports of one name: {', '.join(ports)}", where)
        names = ("in",) if len(inputs) == 1 and len(ports) == 1 else ports
        return {port: self._port(stream, where) for port, stream in zip(names, inputs)}


def run_of(
    function: Callable[..., Any], kind: str, sent: tuple[str, ...], schema: Declared = None
) -> tuple[Callable[..., Any], Style]:
    """Return what runs a function of some kind, and how."""
    if kind == "DataFrame":
        return function, "dataframe"
    if kind == "pandas":
        return OnPandas(function, types_of(schema, sent), (sent or ("out",))[0]), "arrow"
    return function, "arrow"


def _outputs(functions: Sequence[Generative]) -> tuple[str, ...]:
    return tuple(port for function in functions for port in function.outputs)


def _is_built_in(operator: Any) -> bool:
    """Say whether an operator is Clew's, and calls no function of the user's."""
    return isinstance(operator, Numbered | Stamped)


def _names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; a single one may stand alone."""
    return (names,) if isinstance(names, str) else tuple(names)
