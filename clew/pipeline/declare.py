"""How a user declares a pipeline. Declaring never starts anything."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, get_type_hints

import pyarrow as pa

from clew.errors import GraphError, TypeRefused
from clew.ids import Port
from clew.pipeline.contracts import Connection, Sink, Source
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
from clew.pipeline.location import caller
from clew.pipeline.operators import Operator
from clew.pipeline.schema import fixed
from clew.pipeline.windows import Each, Window

Function = TypeVar("Function", bound=Callable[..., Any])
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Stream:
    """An output port that other operators may read from."""

    port: Port

    def __getitem__(self, name: str) -> "Stream":
        """Return another output port of the same operator."""
        return Stream(Port(self.port.operator, name))


class Pipeline:
    """A pipeline under declaration: sources, operators, sinks and how they are connected."""

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
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

    def source(self, name: str, source: Source, **settings: Any) -> Stream:
        """Declare a source; its events leave by the port `out`."""
        where = caller()
        self._add(
            OperatorSpec(
                name, where, self._settings(settings, name, where), outputs=("out",), source=source,
                schemas=self._schemas(source.schema(), ("out",), where),
            )
        )  # fmt: skip
        return Stream(Port(name, "out"))

    def operator(
        self,
        *inputs: Any,
        name: str | None = None,
        window: Window | None = None,
        outputs: Sequence[str] = ("out",),
        schema: "pa.Schema | Mapping[str, pa.Schema] | None" = None,
        row_local: bool = False,
        **settings: Any,
    ) -> Callable[[Function], Function]:
        """Declare the decorated function as an operator and return the function unchanged.

        Its annotation (`pyarrow.Table` or `pyspark.sql.DataFrame`) chooses how it runs. Each
        parameter receives the records of one input, in the order given here.
        """
        where = caller()
        sent = _names(outputs)
        self._pending.append(where)

        def declare(function: Function) -> Function:
            self._decorated(where)
            own = name or function.__name__
            style, parameters = self._inspect(function, own, where)
            ports = self._inputs(inputs, own, where, parameters)
            generative = Generative(function.__name__, function, style, window or Each(), sent, row_local)
            late = late_function(generative, tuple(ports))
            self._check_window(generative, own, len(ports), where)
            self._add(
                OperatorSpec(
                    own, where, self._settings(settings, own, where), ports, (*sent, *_outputs(late)),
                    (generative, *late),
                    schemas=self._schemas(schema, sent, where),
                )
            )  # fmt: skip
            self._remember(function, own)
            return function

        return declare

    def also(
        self, operator: Any, *, window: Window | None = None, outputs: Sequence[str]
    ) -> Callable[[Function], Function]:
        """Declare the decorated function as a further generative function of an operator.

        It sees the same events through a window of its own, and sends on ports of its own.
        """
        where = caller()
        sent = _names(outputs)
        self._pending.append(where)

        def declare(function: Function) -> Function:
            self._decorated(where)
            own = self._port(operator, where).operator
            style, parameters = self._inspect(function, own, where)
            self._check_ports(sent, own, where)
            self._extend(own, Generative(function.__name__, function, style, window or Each(), sent), parameters, where)
            return function

        return declare

    def general(
        self,
        name: str,
        operator: Operator,
        *inputs: Any,
        ports: Sequence[str] | None = None,
        outputs: Sequence[str] = ("out",),
        reads: Mapping[str, Connection] | None = None,
        writes: Mapping[str, Sink] | None = None,
        schema: "pa.Schema | Mapping[str, pa.Schema] | None" = None,
        **settings: Any,
    ) -> Stream:
        """Declare a general operator: your own subclass of `Operator`."""
        where = caller()
        sent = _names(outputs)
        names = ("in",) if len(inputs) == 1 else tuple(f"in{i + 1}" for i in range(len(inputs)))
        received = self._inputs(inputs, name, where, _names(ports) if ports else names)
        self._add(
            OperatorSpec(
                name, where, self._settings(settings, name, where), received, sent,
                self._generatives(operator, name, sent, where), operator, sinks=dict(writes or {}),
                reads=dict(reads or {}), schemas=self._schemas(schema, sent, where),
            )
        )  # fmt: skip
        return Stream(Port(name, sent[0] if sent else "out"))

    def sink(self, stream: Any, sink: Sink, *, name: str | None = None, **settings: Any) -> None:
        """Write every event of `stream` to `sink`."""
        where = caller()
        port = self._port(stream, where)
        own = name or (f"{port.operator}_sink" if port.name == "out" else f"{port.operator}_{port.name}_sink")
        self._add(OperatorSpec(own, where, self._settings(settings, own, where), {"in": port}, sinks={"out": sink}))

    def port(self, text: str) -> Stream:
        """Return the port written as `operator.port`, also one that is declared later."""
        return Stream(Port.parse(text))

    def graph(self) -> Graph:
        """Check everything and return the pipeline as a value; raises GraphErrors."""
        idle = [
            GraphError("this decorates nothing; write @ and its inputs above a function", at) for at in self._pending
        ]
        return build(self.name, self._specs, [*self._errors, *idle], self._location)

    def _add(self, spec: OperatorSpec) -> None:
        if not _NAME.fullmatch(spec.name):
            self._wrong(f"{spec.name!r} cannot name an operator; use letters, digits, - and _", spec.location)
        self._check_ports((*spec.inputs, *spec.outputs), spec.name, spec.location)
        self._specs.append(spec)

    def _extend(self, name: str, generative: Generative, parameters: Sequence[str], where: str) -> None:
        for index, spec in enumerate(self._specs):
            if spec.name == name:
                self._count(generative.name, len(parameters), len(spec.inputs), where)
                self._check_window(generative, name, len(spec.inputs), where)
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

    def _generatives(self, operator: Operator, name: str, sent: tuple[str, ...], where: str) -> tuple[Generative, ...]:
        if not isinstance(operator, Operator):
            self._wrong(f"{name} needs an object of a subclass of clew.Operator, not {operator!r}", where)
            return ()
        missing = [function for function in operator.functions if not callable(getattr(operator, function, None))]
        for function in missing:
            self._wrong(f"{type(operator).__name__} names the function {function}, but has no such method", where)
        return tuple(
            Generative(function, getattr(operator, function), "general", Each(), sent)
            for function in operator.functions
            if function not in missing
        )

    def _wrong(self, message: str, where: str) -> None:
        self._errors.append(GraphError(message, where))

    def _decorated(self, where: str) -> None:
        # A decorator that is kept and used again is pending only once.
        if where in self._pending:
            self._pending.remove(where)

    def _check_ports(self, ports: Sequence[str], name: str, where: str) -> None:
        for port in ports:
            if not _NAME.fullmatch(port):
                self._wrong(f"{port!r} cannot name a port of {name}; use letters, digits, - and _", where)

    def _remember(self, function: Callable[..., Any], name: str) -> None:
        self._declared[id(function)] = name
        self._functions.append(function)

    def _settings(self, given: Mapping[str, Any], name: str, where: str) -> Settings:
        known = [field.name for field in fields(Settings)]
        for setting in sorted(set(given) - set(known)):
            self._wrong(f"{name} has no setting {setting}; there are {', '.join(known)}", where)
        settings = Settings(**{setting: value for setting, value in given.items() if setting in known})
        if isinstance(settings.capacity, int):
            settings = replace(settings, capacity=Capacity(events=settings.capacity))
        for setting in _below(settings):
            self._wrong(f"{name} could not move with {setting} as given; make it a number above zero", where)
        return settings

    def _schemas(
        self, schema: "pa.Schema | Mapping[str, pa.Schema] | None", sent: tuple[str, ...], where: str
    ) -> Mapping[str, pa.Schema]:
        if schema is None:
            return {}
        declared = {(sent or ("out",))[0]: schema} if isinstance(schema, pa.Schema) else schema
        fixed_ones = {}
        for port, one in declared.items():
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
            self._wrong(f"{what} takes {takes} inputs, but {given} are given", where)

    def _inspect(self, function: Callable[..., Any], name: str, where: str) -> tuple[Style, tuple[str, ...]]:
        parameters = tuple(inspect.signature(function).parameters)
        try:
            hints = get_type_hints(function)
        except Exception:
            # Evaluating a user's annotation may fail in any way; its text is then all there is.
            hints = dict(function.__annotations__)
        kinds = {_kind(hints.get(parameter)) for parameter in parameters}
        style: Style = "dataframe" if kinds == {"DataFrame"} else "arrow"
        if kinds not in ({"DataFrame"}, {"Table"}):
            self._wrong(
                f"the parameters of {function.__name__} must all be annotated, either as pyarrow.Table or as "
                f"pyspark.sql.DataFrame: the annotation chooses how {name} runs",
                where,
            )
        return style, parameters


def _outputs(functions: Sequence[Generative]) -> tuple[str, ...]:
    return tuple(port for function in functions for port in function.outputs)


#: Whose DataFrame or Table an annotation means; other libraries use the same names.
_HOMES = {"DataFrame": {"pyspark", "sql", ""}, "Table": {"pyarrow", "pa", ""}}


def _kind(hint: Any) -> str:
    """Return the class name of an annotation that chooses a way to run, without importing pyspark to look at it."""
    if isinstance(hint, str):
        path, _, name = hint.strip("'\" ").rpartition(".")
    else:
        path, name = getattr(hint, "__module__", "?"), getattr(hint, "__name__", "")
    if path.startswith("pyspark.pandas"):
        return ""
    return name if path.partition(".")[0] in _HOMES.get(name, ()) else ""


def _names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; a single one may stand alone."""
    return (names,) if isinstance(names, str) else tuple(names)


def _below(settings: Settings) -> list[str]:
    """Name the settings with which an operator would never take a turn."""
    values = {name: getattr(settings, name) for name in ("attempts", "turn_timeout", "turn_seconds", "max_turn_events")}
    values |= {f"capacity.{name}": getattr(settings.capacity, name, None) for name in ("events", "bytes")}
    return [name for name, value in values.items() if not isinstance(value, int | float) or value <= 0]
