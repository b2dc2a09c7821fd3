"""What verbs and decorators are given: refused where it stands, if it can mean nothing."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from clew.errors import GraphError
from clew.pipeline.functions import How
from clew.pipeline.location import caller
from clew.pipeline.predicates import named
from clew.pipeline.windows import Window

#: Annotations of what is no table, no list of tables and no dict of them.
_NO_TABLES = (int, float, str, bool, bytes, complex)


def refuse_no_window(window: Any) -> None:
    """Raise GraphError for what is given in the place of a window and is none."""
    if window is not None and not isinstance(window, Window):
        raise GraphError(
            f"{named(window)} is no window; give one such as Tumbling('1 hour', on='at') or Count(10)", caller()
        )


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
