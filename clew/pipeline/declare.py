"""How a user declares a pipeline. Declaring never starts anything."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_type_hints

import pyarrow as pa

from clew.errors import GraphError
from clew.ids import Port
from clew.pipeline.contracts import Connection, Sink, Source
from clew.pipeline.graph import Capacity, Generative, Graph, OperatorSpec, Settings, Style, build
from clew.pipeline.location import caller
from clew.pipeline.operators import Operator
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
        self._specs: list[OperatorSpec] = []
        self._errors: list[GraphError] = []
        self._declared: dict[int, str] = {}
        # Functions are kept so that their ids stay theirs.
        self._functions: list[Callable[..., Any]] = []

    def source(self, name: str, source: Source, **settings: Any) -> Stream:
        """Declare a source; its events leave by the port `out`."""
        schema = source.schema()
        self._add(
            OperatorSpec(
                name, caller(), self._settings(settings), outputs=("out",), source=source,
                schemas={"out": schema} if schema is not None else {},
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

        def declare(function: Function) -> Function:
            own = name or function.__name__
            style, parameters = self._inspect(function, own, where)
            ports = self._inputs(inputs, own, where, parameters)
            generative = Generative(function.__name__, function, style, window or Each(), tuple(outputs), row_local)
            self._add(
                OperatorSpec(
                    own, where, self._settings(settings), ports, tuple(outputs), (generative,),
                    schemas=_schemas(schema, tuple(outputs)),
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

        def declare(function: Function) -> Function:
            own = self._port(operator, where).operator
            style, _ = self._inspect(function, own, where)
            generative = Generative(function.__name__, function, style, window or Each(), tuple(outputs))
            for index, spec in enumerate(self._specs):
                if spec.name == own:
                    self._specs[index] = replace(
                        spec, functions=(*spec.functions, generative), outputs=(*spec.outputs, *outputs)
                    )
                    return function
            self._errors.append(GraphError(f"{function.__name__} is declared for unknown operator {own}", where))
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
        names = (
            tuple(ports) if ports else ("in",) if len(inputs) == 1 else tuple(f"in{i + 1}" for i in range(len(inputs)))
        )
        functions = tuple(
            Generative(function, getattr(operator, function), "general", Each(), tuple(outputs))
            for function in operator.functions
        )
        self._add(
            OperatorSpec(
                name, where, self._settings(settings), self._inputs(inputs, name, where, names), tuple(outputs),
                functions, operator, sinks=dict(writes or {}), reads=dict(reads or {}),
                schemas=_schemas(schema, tuple(outputs)),
            )
        )  # fmt: skip
        return Stream(Port(name, outputs[0] if outputs else "out"))

    def sink(self, stream: Any, sink: Sink, *, name: str | None = None, **settings: Any) -> None:
        """Write every event of `stream` to `sink`."""
        where = caller()
        port = self._port(stream, where)
        own = name or (f"{port.operator}_sink" if port.name == "out" else f"{port.operator}_{port.name}_sink")
        self._add(OperatorSpec(own, where, self._settings(settings), {"in": port}, sinks={"out": sink}))

    def port(self, text: str) -> Stream:
        """Return the port written as `operator.port`, also one that is declared later."""
        return Stream(Port.parse(text))

    def graph(self) -> Graph:
        """Check everything and return the pipeline as a value; raises GraphErrors."""
        return build(self.name, self._specs, self._errors)

    def _add(self, spec: OperatorSpec) -> None:
        if not _NAME.fullmatch(spec.name):
            self._errors.append(
                GraphError(f"{spec.name!r} cannot name an operator; use letters, digits, - and _", spec.location)
            )
        self._specs.append(spec)

    def _remember(self, function: Callable[..., Any], name: str) -> None:
        self._declared[id(function)] = name
        self._functions.append(function)

    def _settings(self, given: dict[str, Any]) -> Settings:
        try:
            capacity = given.pop("capacity", None)
            if isinstance(capacity, int):
                capacity = Capacity(events=capacity)
            return Settings(**given, **({"capacity": capacity} if capacity else {}))
        except TypeError as wrong:
            self._errors.append(GraphError(str(wrong).replace("Settings.__init__() ", ""), caller()))
            return Settings()

    def _port(self, stream: Any, where: str) -> Port:
        if isinstance(stream, Stream):
            return stream.port
        if isinstance(stream, str):
            return Port.parse(stream)
        if id(stream) in self._declared:
            return Port(self._declared[id(stream)], "out")
        called = getattr(stream, "__name__", repr(stream))
        self._errors.append(
            GraphError(
                f"{called} is not an operator of pipeline {self.name}; decorate it with @pipeline.operator", where
            )
        )
        return Port(str(called), "out")

    def _inputs(self, inputs: Sequence[Any], name: str, where: str, ports: Sequence[str]) -> dict[str, Port]:
        if not inputs:
            self._errors.append(GraphError(f"operator {name} has no input; give it what it reads from", where))
        if len(ports) != len(inputs):
            self._errors.append(
                GraphError(f"operator {name} takes {len(ports)} inputs, but {len(inputs)} are given", where)
            )
        names = ("in",) if len(inputs) == 1 and len(ports) == 1 else ports
        return {port: self._port(stream, where) for port, stream in zip(names, inputs)}

    def _inspect(self, function: Callable[..., Any], name: str, where: str) -> tuple[Style, tuple[str, ...]]:
        parameters = tuple(inspect.signature(function).parameters)
        try:
            hints = get_type_hints(function)
        except NameError:
            hints = dict(function.__annotations__)
        kinds = {_kind(hints.get(parameter)) for parameter in parameters}
        style: Style = "dataframe" if kinds == {"DataFrame"} else "arrow"
        if kinds not in ({"DataFrame"}, {"Table"}):
            self._errors.append(
                GraphError(
                    f"the parameters of {function.__name__} must all be annotated, either as pyarrow.Table or as "
                    f"pyspark.sql.DataFrame: the annotation chooses how {name} runs",
                    where,
                )
            )
        return style, parameters


def _kind(hint: Any) -> str:
    """Return the class name of an annotation, without importing pyspark to look at it."""
    return hint.rpartition(".")[2] if isinstance(hint, str) else getattr(hint, "__name__", "")


def _schemas(schema: "pa.Schema | Mapping[str, pa.Schema] | None", outputs: tuple[str, ...]) -> Mapping[str, pa.Schema]:
    if schema is None:
        return {}
    return {outputs[0]: schema} if isinstance(schema, pa.Schema) else dict(schema)
