"""A pipeline whose source always has something to send: what bench/restart.py kills, one group at a time.

Every turn takes one event, so that the log tells by its numbers which turn waits for which. Time passes by sleeping:
on a machine with few cores the groups must not hold each other up.
"""

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from clew import Pipeline, Sink, generator
from clew.pipeline.contracts import WriteAction

#: Seconds of a turn of the source, and of the others, of which one group has two: they keep up with it.
SOURCE, OTHERS = 0.06, 0.02
ONE = {"max_turn_events": 1}


class Nowhere(Sink):
    """Takes its time, and keeps nothing."""

    idempotent = True

    def describe(self) -> str:
        return "nowhere"

    def write(self, action: WriteAction, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        time.sleep(OTHERS)


def make(index: int) -> pa.Table:
    time.sleep(SOURCE)
    return pa.table({"n": [index]})


def slowly(record: dict[str, Any]) -> dict[str, Any]:
    time.sleep(OTHERS)
    return record


pipeline = Pipeline("steady")
numbers = pipeline.source("numbers", generator(make, 10_000_000), **ONE)
left = numbers.map(slowly, name="left", deterministic=True, **ONE)
right = numbers.map(slowly, name="right", deterministic=True, **ONE)
pipeline.sink(left, Nowhere(), name="writer", group="left", **ONE)
