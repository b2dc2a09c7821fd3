"""Files in a directory: Parquet, CSV and JSON lines, as a source and as a sink."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, overload

import pyarrow as pa

from clew.connectors import parquetfiles, textfiles
from clew.connectors.durations import Duration, seconds
from clew.connectors.filewrites import EXTENSIONS, is_written, target, write_file
from clew.connectors.growing import GrowingFiles
from clew.connectors.listing import Entry, format_of, is_glob, listing
from clew.connectors.partitionedwrites import is_marked, write_partitioned
from clew.connectors.partitions import completed, without
from clew.connectors.recorded import recall, record
from clew.connectors.slices import MOST_SLICES
from clew.connectors.textfiles import Columns
from clew.errors import GraphError, SinkFailed, SourceFailed
from clew.pipeline.contracts import FilesHeld, Json, Piece, Plan, Replayable, Sink, WriteAction
from clew.pipeline.location import caller

#: A path, or several.
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Files(Replayable, Sink):
    """A place of files; a pipeline declares it as a source or as a sink.

    As a source, the snapshot is the listing with the types of the columns, and an offset is `[file, row, byte,
    checksum]`: the file's index in the listing, where to go on in it, and what it holds up to there. Parquet is
    read by ranges of rows in parallel; the rows of text files cannot be counted without reading them, so one slice
    goes through them, file after file.

    As a sink, each write action is one file named after it. A repeat makes the same file again, which
    is harmless; it is not fenced. With `partition_by` it is one file per partition, in Hive's directories.
    """

    idempotent = True
    checkable = True

    given: str
    places: tuple[str, ...]
    format: str | None = None
    rows_per_event: int = 1000
    declared: pa.Schema | None = None
    partition_by: tuple[str, ...] = ()

    def describe(self) -> str:
        by = f" by {', '.join(self.partition_by)}" if self.partition_by else ""
        return f"files {self.given}{by}"

    def whereabouts(self) -> str:
        return f"{self.describe()} as {self.format}" if self.format else self.describe()

    def schema(self) -> pa.Schema | None:
        return self.declared

    def holds(self) -> FilesHeld:
        return FilesHeld(self.places, self.format, self.partition_by, rows_per_event=self.rows_per_event)

    def validate(self) -> None:
        """Raise SourceFailed when there is nothing to read."""
        format_of(listing(self.places), self.format)

    def validate_target(self) -> None:
        """Raise SinkFailed when what is named is not a directory to write to; a missing one is made."""
        self._directory()

    def snapshot(self) -> Json:
        entries = listing(self.places)
        format = format_of(entries, self.format)
        if format == "parquet":
            footers = [parquetfiles.footer(entry) for entry in entries]
            entries, inferred = [entry for entry, _ in footers], footers[0][1]
        else:
            inferred = self.declared or textfiles.infer(entries, format)
        # Directories do not say the types of their values, so these are text unless somebody does.
        schema = self.declared or pa.schema([*inferred, *((name, pa.string()) for name in self.partition_by)])
        return {"format": format, "schema": record(schema), "files": [entry.json() for entry in entries]}

    def plan(self, snapshot: Json, offset: Json, events: int) -> Plan:
        file, row, byte, checksum = offset or (0, 0, 0, 0)
        if snapshot["format"] == "parquet":
            return self._plan_rows([Entry.of(entry) for entry in snapshot["files"]], file, row, events)
        return Plan(([file, row, byte, events, checksum],), last=None)

    def read(self, snapshot: Json, piece: Json) -> Iterator[Piece]:
        self._refuse_other_schema(snapshot)
        entries = [Entry.of(entry) for entry in snapshot["files"]]
        file, row, byte, left, checksum = piece
        while left and file < len(entries):
            found = entries[file].now()
            for batch in self._batches(snapshot, entries[file], row, byte, checksum):
                yield Piece(batch.table, [file, batch.row, batch.byte, batch.checksum])
                left -= 1
                if not left:
                    # The reader was left before the end of the file, where it would have looked itself.
                    found.check()
                    return
            file, row, byte, checksum = file + 1, 0, 0, 0

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        directory, format = self._directory(), self.format or "parquet"
        if self.partition_by:
            write_partitioned(directory, format, self.partition_by, action, tables, schema)
        else:
            write_file(directory, format, action, tables, schema)

    def applied(self, action: WriteAction) -> bool:
        if self.partition_by:
            return is_marked(self._directory(), action)
        return is_written(target(self._directory(), self.format or "parquet", action))

    def _refuse_other_schema(self, snapshot: Json) -> None:
        """Refuse a schema= that is new since the run began: it would say nothing of what is read."""
        if self.declared is not None and self.declared != recall(snapshot["schema"]):
            raise SourceFailed(
                self.given, "schema= is not what it was when the run began, and the run keeps the types of then",
                "put it back as it was, or start a new run with --fresh",
            )  # fmt: skip

    def _batches(self, snapshot: Json, entry: Entry, row: int, byte: int, checksum: int) -> Iterator[textfiles.Batch]:
        schema = recall(snapshot["schema"])
        columns = Columns(without(schema, self.partition_by), self.declared is not None)
        for batch in self._read_file(snapshot["format"], entry, columns, row, byte, checksum):
            if self.partition_by:
                table = completed(batch.table, entry.path, self.partition_by, schema, partial(SourceFailed, entry.path))
                batch = replace(batch, table=table)
            yield batch

    def _read_file(
        self, format: str, entry: Entry, columns: Columns, row: int, byte: int, checksum: int
    ) -> Iterator[textfiles.Batch]:
        if format != "parquet":
            yield from textfiles.read(entry, format, columns, row, byte, checksum, self.rows_per_event)
            return
        for table in parquetfiles.read(entry, columns, row, self.rows_per_event):
            row += table.num_rows
            yield textfiles.Batch(table, row, 0)

    def _plan_rows(self, entries: list[Entry], file: int, row: int, events: int) -> Plan:
        """Cut the next events into slices.

        A slice inside a large row group decodes the rows before it in vain, so a new one begins only
        where that costs no more than the slice before it.
        """
        slices: list[list[int]] = []
        size = -(-events // MOST_SLICES)
        while events and file < len(entries):
            if row >= entries[file].rows:
                file, row = file + 1, 0
                continue
            current = slices[-1][3] if slices else 0
            full = current >= size and parquetfiles.skipped(entries[file], row) <= current * self.rows_per_event
            if not slices or full:
                slices.append([file, row, 0, 0, 0])
            slices[-1][3] += 1
            row += self.rows_per_event
            events -= 1
        left = any(entry.rows > (row if index == file else 0) for index, entry in enumerate(entries) if index >= file)
        return Plan(tuple(slices), last=not left)

    def _directory(self) -> str:
        place = self.places[0]
        if len(self.places) > 1 or is_glob(place) or os.path.isfile(place):
            raise SinkFailed(self.given, "it is not one directory, which files are written to", "name a directory")
        return place


@overload
def files(
    path: Paths,
    *,
    format: str | None = None,
    rows_per_event: int = 1000,
    schema: pa.Schema | None = None,
    follow: Literal[False] = False,
    partition_by: str | Sequence[str] = (),
) -> Files: ...


@overload
def files(
    path: Paths,
    *,
    format: str | None = None,
    rows_per_event: int = 1000,
    schema: pa.Schema | None = None,
    follow: Literal[True],
    partition_by: str | Sequence[str] = (),
    poll: Duration = "1 second",
    until: Duration | None = None,
    settle: Duration = "1 second",
) -> GrowingFiles: ...


def files(
    path: Paths,
    *,
    format: str | None = None,
    rows_per_event: int = 1000,
    schema: pa.Schema | None = None,
    follow: bool = False,
    partition_by: str | Sequence[str] = (),
    poll: Duration = "1 second",
    until: Duration | None = None,
    settle: Duration = "1 second",
) -> Files | GrowingFiles:
    """Name files to read, or a directory to write to.

    To read, `path` is a file, a directory, a glob or a list of these. The format is `parquet`, `csv` or
    `jsonl`, by default as the names end; each event has `rows_per_event` rows, fewer at the end of a file.
    To write, `path` is a directory; the format is `parquet` unless another is named.

    With `partition_by`, files are in directories such as `day=2024-01-01/state=NY` and do not hold these columns
    themselves. A write is then one file per partition. To read, name the files with a glob (`sales/**/*.parquet`); the
    columns are text unless `schema` says otherwise.
    With `follow`, files that come later are read too, each once; a look is taken every `poll`. A file is read when it
    has not changed for `settle`, and when its name does not begin with a dot or an underscore, or end as that of a
    file that is being written does (`.tmp`, `.part`, `.crdownload`, ...). `until` ends the stream: a duration
    ("10 minutes") for which nothing came, or the name of a file ("_DONE") that says so; without it nothing does.
    """
    paths = [os.fspath(path)] if isinstance(path, str | os.PathLike) else [os.fspath(one) for one in path]
    if format is not None and format not in EXTENSIONS:
        raise GraphError(f"files cannot have the format {format!r}; it is one of {', '.join(EXTENSIONS)}", caller())
    if not paths or rows_per_event < 1:
        raise GraphError("files need at least one path, and events at least one row", caller())
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if len(set(columns)) < len(columns):
        raise GraphError("partition_by= names a column twice; name each once", caller())
    # Absolute from here on: executors may stand in another directory.
    places = tuple(os.path.abspath(os.path.expanduser(one)) for one in paths)
    made = Files(", ".join(paths), places, format, rows_per_event, schema, columns)
    if not follow:
        return made
    if columns:
        raise GraphError("files that are followed cannot be partitioned; leave out partition_by= or follow=", caller())
    quiet = None if until is None else seconds(until)
    marker = until if isinstance(until, str) and quiet is None else None
    if marker is not None and (not marker or os.path.basename(marker) != marker):
        raise GraphError(
            f"files cannot be followed until {until!r}; give a duration such as '10 minutes', or the name of a file in "
            "the directory, such as '_DONE'",
            caller(),
        )
    return GrowingFiles(
        made, places, format, schema, _positive("poll", poll), quiet, marker, _positive("settle", settle, least=0.0)
    )


def _positive(name: str, given: Duration, least: float = 0.001) -> float:
    found = seconds(given)
    if found is None or found < least:
        raise GraphError(f"files cannot have {name}={given!r}; write it as '1 second' or '500 milliseconds'", caller())
    return found
