"""Events per second with the log, against the same pipeline without it, in one run.

source -> map -> count window of 2 -> sink, events of 10 KB, no artificial delay, local[2], SQLite with
synchronous=FULL. Both variants share one session and are interleaved; `kept` is the median of the pairs' ratios.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from figures import interleave, median_interval, plot, report
from pyspark.sql import SparkSession

from clew import Count, Pipeline, files, generator
from clew.run import run
from clew.runtime.progress import Progress
from clew.spark.session import make_session

_BODY = os.urandom(10_000)


def event(index: int) -> pa.Table:
    """Return an event of 10 KB."""
    return pa.table({"id": [index], "body": [_BODY]})


def declare(events: int, out: Path, turn_events: int) -> Pipeline:
    """Return the pipeline that everything is measured on."""
    pipeline = Pipeline("throughput")
    limits = {"max_turn_events": turn_events}
    source = pipeline.source("source", generator(event, events), **limits)

    @pipeline.operator(source, name="map", **limits)
    def stateless(table: pa.Table) -> pa.Table:
        return table.append_column("seen", pa.array([True] * table.num_rows))

    @pipeline.operator(stateless, name="pairs", window=Count(2), **limits)
    def pairs(table: pa.Table) -> pa.Table:
        return table.slice(0, 1)

    pipeline.sink(pairs, files(out, format="parquet"), name="sink", **limits)
    return pipeline


class Bench:
    """One session, and a fresh directory for every repetition."""

    def __init__(self, spark: SparkSession, events: int, turn_events: int) -> None:
        self.spark = spark
        self.events = events
        self.turn_events = turn_events
        self.control_ms: list[float] = []

    def measure(self, recovery: str) -> float:
        """Return events per second of one run."""
        home = Path(tempfile.mkdtemp(prefix="clew-bench-"))
        try:
            pipeline = declare(self.events, home / "out", self.turn_events)
            progress = Progress()
            start, processor = time.monotonic(), time.process_time()
            run(pipeline, log=f"sqlite:///{home}/log.db", recovery=recovery, spark=self.spark, progress=progress)
            seconds = time.monotonic() - start
            rows = progress.rows().values()
            assert sum(row.events_in for row in rows if row.operator == "sink") == self.events // 2
            if recovery == "log":
                turns = sum(row.turns for row in rows)
                control = time.process_time() - processor - progress.engine_seconds
                self.control_ms.append(1000 * control / turns)
            return self.events / seconds
        finally:
            shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    """Measure, print, and end with one line of JSON."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, default=8_000)
    arguments.add_argument("--pairs", type=int, default=9)
    arguments.add_argument("--control-events", type=int, default=3_000)
    given = arguments.parse_args()

    spark = make_session("local[2]")
    bench = Bench(spark, given.events, 8_192)
    print("warming up", flush=True)
    bench.measure("none")
    bench.measure("log")
    figures = interleave({"log": lambda: bench.measure("log"), "none": lambda: bench.measure("none")}, given.pairs)

    # What a turn costs outside Spark is asked for at 100 events of 10 KB.
    fixed = Bench(spark, given.control_events, 100)
    for _ in range(3):
        fixed.measure("log")
    ratios = [log / none for log, none in zip(figures["log"], figures["none"])]
    kept, low, high = median_interval(ratios)
    logged, logged_low, logged_high = median_interval(figures["log"])
    baseline, baseline_low, baseline_high = median_interval(figures["none"])
    control, control_low, control_high = median_interval(fixed.control_ms)
    plot("throughput", "Events per second, 10 KB each", figures, "events/s")
    report(
        "throughput",
        {
            "kept": round(kept, 3),
            "kept_95": [round(low, 3), round(high, 3)],
            "events_per_s": round(logged),
            "events_per_s_95": [round(logged_low), round(logged_high)],
            "baseline_events_per_s": round(baseline),
            "baseline_events_per_s_95": [round(baseline_low), round(baseline_high)],
            "control_ms_per_turn": round(control, 2),
            "control_ms_per_turn_95": [round(control_low, 2), round(control_high, 2)],
            "pairs": given.pairs,
            "events": given.events,
        },
    )


if __name__ == "__main__":
    main()
