"""The pipelines that are simulated, and what must be true of the world when each has finished."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clew import Batch, Context, Count, InputSet, Operator, Pipeline, Session, Sliding, Tumbling
from clew.connectors import generator
from clew.ids import Port
from clew.pipeline.graph import Graph
from tests.simulation.journal import Journal
from tests.simulation.outside import (
    Checkable,
    Feed,
    Growing,
    Idempotent,
    Lookup,
    Queue,
    Row,
    Ticker,
    Transactional,
    World,
)

EVENTS = 8
#: Turns are cut by the scheduler, never by the clock: a seed must replay exactly.
TURNS = {"turn_seconds": 1e6, "max_turn_events": 4}
#: Operators whose Output Sets the checker computes again.
SAME = {**TURNS, "deterministic": True}


@dataclass(frozen=True)
class Scene:
    """A pipeline, and its judge."""

    name: str
    declare: Callable[[World], Graph]
    #: Whether every run leaves what a run without failures leaves.
    deterministic: bool
    #: Says what is wrong with a finished run.
    judge: Callable[[World, Journal], None]
    #: Whether garbage is collected beside the run, and bodies are kept in files.
    collects: bool = False
    #: Whether lineage is captured of every operator: of the others the checker cannot decide all.
    traced: bool = True

    @property
    def replay(self) -> str:
        """What to write in a test to have this pipeline again."""
        return f"SCENES[{self.name!r}]" if self.name in SCENES else f"scene({self.name})"


def numbers(index: int) -> pa.Table:
    """Three records per event, in time order; some events span two windows of 10."""
    first = 3 * index
    return pa.table({"n": [first, first + 1, first + 2], "t": [4 * index, 4 * index + 1, 4 * index + 3]})


# Deterministic pipelines.


def linear(world: World) -> Graph:
    pipeline = Pipeline("linear")
    source = pipeline.source("numbers", generator(numbers, EVENTS), **TURNS)

    @pipeline.operator(source, group="front", **SAME)
    def double(table: pa.Table) -> pa.Table:
        return table.set_column(0, "n", pc.multiply(table["n"], 2))

    @pipeline.operator(double, group="front", **SAME)
    def some(table: pa.Table) -> pa.Table:
        # Every fourth event loses all its records, and makes no event then.
        kept = table.filter(pc.not_equal(pc.divide(table["n"], 2), pc.multiply(pc.divide(table["n"], 8), 4)))
        return kept if table["n"][0].as_py() % 24 else kept.slice(0, 0)

    @pipeline.operator(some, window=Count(3), **SAME)
    def sums(table: pa.Table) -> pa.Table:
        return pa.table({"first": [table["n"][0].as_py()], "sum": [pc.sum(table["n"]).as_py()]})

    @pipeline.operator(some, window=Tumbling(10, on="t"), **SAME)
    def windows(table: pa.Table) -> pa.Table:
        return pa.table({"start": table["window_start"].slice(0, 1), "sum": [pc.sum(table["n"]).as_py()]})

    pipeline.sink(sums, Transactional(world, "sums"), **TURNS)
    pipeline.sink(windows, Idempotent(world, "windows"), **TURNS)
    return pipeline.graph()


def diamond(world: World) -> Graph:
    pipeline = Pipeline("diamond")
    source = pipeline.source("numbers", generator(numbers, EVENTS), **TURNS)

    @pipeline.operator(source, capacity=3, **SAME)
    def left(table: pa.Table) -> pa.Table:
        return table.rename_columns(["a", "t"])

    @pipeline.operator(source, group="right", **SAME)
    def right(table: pa.Table) -> pa.Table:
        return table.rename_columns(["b", "t"]).filter(pc.not_equal(table["t"], 9))

    @pipeline.operator(left, right, window=Tumbling(10, on="t"), capacity=2, **SAME)
    def join(one: pa.Table, other: pa.Table) -> pa.Table:
        sums = [pc.sum(one["a"]).as_py(), pc.sum(other["b"]).as_py()]
        return pa.table({"start": one["window_start"].slice(0, 1), "a": [sums[0]], "b": [sums[1]]})

    pipeline.sink(join, Checkable(world, "joined"), **TURNS)
    pipeline.sink(right, Transactional(world, "right"), group="right", **TURNS)
    return pipeline.graph()


def ports(world: World) -> Graph:
    pipeline = Pipeline("ports")
    source = pipeline.source("numbers", generator(numbers, EVENTS), **TURNS)

    @pipeline.operator(source, outputs=("even", "odd"), **SAME)
    def split(table: pa.Table) -> dict[str, Any]:
        odd = pc.equal(pc.bit_wise_and(table["n"], 1), 1)
        # Several events on one port, one on the other.
        evens = table.filter(pc.invert(odd))
        return {"odd": table.filter(odd), "even": [evens.slice(i, 1) for i in range(evens.num_rows)]}

    @pipeline.also("split.even", window=Count(4), outputs=("count",))
    def by_count(table: pa.Table) -> pa.Table:
        return pa.table({"sum": [pc.sum(table["n"]).as_py()]})

    @pipeline.also("split.even", window=Tumbling(10, on="t"), outputs=("window",))
    def by_window(table: pa.Table) -> pa.Table:
        return pa.table({"start": table["window_start"].slice(0, 1), "sum": [pc.sum(table["n"]).as_py()]})

    pipeline.sink("split.even", Transactional(world, "even"), **TURNS)
    pipeline.sink("split.odd", Checkable(world, "odd"), group="sinks", **TURNS)
    pipeline.sink("split.count", Idempotent(world, "count"), group="sinks", **TURNS)
    pipeline.sink("split.window", Transactional(world, "window"), group="sinks", **TURNS)
    return pipeline.graph()


class Totals(Operator):
    """Sums events two by two, knows how many records came before, writes and sends."""

    def initial(self) -> dict[str, Any]:
        return {"pair": 0, "in_pair": 0, "records": 0}

    def facts(self, table: pa.Table) -> Any:
        return pc.sum(table["n"]).as_py()

    def assign(self, event: Any, state: dict[str, Any]) -> Sequence[Any]:
        if state["in_pair"] == 2:
            state["pair"], state["in_pair"] = state["pair"] + 1, 0
        state["in_pair"] += 1
        state["records"] += event.rows
        # Every event is in its pair, and some are also in a set that only the flush closes.
        return [("pair", state["pair"]), *([("rest", 0)] if event.facts % 2 else [])]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        pair = ("pair", state["pair"])
        return [pair] if state["in_pair"] == 2 and pair in opened else []

    def generate(self, input_set: InputSet, context: Context) -> Any:
        total = pc.sum(input_set.table()["n"]).as_py()
        kind, number = input_set.key
        row = pa.table({"kind": [kind], "pair": [number], "sum": [total], "records": [context.state["records"]]})
        context.write("ledger", row)
        if kind == "pair":
            context.write("mail", row.select(["pair", "sum"]))
            context.write("mail", row.select(["pair", "records"]).rename_columns(["pair", "sum"]))
        return row


def stateful(world: World) -> Graph:
    pipeline = Pipeline("stateful")
    source = pipeline.source("numbers", generator(numbers, EVENTS), **TURNS)
    writes = {"ledger": Transactional(world, "ledger"), "mail": Checkable(world, "mail")}
    totals = pipeline.general("totals", Totals(), source, writes=writes, **SAME)
    pipeline.sink(totals, Idempotent(world, "totals"), **TURNS)
    return pipeline.graph()


def collected(world: World) -> Graph:
    """The linear one with little room, bodies in files, and garbage collected beside it."""
    pipeline = Pipeline("collected")
    source = pipeline.source("numbers", generator(numbers, EVENTS), **TURNS)

    @pipeline.operator(source, capacity=2, **SAME)
    def twice(table: pa.Table) -> list[pa.Table]:
        return [table, table]

    @pipeline.operator(twice, window=Count(5), capacity=3, **SAME)
    def fives(table: pa.Table) -> pa.Table:
        return pa.table({"sum": [pc.sum(table["n"]).as_py()]})

    pipeline.sink(fives, Transactional(world, "fives"), capacity=1, **TURNS)
    pipeline.sink(twice, Checkable(world, "twice"), capacity=2, **TURNS)
    return pipeline.graph()


# Pipelines that are not deterministic.


def drawn(world: World) -> Graph:
    """Random values per event, a clock per window, and a value that depends on how turns were cut."""
    pipeline = Pipeline("drawn")
    source = pipeline.source("numbers", generator(numbers, EVENTS), **TURNS)

    @pipeline.operator(source, **TURNS)
    def tag(table: pa.Table) -> list[pa.Table]:
        token = world.draw()
        first = table["n"][0].as_py()
        return [pa.table({"first": [first], "part": [part], "token": [token]}) for part in (1, 2)]

    @pipeline.operator(source, window=Count(3), **TURNS)
    def clock(table: pa.Table) -> pa.Table:
        return pa.table({"first": [table["n"][0].as_py()], "token": [world.draw()]})

    @pipeline.operator(tag, window=Batch(), group="turns", **TURNS)
    def turns(table: pa.Table) -> pa.Table:
        parts = [f"{row['first']}/{row['part']}" for row in table.to_pylist()]
        return pa.table({"parts": [parts], "token": [world.draw()]})

    pipeline.sink(tag, Transactional(world, "tag"), **TURNS)
    pipeline.sink(clock, Checkable(world, "clock"), **TURNS)
    pipeline.sink(turns, Idempotent(world, "turns"), group="turns", **TURNS)
    return pipeline.graph()


class Prices(Operator):
    """Asks a service for a price, once per three events; how it answered is part of the Output Set."""

    functions = ("generate", "alarm")

    def initial(self) -> dict[str, Any]:
        return {"seen": 0}

    def assign(self, event: Any, state: dict[str, Any]) -> Sequence[Any]:
        state["seen"] += 1
        return [("generate", (state["seen"] - 1) // 3), ("alarm", state["seen"])]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        full = ("generate", state["seen"] // 3 - 1)
        return [key for key in opened if key == ("alarm", state["seen"]) or (state["seen"] % 3 == 0 and key == full)]

    def generate(self, input_set: InputSet, context: Context) -> Any:
        price = context.read("ticker", f"price of {input_set.key}")["answer"][0].as_py()
        row = pa.table({"set": [input_set.key], "events": [len(input_set.events)], "price": [price]})
        context.write("orders", row)
        return {"out": row}

    def alarm(self, input_set: InputSet, context: Context) -> Any:
        answers = [context.read("ticker", f"alarm {input_set.key} {i}")["answer"][0].as_py() for i in (1, 2)]
        return {"alarms": pa.table({"seen": [input_set.key], "one": [answers[0]], "two": [answers[1]]})}


def asked(world: World) -> Graph:
    pipeline = Pipeline("asked")
    source = pipeline.source("numbers", generator(numbers, EVENTS), **TURNS)
    pipeline.general(
        "prices", Prices(), source, outputs=("out", "alarms"), reads={"ticker": Ticker(world)},
        writes={"orders": Transactional(world, "orders")}, **TURNS,
    )  # fmt: skip
    pipeline.sink("prices.out", Checkable(world, "prices"), **TURNS)
    pipeline.sink("prices.alarms", Idempotent(world, "alarms"), **TURNS)
    return pipeline.graph()


def observed(world: World) -> Graph:
    pipeline = Pipeline("observed")
    queue = pipeline.source("queue", Queue(world, EVENTS), **TURNS)
    directory = pipeline.source("directory", Growing(world), **TURNS)

    @pipeline.operator(queue, window=Tumbling(10, on="t"), **TURNS)
    def readings(table: pa.Table) -> pa.Table:
        return pa.table({"start": table["window_start"].slice(0, 1), "readings": [table["reading"].to_pylist()]})

    pipeline.sink(queue, Checkable(world, "messages"), **TURNS)
    pipeline.sink(readings, Transactional(world, "readings"), **TURNS)
    pipeline.sink(directory, Idempotent(world, "listed"), **TURNS)
    return pipeline.graph()


def fed(world: World) -> Graph:
    """A source of many read actions, with little room after it."""
    pipeline = Pipeline("fed")
    feed = pipeline.source("feed", Feed(world, 2 * EVENTS), **TURNS)

    @pipeline.operator(feed, window=Tumbling(10, on="t"), capacity=2, **SAME)
    def windows(table: pa.Table) -> pa.Table:
        return pa.table({"start": table["window_start"].slice(0, 1), "sum": [pc.sum(table["n"]).as_py()]})

    pipeline.sink(feed, Checkable(world, "messages"), **TURNS)
    pipeline.sink(windows, Transactional(world, "windows"), **TURNS)
    return pipeline.graph()


class Post(Operator):
    """Writes each event to a table, and sends it on to one who reads that table."""

    def initial(self) -> dict[str, Any]:
        return {"seen": 0}

    def assign(self, event: Any, state: dict[str, Any]) -> Sequence[Any]:
        state["seen"] += 1
        return [state["seen"]]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        return list(opened)

    def generate(self, input_set: InputSet, context: Context) -> Any:
        row = input_set.table().select(["n"]).slice(0, 1)
        context.write("posts", row)
        return row


class Fetch(Post):
    """Looks each event up in the table that the operator before it wrote."""

    def generate(self, input_set: InputSet, context: Context) -> Any:
        number = input_set.table()["n"][0].as_py()
        found = context.read("posts", str(number))["found"][0].as_py()
        return pa.table({"n": [number], "found": [found]})


def posted(world: World) -> Graph:
    pipeline = Pipeline("posted")
    source = pipeline.source("numbers", generator(numbers, EVENTS), **TURNS)
    writes = {"posts": Transactional(world, "posts")}
    posts = pipeline.general("post", Post(), source, writes=writes, after_write=True, **TURNS)
    fetched = pipeline.general("fetch", Fetch(), posts, reads={"posts": Lookup(world, "posts")}, **TURNS)
    pipeline.sink(fetched, Transactional(world, "fetched"), **TURNS)
    return pipeline.graph()


# Judges.


def moments(index: int) -> pa.Table:
    """Three records per event; some lie between earlier ones, so that sessions become one, and some come late.

    Of some events all come late, of several sessions and keys, in another order than that of time.
    """
    times = [6 * index - 9 * (index % 3 == 2), 6 * index + 1 - 17 * (index % 4 == 3), 6 * index + 2]
    if index % 5 == 4:
        times = [6 * index - 40, 6 * index - 30, 6 * index - 60]
    return pa.table({"n": [3 * index, 3 * index + 1, 3 * index + 2], "t": times, "k": [index % 2, 0, index % 2]})


def timed(world: World) -> Graph:
    pipeline = Pipeline("timed")
    source = pipeline.source("moments", generator(moments, EVENTS), **TURNS)

    @pipeline.operator(source, window=Session(4, on="t", lateness=5, late="late"), **SAME)
    def sessions(table: pa.Table) -> pa.Table:
        return table.select(["window_start", "window_end", "n"])

    @pipeline.operator(source, window=Count(3, by="k"), **SAME)
    def threes(table: pa.Table) -> pa.Table:
        return table.select(["k", "n"])

    @pipeline.operator(source, window=Sliding(12, 8, on="t", by="k", key_groups=2), **SAME)
    def sliding(table: pa.Table) -> pa.Table:
        return table.select(["window_start", "k", "n"])

    for port in ("sessions", "sessions.late", "threes", "sliding"):
        name = port.replace(".", "_")
        pipeline.sink(pipeline.port(port if "." in port else f"{port}.out"), Transactional(world, name),
                      name=f"{name}_sink", group="sinks", **TURNS)  # fmt: skip
    return pipeline.graph()


def no_more(world: World, journal: Journal) -> None:
    """For a deterministic pipeline, comparing with a run without failures says it all."""


def _same_as_logged(world: World, journal: Journal, sinks: dict[str, str]) -> None:
    """What a sink holds is what was logged on the port it reads from: once, and in order."""
    for sink, port in sinks.items():
        logged = journal.rows(Port.parse(port))
        held = world.holdings().get(sink, [])
        assert held == logged, f"{sink} holds {held}, but {port} logged {logged}"


def _one_value(rows: Sequence[Row], key: int, token: int, what: str) -> None:
    """Every Output Set is one computation: one token per key, and no token in two of them."""
    tokens: dict[Any, set[Any]] = {}
    for row in rows:
        tokens.setdefault(str(row[key]), set()).add(row[token])
    assert all(len(found) == 1 for found in tokens.values()), f"{what} mixes computations: {tokens}"
    owners = Counter(next(iter(found)) for found in tokens.values())
    assert max(owners.values()) == 1, f"{what} has one computation in two Output Sets: {owners}"


def judge_drawn(world: World, journal: Journal) -> None:
    _same_as_logged(world, journal, {"tag": "tag", "clock": "clock", "turns": "turns"})
    held = world.holdings()
    _one_value(held["tag"], 0, 2, "tag")
    assert [row[:2] for row in held["tag"]] == [(3 * i, part) for i in range(EVENTS) for part in (1, 2)]
    assert [row[0] for row in held["clock"]] == list(range(0, 3 * EVENTS, 9))
    parts = [part for row in held["turns"] for part in row[0]]
    assert parts == [f"{3 * i}/{part}" for i in range(EVENTS) for part in (1, 2)]
    assert len({row[1] for row in held["turns"]}) == len(held["turns"])


def judge_asked(world: World, journal: Journal) -> None:
    _same_as_logged(world, journal, {"prices": "prices.out", "alarms": "prices.alarms"})
    held = world.holdings()
    assert held["orders"] == held["prices"], "the write actions are not those of the Output Sets that were logged"
    assert [row[:2] for row in held["prices"]] == [(0, 3), (1, 3), (2, 2)]
    assert [row[0] for row in held["alarms"]] == list(range(1, EVENTS + 1))
    answers = [row[2] for row in held["prices"]] + [token for row in held["alarms"] for token in row[1:]]
    assert len(set(answers)) == len(answers), "one answer of the service is in two Output Sets"
    assert journal.side_reads("prices", "ticker") == Counter(answers), "the reads logged are not those that were used"


def judge_observed(world: World, journal: Journal) -> None:
    _same_as_logged(world, journal, {"messages": "queue", "listed": "directory", "readings": "readings"})
    held = world.holdings()
    readings = {row[0] for row in held["messages"]}
    assert len(readings) == 1, f"messages come from several readings: {readings}"
    assert [row[1] for row in held["messages"]] == list(range(EVENTS))
    assert {reading for row in held["readings"] for reading in row[1]} == readings
    assert sum(len(row[1]) for row in held["readings"]) == EVENTS
    listings = {row[0] for row in held["listed"]}
    assert len(listings) == 1, f"the directory was listed anew: {listings}"
    # The listing with number k was of 5 + k files.
    assert [row[1] for row in held["listed"]] == list(range(5 + listings.pop()))
    assert world.released, "what was read was never released"


def judge_fed(world: World, journal: Journal) -> None:
    assert [row[0] for row in world.holdings()["messages"]] == list(range(2 * EVENTS))
    assert world.consumed == {"feed": 2 * EVENTS}, "what was read was never released"
    actions = [row[:2] for row in journal.table("READ_ACTION")]
    assert len(actions) > 3
    assert actions == [(number, "complete") for number in range(1, len(actions) + 1)]


def judge_posted(world: World, journal: Journal) -> None:
    assert world.holdings()["fetched"] == [(3 * i, 1) for i in range(EVENTS)]


SCENES = {
    scene.name: scene
    for scene in (
        Scene("linear", linear, True, no_more),
        Scene("diamond", diamond, True, no_more),
        Scene("ports", ports, True, no_more),
        Scene("stateful", stateful, True, no_more),
        Scene("timed", timed, True, no_more),
        Scene("collected", collected, True, no_more, collects=True),
        Scene("posted", posted, True, judge_posted),
        Scene("drawn", drawn, False, judge_drawn),
        Scene("asked", asked, False, judge_asked),
        Scene("observed", observed, False, judge_observed),
        Scene("fed", fed, True, judge_fed),
    )
}
