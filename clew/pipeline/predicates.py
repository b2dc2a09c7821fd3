"""Predicates: which records an Arrow expression keeps."""

import re
from typing import Any

import pyarrow as pa

from clew.errors import ClewError

_MISSING = re.compile(r"FieldRef\.Name\((.*?)\)")


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
