"""A log, some tables, and a pipeline whose code can be changed while its run is cut off."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from clew import Count, Pipeline, generator, postgres, sqlite
from clew.errors import RunStopped, UserFunctionFailed
from clew.faultpoint import CrashInjected, arm
from clew.ids import Port
from clew.pipeline.windows import Window
from clew.run import Log, Policy, run
from clew.store.base import TABLES, Store

EVENTS = 12
#: One group and one event at a time, so that what waits when a run is cut off is the same each time.
TURNS: dict[str, Any] = {"max_turn_events": 1, "attempts": 1, "group": "all"}
QUICK = Policy(first_delay=0.01, poll=0.1)
ONCE = Policy(give_up_after=1)
Rows = Counter[tuple[Any, ...]]
#: How many orders there are before the one that `doubled` fails on.
MADE = 7


class Shop:
    """orders -> doubled -> sums, both written to tables."""

    def __init__(self, directory: Path, server: str | None) -> None:
        self.directory = directory
        self.bodies = str(directory / "bodies")
        self.log = server or f"sqlite:///{directory / 'log.db'}"
        self.database = server or str(directory / "sink.db")

    def table(self, name: str, **how: Any) -> Any:
        return (postgres if self.database.startswith("postgres") else sqlite)(self.database, table=name, **how)

    def pipeline(
        self,
        *,
        fails_at: int | None = None,
        version: int = 1,
        events: int = EVENTS,
        window: Window | None = None,
        doubled: str = "doubled",
        numbers: str | None = "numbers_sink",
        table: str = "numbers",
        sums: bool = True,
        sums_read: str = "doubled",
        extra: bool = False,
        all_at_once: bool = False,
        deterministic: bool = False,
    ) -> Pipeline:
        pipeline = Pipeline("shop")
        source = generator(lambda index: pa.table({"n": [index]}), events)
        orders = pipeline.source("orders", source, **(TURNS | ({"max_turn_events": 99} if all_at_once else {})))

        def double(table: pa.Table) -> pa.Table:
            number = table["n"][0].as_py()
            if number == fails_at:
                raise ValueError("broken")
            return pa.table({"n": [number], "version": [version]})

        def total(table: pa.Table) -> pa.Table:
            return pa.table({"first": table["n"].slice(0, 1), "count": [len(table)]})

        turns = TURNS | {"deterministic": deterministic}
        made = pipeline.operator(orders, name=doubled, **turns)(double)
        if sums:
            read = orders if sums_read == "orders" else made
            # Of five, so that some are always taken and not done with when the run is cut off.
            summed = pipeline.operator(read, name="sums", window=window or Count(5), **turns)(total)
            pipeline.sink(summed, self.table("sums"), name="sums_sink", **TURNS)
        if extra:
            pipeline.sink(made, self.table("extra"), name="extra_sink", **TURNS)
        if numbers is not None:
            pipeline.sink(made, self.table(table), name=numbers, **TURNS)
        return pipeline

    def run(self, pipeline: Pipeline, **rest: Any) -> None:
        run(pipeline, log=self.log, bodies=self.bodies, engine="inline", **{"policy": QUICK, **rest})

    def cut_off(self, accept: Sequence[str] = (), fails_at: int = MADE, **how: Any) -> None:
        """Run until `doubled` fails: seven orders are through, of which sums has made an Output Set of five."""
        with pytest.raises(UserFunctionFailed, match="broken"):
            self.run(self.pipeline(fails_at=fails_at, **how), accept=accept)

    def crash(self, pipeline: Pipeline, point: str, **rest: Any) -> None:
        """Run until the whole run dies at a crash point."""
        (fault,) = arm(f"{point}:raise")
        try:
            # What is raised outside of a group, as in the transaction of a change, is nobody's to catch.
            with pytest.raises((RunStopped, CrashInjected)):
                self.run(pipeline, policy=ONCE, **rest)
        finally:
            arm()
        assert fault.fired, f"{point} was not reached"

    def look(self, question: Callable[[Store], Any], name: str = "shop") -> Any:
        with self.opened(name) as store:
            return question(store)

    @contextmanager
    def opened(self, name: str = "shop") -> Iterator[Store]:
        with closing(Log.at(self.log, name, self.bodies).open(name)) as store:
            yield store

    def logged(self, name: str = "shop") -> Any:
        def everything(store: Store) -> Any:
            return {table: store.table(table) for table in TABLES} | {
                "links": store.links(),
                "versions": store.versions(),
            }

        return self.look(everything, name)

    def waiting(self, receiver: str, name: str = "shop") -> list[int]:
        """Return the events that wait on a port, or are taken there and not done, as the paper's table has them."""
        port = Port.parse(receiver)
        entries = self.look(lambda store: store.table("EVENT_LOG"), name)
        return sorted({row[0] for row in entries if row[4:6] == tuple(port) and row[1] == "undone"})

    def rows(self, table: str) -> Rows:
        if self.database.startswith("postgres"):
            with psycopg.connect(self.database) as connection:
                return Counter(connection.execute(f"SELECT * FROM {table}").fetchall())
        with closing(sqlite3.connect(self.database)) as connection:
            return Counter(connection.execute(f"SELECT * FROM {table}").fetchall())


def numbers(first: int = 0, stop: int = EVENTS, version: int = 1) -> Rows:
    """Return the rows of orders from `first` on, as `doubled` makes them."""
    return Counter((n, version) for n in range(first, stop))


def sums(first: int, size: int, stop: int = EVENTS) -> Rows:
    """Return the sums of orders from `first` on."""
    return Counter((n, min(size, stop - n)) for n in range(first, stop, size))
