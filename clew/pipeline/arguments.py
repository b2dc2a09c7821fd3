"""What is wrong with an argument of a declaration: something of another kind than is needed there, or nothing at all.

Each function returns a sentence with the cure, or None where the argument is as it should be.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, get_args

import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import ClewError, GraphError
from clew.pipeline.contracts import Connection, Observed, Sink, Source
from clew.pipeline.functions import How
from clew.pipeline.hints import named
from clew.pipeline.location import caller
from clew.pipeline.times import BOUNDS
from clew.pipeline.timewindows import EventTime
from clew.pipeline.windows import Count, Each, Window

#: Annotations of what is no table, no list of tables and no dict of them.
_NO_TABLES = (int, float, str, bool, bytes, complex)


class Unknown(Observed):
    """Stands for a source that is wrong, so that what reads from it is not wrong for that."""

    def describe(self) -> str:
        return "nothing"

    def observe(self) -> Iterator[pa.Table]:
        return iter(())


def wrong_source(given: Any, name: str) -> str | None:
    if isinstance(given, Source):
        return None
    cure = "give it one, such as files(...), generator(...) or sqlite(..., query=...)"
    return f"source {name} is to read {told(given)}, which is no source; {cure}"


def wrong_sink(given: Any, name: str) -> str | None:
    if isinstance(given, Sink):
        return None
    cure = "give it one, such as files(...) or sqlite(..., table=...)"
    return f"{name} is to write to {told(given)}, which is no sink; {cure}"


def wrong_connection(given: Any, name: str) -> str | None:
    if isinstance(given, Connection):
        return wrong_schema(given.schema(), given.describe())
    cure = "give it a connection, such as postgres(...) without query= and table=, or http(...)"
    return f"{name} is to ask {told(given)}, which cannot be asked; {cure}"


def wrong_schema(given: Any, name: str) -> str | None:
    by_port = given if isinstance(given, Mapping) else {"out": given}
    if given is None or all(isinstance(one, pa.Schema) for one in by_port.values()):
        return None
    cure = 'give it one of Arrow, as in pa.schema([("id", pa.int64())]), or such schemas by output port'
    if type(given).__module__.startswith("pyspark."):
        cure = "pyspark.sql.pandas.types.to_arrow_schema(...) makes one of Spark's"
    return f"schema= of {name} is {told(given)}, which is no schema; {cure}"


def wrong_window(given: Any, name: str) -> str | None:
    if isinstance(given, Window):
        return None
    return (
        f'the window of {name} is {told(given)}; give it one, such as Batch(), Count(5) or Tumbling("1 hour", on=...)'
    )


def wrong_function(given: Any, name: str) -> str | None:
    if callable(given):
        return None
    return f"{name} is to call {told(given)}, which is no function; give it one"


def is_predicate(given: Any) -> bool:
    """Say whether it tells records apart: a function of a record, or an Arrow expression."""
    return callable(given) or isinstance(given, pc.Expression)


def wrong_predicate(given: Any, name: str) -> str | None:
    if is_predicate(given):
        return None
    return (
        f"{name} is to look whether {told(given)} holds of a record, which is no predicate; give it a function of a "
        'record, or an Arrow expression such as pc.field("n") > 3'
    )


def told(given: Any) -> str:
    """Describe what was given."""
    if isinstance(given, type):
        return f"the class {given.__name__} (call it)"
    for kind, word in ((Source, "source"), (Sink, "sink"), (Connection, "connection")):
        if isinstance(given, kind):
            return f"the {word} {given.describe()}"
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:77]}..."


def join_columns(on: Any, how: Any) -> tuple[str, ...]:
    """Return the columns that a join is on; raises GraphError where these, or the kind of join, are none."""
    names = tuple(on) if isinstance(on, Sequence) and not isinstance(on, str) else (on,)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise GraphError(
            f"join(on={on!r}) names no columns to compare; name one that both streams have, or several, each once",
            caller(),
        )
    if how not in get_args(How):
        known = ", ".join(get_args(How))
        cure = ' for "right", exchange the streams and take "left"' if how == "right" else " name one of these"
        raise GraphError(f"join(how={how!r}) is no join that there is; there are {known}:{cure}", caller())
    return names


def wrong_join(window: Any, suffix: Any, name: str) -> Iterator[str]:
    """Say what is wrong with a join's window and its suffix."""
    if window is None:
        yield f'{name} has no window; give it one that events of both streams meet in, as Tumbling("1 hour", on=...)'
    if isinstance(window, Each) or (isinstance(window, Count) and window.size == 1 and not window.columns):
        yield (
            f"the window of {name} is {window!r}, in which each event is alone, so that nothing is ever joined; give "
            'it one that events of both streams meet in, such as Tumbling("1 hour", on=...)'
        )
    if not isinstance(suffix, str):
        yield f'suffix= of {name} is {told(suffix)}, which is no text; give it one, such as "_right"'


def wrong_columns(check: Callable[..., Any], window: Window, schemas: Sequence[pa.Schema | None]) -> str | None:
    """Return what a function of Clew's says to records of its inputs' schemas, where all of these are declared."""
    known = [schema for schema in schemas if schema is not None]
    if len(known) < len(schemas):
        return None
    try:
        tables = [window.extend(schema).empty_table() for schema in known]
    except ClewError:
        # What is wrong with the window is said of the window.
        return None
    try:
        check(*tables)
    except ClewError as error:
        return str(error)
    return None


def wrong_groups(by: Sequence[Any], columns: Mapping[str, Any], window: Window, name: str) -> Iterator[str]:
    """Say what is wrong with the names of what an aggregation groups by, and of what it makes."""
    if not by and not columns:
        yield f'{name} is to compute nothing; name a column to make, as in aggregate("item", rows="count")'
    names = [key for key in by if isinstance(key, str)]
    for key in by:
        if not isinstance(key, str):
            yield f'{name} is to group by {told(key)}, which is no name of a column; name one, as in aggregate("item")'
    for key in dict.fromkeys(names):
        if names.count(key) > 1:
            yield f"{name} is to group by column {key} more than once; name it once"
    for key in dict.fromkeys([*names, *(BOUNDS if isinstance(window, EventTime) else ())]):
        if key in columns:
            yield (
                f"{name} is to compute column {key}, by which its records are grouped already; give the new column "
                "another name"
            )


def unfit(functions: Sequence[Any], name: str) -> Iterator[str]:
    """Say of each function why it cannot be called by an operator, where it cannot."""
    for function in functions:
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            called = getattr(function, "__name__", repr(function))
            yield (
                f"{called} of {name} is declared with async, but operators call plain functions; declare it with def, "
                "and let asyncio.run() wait inside it for what must be waited for"
            )


def no_tables(hint: Any, function: str, takes: str) -> Iterator[str]:
    """Say why the annotation of what a function of tables returns cannot be, where it cannot."""
    if hint in _NO_TABLES:
        yield (
            f"{function} takes {takes} and returns {hint.__name__}; it must return what it takes, a list of them, or a "
            "dict of them by port"
        )


def uncallable(function: Any, records: int, besides: Collection[str], name: str) -> str | None:
    """Say why a function cannot be called with so many arguments, and those of its parameters that are named."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some built-in functions do not tell.
        return None
    try:
        signature.bind(*[None] * records, **{one: None for one in besides if one in signature.parameters})
    except TypeError as error:
        given = "a record" if records == 1 else "a record and the answer"
        return f"{name} cannot be called with {given} ({error}); let it take these, and lookups by their names"
    return None


def wrong_annotations(function: str, operator: str, hints: Mapping[str, Any], kinds: Mapping[str, str]) -> str | None:
    """Say which parameters have no annotation that chooses how a function runs, or another one than the rest."""
    unknown = [parameter for parameter, kind in kinds.items() if not kind]
    if hints and not unknown and len(set(kinds.values())) == 1:
        return None
    told = " and ".join(f"{one} {_annotated(hints[one])}" for one in unknown or hints) or "nothing"
    cure = "annotate them all alike" if len(hints) > 1 else "annotate its parameter so"
    single = "; for single records there are map, flat_map and filter" if unknown else ""
    return (
        f"{function} takes {told}, expected pyarrow.Table, pandas.DataFrame or pyspark.sql.DataFrame, for the "
        f"annotation chooses how {operator} runs; {cure}{single}"
    )


def _annotated(hint: Any) -> str:
    if hint is None:
        return "without an annotation"
    if isinstance(hint, str):
        return f"as {hint!r}, which names nothing that is defined there"
    # Several libraries have a DataFrame.
    home = hint.__module__.partition(".")[0] if isinstance(hint, type) else "builtins"
    return f"as {named(hint)}" if home == "builtins" else f"as {home}.{named(hint)}"
