"""Scenario 18: the pipeline's code changed between two runs."""

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from clew import Context, Count, InputSet, Operator, Pipeline, generator, postgres, sqlite
from clew.errors import GraphChanged, RunStopped, UserFunctionFailed
from clew.faultpoint import arm
from clew.ids import Port
from clew.run import Log, Policy, gc, run, topology
from clew.store.base import TABLES, Store

EVENTS = 12
TURNS: dict[str, Any] = {"max_turn_events": 2, "attempts": 1}
QUICK = Policy(first_delay=0.01, poll=0.1)
Rows = Counter[tuple[Any, ...]]


class Shop:
    """A log, two tables, and a pipeline whose code can be changed."""

    def __init__(self, directory: Path, server: str | None) -> None:
        self.bodies = str(directory / "bodies")
        self.log = server or f"sqlite:///{directory / 'log.db'}"
        self.database = server or str(directory / "sink.db")

    def table(self, name: str) -> Any:
        return (postgres if self.database.startswith("postgres") else sqlite)(self.database, table=name)

    def pipeline(self, change: str = "", broken: bool = False, version: int = 1) -> Pipeline:
        """orders -> doubled -> sums, both written to tables; `broken` makes `doubled` fail at the eighth order."""
        pipeline = Pipeline("shop")
        orders = pipeline.source("orders", generator(lambda index: pa.table({"n": [index]}), EVENTS), **TURNS)

        def double(table: pa.Table) -> pa.Table:
            number = table["n"][0].as_py()
            if broken and number == 7:
                raise ValueError("seven")
            return pa.table({"n": [number], "version": [version]})

        def total(table: pa.Table) -> pa.Table:
            return pa.table({"first": table["n"].slice(0, 1), "count": [len(table)]})

        name = "twice" if change == "an operator is renamed" else "doubled"
        doubled = pipeline.operator(orders, name=name, **TURNS)(double)
        if change != "an operator is removed":
            # Of five, so that some are always taken and not done with when the run is cut off.
            source = orders if change == "a connection is moved" else doubled
            sums = pipeline.operator(source, name="sums", window=Count(5), **TURNS)(total)
            pipeline.sink(sums, self.table("sums"), name="sums_sink", **TURNS)
        if change == "an operator is added":
            pipeline.operator(doubled, name="copies", **TURNS)(double)
        if change != "a sink is removed":
            pipeline.sink(doubled, self.table("numbers"), name="numbers_sink", **TURNS)
        return pipeline

    def run(self, pipeline: Pipeline, **rest: Any) -> None:
        run(pipeline, log=self.log, bodies=self.bodies, engine="inline", **{"policy": QUICK, **rest})

    def cut_off(self) -> None:
        with pytest.raises(UserFunctionFailed, match="seven"):
            self.run(self.pipeline(broken=True))

    def look(self, question: Callable[[Store], Any], name: str = "shop") -> Any:
        store = Log.at(self.log, name, self.bodies).open(name)
        with closing(store):
            return question(store)

    def logged(self) -> Any:
        return self.look(lambda store: {name: store.table(name) for name in TABLES} | {"links": store.links()})

    def rows(self, table: str) -> Rows:
        if self.database.startswith("postgres"):
            with psycopg.connect(self.database) as connection:
                return Counter(connection.execute(f"SELECT * FROM {table}").fetchall())
        with closing(sqlite3.connect(self.database)) as connection:
            return Counter(connection.execute(f"SELECT * FROM {table}").fetchall())


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return Shop(tmp_path, None if request.param == "sqlite" else request.getfixturevalue("postgres_url"))


SUMS: Rows = Counter([(0, 5), (5, 5), (10, 2)])


def test_scenario_18_a_function_with_a_new_body_makes_what_is_not_yet_logged(shop: Shop) -> None:
    shop.cut_off()
    made = shop.look(lambda store: store.state("doubled").context["sent"]["out"])
    assert 0 < made < EVENTS
    shop.run(shop.pipeline(version=2))
    # What the first run logged stays as it was made, and all after it is the new function's.
    assert shop.rows("numbers") == Counter((n, 1 if n < made else 2) for n in range(EVENTS))
    assert shop.rows("sums") == SUMS


#: A change, and what is said of it; a port in braces stands for the events that wait there or were sent there.
CHANGES = {
    "an operator is removed": ["doubled.out no longer leads to sums.in, where {sums.in} wait", "operator sums is gone",
                               "sums.out no longer leads to sums_sink.in, where {sums_sink.in} wait"],
    "an operator is renamed": ["orders.out no longer leads to doubled.in, where {doubled.in} wait",
                               "orders.out now leads to twice.in, after {orders.out} were sent on it",
                               "operator doubled is gone", "operator twice is new"],
    "an operator is added": ["doubled.out now leads to copies.in, after {doubled.out} were sent on it",
                             "operator copies is new"],
    "a connection is moved": ["doubled.out no longer leads to sums.in, where {sums.in} wait",
                              "orders.out now leads to sums.in, after {orders.out} were sent on it"],
    "a sink is removed": ["doubled.out no longer leads to numbers_sink.in, where {numbers_sink.in} wait"],
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_scenario_18_a_changed_graph_is_refused_with_the_ports_and_the_events_that_wait_there(
    shop: Shop, change: str
) -> None:
    shop.cut_off()
    before = shop.logged()
    changed = shop.pipeline(change)
    for attempt in (lambda: shop.run(changed), lambda: gc(changed.graph(), shop.log, shop.bodies)):
        with pytest.raises(GraphChanged) as refused:
            attempt()
        assert "put it back as it was to go on, or start from the beginning with --fresh" in str(refused.value)
        for text in CHANGES[change]:
            assert _filled(text, before) in refused.value.changes
        # Nothing was touched, so the pipeline as it was goes on.
        assert shop.logged() == before
    shop.run(shop.pipeline())
    assert shop.rows("numbers") == Counter((n, 1) for n in range(EVENTS))
    assert shop.rows("sums") == SUMS


def _filled(text: str, log: Any) -> str:
    """Fill in the numbers of events, counted in the paper's table."""
    if "{" not in text:
        return text
    operator, _, port = text.partition("{")[2].partition("}")[0].partition(".")
    entries = log["EVENT_LOG"]
    waiting = {row[0] for row in entries if row[4:6] == (operator, port) and row[1] == "undone"}
    sent = {row[0] for row in entries if row[2:4] == (operator, port)}
    count = len(waiting if port == "in" else sent)
    return text.partition("{")[0] + f"{count} event{'s' if count != 1 else ''}" + text.partition("}")[2]


def test_scenario_18_in_the_graph_that_was_cut_off_events_do_wait(shop: Shop) -> None:
    """What the numbers above would be worth if they were all 0."""
    shop.cut_off()
    assert _filled("{sums.in}", shop.logged()) not in ("0 events", "")


def test_scenario_18_fresh_gets_past_a_changed_graph(shop: Shop) -> None:
    shop.cut_off()
    shop.run(shop.pipeline("an operator is renamed"), fresh=True)
    assert shop.rows("sums") >= SUMS


def test_scenario_18_before_a_run_has_begun_its_graph_may_change(shop: Shop) -> None:
    shop.look(lambda store: store.declare(topology(shop.pipeline("an operator is renamed").graph())))
    shop.run(shop.pipeline())
    assert shop.rows("numbers") == Counter((n, 1) for n in range(EVENTS))


class Ledger(Operator):
    """Writes each event down by itself."""

    def __init__(self, connection: str) -> None:
        self.connection = connection

    def initial(self) -> dict[str, Any]:
        return {"seen": 0}

    def assign(self, event: Any, state: dict[str, Any]) -> list[int]:
        state["seen"] += 1
        return [state["seen"]]

    def ready(self, state: dict[str, Any], opened: Any) -> list[int]:
        return list(opened)

    def generate(self, input_set: InputSet, context: Context) -> None:
        context.write(self.connection, input_set.table())


def _kept(shop: Shop, connection: str) -> Pipeline:
    pipeline = Pipeline("kept")
    orders = pipeline.source("orders", generator(lambda index: pa.table({"n": [index]}), EVENTS), **TURNS)
    pipeline.general("ledger", Ledger(connection), orders, writes={connection: shop.table("numbers")}, **TURNS)
    return pipeline


def test_scenario_18_a_connection_where_writes_wait_cannot_be_renamed(shop: Shop) -> None:
    (fault,) = arm("before-write@ledger#2:raise")
    try:
        with pytest.raises(RunStopped):
            shop.run(_kept(shop, "book"), policy=Policy(give_up_after=1))
    finally:
        arm()
    assert fault.fired
    waiting = shop.look(lambda store: len(store.undone_writes(Port("ledger", "book"), EVENTS)), "kept")
    assert waiting > 0
    with pytest.raises(GraphChanged, match=f"ledger.book is no longer written to, where {waiting} writes wait"):
        shop.run(_kept(shop, "journal"))
    shop.run(_kept(shop, "book"))
    assert shop.rows("numbers") == Counter((n,) for n in range(EVENTS))
