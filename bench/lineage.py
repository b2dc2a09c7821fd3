"""What capturing lineage on all operators costs, against not capturing it, in one run (LOG.io, Figure 10).

Use case 1 of the paper: OP1 generator -> OP2 stateless -> OP3 stateful (2 events -> 1) -> OP4 stateful writer -> OP5
sink, events of 10 KB, one task at a time per operator, so that OP3 is the straggler. Configurations 1b and 1d, with
processing times and intervals divided by `--scale`. Both variants share one session and are interleaved; the overhead
is the median of the pairs' ratios, less one. Time and log bytes per event come from the same operators' decisions and
transactions, done once more with lineage and without: the processor's time, which is steadier than the clock's.
"""

import argparse
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from figures import interleave, median_interval, plot, report
from pyspark.sql import SparkSession

from clew import Count, Pipeline, files, generator
from clew.ids import Capture
from clew.protocol.log.alg3_generate import generate
from clew.protocol.step import LogLineage, Write
from clew.run import run, topology
from clew.runtime import operator as operator_loop
from clew.spark.engine import SparkEngine
from clew.spark.session import make_session
from clew.store.base import Topology
from clew.store.sqlite import SqliteStore

_BODY = os.urandom(10_000)
#: How often what a run has decided and committed is done again.
_TIMES = 31


@dataclass(frozen=True)
class Configuration:
    """Events, the interval between them, and the processing times of OP2 and OP3, in seconds; OP4's writes."""

    events: int
    interval: float
    op2: float
    op3: float
    per_write: int
    #: How many events a turn takes; 0 is as many as it likes.
    per_turn: int = 0


#: As in the paper, before scaling. Turns last about as long as they would by themselves at scale 10, and are of one
#: size: how many there are is a matter of chance otherwise, and each costs a job, which is more than what is measured.
CONFIGURATIONS = {
    "1b": Configuration(1_000, 0.100, 0.050, 0.500, 100, per_turn=10),
    "1d": Configuration(5_000, 0.030, 0.050, 0.100, 250, per_turn=50),
}


def declare(given: Configuration, scale: float, out: Path, lineage: bool, body: bytes = _BODY) -> Pipeline:
    """Return use case 1; with `scale` 0 nothing waits."""
    pipeline = Pipeline("lineage")
    interval, op2, op3 = (seconds / scale if scale else 0.0 for seconds in (given.interval, given.op2, given.op3))
    settings: dict[str, Any] = {"lineage": lineage}
    if given.per_turn:
        settings |= {"max_turn_events": given.per_turn, "turn_seconds": 1e6}

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


@dataclass
class Commits:
    """What a run has decided and committed, to be done once more: all else that it did costs the same either way."""

    topology: Topology
    #: The arguments of every decision on a turn, in the order of the paper's Algorithm 3.
    decided: list[tuple[Any, ...]] = field(default_factory=list)
    #: The transactions, by operator.
    committed: list[tuple[str, tuple[Write, ...]]] = field(default_factory=list)

    @classmethod
    def of_run(cls, given: Configuration) -> "Commits":
        """Run use case 1 in this process, without any artificial delay, and with lineage everywhere."""
        home = Path(tempfile.mkdtemp(prefix="clew-bench-"))
        try:
            graph = declare(given, 0, home / "out", True, b"small").graph()
            made = cls(topology(graph))

            def decide(*arguments: Any) -> Any:
                made.decided.append(arguments)
                return generate(*arguments)

            def commit(store: Any, operator: str, incarnation: int, writes: Any, durable: bool = True) -> None:
                made.committed.append((operator, tuple(writes)))
                real(store, operator, incarnation, writes, durable)

            real = SqliteStore.commit
            with mock.patch.object(operator_loop, "generate", decide), mock.patch.object(SqliteStore, "commit", commit):
                run(graph, log=f"sqlite:///{home}/log.db", engine="inline")
            return made
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def decide(self, lineage: bool) -> float:
        """Return the processor's seconds of all decisions."""
        start = time.process_time()
        for update, productions, sink, aside, capture in self.decided:
            generate(update, productions, sink, aside, capture if lineage else Capture())
        return time.process_time() - start

    def commit(self, lineage: bool) -> tuple[float, int]:
        """Return the processor's seconds of all transactions on an empty log, and the bytes that they wrote."""
        home = Path(tempfile.mkdtemp(prefix="clew-bench-"))
        store = SqliteStore(home / "log.db")
        try:
            store.declare(self.topology)
            incarnations = {name: store.take_over(name) for name in self.topology.operators}
            kept = [
                (operator, [one for one in writes if lineage or not isinstance(one, LogLineage)])
                for operator, writes in self.committed
            ]
            start = time.process_time()
            for operator, writes in kept:
                store.commit(operator, incarnations[operator], writes, durable=False)
            seconds = time.process_time() - start
        finally:
            store.close()
            size = (home / "log.db").stat().st_size
            shutil.rmtree(home, ignore_errors=True)
        return seconds, size


def per_event(pairs: int, given: Configuration) -> dict[str, Any]:
    """Return microseconds and log bytes that lineage adds to an event of the source, over all operators.

    A run's own decisions and transactions are done again, with lineage and without, and nothing else is: what
    functions, bodies and syncs cost is the same in both, and varies by more than what is measured.
    """
    commits = Commits.of_run(given)
    seconds, sizes = [], []
    for pair in range(pairs):
        order = (True, False) if pair % 2 == 0 else (False, True)
        made = {lineage: (commits.decide(lineage), *commits.commit(lineage)) for lineage in order}
        (decided, committed, size), (decided_off, committed_off, size_off) = made[True], made[False]
        seconds.append((decided - decided_off + committed - committed_off) / given.events * 1e6)
        sizes.append((size - size_off) / given.events)
    micros, low, high = median_interval(seconds)
    return {
        "us_per_event": round(micros, 2),
        "us_per_event_95": [round(low, 2), round(high, 2)],
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
    for name in given.only or CONFIGURATIONS:
        measured = per_event(_TIMES, CONFIGURATIONS[name])
        told |= {f"{figure}_{name}": value for figure, value in measured.items()}
    report("lineage", told)


if __name__ == "__main__":
    main()
