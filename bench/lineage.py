"""What capturing lineage on all operators costs, against not capturing it, in one run (LOG.io, Figure 10).

Use case 1 of the paper: OP1 generator -> OP2 stateless -> OP3 stateful (2 events -> 1) -> OP4 stateful writer -> OP5
sink, events of 10 KB, one task at a time per operator, so that OP3 is the straggler. Configurations 1b and 1d, with
processing times and intervals divided by `--scale`. Both variants share one session and are interleaved; the overhead
is the median of the pairs' ratios, less one. Time and log bytes per event come from the same operators in one process,
without any artificial delay: the processor's time, which is steadier than the clock's.
"""

import argparse
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from figures import interleave, median_interval, plot, report
from pyspark.sql import SparkSession

from clew import Count, Pipeline, files, generator
from clew.run import run
from clew.spark.engine import SparkEngine
from clew.spark.session import make_session

_BODY = os.urandom(10_000)


@dataclass(frozen=True)
class Configuration:
    """Events, the interval between them, and the processing times of OP2 and OP3, in seconds; OP4's writes."""

    events: int
    interval: float
    op2: float
    op3: float
    per_write: int


#: As in the paper, before scaling.
CONFIGURATIONS = {
    "1b": Configuration(1_000, 0.100, 0.050, 0.500, 100),
    "1d": Configuration(5_000, 0.030, 0.050, 0.100, 250),
}


def declare(given: Configuration, scale: float, out: Path, lineage: bool, body: bytes = _BODY) -> Pipeline:
    """Return use case 1; with `scale` 0 nothing waits."""
    pipeline = Pipeline("lineage")
    interval, op2, op3 = (seconds / scale if scale else 0.0 for seconds in (given.interval, given.op2, given.op3))
    settings: dict[str, Any] = {"lineage": lineage}

    def event(index: int) -> pa.Table:
        time.sleep(interval)
        return pa.table({"id": [index], "body": [body]})

    source = pipeline.source("OP1", generator(event, given.events), **settings)

    @pipeline.operator(source, name="OP2", **settings)
    def stateless(table: pa.Table) -> pa.Table:
        time.sleep(op2)
        return table

    @pipeline.operator(stateless, name="OP3", window=Count(2), **settings)
    def pairs(table: pa.Table) -> pa.Table:
        time.sleep(op3)
        return table.slice(0, 1)

    @pipeline.operator(pairs, name="OP4", window=Count(given.per_write // 2), **settings)
    def written(table: pa.Table) -> pa.Table:
        return table.slice(0, 1)

    pipeline.sink(written, files(out, format="parquet"), name="OP5", **settings)
    return pipeline


@dataclass
class Bench:
    """One session, and a fresh directory for every repetition."""

    spark: SparkSession
    configuration: Configuration
    scale: float

    def run(self, lineage: bool) -> float:
        """Return the seconds of one run."""
        home = Path(tempfile.mkdtemp(prefix="clew-bench-"))
        try:
            graph = declare(self.configuration, self.scale, home / "out", lineage).graph()
            log = home / "log.db"
            engine = SparkEngine(graph, spark=self.spark, bodies=f"{log}.bodies")
            # One task at a time per operator, as in the paper.
            engine.parallelism = 1
            start = time.monotonic()
            run(graph, log=f"sqlite:///{log}", engine=engine)
            return time.monotonic() - start
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def overhead(self, pairs: int) -> tuple[list[float], dict[str, list[float]]]:
        """Return how much longer a run with lineage takes, pair by pair, and the seconds of both."""
        variants = {"lineage": lambda: self.run(True), "off": lambda: self.run(False)}
        figures = interleave(variants, pairs)
        return [on / off - 1 for on, off in zip(figures["lineage"], figures["off"])], figures


def here(events: int, lineage: bool) -> tuple[float, int]:
    """Return the processor's seconds of a run in this process, and the bytes of its log."""
    home = Path(tempfile.mkdtemp(prefix="clew-bench-"))
    try:
        graph = declare(Configuration(events, 0, 0, 0, 100), 0, home / "out", lineage, b"small").graph()
        start = time.process_time()
        run(graph, log=f"sqlite:///{home}/log.db", engine="inline")
        return time.process_time() - start, sum(path.stat().st_size for path in home.glob("log.db*") if path.is_file())
    finally:
        shutil.rmtree(home, ignore_errors=True)


def per_event(pairs: int, events: int = 10_000) -> dict[str, Any]:
    """Return microseconds and log bytes that lineage adds to an event of the source, over all operators."""
    seconds, sizes = [], []
    for pair in range(pairs):
        order = (True, False) if pair % 2 == 0 else (False, True)
        made = {lineage: here(events, lineage) for lineage in order}
        seconds.append((made[True][0] - made[False][0]) / events * 1e6)
        sizes.append((made[True][1] - made[False][1]) / events)
    micros, low, high = median_interval(seconds)
    return {
        "us_per_event": round(micros, 1),
        "us_per_event_95": [round(low, 1), round(high, 1)],
        "log_bytes_per_event": round(median_interval(sizes)[0], 2),
    }


def main() -> None:
    """Measure, print, and end with one line of JSON."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--scale", type=float, default=10)
    arguments.add_argument("--pairs", type=int, default=9)
    arguments.add_argument("--only", choices=CONFIGURATIONS, action="append")
    given = arguments.parse_args()

    spark = make_session("local[2]")
    print("warming up", flush=True)
    Bench(spark, Configuration(200, 0, 0, 0, 100), 0).run(True)
    told: dict[str, Any] = {"scale": given.scale, "pairs": given.pairs}
    for name in given.only or CONFIGURATIONS:
        bench = Bench(spark, CONFIGURATIONS[name], given.scale)
        ratios, figures = bench.overhead(given.pairs)
        overhead, low, high = median_interval(ratios)
        told[f"overhead_{name}"] = round(overhead, 4)
        told[f"overhead_{name}_95"] = [round(low, 4), round(high, 4)]
        # Wider than what it is to show, it shows nothing.
        told[f"conclusive_{name}"] = high - low <= 0.01
        plot(f"lineage_{name}", f"Seconds of configuration {name}", figures, "s")
    told |= per_event(given.pairs)
    report("lineage", told)


if __name__ == "__main__":
    main()
