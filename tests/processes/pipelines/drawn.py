"""A pipeline in which nothing comes twice: a source, a random value, a clock and a service that never repeat."""

import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
from places import TURNS, directory, table

from clew import Connection, Context, Count, InputSet, Observed, Operator, Pipeline

EVENTS = 12
DRAWN = {**TURNS, "deterministic": False}


class Messages(Observed):
    """Messages that are new ones each time they are read."""

    def describe(self) -> str:
        return "messages"

    def observe(self) -> Iterator[pa.Table]:
        reading = uuid.uuid4().hex
        for index in range(EVENTS):
            yield pa.table({"n": [index], "reading": [reading]})


class Service(Connection):
    """Answers differently each time it is asked."""

    def describe(self) -> str:
        return "service"

    def read(self, action: str) -> pa.Table:
        return pa.table({"asked": [action], "answer": [uuid.uuid4().hex]})


class Prices(Operator):
    """Asks a service once per two events, writes what it said, and sends it on."""

    def initial(self) -> dict[str, Any]:
        return {"seen": 0}

    def assign(self, event: Any, state: dict[str, Any]) -> Sequence[Any]:
        state["seen"] += 1
        return [(state["seen"] - 1) // 2]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        return [key for key in opened if 2 * (key + 1) <= state["seen"]]

    def generate(self, input_set: InputSet, context: Context) -> Any:
        answer = context.read("service", f"price {input_set.key}")["answer"][0].as_py()
        row = pa.table({"key": [input_set.key], "token": [answer]})
        context.write("ledger", row)
        return row


pipeline = Pipeline("drawn")
messages = pipeline.source("messages", Messages(), **DRAWN)


@pipeline.operator(messages, **DRAWN)
def tag(table: pa.Table) -> list[pa.Table]:
    time.sleep(0.005)
    token, key = uuid.uuid4().hex, table["n"][0].as_py()
    return [pa.table({"key": [key], "part": [part], "token": [token]}) for part in (1, 2)]


@pipeline.operator(messages, window=Count(5), **DRAWN)
def clock(table: pa.Table) -> pa.Table:
    return pa.table({"key": [table["n"][0].as_py()], "token": [str(time.time_ns())]})


prices = pipeline.general(
    "prices", Prices(), messages, reads={"service": Service()}, writes={"ledger": table("ledger")}, **DRAWN
)
pipeline.sink(messages, table("messages"), **DRAWN)
pipeline.sink(tag, table("tags"), name="tags", **DRAWN)
pipeline.sink(tag, directory("tags"), name="tag_files", **DRAWN)
pipeline.sink(clock, table("clocks"), name="clocks", **DRAWN)
pipeline.sink(prices, directory("prices"), name="price_files", **DRAWN)
