"""Memory and the log stay flat over a long run of small events with garbage collection on."""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from clew import Pipeline, files, generator
from clew.run import Policy, Progress, run
from tests.soak import SOAK
from tests.spark.outside import written

#: Enough of them that a leak of their own bytes would be seen.
EVENTS = 200_000 if SOAK else 100_000
MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Sample:
    """What the run holds when so many events have been written."""

    events: int
    memory: int
    log: int


def memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def on_disk(place: Path) -> int:
    total = 0
    for path in place.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            # Collected while we look.
            continue
    return total


class Watch(threading.Thread):
    """Takes a sample several times a second."""

    def __init__(self, place: Path, progress: Progress) -> None:
        super().__init__(daemon=True)
        self.place, self.progress = place, progress
        self.samples: list[Sample] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.25):
            rows = self.progress.rows()
            events = rows["sink"].events_in if "sink" in rows else 0
            self.samples.append(Sample(events, memory(), on_disk(self.place)))

    def between(self, low: float, high: float) -> list[Sample]:
        found = [sample for sample in self.samples if low * EVENTS <= sample.events < high * EVENTS]
        assert len(found) >= 3, f"{len(found)} samples between {low:.0%} and {high:.0%} of the events"
        return found


@pytest.mark.timeout(600)
def test_memory_and_log_stay_flat_however_many_events_there_are(spark: SparkSession, tmp_path: Path) -> None:
    p = Pipeline("flat")
    # About a hundred bytes of data each.
    source = p.source("source", generator(lambda i: pa.table({"n": [i], "text": ["x" * 90]}), EVENTS))

    @p.operator(source)
    def passed(table: pa.Table) -> pa.Table:
        return table

    p.sink(passed, files(tmp_path / "out"), name="sink")
    progress = Progress()
    watch = Watch(tmp_path / ".clew", progress)
    watch.start()
    start = time.monotonic()
    run(p, spark=spark, policy=Policy(collect_every=0.5), progress=progress)
    seconds = time.monotonic() - start
    watch.over.set()
    watch.join()

    numbers = pa.concat_tables(table.select(["n"]) for table in written(tmp_path / "out"))["n"]
    assert numbers.to_pylist() == list(range(EVENTS))
    early, late = watch.between(0.25, 0.55), watch.between(0.7, 1.0)
    print(f"{EVENTS / seconds:.0f} events/s")
    for name in ("memory", "log"):
        before, after = (max(getattr(sample, name) for sample in part) for part in (early, late))
        print(f"{name}: at most {before / MEGABYTE:.1f} MB, later {after / MEGABYTE:.1f} MB")
        # Turns differ in size, so the peaks do; a leak of the events' own bytes alone would be 9 MB and more.
        assert after < 1.15 * before + 4 * MEGABYTE, f"{name} grew from {before} to {after} bytes"
