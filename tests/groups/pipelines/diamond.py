"""A diamond with a join and a writer, whose source goes on as far as a file says."""

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from clew import Pipeline, Tumbling, generator, postgres

EVENTS = int(os.environ["EVENTS"])
TURNS = {"max_turn_events": 5}


def make(index: int) -> pa.Table:
    while int(Path(os.environ["GATE"]).read_text() or 0) <= index:
        time.sleep(0.01)
    time.sleep(float(os.environ["PAUSE"]))
    return pa.table({"n": [index], "k": [index % 7]})


def doubled(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "double": 2 * record["n"]}


def tripled(record: dict[str, Any]) -> dict[str, Any]:
    return {"n": record["n"], "triple": 3 * record["n"]}


pipeline = Pipeline("diamond")
numbers = pipeline.source("numbers", generator(make, EVENTS), max_turn_events=1)
left = numbers.map(doubled, name="left", deterministic=True, **TURNS)
right = numbers.map(tripled, name="right", deterministic=True, **TURNS)
joined = left.join(right, on="n", window=Tumbling(4, on="n"), name="joined")
pipeline.sink(joined, postgres(os.environ["SINK"], table="joined", key=["n"]), name="writer")
