"""Delta tables on a local file system, written through delta-rs.

Delta has a place for markers of its own: a commit may carry transactions, each an application's id with a version. A
writer has two: the number of its last write, and its incarnation. They are in the commit of the data, and delta-rs lets
only one of two commits stand that carry the same id and began at the same version of the table.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.types as pt

from clew.connectors.cures import before_the_sink
from clew.connectors.partitions import refuse_columns, refuse_empty_text
from clew.disk import make_directory, sync_directory, sync_file
from clew.errors import ClewError, GraphError, SinkFailed, StaleWriter
from clew.faultpoint import fault_point
from clew.pipeline.contracts import RecordsHeld, Sink, WriteAction
from clew.pipeline.location import caller

#: How often a write begins again when another writer has committed first.
_ATTEMPTS = 20

#: How far back a commit may be that nobody synced. A writer has one such at most, and a table has fewer writers.
_RECENT = 200

#: What may not be in the path of a table: delta-rs takes it for an escape, or ends in a panic.
_LOST_SIGNS = frozenset("%[\\]^|")

#: Up to which version a table, known by its id, is durable by this process's own doing.
_synced: dict[str, int] = {}

#: Tables of which a sync has failed in this process: the system reports that once, and says yes when it is asked again.
_broken: set[str] = set()


@dataclass(frozen=True)
class Delta(Sink):
    """A table that records are appended to, or replaced in by key, exactly once."""

    transactional = True
    checkable = True

    path: str
    given: str
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()

    def describe(self) -> str:
        return f"delta {self.given}"

    def whereabouts(self) -> str:
        return f"{self.describe()}, by key {self.key}, partitioned by {self.partition_by}"

    def holds(self) -> "DeltaHeld":
        # By whatever links it is reached, it is one table.
        return DeltaHeld(os.path.realpath(self.path), self.key)

    def validate_target(self) -> None:
        """Raise SinkFailed when the library is missing or what is named cannot be a table; a missing one is made."""
        self._lake()
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise self._failed("it is a file, expected a directory", "name a directory")

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        """Commit the records with the writer's marker, and make the commit durable."""
        given = [table.cast(schema) for table in tables]
        table = pa.concat_tables([schema.empty_table(), *given])
        lake = self._lake()
        with self._explained():
            if given:
                self._refuse(table)
            elif not len(schema) and not lake.DeltaTable.is_deltatable(self.path):
                # A write action without events has no schema, so that there is nothing to make a table of.
                return
            self._sync(self._commit(lake, action, table))
        fault_point("sink-after-commit", action.operator)

    def applied(self, action: WriteAction) -> bool:
        lake = self._lake()
        with self._explained():
            if not lake.DeltaTable.is_deltatable(self.path):
                return False
            held = lake.DeltaTable(self.path)
            if _marker(held, action)[0] < action.number:
                return False
            # Who committed it may have died before it was durable.
            self._sync(held)
            return True

    def _commit(self, lake: Any, action: WriteAction, table: pa.Table) -> Any:
        """Commit the write; returns the table as it then is."""
        told = ""
        for _ in range(_ATTEMPTS):
            try:
                return self._try(lake, action, table)
            except lake.exceptions.CommitFailedError as error:
                told = _told(error)
        raise self._failed(
            f"other writers committed first, {_ATTEMPTS} times ({told})",
            "run again, or let fewer operators write to this table at once",
        )

    def _try(self, lake: Any, action: WriteAction, table: pa.Table) -> Any:
        """Commit the write, unless it is there, to the table as it is now; whoever comes first lets the others fail."""
        held = self._opened(lake, table.schema)
        last, incarnation = _marker(held, action)
        if action.incarnation < incarnation:
            raise StaleWriter(action.operator, action.incarnation, incarnation)
        if action.number <= last and action.incarnation == incarnation:
            return held
        if table.num_rows:
            self._refuse_other_table(lake, held, table)
        marks = [
            lake.Transaction(_writer(action), max(last, action.number)),
            lake.Transaction(f"{_writer(action)}/incarnation", action.incarnation),
        ]
        # delta-rs itself may try again only where the conflict is with another writer's records.
        properties = lake.CommitProperties(app_transactions=marks)
        fault_point("sink-before-commit", action.operator)
        if action.number <= last or not table.num_rows:
            # The marker alone: it also fences whoever was before.
            held.create_write_transaction([], "append", held.schema(), commit_properties=properties)
        elif self.key:
            self._merge(held, table, properties)
        else:
            lake.write_deltalake(held, table, mode="append", commit_properties=properties)
        return lake.DeltaTable(self.path)

    def _merge(self, held: Any, table: pa.Table, properties: Any) -> None:
        same = " AND ".join(f"held.{_quoted(name)} = new.{_quoted(name)}" for name in self.key)
        merge = held.merge(
            _last_of_each(table, self.key), same, source_alias="new", target_alias="held", commit_properties=properties
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def _opened(self, lake: Any, schema: pa.Schema) -> Any:
        """Open the table; it is made by a commit of its own, so that the first write has a version to begin at."""
        if not lake.DeltaTable.is_deltatable(self.path):
            make_directory(self.path)
            try:
                lake.DeltaTable.create(
                    self.path, schema=schema, mode="ignore", partition_by=list(self.partition_by) or None
                )
            except Exception:
                # Somebody else may have made it in the meantime.
                if not lake.DeltaTable.is_deltatable(self.path):
                    raise
        return lake.DeltaTable(self.path)

    def _refuse(self, table: pa.Table) -> None:
        """Refuse records that have no key, or one whose values are not equal in one way only."""
        schema = table.schema
        if not len(schema):
            raise self._failed("the records have no columns, expected at least one", before_the_sink("give them one"))
        missing = [name for name in self.key if name not in schema.names]
        if missing:
            what = f"the records have no column {', '.join(missing)}, which key= names"
            raise self._failed(what, "name columns that are there")
        for name in self.key:
            if pt.is_floating(schema.field(name).type) or pt.is_nested(schema.field(name).type):
                what = f"key column {name} has type {schema.field(name).type}, expected one of exact values"
                raise self._failed(what, before_the_sink("make it text or a number without fractions"))
            if table[name].null_count:
                raise self._failed(
                    f"key column {name} holds null", before_the_sink("fill it in, or filter such records out")
                )
        if self.partition_by:
            refuse_columns(schema, self.partition_by, self._failed)

    def _refuse_other_table(self, lake: Any, held: Any, table: pa.Table) -> None:
        """Refuse a table of other columns, where delta-rs would fill in nulls or change values."""
        partitions = tuple(held.metadata().partition_columns)
        if self.partition_by and partitions != self.partition_by:
            raise self._failed(
                f"the table is partitioned by {', '.join(partitions) or 'nothing'}, "
                f"expected {', '.join(self.partition_by)}", "name the table's own columns, or another directory",
            )  # fmt: skip
        there, given = _columns(held.schema()), _columns(lake.Schema.from_arrow(table.schema))
        if there != given:
            name = next(name for name in {**there, **given} if there.get(name) != given.get(name))
            raise self._failed(
                f"column {name} is {given.get(name, 'not')} in the records and {there.get(name, 'not')} in the table, "
                "expected the same", f"name another directory, or {before_the_sink('cast it')}",
            )  # fmt: skip
        refuse_empty_text(table, partitions, self._failed)

    def _sync(self, held: Any) -> None:
        """Make all commits up to this version durable, with the files that they added: delta-rs syncs nothing.

        A write that stands on a commit of another writer is lost with it, so that one is synced too.
        """
        known, version = _synced.get(held.metadata().id, -1), held.version()
        cure = "mend the cause and run again"
        if held.metadata().id in _broken:
            raise self._failed("an earlier sync of it failed, and another would say nothing of what was lost", cure)
        try:
            for commit in range(max(known + 1, version + 1 - _RECENT), version + 1):
                self._sync_commit(held, commit)
            _sync_names(self.path)
        except OSError as error:
            _broken.add(held.metadata().id)
            raise self._failed(f"version {version} cannot be made durable ({error})", cure) from error
        _synced[held.metadata().id] = version

    def _sync_commit(self, held: Any, version: int) -> None:
        path = os.path.join(self.path, "_delta_log", f"{version:020d}.json")
        if not os.path.exists(path):
            # Delta removes what is older than a checkpoint after a time.
            return
        with open(path, encoding="utf-8") as lines:
            added = [action["add"] for line in lines if "add" in (action := json.loads(line))]
        directories = {self.path}
        for add in added:
            file = os.path.join(self.path, unquote(add["path"]))
            if not file.startswith(self.path + os.sep):
                # Of another table that this one was cloned from.
                continue
            if os.path.exists(file) and os.path.getsize(file) == add["size"]:
                sync_file(file)
                directories |= _directories(self.path, file)
            elif any(uri.endswith(os.path.basename(file)) for uri in held.file_uris()):
                raise self._failed(
                    f"version {version} has the file {add['path']}, expected {add['size']} bytes of it on the disk",
                    "put the file back from a backup, or start with --fresh and an empty directory",
                )
        for directory in directories:
            sync_directory(directory)
        sync_file(path)

    def _lake(self) -> Any:
        """Import delta-rs here: those who have no Delta table need not install it."""
        try:
            import_module("deltalake.exceptions")
            return import_module("deltalake")
        except ImportError as error:
            raise self._failed(
                f"Delta tables need the package deltalake, which is not there ({error})",
                'install it on the driver and on all workers: pip install "clew[delta]"',
            ) from None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ClewError:
            raise
        # delta-rs raises what it likes, bare exceptions too.
        except Exception as error:
            cure = "mend the cause and run again: what was committed is not written twice"
            raise self._failed(f"it cannot be used ({_told(error)})", cure) from error

    def _failed(self, what: str, cure: str) -> SinkFailed:
        return SinkFailed(self.describe(), what, cure)


@dataclass(frozen=True)
class DeltaHeld(RecordsHeld):
    """The records of a Delta table, read with Arrow from the files that it consists of."""

    path: str
    key: tuple[str, ...] = ()

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        dataset = import_module("deltalake").DeltaTable(self.path).to_pyarrow_dataset()
        for fragment in dataset.get_fragments():
            # A file that is gone holds no records, and those are then missing.
            if os.path.exists(os.path.join(self.path, fragment.path)):
                yield fragment.to_table(schema=dataset.schema).select(schema.names).cast(schema)


def delta(
    path: str | os.PathLike[str],
    *,
    key: str | Sequence[str] | None = None,
    partition_by: str | Sequence[str] | None = None,
) -> Delta:
    """Name a Delta table to write to, a directory on a local file system; it is made when it is missing.

    Records are appended; with `key`, the last one with the same values of these columns replaces those before.
    `partition_by` names the columns that a new table is partitioned by.
    """
    given = os.fspath(path)
    if "://" in given:
        raise GraphError(f"a Delta table is a directory on a local file system, not {given}; name a path", caller())
    absolute = os.path.abspath(os.path.expanduser(given))
    odd = sorted(_LOST_SIGNS.intersection(absolute))
    if odd:
        raise GraphError(f"{absolute} has the sign {odd[0]}, with which delta-rs loses its way; name another", caller())
    return Delta(absolute, given, _names(key), _names(partition_by))


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def _told(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _writer(action: WriteAction) -> str:
    """Return the id of a writer's transactions; it holds nothing that changes at a restart."""
    return f"{action.run}/{action.operator}/{action.connection}"


def _marker(held: Any, action: WriteAction) -> tuple[int, int]:
    """Return the number of a writer's last write, and its incarnation."""
    version: Callable[[str], int | None] = held.transaction_version
    return version(_writer(action)) or 0, version(f"{_writer(action)}/incarnation") or 0


def _columns(schema: Any) -> dict[str, Any]:
    return {field["name"]: field["type"] for field in json.loads(schema.to_json())["fields"]}


def _last_of_each(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last record of each key."""
    # By position, because a column may have the name that is given to the rows.
    keys = table.select(list(key)).rename_columns([str(index) for index in range(len(key))])
    numbered = keys.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    return table.take(numbered.group_by(keys.column_names).aggregate([("row", "max")])["row_max"])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _directories(path: str, file: str) -> set[str]:
    """Return the directories of a table's partitions that lead to a file."""
    found = set()
    while (file := os.path.dirname(file)) != path:
        found.add(file)
    return found


def _sync_names(path: str) -> None:
    """Make the names of the log durable, and the checkpoint that delta-rs may just have made."""
    log = os.path.join(path, "_delta_log")
    checkpoints = [name for name in os.listdir(log) if ".checkpoint" in name]
    newest = max(checkpoints, default="")[:20]
    for name in ("_last_checkpoint", *(name for name in checkpoints if name.startswith(newest))):
        if os.path.exists(os.path.join(log, name)):
            sync_file(os.path.join(log, name))
    make_directory(log)
    sync_directory(log)
