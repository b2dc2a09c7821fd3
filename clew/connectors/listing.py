"""Which files a source reads: the directory listing that is stored before anything is read."""

import glob
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clew.errors import SourceFailed
from clew.pipeline.contracts import Json

FORMATS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}

#: How names end while a file is still being written or fetched.
UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".crdownload", ".download", ".filepart", ".swp", "~")

_CURE = (
    "put the file back as it was, with its time of change (cp -p keeps it), or start a new run with --fresh to read "
    "what is there now"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One file as the listing saw it; `groups` are the row counts of a Parquet file's row groups."""

    path: str
    size: int
    mtime_ns: int
    groups: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return sum(self.groups)

    def json(self) -> Json:
        return [self.path, self.size, self.mtime_ns, list(self.groups)]

    @classmethod
    def of(cls, value: Json) -> "Entry":
        path, size, mtime_ns, groups = value
        return cls(path, size, mtime_ns, tuple(groups))

    def check(self) -> None:
        """Raise SourceFailed unless the file still is what the listing saw."""
        found = self.now()
        for what, was, now in (
            ("size", self.size, found.size),
            ("time of change (mtime_ns)", self.mtime_ns, found.mtime_ns),
        ):
            if was != now:
                raise SourceFailed(self.path, f"its {what} was {was} when it was listed and is {now} now", _CURE)

    def now(self) -> "Entry":
        """Return the file as it is now; raises SourceFailed when it is gone."""
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise SourceFailed(self.path, f"the file was listed and cannot be found now ({error})", _CURE) from None
        return Entry(self.path, found.st_size, found.st_mtime_ns, self.groups)

    def mended(self, byte: int, checksum: int) -> "Entry":
        """Return the file as it is now, if what was read of it has not changed; else raise SourceFailed.

        A file with a broken record can thus be mended, and the run goes on where it stopped: everything logged is
        still what the file says.
        """
        found = self.now()
        if found != self and byte and prefix_checksum(self.path, byte) != checksum:
            self.check()
        return found


def prefix_checksum(path: str, size: int, start: int = 0, checksum: int = 0) -> int:
    """Return the checksum of a file's bytes up to `size`, given that of the bytes up to `start`."""
    with open(path, "rb") as file:
        file.seek(start)
        while start < size and (block := file.read(min(1 << 20, size - start))):
            checksum = zlib.crc32(block, checksum)
            start += len(block)
    return checksum


def listing(places: Iterable[str]) -> list[Entry]:
    """List the files of all places, in the order of the places and by name within each."""
    found: dict[str, Entry] = {}
    for place in places:
        paths = sorted(_paths(place))
        if not paths:
            raise SourceFailed(place, "no file is there, expected at least one", "check the path")
        for path in paths:
            stat = os.stat(path)
            # A file that two places name is read once.
            found.setdefault(path, Entry(path, stat.st_size, stat.st_mtime_ns))
    return list(found.values())


def present(places: Iterable[str]) -> list[Entry]:
    """List the files that are in growing places now, maybe none; those whose names say so are unfinished, and wait."""
    found: dict[str, Entry] = {}
    for place in places:
        for path in _paths(place):
            if not path.endswith(UNFINISHED):
                # A file that went while it was listed was not there.
                with suppress(FileNotFoundError):
                    stat = os.stat(path)
                    found.setdefault(path, Entry(path, stat.st_size, stat.st_mtime_ns))
    return list(found.values())


def is_glob(place: str) -> bool:
    return not os.path.exists(place) and any(sign in place for sign in "*?[")


def format_of(entries: Iterable[Entry], given: str | None) -> str:
    """Return the one format of all files: as given, or as their names end."""
    if given is not None:
        return given
    formats: dict[str | None, str] = {}
    for entry in entries:
        formats.setdefault(FORMATS.get(Path(entry.path).suffix.lower()), entry.path)
    if None in formats:
        raise SourceFailed(
            formats[None], f"its name does not say its format, expected one of {', '.join(FORMATS)}",
            'say format="parquet", "csv" or "jsonl", or name the files with a glob',
        )  # fmt: skip
    if len(formats) > 1:
        raise SourceFailed(
            " and ".join(formats.values()), "they have different formats, expected one",
            "declare one source for each format, with a glob such as orders/*.csv",
        )  # fmt: skip
    return str(next(iter(formats)))


def _paths(place: str) -> Iterator[str]:
    """Yield the files of a glob, a directory or a path.

    Names that begin with a dot or an underscore are not data, by the convention of Spark and Hadoop
    (`_SUCCESS`, temporary files); a path that is named in full is taken whatever its name.
    """
    if os.path.isfile(place):
        yield place
    elif os.path.isdir(place):
        yield from _children(place)
    else:
        matches = glob.iglob(place, recursive=True)
        yield from (path for path in matches if os.path.isfile(path) and _is_data(path))


def _children(directory: str) -> Iterator[str]:
    with os.scandir(directory) as children:
        for child in children:
            if not _is_data(child.name):
                continue
            if child.is_dir():
                raise SourceFailed(
                    directory, f"it holds the directory {child.name}, expected files only",
                    f"read the tree with a glob such as {directory}/**/*.parquet",
                )  # fmt: skip
            yield child.path


def _is_data(path: str) -> bool:
    return not os.path.basename(path).startswith((".", "_"))
