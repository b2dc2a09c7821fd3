"""A diamond whose records say themselves which events of the source they come from."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from clew import Count, Operator, Pipeline, Tumbling
from clew.connectors import files, generator
from clew.pipeline.contracts import Connection
from clew.pipeline.operators import Context, InputSet
from clew.pipeline.windows import Header

EVENTS = 60


def numbers(index: int) -> pa.Table:
    """Event `index + 1` of the source: records that know its number, some of them late in the next window."""
    own = [[index + 1]] * 3
    return pa.table({"t": [index, index + 1, index + 4], "made_of": own})


def united(*tables: pa.Table) -> list[int]:
    """Return the source's events that some records come from."""
    return sorted({number for table in tables for numbers in table["made_of"].to_pylist() for number in numbers})


@dataclass(frozen=True)
class Prices(Connection):
    """Answers each request with the request."""

    def describe(self) -> str:
        return "prices"

    def read(self, action: str) -> pa.Table:
        return pa.table({"asked": [action]})


class Chance(Operator):
    """Cuts what comes into Input Sets of one to four events, as chance has it, and asks for a price for each."""

    def initial(self) -> dict[str, Any]:
        return {"k": 0, "left": 1}

    def assign(self, event: Header, state: dict[str, Any]) -> Sequence[Any]:
        state["left"] -= 1
        return [state["k"]]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        if state["left"] > 0:
            return []
        full = state["k"]
        state["k"], state["left"] = full + 1, random.randint(1, 4)
        return [full] if full in opened else []

    def generate(self, input_set: InputSet, context: Context) -> Any:
        table = input_set.table()
        context.read("prices", f"price of {united(table)}")
        # Two events: one for the first record, one for the others.
        made_of = united(table)
        times = table["t"].to_pylist()
        return [pa.table({"t": [t], "made_of": [made_of]}) for t in (min(times), max(times))]


def diamond(directory: Path, **lineage: Any) -> Pipeline:
    pipeline = Pipeline("diamond")
    source = pipeline.source("numbers", generator(numbers, EVENTS), max_turn_events=7)

    @pipeline.operator(source, max_turn_events=5, deterministic=True, **lineage)
    def some(table: pa.Table) -> pa.Table:
        # Of every fifth event nothing is left.
        return table.slice(0, 0) if table["made_of"][0].as_py()[0] % 5 == 0 else table

    chance = pipeline.general("chance", Chance(), source, reads={"prices": Prices()}, max_turn_events=6)

    @pipeline.operator(some, chance, window=Tumbling(8, on="t", lateness=20))
    def joined(left: pa.Table, right: pa.Table) -> pa.Table:
        start = {*left["window_start"].to_pylist(), *right["window_start"].to_pylist()}
        return pa.table({"start": sorted(start), "made_of": [united(left, right)] * len(start)})

    @pipeline.operator(joined, window=Count(3))
    def threes(table: pa.Table) -> pa.Table:
        return pa.table({"windows": [table.num_rows], "made_of": [united(table)]})

    pipeline.sink(threes, files(directory / "threes"))
    return pipeline
