"""The power fails: what was not synced is gone.

A process that is killed leaves to the kernel all it wrote, so no kill can show that a sync is missing. Here a run is
recorded with everything it wrote, and a model of the disk follows it; then the disk is made again as a power failure
after any of the calls may leave it, and the run is resumed from there.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.storage.launcher import Ending, Job, Launcher
from tests.storage.strace import Strace

#: What is left: all that the kernel had, as when a process is killed; of what was not synced nothing, as POSIX allows;
#: or the names but not the content, as on a file system that orders them so.
Left = Literal["all", "synced", "names"]
#: What is at each path: the content of a file, None for a directory.
Tree = dict[str, bytes | None]

#: Strace tells everything, in hexadecimal.
_TELL_ALL = ("-f", "-xx", "-s", "10000000")
_SYNCS = ("fsync", "fdatasync")
_ON_FILES = ("write", "pwrite64", "ftruncate", *_SYNCS)
_ON_NAMES = ("openat", "rename", "unlink", "mkdir")
#: Not followed, so that a run which makes them is refused.
_OTHERS = (
    "open", "creat", "writev", "pwritev", "pwritev2", "truncate", "fallocate", "renameat", "renameat2", "unlinkat",
    "mkdirat", "link", "linkat", "symlink", "symlinkat", "rmdir", "copy_file_range", "sendfile",
)  # fmt: skip

_LINE = re.compile(r"(?:\d+ +)?(?P<name>\w+)\((?P<arguments>.*)")
_RESULT = re.compile(r"\) += (-?\d+)")
_PATH = re.compile(r"\d+<((?:\\x[0-9a-f]{2})+)>")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclass(frozen=True)
class Told:
    """A call as it was told, with all that it wrote."""

    name: str
    arguments: str
    failed: bool

    def __str__(self) -> str:
        text = re.sub(
            r"(?:\\x[0-9a-f]{2})+", lambda found: _plain(found[0][:400]).decode(errors="replace"), self.arguments
        )
        return f"{self.name}({text[:160]!r}"


def record(launcher: Launcher, job: Job, log: Path, *options: str) -> tuple[Ending, list[Told]]:
    """Run a job to its end and return all its calls with all that they wrote."""
    strace = Strace(log, (*_ON_FILES, *_ON_NAMES, *_OTHERS), *_TELL_ALL, *options)
    ending = launcher.run(job, strace.attach)
    return ending, list(_told(strace.lines()))


def _told(lines: list[str]) -> Iterator[Told]:
    for index, line in enumerate(lines):
        match = _LINE.match(line)
        if match:
            yield Told(match["name"], match["arguments"], _failed(lines, index, match["name"]))


def _failed(lines: list[str], index: int, name: str) -> bool:
    """Say whether a call failed; its result may stand some lines further on."""
    line = lines[index]
    if line.endswith("<unfinished ...>"):
        resumed = re.compile(rf"{line.split(' ', 1)[0]} +<\.\.\. {name} resumed>")
        line = next((later for later in lines[index + 1 :] if resumed.match(later)), "")
    result = _RESULT.search(line[-4000:])
    return result is None or int(result[1]) < 0


@dataclass
class File:
    """A file: what the kernel has, what the disk has, and what is to go from one to the other."""

    now: bytearray = field(default_factory=bytearray)
    #: As it is until the next sync, so that what is left after many calls shares it.
    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def change(self, at: int, data: bytes | None) -> None:
        """Write `data` at a place, or without any cut the file off there."""
        _change(self.now, at, data)
        self.pending.append((at, data))

    def sync(self) -> None:
        content = bytearray(self.synced)
        for at, data in self.pending:
            _change(content, at, data)
        self.synced = bytes(content)
        self.pending.clear()

    def lose(self) -> None:
        """A sync failed: the kernel takes what it could not write for written, and never tries again."""
        self.pending.clear()


def _change(content: bytearray, at: int, data: bytes | None) -> None:
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    if data is None:
        del content[at:]
    else:
        content[at : at + len(data)] = data


@dataclass
class Directory:
    """A directory: its names as the kernel has them, and as the disk has them."""

    now: "dict[str, File | Directory]" = field(default_factory=dict)
    synced: "dict[str, File | Directory]" = field(default_factory=dict)

    def sync(self) -> None:
        self.synced = dict(self.now)

    def lose(self) -> None:
        """A sync failed: a later one may still succeed, for names are in the journal of the file system."""


class Disk:
    """The files below the home of a run, as its calls leave them; what is there at first is on the disk."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._root = _read(home)

    def follow(self, calls: Iterable[Told]) -> Iterator[Told]:
        """Yield the calls that were about this disk, each when it has been followed."""
        return (call for call in calls if self._perform(call))

    def left(self, left: Left) -> Tree:
        """Return what is there after a failure of the power, or of the process."""
        return dict(_left(self._root, "", left))

    def _perform(self, call: Told) -> bool:
        paths = [Path(_plain(path).decode()) for path in _PATH.findall(call.arguments)]
        texts = [_plain(text) for text in _TEXT.findall(call.arguments)]
        if call.name in _ON_FILES:
            return paths[0].is_relative_to(self._home) and self._on_file(call, paths[0], texts)
        names = [Path(text.decode()) for text in texts]
        if not names or self._home not in names[-1].parents or call.failed:
            return False
        return self._on_name(call, names)

    def _on_file(self, call: Told, path: Path, texts: list[bytes]) -> bool:
        found = self._find(path)
        if call.name in _SYNCS:
            found.lose() if call.failed else found.sync()
        elif not call.failed:
            assert isinstance(found, File)
            found.change(_place(call, found), texts[0] if texts else None)
        return True

    def _on_name(self, call: Told, names: list[Path]) -> bool:
        parent, name = self._directory(names[-1].parent), names[-1].name
        if call.name == "openat":
            assert "O_TRUNC" not in call.arguments, "this is not followed"
            made = "O_CREAT" in call.arguments and name not in parent.now
            if made:
                parent.now[name] = File()
            return made
        if call.name == "rename":
            parent.now[name] = self._directory(names[0].parent).now.pop(names[0].name)
        elif call.name == "unlink":
            del parent.now[name]
        else:
            assert call.name == "mkdir", f"{call} is not followed"
            parent.now[name] = Directory()
        return True

    def _find(self, path: Path) -> File | Directory:
        found: File | Directory = self._root
        for part in path.relative_to(self._home).parts:
            assert isinstance(found, Directory)
            found = found.now[part]
        return found

    def _directory(self, path: Path) -> Directory:
        found = self._find(path)
        assert isinstance(found, Directory)
        return found


def _place(call: Told, file: File) -> int:
    """Return where a call writes, or cuts off; plain writes are to new files, one after the other."""
    if call.name == "write":
        return len(file.now)
    match = re.search(r", (\d+)(?:\)| <unfinished)", call.arguments)
    assert match, call
    return int(match[1])


def _read(path: Path) -> Directory:
    root = Directory()
    for child in path.iterdir():
        content = b"" if child.is_dir() else child.read_bytes()
        root.now[child.name] = _read(child) if child.is_dir() else File(bytearray(content), content)
    root.sync()
    return root


def _left(directory: Directory, prefix: str, left: Left) -> Iterator[tuple[str, bytes | None]]:
    for name, found in (directory.synced if left == "synced" else directory.now).items():
        if isinstance(found, File):
            yield f"{prefix}{name}", bytes(found.now) if left == "all" else found.synced
        else:
            yield f"{prefix}{name}", None
            yield from _left(found, f"{prefix}{name}/", left)


def _plain(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def restore(home: Path, tree: Tree) -> None:
    """Make the home of a run hold this and nothing else."""
    shutil.rmtree(home)
    home.mkdir()
    for path, content in tree.items():
        if content is None:
            (home / path).mkdir(parents=True)
        else:
            (home / path).write_bytes(content)
