"""A spool that is gone once it is read, windows over it, and an operator with a state of its own."""

import os
import uuid
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clew import Context, Count, InputSet, Observed, Operator, Pipeline, Tumbling
from clew.connectors import files, sqlite

#: One group is one thread; turns are cut by number alone: each run makes the same calls in the same order.
TURNS = {"group": "all", "max_turn_events": 2, "turn_seconds": 1e6, "deterministic": True}
HOME = os.environ["HOME_OF_RUN"]


class Spool(Observed):
    """A file with a number per line, removed when it is consumed; each reading of it has another name."""

    path = Path(HOME, "spool")

    def describe(self) -> str:
        return "spool"

    def observe(self) -> Iterator[pa.Table]:
        reading = uuid.uuid4().hex
        for line in self.path.read_text().splitlines():
            n = int(line)
            yield pa.table({"n": [n, n], "t": [3 * n, 3 * n + 2], "reading": [reading, reading]})

    def release(self, snapshot: Any) -> None:
        self.path.unlink(missing_ok=True)


class Pairs(Operator):
    """Takes events two by two, counts them in its state, and writes as it goes."""

    def initial(self) -> dict[str, Any]:
        return {"seen": 0}

    def assign(self, event: Any, state: dict[str, Any]) -> Sequence[Any]:
        state["seen"] += 1
        return [(state["seen"] - 1) // 2]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        return [key for key in opened if 2 * (key + 1) <= state["seen"]]

    def generate(self, input_set: InputSet, context: Context) -> Any:
        records = input_set.table()
        row = pa.table(
            {
                "pair": [input_set.key],
                "seen": [context.state["seen"]],
                "sum": [pc.sum(records["n"]).as_py()],
                "reading": records["reading"][:1],
            }
        )
        context.write("ledger", row)
        return row


pipeline = Pipeline("windows")
spool = pipeline.source("spool", Spool(), **TURNS)


@pipeline.operator(spool, window=Tumbling(10, on="t"), **TURNS)
def sums(table: pa.Table) -> pa.Table:
    start, reading = table["window_start"][0].as_py(), table["reading"][0].as_py()
    return pa.table({"start": [start], "sum": [pc.sum(table["n"]).as_py()], "reading": [reading]})


@pipeline.operator(spool, window=Count(3), **TURNS)
def counts(table: pa.Table) -> pa.Table:
    return pa.table({"first": table["n"][:1], "records": [table.num_rows], "reading": table["reading"][:1]})


ledger = {"ledger": sqlite(f"{HOME}/table/sink.db", table="ledger")}
pairs = pipeline.general("pairs", Pairs(), spool, writes=ledger, **TURNS)
pipeline.sink(sums, sqlite(f"{HOME}/table/sink.db", table="sums", key="start"), **TURNS)
pipeline.sink(counts, files(f"{HOME}/files/counts", format="jsonl"), **TURNS)
pipeline.sink(pairs, files(f"{HOME}/files/pairs", format="parquet"), **TURNS)
