"""How a user declares a pipeline. Declaring never starts anything."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, get_args, get_type_hints

import pyarrow as pa

from clew.errors import GraphError, TypeRefused
from clew.ids import Port
from clew.pipeline.arguments import (
    Unknown,
    no_tables,
    uncallable,
    unfit,
    wrong_annotations,
    wrong_connection,
    wrong_function,
    wrong_predicate,
    wrong_schema,
    wrong_sink,
    wrong_source,
    wrong_window,
)
from clew.pipeline.builtin import Numbered, Stamped
from clew.pipeline.columns import Declared, by_port, types_of
from clew.pipeline.contracts import Connection, Sink, Source
from clew.pipeline.dependencies import read_depends
from clew.pipeline.functions import Sql
from clew.pipeline.graph import (
    Capacity,
    Generative,
    Graph,
    OperatorSpec,
    Settings,
    Style,
    build,
    late_function,
)
from clew.pipeline.hints import OfDataclass, Verb, check_asks, check_returns, named, record_type, schema_of
from clew.pipeline.location import caller
from clew.pipeline.lookups import RESOURCES, Besides, Lookup, Setup, parameters_of
from clew.pipeline.onpandas import OnPandas
from clew.pipeline.operators import Operator
from clew.pipeline.records import Filter, PerRecord
from clew.pipeline.schema import fixed
from clew.pipeline.scopes import Scope
from clew.pipeline.times import Duration, microseconds
from clew.pipeline.verbs import Stream
from clew.pipeline.windows import Batch, Each, Window

Function = TypeVar("Function", bound=Callable[..., Any])
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SETTINGS = tuple(field.name for field in fields(Settings))
#: What every operator with a function of the user's may be given besides settings.
_BESIDES = ("lookups", "setup")


class Pipeline:
    """A pipeline under declaration: sources, operators, sinks and how they are connected."""

    def __init__(self, name: str) -> None:
        if not _is_name(name):
            raise GraphError(f"{name!r} cannot name a pipeline; use letters, digits, - and _", caller())
        self.name = name
        self._location = caller()
        self._specs: list[OperatorSpec] = []
        self._errors: list[GraphError] = []
        self._declared: dict[int, str] = {}
        # Functions are kept so that their ids stay theirs.
        self._functions: list[Callable[..., Any]] = []
        # Decorators that were called but have decorated nothing yet.
        self._pending: list[str] = []
        self._scopes: list[Scope] = []

    def source(self, name: str, source: Source, **settings: Any) -> Stream:
        """Declare a source; its events leave by the port `out`."""
        where = caller()
        if not self._right(wrong_source(source, name), where):
            source = Unknown()
        self._add(
            OperatorSpec(
                name, where, self._settings(settings, name, where), outputs=("out",), source=source,
                schemas=self._schemas(source.schema(), ("out",), name, where),
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
            if not self._right(wrong_function(function, name or "an operator"), where):
                return self._unusable(function, name, where, sent)
            own = name or function.__name__
            # A copy: a decorator may be kept and used again.
            given = dict(settings)
            besides = self._taking((function,), self._besides(given, own, where), own, where)
            kind, parameters = self._inspect(function, own, where, besides)
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
            if not self._right(wrong_function(function, own), where):
                return function
            given = self._besides({"lookups": lookups, "setup": setup}, own, where)
            besides = self._taking((function,), given, own, where)
            kind, parameters = self._inspect(function, own, where, besides)
            self._check_ports(sent, own, where)
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
        besides = self._besides(settings, name, where)
        for both in sorted(set(given).intersection(besides.lookups)):
            self._wrong(f"{name} has an input and a lookup of the name {both}; give one of them another", where)
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
        if verb == "filter" and self._right(wrong_predicate(function, own), where) and not callable(function):
            return self.built(verb, (stream,), Filter(function), Each(), own, settings)
        if not callable(function):
            # A predicate was looked at already.
            self._right(None if verb == "filter" else wrong_function(function, own), where)
            self._unusable(function, own, where, ("out",))
            return Stream(Port(own, "out"), self)
        given = dict(settings)
        schema = given.pop("schema", None)
        besides = self._taking((function,), self._besides(given, own, where), own, where)
        run, told = self._record_function(verb, function, own, where, besides)
        declared = told if schema is None else schema
        if isinstance(run, PerRecord):
            run = replace(run, declared=types_of(declared, ("out",)).get("out", {}))
        ports = self._inputs((stream,), own, where, ("in",))
        made = Generative(verb, run, "arrow", Each(), ("out",), besides=besides)
        return self._declare(own, where, ports, made, given, declared)

    def of_record(
        self, role: Literal["filter", "ask", "add"], function: Any, name: str, settings: Mapping[str, Any]
    ) -> tuple[Any, pa.Schema | None]:
        """Read the annotations of a function that another verb calls with a record; `branch` and `enrich` call this.

        Returns what is called with a dict in its place, and the schema that it tells. What is no function is returned
        as it is.
        """
        if not callable(function):
            return function, None
        where, hints = caller(), _hints(function)
        besides = _besides_names(settings)
        parameters = [one for one in parameters_of(function) if one not in besides]
        self._right(uncallable(function, 2 if role == "add" else 1, besides, name), where)
        try:
            taken = record_type(hints.get(parameters[0])) if parameters else None
            if role == "ask":
                check_asks(hints.get("return"), name)
            else:
                check_returns(hints.get("return"), "map" if role == "add" else role, name)
            if role == "add":
                _check_answer(hints.get(parameters[1]) if len(parameters) > 1 else None)
            told = schema_of(hints.get("return"), "map") if role == "add" else None
        except GraphError as error:
            self._wrong(error.message if error.message.startswith(name) else f"{name}: {error.message}", where)
            return function, None
        return (function if taken is None else OfDataclass(function, taken)), told

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
        called = [one for one in calls if self._right(wrong_function(one, own), where)]
        besides = self._besides(given, own, where)
        # What is no function was told, and takes nothing.
        besides = self._taking(called, besides, own, where) if len(called) == len(calls) else besides
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
        names = (*_SETTINGS, *_BESIDES) if settings is None else ()
        own = {name: value for name, value in given.items() if name in names}
        return {**own, **(settings or {})}, {name: value for name, value in given.items() if name not in names}

    def window_of(self, window: Any, default: Window, name: str, where: str | None = None) -> Window:
        """Return a window as it was given, or the default for none; also for something that is no window."""
        if window is None:
            return default
        return window if self._right(wrong_window(window, name), where or caller()) else default

    def wrong(self, message: str | None) -> None:
        """Keep what is wrong with the line that declares now, if anything; verbs of streams call this."""
        self._right(message, caller())

    def name_for(self, stream: Any, function: Any, verb: str) -> str:
        """Return the name of an operator that was given none: its function's, or one made of its input and its verb."""
        called = getattr(function, "__name__", "<lambda>")
        if _NAME.fullmatch(called):
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

    def _besides(self, settings: dict[str, Any], name: str, where: str) -> Besides:
        """Take the lookups and the setup hook out of what was given to an operator."""
        lookups, setup = settings.pop("lookups", None) or {}, settings.pop("setup", None)
        if not isinstance(lookups, Mapping):
            self._wrong(
                f"lookups of {name} are {lookups!r}; give them by name, as in lookups={{'rates': clew.lookup(...)}}",
                where,
            )
            lookups = {}
        for key, one in lookups.items():
            if not isinstance(key, str) or not key.isidentifier() or key == RESOURCES:
                self._wrong(f"{key!r} cannot name a lookup of {name}; use a name that a parameter can have", where)
            if not isinstance(one, Lookup):
                self._wrong(f"lookup {key} of {name} is a {type(one).__name__}; make it with clew.lookup(...)", where)
        if setup is not None and not callable(setup):
            self._wrong(f"setup of {name} is {setup!r}; give it a function without arguments", where)
            setup = None
        kept = {key: one for key, one in lookups.items() if isinstance(key, str) and isinstance(one, Lookup)}
        return Besides(kept, None if setup is None else Setup(setup))

    def _taking(self, functions: Sequence[Any], given: Besides, name: str, where: str) -> Besides:
        """Say which of these the user's functions take by parameters of their names; each lookup must be taken."""
        if not functions and given:
            self._wrong(
                f"{name} calls no function of yours, so it takes neither lookups nor setup; leave them out", where
            )
        for wrong in unfit(functions, name):
            self._wrong(wrong, where)
        parameters = {parameter for function in functions for parameter in parameters_of(function)}
        for lookup in given.lookups if functions else ():
            if lookup not in parameters:
                called = " or ".join(getattr(function, "__name__", repr(function)) for function in functions)
                self._wrong(
                    f"{called} has no parameter {lookup} to take the lookup of that name by; add it, or name the "
                    "lookup as the parameter that is meant for it",
                    where,
                )
        return replace(given, passed=tuple(one for one in given.names if one in parameters))

    def _record_function(
        self, verb: Verb, function: Any, name: str, where: str, besides: Besides
    ) -> tuple[Any, pa.Schema | None]:
        """Read what a function of single records takes and gives from its annotations."""
        hints = _hints(function)
        parameters = tuple(one for one in parameters_of(function) if one not in besides.names)
        try:
            self._count(name, len(parameters), 1, where)
            taken = record_type(hints.get(parameters[0])) if parameters else None
            check_returns(hints.get("return"), verb, name)
            told = schema_of(hints.get("return"), verb) if verb != "filter" else None
        except GraphError as error:
            self._wrong(str(error), where)
            return function, None
        return PerRecord(function, verb, taken), told

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
        asked = self._asked(reads, own, where)
        late = late_function(generative, tuple(ports))
        self._check_window(generative, own, len(ports), where)
        sent = generative.outputs
        self._add(
            OperatorSpec(
                own, where, self._settings(settings, own, where), ports, (*sent, *_outputs(late)), (generative, *late),
                reads=asked, schemas=self._schemas(schema, sent, own, where), built_in=built_in,
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
        besides = self._besides(settings, name, where)
        if calls is not None:
            self._taking([one for one in calls if self._right(wrong_function(one, name), where)], besides, name, where)
        written = {key: one for key, one in (writes or {}).items() if self._right(wrong_sink(one, name), where)}
        asked = self._asked(reads, name, where)
        names = ("in",) if len(inputs) == 1 else tuple(f"in{i + 1}" for i in range(len(inputs)))
        received = self._inputs(inputs, name, where, _names(ports) if ports else names)
        self._add(
            OperatorSpec(
                name, where, self._settings(settings, name, where), received, sent,
                self._generatives(operator, name, sent, where, besides), operator, sinks=written,
                reads=asked, schemas=self._schemas(schema, sent, name, where), built_in=_is_built_in(operator),
            )
        )  # fmt: skip
        return Stream(Port(name, sent[0] if sent else "out"), self)

    def _asked(self, reads: Mapping[str, Any] | None, name: str, where: str) -> dict[str, Connection]:
        """Return the connections among what an operator is to read from on the side."""
        return {key: one for key, one in (reads or {}).items() if self._right(wrong_connection(one, name), where)}

    def sink(self, stream: Any, sink: Sink, *, name: str | None = None, **settings: Any) -> None:
        """Write every event of `stream` to `sink`."""
        where = caller()
        port = self._port(stream, where)
        own = name or (f"{port.operator}_sink" if port.name == "out" else f"{port.operator}_{port.name}_sink")
        sinks = {"out": sink} if self._right(wrong_sink(sink, own), where) else {}
        self._add(OperatorSpec(own, where, self._settings(settings, own, where), {"in": port}, sinks=sinks))

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
            self._wrong(f"lineage is to be kept for {keep!r}: {wrong.message}", where)
        if keep_bytes is not None and (not isinstance(keep_bytes, int) or keep_bytes < 1):
            self._wrong(f"lineage is to be kept in {keep_bytes!r} bytes; give a whole number, 1 or more", where)
            keep_bytes = None
        self._scopes.append(Scope(*ports, where, seconds, keep_bytes))

    def port(self, text: str) -> Stream:
        """Return the port written as `operator.port`, also one that is declared later."""
        return Stream(Port.parse(text), self)

    @property
    def wrong_so_far(self) -> tuple[GraphError, ...]:
        """What is wrong with the lines that were declared until now, each by itself."""
        return tuple(self._errors)

    def graph(self) -> Graph:
        """Check everything and return the pipeline as a value; raises GraphErrors."""
        idle = [
            GraphError("this decorates nothing; write @ and its inputs above a function", at) for at in self._pending
        ]
        return build(self.name, self._specs, [*self._errors, *idle], self._location, self._scopes)

    def _add(self, spec: OperatorSpec) -> None:
        if not _is_name(spec.name):
            self._wrong(f"{spec.name!r} cannot name an operator; use letters, digits, - and _", spec.location)
        self._check_ports((*spec.inputs, *spec.outputs), spec.name, spec.location)
        self._specs.append(spec)

    def _extend(self, name: str, generative: Generative, parameters: Sequence[str], where: str) -> None:
        for index, spec in enumerate(self._specs):
            if spec.name == name:
                self._count(generative.name, len(parameters), len(spec.inputs), where)
                self._check_window(generative, name, len(spec.inputs), where)
                for both in sorted(set(spec.lookups).intersection(generative.besides.lookups)):
                    self._wrong(f"{name} has two lookups of the name {both}; give one of them another", where)
                own = (generative, *late_function(generative, tuple(spec.inputs)))
                self._specs[index] = replace(
                    spec, functions=(*spec.functions, *own), outputs=(*spec.outputs, *_outputs(own))
                )
                return
        self._wrong(f"{generative.name} is declared for unknown operator {name}", where)

    def _check_window(self, generative: Generative, name: str, inputs: int, where: str) -> None:
        if inputs > 1 and not generative.window.many_ports:
            self._wrong(
                f"{generative.window!r} of {name} follows one input, but {inputs} are given; join them before with "
                "union",
                where,
            )

    def _generatives(
        self, operator: Operator, name: str, sent: tuple[str, ...], where: str, besides: Besides
    ) -> tuple[Generative, ...]:
        if not isinstance(operator, Operator):
            self._wrong(f"{name} needs an object of a subclass of clew.Operator, not {operator!r}", where)
            return ()
        missing = [function for function in operator.functions if not callable(getattr(operator, function, None))]
        for function in missing:
            self._wrong(f"{type(operator).__name__} names the function {function}, but has no such method", where)
        return tuple(
            Generative(function, getattr(operator, function), "general", Each(), sent, besides=besides)
            for function in operator.functions
            if function not in missing
        )

    def _wrong(self, message: str, where: str) -> None:
        self._errors.append(GraphError(message, where))

    def _right(self, wrong: str | None, where: str) -> bool:
        """Keep what is wrong with an argument; say whether nothing is."""
        if wrong is not None:
            self._wrong(wrong, where)
        return wrong is None

    def _unusable(self, function: Function, name: str | None, where: str, outputs: tuple[str, ...]) -> Function:
        """Add an operator whose function is none, so that what reads from it is not wrong for that."""
        if name is not None:
            self._add(OperatorSpec(name, where, Settings(), outputs=outputs))
        return function

    def _decorated(self, where: str) -> None:
        # A decorator that is kept and used again is pending only once.
        if where in self._pending:
            self._pending.remove(where)

    def _check_ports(self, ports: Sequence[str], name: str, where: str) -> None:
        for port in ports:
            if not _is_name(port):
                self._wrong(f"{port!r} cannot name a port of {name}; use letters, digits, - and _", where)

    def _remember(self, function: Callable[..., Any], name: str) -> None:
        self._declared[id(function)] = name
        self._functions.append(function)

    def _settings(self, given: Mapping[str, Any], name: str, where: str) -> Settings:
        known = _SETTINGS
        for setting in sorted(set(given) - set(known)):
            near = difflib.get_close_matches(setting, [*known, *_BESIDES], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self._wrong(f"{name} has no setting {setting}; there are {', '.join(known)}{hint}", where)
        settings = Settings(**{setting: value for setting, value in given.items() if setting in known})
        try:
            settings = replace(settings, depends=read_depends(settings.depends, name))
        except GraphError as wrong:
            self._wrong(wrong.message, where)
        if isinstance(settings.capacity, int):
            settings = replace(settings, capacity=Capacity(events=settings.capacity))
        if settings.on_error not in ("stop", "quarantine"):
            self._wrong(f'{name} has on_error={settings.on_error!r}; it is "stop" or "quarantine"', where)
        for setting in _below(settings):
            self._wrong(f"{name} could not move with {setting} as given; make it a number above zero", where)
        return settings

    def _schemas(self, schema: Declared, sent: tuple[str, ...], name: str, where: str) -> Mapping[str, pa.Schema]:
        fixed_ones = {}
        self._right(wrong_schema(schema, name), where)
        for port, one in by_port(schema, sent).items():
            try:
                fixed_ones[port] = fixed(one)
            except TypeRefused as refused:
                self._wrong(f"the schema declared for port {port} cannot be kept: {refused}", where)
        return fixed_ones

    def _port(self, stream: Any, where: str) -> Port:
        if isinstance(stream, Stream):
            return stream.port
        if isinstance(stream, str):
            return Port.parse(stream)
        if id(stream) in self._declared:
            return Port(self._declared[id(stream)], "out")
        called = getattr(stream, "__name__", repr(stream))
        self._wrong(f"{called} is not an operator of pipeline {self.name}; decorate it with @pipeline.operator", where)
        return Port(str(called), "out")

    def _inputs(self, inputs: Sequence[Any], name: str, where: str, ports: Sequence[str]) -> dict[str, Port]:
        if not inputs:
            self._wrong(f"operator {name} has no input; give it what it reads from", where)
        self._count(f"operator {name}", len(ports), len(inputs), where)
        if len(set(ports)) < len(ports):
            self._wrong(f"operator {name} has two input ports of one name: {', '.join(ports)}", where)
        names = ("in",) if len(inputs) == 1 and len(ports) == 1 else ports
        return {port: self._port(stream, where) for port, stream in zip(names, inputs)}

    def _count(self, what: str, takes: int, given: int, where: str) -> None:
        if takes != given:
            inputs = "input" if takes == 1 else "inputs"
            self._wrong(f"{what} takes {takes} {inputs}, but {given} {'is' if given == 1 else 'are'} given", where)

    def _inspect(
        self, function: Callable[..., Any], name: str, where: str, besides: Besides
    ) -> tuple[str, tuple[str, ...]]:
        """Read from a function's annotations how it runs: by the kind of its parameters."""
        parameters = tuple(one for one in parameters_of(function) if one not in besides.names)
        hints = _hints(function)
        kinds = {parameter: _kind(hints.get(parameter)) for parameter in parameters}
        wrong = wrong_annotations(function.__name__, name, {one: hints.get(one) for one in parameters}, kinds)
        if not self._right(wrong, where):
            return "Table", parameters
        kind = next(iter(kinds.values()))
        for lookup in besides.lookups:
            if _kind(hints.get(lookup)) not in ("", kind):
                self._wrong(
                    f"{function.__name__} takes {_TOLD[kind]}, and so it gets lookup {lookup}; annotate it so", where
                )
        for wrong in no_tables(hints.get("return"), function.__name__, _TOLD[kind]):
            self._wrong(wrong, where)
        given = _returned(hints.get("return"))
        if given and given != kind:
            self._wrong(
                f"{function.__name__} takes {_TOLD[kind]} and returns {_TOLD[given]}; it must return what it takes, a "
                "list of them, or a dict of them by port",
                where,
            )
        return kind, parameters


def _hints(function: Any) -> dict[str, Any]:
    """Return a function's annotations; of one that cannot be evaluated, the text."""
    try:
        return get_type_hints(function)
    except Exception:
        # Evaluating a user's annotation may fail in any way.
        written = getattr(function, "__annotations__", {})
        names = getattr(function, "__globals__", {})
        return {name: _evaluated(hint, names) for name, hint in written.items()}


def _evaluated(hint: Any, names: Mapping[str, Any]) -> Any:
    try:
        return get_type_hints(SimpleNamespace(__annotations__={"one": hint}), dict(names))["one"]
    except Exception:
        return hint


def _besides_names(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parameters that are no records; what is wrong with lookups is told where they are declared."""
    lookups = settings.get("lookups")
    names = tuple(lookups) if isinstance(lookups, Mapping) else ()
    return (*names, RESOURCES) if settings.get("setup") is not None else names


def _check_answer(hint: Any) -> None:
    """Raise GraphError when an annotation of an answer cannot be what it is given as."""
    given = [hint, *get_args(hint)]
    if hint not in (None, Any, object) and not any(_kind(one) == "Table" for one in given):
        raise GraphError(
            f"it takes the answer as {named(hint)}, expected pyarrow.Table, as answers are; annotate it so"
        )


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


#: Whose DataFrame or Table an annotation means; other libraries use the same names.
_HOMES = {
    ("DataFrame", "pyspark"): "DataFrame", ("DataFrame", "sql"): "DataFrame", ("DataFrame", ""): "DataFrame",
    ("DataFrame", "pandas"): "pandas", ("DataFrame", "pd"): "pandas",
    ("Table", "pyarrow"): "Table", ("Table", "pa"): "Table", ("Table", ""): "Table",
}  # fmt: skip
_TOLD = {"DataFrame": "pyspark.sql.DataFrame", "pandas": "pandas.DataFrame", "Table": "pyarrow.Table"}


def _kind(hint: Any) -> str:
    """Return the kind of an annotation that chooses a way to run, without importing pyspark to look at it."""
    if isinstance(hint, str):
        path, _, name = hint.strip("'\" ").rpartition(".")
    else:
        path, name = getattr(hint, "__module__", "?"), getattr(hint, "__name__", "")
    if path.startswith("pyspark.pandas"):
        return ""
    return _HOMES.get((name, path.partition(".")[0]), "")


def _returned(hint: Any) -> str:
    """Return the kind of what a function returns, also in a list or a dict; "" where its annotation does not tell."""
    inner = [one for one in get_args(hint) if one not in (str, type(None), ...)]
    return _kind(inner[0]) if inner else _kind(hint)


def _is_built_in(operator: Any) -> bool:
    """Say whether an operator is Clew's, and calls no function of the user's."""
    return isinstance(operator, Numbered | Stamped)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; a single one may stand alone."""
    return (names,) if isinstance(names, str) else tuple(names)


def _below(settings: Settings) -> list[str]:
    """Name the settings with which an operator would never take a turn."""
    values = {name: getattr(settings, name) for name in ("attempts", "turn_timeout", "turn_seconds", "max_turn_events")}
    values |= {f"capacity.{name}": getattr(settings.capacity, name, None) for name in ("events", "bytes")}
    return [name for name, value in values.items() if not isinstance(value, int | float) or value <= 0]
