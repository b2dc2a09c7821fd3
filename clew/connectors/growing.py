"""A directory that keeps growing: the files of each listing that are new are one read action.

What was read is remembered by digests: twelve bytes for each file that is still there, whatever its name or its time.
A high-water mark of names or of times would be smaller, and would lose a file that is moved there late under an early
name or with an old time.
"""

import base64
import hashlib
import os
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from clew.connectors import parquetfiles, textfiles
from clew.connectors.listing import UNFINISHED, Entry, format_of, is_glob, present
from clew.connectors.recorded import recall, record
from clew.errors import SourceFailed
from clew.pipeline.contracts import Continuing, FilesHeld, Json, News, Piece, Plan, Replayable

#: A digest of a file's path, and a shorter one of its size and time.
_DIGESTS = struct.Struct(">8s4s")


@dataclass(frozen=True)
class GrowingFiles(Continuing):
    """Files that are read once each, as they come.

    A listing's new files are read in the order of their times of change, and of their names where these are equal.
    `seen` holds the digests of all files that were read and are still there, and the format and columns that the first
    of them had.
    """

    #: Plans and reads the files of a listing.
    files: Replayable
    places: tuple[str, ...]
    format: str | None = None
    declared: pa.Schema | None = None
    poll: float = 1.0
    #: Seconds after which a stream to which nothing came is over.
    patience: float | None = None
    #: The name of a file that says that no more will come.
    marker: str | None = None
    #: Seconds for which a file has not changed before it is read.
    settle: float = 1.0

    def describe(self) -> str:
        return f"{self.files.describe()}, as they come"

    def whereabouts(self) -> str:
        return f"{self.files.whereabouts()}, as they come"

    def schema(self) -> pa.Schema | None:
        return self.declared

    def holds(self) -> FilesHeld:
        without = (*UNFINISHED, *([self.marker] if self.marker else []))
        held = self.files.holds()
        assert isinstance(held, FilesHeld)
        return replace(held, as_they_came=True, without=without)

    def validate(self) -> None:
        """Raise SourceFailed when there is no directory that files could come to."""
        for place in self.places:
            if not os.path.isdir(place) and not is_glob(place):
                raise SourceFailed(
                    place, "it is no directory, expected one that files come to",
                    "make it first, or name the files with a glob such as orders/*.csv",
                )  # fmt: skip

    def more(self, seen: Json, quiet: float) -> News | Literal["nothing", "over"]:
        # Asked before the listing: files that came before the marker are then in it.
        complete = self._is_complete()
        there = [entry for entry in present(self.places) if os.path.basename(entry.path) != self.marker]
        known = _Seen.of(seen)
        new = [entry for entry in there if known.is_new(entry)]
        settled = [entry for entry in new if self._is_settled(entry)]
        if settled:
            return self._news(sorted(settled, key=lambda entry: (entry.mtime_ns, entry.path)), known.still(there))
        late = self.patience is not None and quiet >= self.patience
        return "over" if not new and (complete or late) else "nothing"

    def plan(self, snapshot: Json, offset: Json, events: int) -> Plan:
        return self.files.plan(snapshot, offset, events)

    def read(self, snapshot: Json, piece: Json) -> Iterator[Piece]:
        return self.files.read(snapshot, piece)

    def _is_complete(self) -> bool:
        return self.marker is not None and any(os.path.exists(os.path.join(p, self.marker)) for p in self._folders())

    def _folders(self) -> Iterator[str]:
        for place in self.places:
            yield os.path.dirname(place) if is_glob(place) else place

    def _is_settled(self, entry: Entry) -> bool:
        # Either way: a clock that is ahead must not keep a file for ever.
        return abs(time.time() - entry.mtime_ns / 1e9) >= self.settle

    def _news(self, entries: list[Entry], known: "_Seen") -> News:
        format = known.format or format_of(entries, self.format)
        if not known.format or self.format is None:
            _refuse_other_formats(entries, format, self.format)
        schema, certain = recall(known.schema) if known.schema else self.declared, True
        if format == "parquet":
            footers = [parquetfiles.footer(entry) for entry in entries]
            entries, schema = [entry for entry, _ in footers], schema or footers[0][1]
        elif schema is None:
            schema, certain = textfiles.inferred(entries, format)
        # Columns of files without a record are not known yet.
        seen = replace(known.with_files(entries), format=format, schema=record(schema) if certain else "")
        return News({"format": format, "schema": record(schema), "files": [e.json() for e in entries]}, seen.json())


@dataclass(frozen=True)
class _Seen:
    """Which files were read, by their digests, and what they were like."""

    digests: dict[bytes, bytes]
    format: str = ""
    schema: str = ""

    @classmethod
    def of(cls, value: Json) -> "_Seen":
        if value is None:
            return cls({})
        return cls(dict(_DIGESTS.iter_unpack(base64.b64decode(value["files"]))), value["format"], value["schema"])

    def json(self) -> Json:
        packed = b"".join(_DIGESTS.pack(*pair) for pair in self.digests.items())
        return {"files": base64.b64encode(packed).decode("ascii"), "format": self.format, "schema": self.schema}

    def is_new(self, entry: Entry) -> bool:
        """Say whether a file was not read yet; raises SourceFailed when it was, and has changed since."""
        found = self.digests.get(_name(entry))
        if found is not None and found != _state(entry):
            raise SourceFailed(
                entry.path, "it has changed since it was read, expected files that stay as they came",
                "move it away: what was read of it is logged; write what is new to a file of another name",
            )  # fmt: skip
        return found is None

    def still(self, there: Iterable[Entry]) -> "_Seen":
        """Forget the files that are gone."""
        names = {_name(entry) for entry in there}
        return replace(self, digests={name: state for name, state in self.digests.items() if name in names})

    def with_files(self, entries: Iterable[Entry]) -> "_Seen":
        return replace(self, digests={**self.digests, **{_name(entry): _state(entry) for entry in entries}})


def _refuse_other_formats(entries: Iterable[Entry], format: str, given: str | None) -> None:
    for entry in entries:
        found = format_of([entry], given)
        if found != format:
            raise SourceFailed(
                entry.path, f"it is a {found} file, expected {format} as the files before it",
                f"move it away, or name the files with a glob such as orders/*.{format}",
            )  # fmt: skip


def _name(entry: Entry) -> bytes:
    return hashlib.blake2b(entry.path.encode("utf-8", "surrogateescape"), digest_size=8).digest()


def _state(entry: Entry) -> bytes:
    return hashlib.blake2b(f"{entry.size} {entry.mtime_ns}".encode(), digest_size=4).digest()
