"""The fluent way to declare: verbs of a stream, each of which makes an operator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from clew.ids import Port
from clew.pipeline.arguments import is_predicate, join_columns, wrong_columns, wrong_groups, wrong_join, wrong_predicate
from clew.pipeline.builtin import Numbered, Stamped
from clew.pipeline.columns import types_of
from clew.pipeline.contracts import Connection, Sink
from clew.pipeline.enriched import ASKED, Enriched
from clew.pipeline.functions import Aggregate, How, Join, Union, aggregations
from clew.pipeline.records import Branch
from clew.pipeline.times import BOUNDS
from clew.pipeline.timewindows import EventTime
from clew.pipeline.windows import Each, Window

if TYPE_CHECKING:
    from clew.pipeline.declare import Pipeline


@dataclass(frozen=True)
class Stream:
    """An output port that other operators may read from."""

    port: Port
    _pipeline: "Pipeline | None" = field(default=None, repr=False, compare=False)

    def __getitem__(self, name: str) -> "Stream":
        """Return another output port of the same operator."""
        return Stream(Port(self.port.operator, name), self._pipeline)

    def map(self, function: Callable[[Any], Any], *, name: str | None = None, **settings: Any) -> "Stream":
        """Call a function with each record, a dict or a dataclass; what it returns takes the record's place."""
        return self._declaring.per_record("map", self, function, name, settings)

    def flat_map(self, function: Callable[[Any], Any], *, name: str | None = None, **settings: Any) -> "Stream":
        """Call a function with each record; the records that it returns take its place."""
        return self._declaring.per_record("flat_map", self, function, name, settings)

    def filter(self, predicate: Any, *, name: str | None = None, **settings: Any) -> "Stream":
        """Keep the records for which a function, or an Arrow expression such as `pc.field("n") > 3`, holds."""
        return self._declaring.per_record("filter", self, predicate, name, settings)

    def apply(self, function: Callable[..., Any], *others: Any, name: str | None = None, **settings: Any) -> "Stream":
        """Declare a function of tables or frames as an operator, as the decorator does."""
        own = name or self._declaring.name_for(self, function, "apply")
        self._declaring.operator(self, *others, name=own, **settings)(function)
        return Stream(Port(own, "out"), self._pipeline)

    def union(self, *others: Any, name: str | None = None, **settings: Any) -> "Stream":
        """Put several streams of the same columns together; each keeps its order."""
        return self._declaring.built("union", (self, *others), Union(), Each(), name, settings)

    def join(
        self,
        other: Any,
        *,
        on: "str | Sequence[str]",
        window: Window,
        how: How = "inner",
        suffix: str = "_right",
        name: str | None = None,
        **settings: Any,
    ) -> "Stream":
        """Join the records of two streams that are in one window, by columns that are equal.

        `how` is inner, left or full. Columns of the other stream that this one has too get the suffix.
        """
        keys = join_columns(on, how)
        of = name or f"join of {self.port.operator}"
        for message in wrong_join(window, suffix, of):
            self._declaring.wrong(message)
        window = self._declaring.window_of(window, Each(), of)
        names = (self.port.operator, getattr(other, "port", self.port).operator)
        function = Join(keys, how, suffix, names)
        self._declaring.wrong(wrong_columns(function.check, window, [_declared(self), _declared(other)]))
        return self._declaring.built("join", (self, other), function, window, name, settings)

    def branch(
        self,
        *,
        rest: str | None = None,
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
        **ports: Any,
    ) -> dict[str, "Stream"]:
        """Send each record to the first port whose predicate holds: `branch(large=..., small=..., rest="other")`.

        Predicates are as those of `filter`. What no port takes goes to the port `rest`, or is dropped without one. What
        is named like a setting, `lookups` or `setup` is that, unless settings are given as `settings={...}`.
        """
        pipeline, of = self._declaring, name or f"branch of {self.port.operator}"
        given, ports = pipeline.settings_apart(ports, settings)
        for setting in () if settings is not None else given:
            if setting != "setup" and is_predicate(given[setting]):
                pipeline.wrong(_taken_name(of, setting, "port"))
        for port, predicate in ports.items():
            pipeline.wrong(wrong_predicate(predicate, f"port {port} of {of}"))
        sent = (*ports, rest) if rest is not None else tuple(ports)
        calls = [predicate for predicate in ports.values() if callable(predicate)]
        predicates = {
            port: pipeline.of_record("filter", one, f"port {port} of {of}", given)[0] for port, one in ports.items()
        }
        made = pipeline.built("branch", (self,), Branch(predicates, rest), Each(), name, given, sent, calls)
        return {port: made[port] for port in sent}

    def enrich(
        self,
        connection: Connection,
        ask: Callable[..., str | None],
        *,
        add: Callable[..., Any] | None = None,
        name: str | None = None,
        **settings: Any,
    ) -> "Stream":
        """Ask a system about each record, and add what it answers (a side-effect read, Algorithm 4).

        `ask` returns the read action of a record, or None for a record that needs none; records of one event that ask
        the same ask once. The answer's first row is added to the record, unless `add(record, answer)` says otherwise.
        Its columns have the types that the connection declares, and are null for records that do not ask.
        Answers are logged, so nobody is asked again after a crash.
        """
        own = name or self._declaring.name_for(self, ask, "enrich")
        calls = [ask, *([] if add is None else [add])]
        answers = connection.schema() if isinstance(connection, Connection) else None
        asks, _ = self._declaring.of_record("ask", ask, f"ask of {own}", settings)
        adds, told = self._declaring.of_record("add", add, f"add of {own}", settings)
        if told is not None and settings.get("schema") is None:
            settings["schema"] = told
        declared = types_of(settings.get("schema"), ("out",)).get("out")
        enriched = Enriched(asks, adds, answers, dict(declared or {}))
        return self._declaring.built(
            "enrich", (self,), enriched, Each(), own, settings, calls=calls, reads={ASKED: connection}
        )

    def number(self, column: str, *, start: int = 1, name: str | None = None, **settings: Any) -> "Stream":
        """Number the records in the order in which they are taken."""
        own = name or self._declaring.name_for(self, None, "number")
        settings = {"deterministic": True, **settings}
        return self._declaring.general(own, Numbered(column, start), self, calls=(), **settings)

    def stamp(self, column: str, *, name: str | None = None, **settings: Any) -> "Stream":
        """Write down when each record was taken; a crash does not change it."""
        own = name or self._declaring.name_for(self, None, "stamp")
        return self._declaring.general(own, Stamped(column), self, calls=(), **{"deterministic": True, **settings})

    def window(self, window: Window) -> "Windowed":
        """Say which records belong together; go on with `apply`, `aggregate` or `sql`."""
        return Windowed(self, self._declaring.window_of(window, Each(), str(self.port)))

    def sink(self, sink: Sink, *, name: str | None = None, **settings: Any) -> None:
        """Write every event to a sink."""
        self._declaring.sink(self, sink, name=name, **settings)

    @property
    def _declaring(self) -> "Pipeline":
        assert self._pipeline is not None, f"{self.port} belongs to no pipeline"
        return self._pipeline


def _declared(stream: Any) -> pa.Schema | None:
    """Return the schema that was declared for the port of a stream."""
    if not isinstance(stream, Stream):
        return None
    specs = [spec for spec in stream._declaring._specs if spec.name == stream.port.operator]
    return specs[0].schemas.get(stream.port.name) if specs else None


def _taken_name(operator: str, setting: str, what: str) -> str:
    return (
        f"{operator} has a setting {setting}, so a {what} of that name is taken for it; name the {what} otherwise, or "
        "give the settings apart, as settings={...}"
    )


@dataclass(frozen=True)
class Windowed:
    """A stream in windows."""

    stream: Stream
    window: Window

    def apply(self, function: Callable[..., Any], *, name: str | None = None, **settings: Any) -> Stream:
        """Call a function with the records of each window."""
        return self.stream.apply(function, name=name, window=self.window, **settings)

    def aggregate(
        self, *by: str, name: str | None = None, settings: Mapping[str, Any] | None = None, **columns: Any
    ) -> Stream:
        """Group the records of each window: `aggregate("item", total=("amount", "sum"), rows="count")`.

        What is named like a setting is that, unless settings are given as `settings={...}`.
        """
        pipeline = self.stream._declaring
        own = name or pipeline.name_for(self.stream, None, "aggregate")
        given, columns = pipeline.settings_apart(columns, settings)
        for setting in () if settings is not None else given:
            if isinstance(given[setting], list | tuple) or (given[setting] == "count" and setting != "group"):
                pipeline.wrong(_taken_name(own, setting, "column"))
        wrong: list[str | None] = [*wrong_groups(by, columns, self.window, own)]
        # The bounds of a window of time are keys already.
        bounds = BOUNDS if isinstance(self.window, EventTime) else ()
        keys = tuple(key for key in by if isinstance(key, str) and key not in bounds)
        function = Aggregate(keys, aggregations(columns), self.stream.port.operator, own)
        for message in wrong or [wrong_columns(function, self.window, [_declared(self.stream)])]:
            pipeline.wrong(message)
        return pipeline.built("aggregate", (self.stream,), function, self.window, own, given)

    def sql(self, text: str, *, name: str | None = None, **settings: Any) -> Stream:
        """Run a query over each window; the stream is the table `records` in it."""
        own = name or self.stream._declaring.name_for(self.stream, None, "sql")
        return self.stream._declaring.sql(own, text, window=self.window, records=self.stream, **settings)
