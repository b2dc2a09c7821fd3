"""Lookups: their content is read once per run and kept with it, so that nobody ever sees another one.

The content is a file beside the bodies, named by its hash, and the log says the hash; where there is no place for
files, the log has the content itself. A file that changes while a run is under way, or before it is resumed, changes
nothing: recovery, and whoever judges the run later, find what was kept.
"""

import hashlib
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from clew.disk import sync_directory
from clew.errors import BodyDamaged, ClewError, LookupFailed
from clew.pipeline.graph import Graph
from clew.pipeline.lookups import Content, Lookup
from clew.pipeline.schema import normalise
from clew.protocol.rows import LookupRow
from clew.runtime.bodies import mapped, write_file
from clew.runtime.codec import Data, decode_stream, encode_stream
from clew.runtime.tracebacks import own_frames
from clew.store.base import Store

_LOG = logging.getLogger(__name__)

#: The directory of kept content under that of the bodies; no operator can have this name.
_DIRECTORY = ".lookups"
#: How many contents a process holds at most.
_MOST_LOADED = 32
_LOADED: dict[tuple[str, str | None], Content] = {}


def keep_lookups(graph: Graph, store: Store, root: str | None, durable: bool = True) -> list[str]:
    """Read the lookups that the run has not kept yet, and keep them; say which of the kept ones have changed since."""
    read: dict[int, bytes | LookupFailed] = {}
    changed: list[str] = []
    for operator, name, lookup in _declared(graph):
        if id(lookup) not in read:
            # One that several operators share is read once: they must see the same.
            read[id(lookup)] = _read(operator, name, lookup)
        data = read[id(lookup)]
        kept = next((row for row in store.lookups(operator) if row.name == name), None)
        if kept is None:
            if isinstance(data, LookupFailed):
                raise data
            store.keep_lookup(operator, _stored(name, data, root, durable))
        elif isinstance(data, LookupFailed) or _digest(data) != kept.digest:
            what = "cannot be read any more" if isinstance(data, LookupFailed) else "has changed"
            changed.append(
                f"lookup {name} of {operator} {what} since the run began; the run goes on with what it has kept, start "
                "with --fresh to use the new one"
            )
            _LOG.warning("lookup changed", extra={"operator": operator, "lookup": name, "kept": kept.digest})
    return changed


def content(root: str | None, row: LookupRow, key: str | None) -> Content:
    """Return the kept content of a lookup; each process loads it once."""
    if (row.digest, key) not in _LOADED:
        if len(_LOADED) >= _MOST_LOADED:
            _LOADED.clear()
        _LOADED[row.digest, key] = Content(decode_stream(kept_bytes(root, row)), key)
    return _LOADED[row.digest, key]


def _declared(graph: Graph) -> Iterator[tuple[str, str, Lookup]]:
    for spec in graph.operators.values():
        yield from ((spec.name, name, lookup) for name, lookup in spec.lookups.items())


def _read(operator: str, name: str, lookup: Lookup) -> bytes | LookupFailed:
    try:
        table: pa.Table = normalise(lookup.read()).combine_chunks()
        # Its key is looked at before anything starts.
        Content(table, lookup.key)
        return encode_stream(table)
    except ClewError as error:
        return LookupFailed(operator, name, str(error))
    except Exception as error:
        what = f"{lookup.described} cannot be read: {type(error).__name__}: {error}"
        return LookupFailed(operator, name, what, own_frames(error))


def _stored(name: str, data: bytes, root: str | None, durable: bool) -> LookupRow:
    digest = _digest(data)
    if root is None:
        return LookupRow(name, digest, data)
    path = _path(root, digest)
    if not path.exists():
        # Under a name of its own first: a file that has its final name is whole.
        part = path.with_name(f"{path.name}.{secrets.token_hex(6)}")
        write_file(part, [data], durable)
        part.rename(path)
        if durable:
            sync_directory(path.parent)
    return LookupRow(name, digest)


def kept_bytes(root: str | None, row: LookupRow) -> Data:
    """Return the kept content of a lookup as it is stored."""
    if row.data is not None:
        return row.data
    path = _path(str(root), row.digest)
    data = mapped(str(path))
    if _digest(data) != row.digest:
        raise BodyDamaged(str(path))
    return data


def _path(root: str, digest: str) -> Path:
    return Path(root) / _DIRECTORY / f"{digest}.arrow"


def _digest(data: Data) -> str:
    return hashlib.sha256(data).hexdigest()
