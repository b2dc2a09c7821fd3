"""Predicates: which records an Arrow expression keeps."""

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import ClewError, GraphError
from clew.pipeline.location import caller

_MISSING = re.compile(r"FieldRef\.Name\((.*?)\)")


def refuse_no_predicate(predicate: Any, verb: str) -> None:
    """Raise GraphError for what is given in the place of a predicate and is none."""
    if not callable(predicate) and not isinstance(predicate, pc.Expression):
        raise GraphError(
            f"{verb} is given {named(predicate)}, which is no predicate; give a function of a record that returns "
            'bool, or an Arrow expression such as pc.field("n") > 3',
            caller(),
        )


def filtered(table: pa.Table, predicate: Any) -> pa.Table:
    """Return the records for which an Arrow expression holds; raises ClewError where it cannot be computed."""
    try:
        return table.filter(predicate)
    except (pa.ArrowException, TypeError) as error:
        missing, have = _MISSING.search(str(error)), ", ".join(_own(table.schema).names)
        if missing:
            raise ClewError(
                f"{predicate} finds no column {missing[1]}; the records have {have}: name one of them"
            ) from None
        raise ClewError(
            f"{predicate} cannot be computed ({str(error).splitlines()[0]}); the records are {_types(table.schema)}: "
            "compare what has one type"
        ) from None


def _types(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in _own(schema))


def _own(schema: pa.Schema) -> pa.Schema:
    """Return the columns that the records have by themselves; Clew may have added one to tell their places."""
    return pa.schema([field for field in schema if not field.name.startswith("_clew_")])


def named(given: Any) -> str:
    """Return how something is called that was given in the wrong place."""
    if isinstance(given, type):
        return f"the class {given.__name__}"
    text = repr(given)
    return text if len(text) < 80 and "\n" not in text else f"an object of type {type(given).__name__}"
