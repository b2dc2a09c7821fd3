"""A place of its own for one run, and what its sinks hold, as anyone who opens them would read it."""

import atexit
import csv
import json
import os
import re
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet

from tests.storage.launcher import Ending, Job, Launcher

PIPELINES = Path(__file__).parent / "pipelines"

#: Where the run under test says what it says: not on the disk that it runs on, which may be full.
_SAID = Path(tempfile.gettempdir()) / f"clew-said-{os.getpid()}"
atexit.register(lambda: _SAID.unlink(missing_ok=True))

#: What the sinks hold: the records of each, as text, and how often each is there.
Held = dict[str, Counter[str]]


@dataclass(frozen=True)
class Scene:
    """A pipeline, and where it writes to."""

    name: str
    pipeline: str
    sinks: tuple[str, ...]
    events: int
    #: Bodies from this size on go to files.
    inline_limit: int = 0
    #: After how many pages SQLite copies the log's write-ahead log into its file.
    checkpoint_pages: int = 40

    def at(self, home: Path, planted: str = "") -> "Place":
        (home / "table").mkdir(parents=True)
        if self.pipeline == "windows":
            (home / "spool").write_text("".join(f"{number}\n" for number in range(self.events)))
        if self.pipeline == "joined":
            _fill(home / "input", self.events)
        return Place(self, home, planted)


def _fill(directory: Path, events: int) -> None:
    """Make what the joined pipeline reads: two files of sales, and a database of prices."""
    (directory / "sales").mkdir(parents=True)
    for part in range(2):
        lines = [
            json.dumps({"t": n, "sale": f"sale {n} " * 8}) + "\n" for n in range(part * events, (part + 1) * events)
        ]
        (directory / "sales" / f"part-{part}.jsonl").write_text("".join(lines))
    with closing(sqlite3.connect(directory / "prices.db")) as database, database:
        database.execute("CREATE TABLE prices (t INTEGER PRIMARY KEY, price INTEGER)")
        database.executemany("INSERT INTO prices VALUES (?, ?)", [(n, n * n % 17) for n in range(2 * events)])


FILES = Scene("files", "orders", ("files",), 16)
TABLE = Scene("table", "orders", ("paid",), 16)
BOTH = Scene("both", "orders", ("files", "paid"), 16)
#: Some bodies in files and some in the log.
WINDOWS = Scene("windows", "windows", ("sums", "ledger", "files/counts", "files/pairs"), 14, inline_limit=320)
#: Two sources that are read again, joined; all bodies in the log, no matter how large.
JOINED = Scene("joined", "joined", ("files/sales", "files/hours", "hours"), 8, inline_limit=1 << 20)
#: A checkpoint whenever there may be one.
HASTY = Scene("hasty", "orders", ("files",), 8, checkpoint_pages=1)


@dataclass(frozen=True)
class Place:
    """Where one run keeps its log and writes to."""

    scene: Scene
    home: Path
    #: A bug that is planted into what runs here.
    planted: str = ""

    def job(self, watched: str = "", failing: tuple[str, ...] = ()) -> Job:
        scene, home = self.scene, self.home
        return Job(
            str(PIPELINES / f"{scene.pipeline}.py"),
            f"sqlite:///{home / 'log' / 'log.db'}",
            str(home / "bodies"),
            str(_SAID),
            {"HOME_OF_RUN": str(home), "EVENTS": str(scene.events), "SINKS": ",".join(scene.sinks)},
            scene.inline_limit,
            scene.checkpoint_pages,
            watched,
            failing=failing,
            planted=self.planted,
        )

    def finish(self, launcher: Launcher) -> Ending:
        """Run to the end, with no fault; the run before it may have been at its end already."""
        ending = launcher.run(self.job())
        assert ending.code in (0, 3), f"it does not finish ({ending.code}): {ending.said}"
        return ending

    def held(self) -> Held:
        """Return what the sinks hold; that of the one reading of a spool is told by another name than its own."""
        rows = {**dict(self._files()), **dict(self._tables())}
        readings = {row["reading"] for found in rows.values() for row in found if "reading" in row}
        assert len(readings) <= 1, f"the sinks hold several readings: {readings}"
        return {
            sink: Counter(json.dumps({**row, **({"reading": "one"} if readings else {})}) for row in found)
            for sink, found in rows.items()
        }

    def remove(self) -> None:
        shutil.rmtree(self.home)

    def _files(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        root = self.home / "files"
        for directory in [root, *(child for child in root.glob("*") if child.is_dir())]:
            names = [path for path in sorted(directory.glob("[!.]*")) if path.is_file()]
            if names:
                yield str(directory.relative_to(self.home)), [row for path in names for row in _records(path)]

    def _tables(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        path = self.home / "table" / "sink.db"
        if not path.exists():
            return
        with closing(sqlite3.connect(path)) as connection:
            connection.row_factory = sqlite3.Row
            names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for name in names:
                if not re.match("_?clew", name):
                    rows = connection.execute(f'SELECT * FROM "{name}"').fetchall()
                    yield name, [dict(row) for row in rows]


def _records(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
        return rows
    if path.suffix == ".csv":
        with path.open(newline="") as lines:
            return list(csv.DictReader(lines))
    return [json.loads(line) for line in path.read_text().splitlines()]


def differences(found: Held, expected: Held) -> str:
    """Say what the sinks lost and what they have too much, or nothing."""
    told = []
    for sink in sorted({*found, *expected}):
        lost = expected.get(sink, Counter()) - found.get(sink, Counter())
        more = found.get(sink, Counter()) - expected.get(sink, Counter())
        if lost or more:
            told.append(f"{sink} lost {dict(lost)} and has too much {dict(more)}")
    return "; ".join(told)
