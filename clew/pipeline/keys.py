"""Keys: which records belong together because some of their columns are equal.

A key is told by its text, the JSON of its values, in facts, in labels and in STATE. A key group is the hash of that
text, so it is the same in every process and after every restart.
"""

import json
import zlib
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import GraphError, TypeRefused


def key_columns(by: "str | Sequence[str] | None", window: str) -> tuple[str, ...]:
    """Return the names of the key's columns; none where records have no key."""
    if by is None:
        return ()
    names = tuple(by) if isinstance(by, Sequence) and not isinstance(by, str) else (by,)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise GraphError(f"{window}(by={by!r}) does not make a key; name one column or several, each once")
    return names


def keys_of(table: pa.Table, by: Sequence[str], window: str) -> tuple[list[str], pa.Array]:
    """Return the texts of the keys that occur, and for each record the index of its own."""
    for name in by:
        check_key(table.schema, name, window)
    # Values are compared as Arrow compares them; only those that differ are written out as text.
    values: list[list[Any]] = [[]]
    codes = pa.array([0] * table.num_rows, pa.int64())
    for column in table.select(by).columns:
        part = column.combine_chunks().dictionary_encode(null_encoding="encode")
        size = max(len(part.dictionary), 1)
        # Encoded again after each column, so that codes stay below the number of records.
        both = pc.add(pc.multiply(codes, size), part.indices.cast(pa.int64())).dictionary_encode()
        found = part.dictionary.to_pylist()
        values = [[*values[code // size], found[code % size]] for code in both.dictionary.to_pylist()]
        codes = both.indices.cast(pa.int64())
    return [key_text(value) for value in values] if table.num_rows else [], codes


def of_key(table: pa.Table, by: Sequence[str], text: str, window: str) -> pa.Table:
    """Return the records of one key."""
    texts, codes = keys_of(table, by, window)
    return table.filter(pc.equal(codes, texts.index(text))) if text in texts else table.slice(0, 0)


def key_text(values: Sequence[Any]) -> str:
    """Return the text of a key."""
    return json.dumps(list(values), default=_plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> str:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def group_of(text: str, groups: int) -> int:
    """Return the key group that a key belongs to."""
    return zlib.crc32(text.encode()) % groups


def check_key(schema: pa.Schema, name: str, window: str) -> None:
    """Raise where a column is not there, or cannot tell keys apart."""
    if name not in schema.names:
        raise GraphError(f"{window}(by={name!r}) finds no such column; the records have {', '.join(schema.names)}")
    kind = schema.field(name).type
    if pa.types.is_floating(kind) or pa.types.is_nested(kind):
        why = f"{window} cannot tell keys of this type apart with certainty"
        raise TypeRefused(name, str(kind), why, "make it text, a whole number or a decimal before this operator")
