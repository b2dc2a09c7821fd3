"""Runs a pipeline of many small events, or verifies its run there, and says how long it took and in how much memory.

    python -m tests.model.large run|inline|spark DIRECTORY EVENTS

A process of its own, because memory is counted per process.
"""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from clew import Count, Pipeline
from clew.connectors import generator, sqlite
from clew.model.verify import size
from clew.run import run, verify

#: How many events make up one of the window's.
WINDOW = 10


def pipeline(directory: Path, events: int) -> Pipeline:
    """Return a pipeline that logs about so many events: a source's, as many of a function's, a tenth of a window's."""
    made = Pipeline("large")
    large: dict[str, Any] = {"max_turn_events": 50_000, "turn_seconds": 20.0}
    source = made.source("numbers", generator(_numbers, events * WINDOW // (2 * WINDOW + 1)), **large)

    @made.operator(source, deterministic=True, **large)
    def doubled(table: pa.Table) -> pa.Table:
        return table.set_column(0, "n", pc.multiply(table["n"], 2))

    @made.operator(doubled, window=Count(WINDOW), deterministic=True, **large)
    def sums(table: pa.Table) -> pa.Table:
        return pa.table({"n": [pc.sum(table["n"]).as_py()], "x": [pc.sum(table["x"]).as_py()]})

    made.sink(sums, sqlite(directory / "sink.db", table="sums"), **large)
    return made


def _numbers(index: int) -> pa.Table:
    return pa.table({"n": [index, index + 1], "x": [index / 7, 1.0]})


def main(what: Literal["run", "inline", "spark"], directory: Path, events: int) -> dict[str, Any]:
    made, url = pipeline(directory, events), f"sqlite:///{directory / 'log.db'}"
    began = time.monotonic()
    answer: dict[str, Any] = {}
    if what == "run":
        run(made, log=url, engine="inline")
    else:
        verdict = verify(made, log=url, engine=what)
        answer = {"verdict": verdict.word, "findings": [str(finding) for finding in verdict.findings]}
        answer |= {"counts": verdict.counts, "logged": size(made.graph(), url)}
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        **answer,
        "seconds": round(time.monotonic() - began, 1),
        "cpu": round(used.ru_utime + used.ru_stime, 1),
        "megabytes": _most_memory(),
    }


def _most_memory() -> int:
    """Return the megabytes that this process ever had; what `getrusage` says may be of the one that started it."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
