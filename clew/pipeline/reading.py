"""Reads what was given to a declaration: settings, schemas, lookups and the annotations of functions.

What is wrong with it is kept, so that one look tells all of it; what can be used is returned.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, get_args

import pyarrow as pa

from clew.errors import GraphError, TypeRefused
from clew.pipeline.annotations import TOLD, hints_of, kind_of, returned_kind
from clew.pipeline.arguments import no_tables, uncallable, unfit, wrong_annotations, wrong_connection, wrong_schema
from clew.pipeline.columns import Declared, by_port
from clew.pipeline.contracts import Connection
from clew.pipeline.dependencies import read_depends
from clew.pipeline.graph import Capacity, Generative, Settings
from clew.pipeline.hints import OfDataclass, Verb, check_asks, check_returns, named, record_type, schema_of
from clew.pipeline.lookups import RESOURCES, Besides, Lookup, Setup, parameters_of
from clew.pipeline.operators import Operator
from clew.pipeline.records import PerRecord
from clew.pipeline.schema import fixed
from clew.pipeline.windows import Each

#: What a function of the user's is for that another verb calls with a record.
Role = Literal["filter", "ask", "add"]
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
SETTINGS = tuple(field.name for field in fields(Settings))
#: What every operator with a function of the user's may be given besides settings.
BESIDES = ("lookups", "setup")


class Reading:
    """Reads the arguments of declarations, and keeps what is wrong with them."""

    def __init__(self) -> None:
        self.errors: list[GraphError] = []

    def wrong(self, message: str, where: str) -> None:
        self.errors.append(GraphError(message, where))

    def right(self, wrong: str | None, where: str) -> bool:
        """Keep what is wrong with an argument; say whether nothing is."""
        if wrong is not None:
            self.wrong(wrong, where)
        return wrong is None

    def count(self, what: str, takes: int, given: int, where: str) -> None:
        if takes != given:
            inputs = "input" if takes == 1 else "inputs"
            self.wrong(f"{what} takes {takes} {inputs}, but {given} {'is' if given == 1 else 'are'} given", where)

    def check_ports(self, ports: Sequence[str], name: str, where: str) -> None:
        for port in ports:
            if not is_name(port):
                self.wrong(f"{port!r} cannot name a port of {name}; use letters, digits, - and _", where)

    def check_window(self, generative: Generative, name: str, inputs: int, where: str) -> None:
        if inputs > 1 and not generative.window.many_ports:
            self.wrong(
                f"{generative.window!r} of {name} follows one input, but {inputs} are given; join them before with "
                "union",
                where,
            )

    def settings(self, given: Mapping[str, Any], name: str, where: str) -> Settings:
        known = SETTINGS
        for setting in sorted(set(given) - set(known)):
            near = difflib.get_close_matches(setting, [*known, *BESIDES], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.wrong(f"{name} has no setting {setting}; there are {', '.join(known)}{hint}", where)
        settings = Settings(**{setting: value for setting, value in given.items() if setting in known})
        try:
            settings = replace(settings, depends=read_depends(settings.depends, name))
        except GraphError as wrong:
            self.wrong(wrong.message, where)
            settings = replace(settings, depends={})
        if isinstance(settings.capacity, int):
            settings = replace(settings, capacity=Capacity(events=settings.capacity))
        if settings.on_error not in ("stop", "quarantine"):
            self.wrong(f'{name} has on_error={settings.on_error!r}; it is "stop" or "quarantine"', where)
        for setting in _below(settings):
            self.wrong(f"{name} could not move with {setting} as given; make it a number above zero", where)
        return settings

    def schemas(self, schema: Declared, sent: tuple[str, ...], name: str, where: str) -> Mapping[str, pa.Schema]:
        fixed_ones = {}
        self.right(wrong_schema(schema, name), where)
        for port, one in by_port(schema, sent).items():
            try:
                fixed_ones[port] = fixed(one)
            except TypeRefused as refused:
                self.wrong(f"the schema declared for port {port} cannot be kept: {refused}", where)
        return fixed_ones

    def asked(self, reads: Mapping[str, Any] | None, name: str, where: str) -> dict[str, Connection]:
        """Return the connections among what an operator is to read from on the side."""
        return {key: one for key, one in (reads or {}).items() if self.right(wrong_connection(one, name), where)}

    def besides(self, settings: dict[str, Any], name: str, where: str) -> Besides:
        """Take the lookups and the setup hook out of what was given to an operator."""
        lookups, setup = settings.pop("lookups", None) or {}, settings.pop("setup", None)
        if not isinstance(lookups, Mapping):
            self.wrong(
                f"lookups of {name} are {lookups!r}; give them by name, as in lookups={{'rates': clew.lookup(...)}}",
                where,
            )
            lookups = {}
        for key, one in lookups.items():
            if not isinstance(key, str) or not key.isidentifier() or key == RESOURCES:
                self.wrong(f"{key!r} cannot name a lookup of {name}; use a name that a parameter can have", where)
            if not isinstance(one, Lookup):
                self.wrong(f"lookup {key} of {name} is a {type(one).__name__}; make it with clew.lookup(...)", where)
        if setup is not None and not callable(setup):
            self.wrong(f"setup of {name} is {setup!r}; give it a function without arguments", where)
            setup = None
        kept = {key: one for key, one in lookups.items() if isinstance(key, str) and isinstance(one, Lookup)}
        return Besides(kept, None if setup is None else Setup(setup))

    def taking(self, functions: Sequence[Any], given: Besides, name: str, where: str) -> Besides:
        """Say which of these the user's functions take by parameters of their names; each lookup must be taken."""
        if not functions and given:
            self.wrong(
                f"{name} calls no function of yours, so it takes neither lookups nor setup; leave them out", where
            )
        for wrong in unfit(functions, name):
            self.wrong(wrong, where)
        parameters = {parameter for function in functions for parameter in parameters_of(function)}
        for lookup in given.lookups if functions else ():
            if lookup not in parameters:
                called = " or ".join(getattr(function, "__name__", repr(function)) for function in functions)
                self.wrong(
                    f"{called} has no parameter {lookup} to take the lookup of that name by; add it, or name the "
                    "lookup as the parameter that is meant for it",
                    where,
                )
        return replace(given, passed=tuple(one for one in given.names if one in parameters))

    def inspect(
        self, function: Callable[..., Any], name: str, where: str, besides: Besides
    ) -> tuple[str, tuple[str, ...]]:
        """Read from a function's annotations how it runs: by the kind of its parameters."""
        parameters = tuple(one for one in parameters_of(function) if one not in besides.names)
        hints = hints_of(function)
        kinds = {parameter: kind_of(hints.get(parameter)) for parameter in parameters}
        wrong = wrong_annotations(function.__name__, name, {one: hints.get(one) for one in parameters}, kinds)
        if not self.right(wrong, where):
            return "Table", parameters
        kind = next(iter(kinds.values()))
        for lookup in besides.lookups:
            if kind_of(hints.get(lookup)) not in ("", kind):
                self.wrong(
                    f"{function.__name__} takes {TOLD[kind]}, and so it gets lookup {lookup}; annotate it so", where
                )
        for wrong in no_tables(hints.get("return"), function.__name__, TOLD[kind]):
            self.wrong(wrong, where)
        given = returned_kind(hints.get("return"))
        if given and given != kind:
            self.wrong(
                f"{function.__name__} takes {TOLD[kind]} and returns {TOLD[given]}; it must return what it takes, a "
                "list of them, or a dict of them by port",
                where,
            )
        return kind, parameters

    def record_function(
        self, verb: Verb, function: Any, name: str, where: str, besides: Besides
    ) -> tuple[Any, pa.Schema | None]:
        """Read what a function of single records takes and gives from its annotations."""
        hints = hints_of(function)
        parameters = tuple(one for one in parameters_of(function) if one not in besides.names)
        try:
            self.count(name, len(parameters), 1, where)
            taken = record_type(hints.get(parameters[0])) if parameters else None
            check_returns(hints.get("return"), verb, name)
            told = schema_of(hints.get("return"), verb) if verb != "filter" else None
        except GraphError as error:
            self.wrong(str(error), where)
            return function, None
        return PerRecord(function, verb, taken), told

    def of_record(
        self, role: Role, function: Any, name: str, settings: Mapping[str, Any], where: str
    ) -> tuple[Any, pa.Schema | None]:
        """Read the annotations of a function that another verb calls with a record.

        Returns what is called with a dict in its place, and the schema that it tells. What is no function is returned
        as it is.
        """
        if not callable(function):
            return function, None
        hints = hints_of(function)
        besides = _names_besides(settings)
        parameters = [one for one in parameters_of(function) if one not in besides]
        self.right(uncallable(function, 2 if role == "add" else 1, besides, name), where)
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
            self.wrong(error.message if error.message.startswith(name) else f"{name}: {error.message}", where)
            return function, None
        return (function if taken is None else OfDataclass(function, taken)), told

    def generatives(
        self, operator: Operator, name: str, sent: tuple[str, ...], where: str, besides: Besides
    ) -> tuple[Generative, ...]:
        if not isinstance(operator, Operator):
            self.wrong(f"{name} needs an object of a subclass of clew.Operator, not {operator!r}", where)
            return ()
        missing = [function for function in operator.functions if not callable(getattr(operator, function, None))]
        for function in missing:
            self.wrong(f"{type(operator).__name__} names the function {function}, but has no such method", where)
        return tuple(
            Generative(function, getattr(operator, function), "general", Each(), sent, besides=besides)
            for function in operator.functions
            if function not in missing
        )


def _names_besides(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parameters that are no records; what is wrong with lookups is told where they are declared."""
    lookups = settings.get("lookups")
    names = tuple(lookups) if isinstance(lookups, Mapping) else ()
    return (*names, RESOURCES) if settings.get("setup") is not None else names


def _check_answer(hint: Any) -> None:
    """Raise GraphError when an annotation of an answer cannot be what it is given as."""
    given = [hint, *get_args(hint)]
    if hint not in (None, Any, object) and not any(kind_of(one) == "Table" for one in given):
        raise GraphError(
            f"it takes the answer as {named(hint)}, expected pyarrow.Table, as answers are; annotate it so"
        )


def is_name(name: Any) -> bool:
    return isinstance(name, str) and NAME.fullmatch(name) is not None


def _below(settings: Settings) -> list[str]:
    """Name the settings with which an operator would never take a turn."""
    values = {name: getattr(settings, name) for name in ("attempts", "turn_timeout", "turn_seconds", "max_turn_events")}
    values |= {f"capacity.{name}": getattr(settings.capacity, name, None) for name in ("events", "bytes")}
    return [name for name, value in values.items() if not isinstance(value, int | float) or value <= 0]
