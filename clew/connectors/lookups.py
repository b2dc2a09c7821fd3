"""Where the static tables come from that functions look things up in."""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from clew.connectors.files import files
from clew.errors import ClewError, GraphError
from clew.pipeline.contracts import Continuing, Observed, Replayable, Source
from clew.pipeline.location import caller
from clew.pipeline.lookups import Lookup
from clew.pipeline.shapes import table_of

_KINDS = (
    "a path of files, a pyarrow.Table, a pandas DataFrame, a list of dicts, a source that can be read to its end, or a "
    "function without arguments that returns a table"
)
#: How many events of a source are read at a time.
_EVENTS = 1000


def lookup(content: Any, *, key: str | None = None) -> Lookup:
    """Declare a static table that functions may look things up in: `lookups={"rates": lookup("rates.csv")}`.

    `content` is a path of files, a pyarrow.Table, a pandas DataFrame, a list of dicts, a source that can be read to its
    end (`files(...)`, `postgres(...)`), or a function without arguments that returns a table. It is read once, when a
    run begins, and kept with the run. With `key`, functions of single records get a dict of its rows by that column.
    """
    if key is not None and not isinstance(key, str):
        raise GraphError(f"a lookup cannot have key={key!r}; name one of its columns", caller())
    return Lookup(*_reading(content), key)


def _reading(content: Any) -> tuple[str, Callable[[], pa.Table]]:
    """Return what is read, in words, and what reads it."""
    if isinstance(content, str | os.PathLike):
        source = files(content)
        return source.describe(), partial(_read, source)
    if isinstance(content, Continuing) or not (_is_table(content) or isinstance(content, Source) or callable(content)):
        raise GraphError(f"a lookup cannot be made of {_told(content)}; give it {_KINDS}", caller())
    if _is_table(content):
        return _told(content), partial(_table, content)
    if isinstance(content, Observed | Replayable):
        return content.describe(), partial(_read, content)
    if isinstance(content, Source):
        raise GraphError(f"a lookup cannot be made of {content.describe()}; give it {_KINDS}", caller())
    return f"what {getattr(content, '__name__', 'a function')} returns", partial(_returned, content)


def _told(content: Any) -> str:
    return content.describe() if isinstance(content, Source) else f"a {type(content).__name__}"


def _is_table(content: Any) -> bool:
    if isinstance(content, list | tuple):
        return all(isinstance(row, Mapping) for row in content)
    return isinstance(content, pa.Table | pa.RecordBatch) or _is_pandas(content)


def _is_pandas(content: Any) -> bool:
    # Not imported to look at it: most pipelines do without.
    return type(content).__name__ == "DataFrame" and type(content).__module__.partition(".")[0] == "pandas"


def _returned(function: Callable[[], Any]) -> pa.Table:
    found = function()
    if not _is_table(found):
        raise ClewError(
            f"the function returned a {type(found).__name__}; return a table, a DataFrame or a list of dicts"
        )
    return _table(found)


def _table(content: Any) -> pa.Table:
    if isinstance(content, pa.RecordBatch):
        return pa.Table.from_batches([content])
    if isinstance(content, list | tuple):
        return table_of(content)
    if _is_pandas(content):
        from clew.pipeline.onpandas import from_pandas

        return from_pandas(content)
    return content


def _read(source: Source) -> pa.Table:
    source.validate()
    tables = list(source.observe() if isinstance(source, Observed) else _pieces(source))
    if tables:
        return pa.concat_tables(tables)
    schema = source.schema()
    return pa.table({}) if schema is None else schema.empty_table()


def _pieces(source: Source) -> Iterator[pa.Table]:
    """Read a source from its start to its end, as a run would."""
    assert isinstance(source, Replayable)
    snapshot, offset = source.snapshot(), None
    while True:
        plan = source.plan(snapshot, offset, _EVENTS)
        pieces = [piece for part in plan.slices for piece in source.read(snapshot, part)]
        yield from (piece.table for piece in pieces)
        if plan.last or not pieces:
            return
        offset = pieces[-1].offset
