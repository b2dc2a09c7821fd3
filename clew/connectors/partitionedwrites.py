"""How one write action becomes several files, one per partition, and a marker that says that all of them are there.

The content and the partitions of a write are fixed by the log, so a repeat makes the same files under the same names.
The marker is written last, when everything else is durable; readers pass over it, for its directory begins with an
underscore.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import BinaryIO

import pyarrow as pa

from clew.connectors.filewrites import explained, fill, is_written, name_of, put, target
from clew.connectors.partitions import Failed, refuse_columns, split
from clew.disk import make_directory, sync_directory
from clew.errors import SinkFailed
from clew.faultpoint import fault_point
from clew.pipeline.contracts import WriteAction

#: The directory of the markers.
MARKERS = "_clew"


def write_partitioned(
    directory: str, format: str, columns: Sequence[str], action: WriteAction, tables: Iterator[pa.Table],
    schema: pa.Schema,
) -> None:  # fmt: skip
    """Write a file per partition, and the marker when all of them are durable."""

    def failed(what: str, cure: str) -> SinkFailed:
        return SinkFailed(directory, what, cure)

    marker = _marker(directory, action)
    with explained(directory, f"write {action.name}"):
        # Nothing is written before all partitions are known to have names. Without events there is no schema either.
        given = [table.cast(schema) for table in tables]
        parts = _parts(pa.concat_tables(given), columns, failed) if given else {}
        make_directory(os.path.dirname(marker))
        _settle_columns(directory, columns, action, failed)
        for name, part in parts.items():
            place = os.path.join(directory, name)
            os.makedirs(place, exist_ok=True)
            put(target(place, format, action), action.operator, partial(_fill, format, part))
        _sync_names(directory, parts)
        put(marker, action.operator, lambda out: _list(out, parts))
        sync_directory(os.path.dirname(marker))
    fault_point("sink-after-commit", action.operator)


def _parts(table: pa.Table, columns: Sequence[str], failed: Failed) -> dict[str, pa.Table]:
    refuse_columns(table.schema, columns, failed)
    return split(table, columns, failed)


def _settle_columns(directory: str, columns: Sequence[str], action: WriteAction, failed: Failed) -> None:
    """Refuse other columns than the first write was partitioned by: a repeat of a write would double its records."""
    place = os.path.join(directory, MARKERS, "columns.json")
    if not os.path.exists(place):
        put(place, action.operator, lambda out: _list(out, columns))
        sync_directory(os.path.dirname(place))
    with open(place, encoding="utf-8") as file:
        there = json.load(file)
    if there != list(columns):
        raise failed(
            f"the table is partitioned by {', '.join(there)}, expected {', '.join(columns)}",
            "name the columns that it has, or another directory",
        )


def is_marked(directory: str, action: WriteAction) -> bool:
    """Say whether all files of a write action are in their places, for good."""
    return is_written(_marker(directory, action))


def _marker(directory: str, action: WriteAction) -> str:
    return os.path.join(directory, MARKERS, f"{name_of(directory, action)}.done")


def _fill(format: str, part: pa.Table, out: BinaryIO) -> None:
    fill(format, out, iter([part]), part.schema)


def _list(out: BinaryIO, names: Iterable[str]) -> None:
    """Write the columns; or the partitions of a write, which is for people, because the log knows them too."""
    out.write(json.dumps(list(names), ensure_ascii=False, indent=1).encode())


def _sync_names(directory: str, parts: Iterable[str]) -> None:
    """Make the names of files and of directories durable, also where they were there: who made them may have died."""
    places = {directory}
    for part in parts:
        names = part.split("/")
        places.update(os.path.join(directory, *names[: depth + 1]) for depth in range(len(names)))
    for place in sorted(places):
        sync_directory(place)
