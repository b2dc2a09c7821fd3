"""Pipelines drawn at random: chains, fans, joins, windows, writers, sources and functions of every kind.

A `Blueprint` is a plain value whose repr declares the pipeline again. Records are always (n, t, k), so that any
operator can follow any other: `t` is the event time, which is out of order now and then, and `k` a key.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clew import Batch, Context, Count, Each, Every, InputSet, Operator, Pipeline, Session, Sliding, Tumbling
from clew.connectors import generator, lookup
from clew.pipeline.graph import Graph
from clew.pipeline.verbs import Stream
from clew.pipeline.windows import Window
from tests.simulation import random_verbs
from tests.simulation.journal import Journal
from tests.simulation.outside import Checkable, Feed, Growing, Idempotent, Queue, Ticker, Transactional, World
from tests.simulation.pipelines import TURNS, Scene

SINKS = {"transactional": Transactional, "idempotent": Idempotent, "checkable": Checkable}
SOURCES = ("generator", "sparse", "queue", "growing", "feeding")
WINDOWS: dict[str, Window] = {
    "each": Each(),
    "batch": Batch(),
    "every": Every("1 second"),
    "count2": Count(2),
    "count3": Count(3),
    "tumbling": Tumbling(10, on="t"),
    "waiting": Tumbling(10, on="t", lateness=7, late="late", idle="2 seconds"),
    "keyed": Tumbling(8, on="t", by="k", key_groups=2, lateness=3),
    "sliding": Sliding(12, 8, on="t", late="late"),
    "session": Session(4, on="t", lateness=5),
    "sessions": Session(9, on="t", by="k", lateness=4, late="late"),
    "counted": Count(3, by=["k"]),
}
SCHEMA = pa.schema([(name, pa.int64()) for name in ("n", "t", "k")])
KINDS = (
    "same",
    "double",
    "some",
    "sum",
    "drawn",
    "split",
    "ledger",
    "asked",
    "clocked",
    "picky",
    "fussy",
    "looked",
    "timeless",
    "branched",
    "enriched",
    *random_verbs.KINDS,
)


#: Of which operators lineage is captured: of all; of the paths from a source to a sink; of these, as much as has room
#: in some bytes when the rest is collected; of every other operator.
LINEAGE = ("all", "scope", "kept", "some")


@dataclass(frozen=True)
class Node:
    """One operator: what it does, with which window, on which of the ports before it."""

    kind: str
    #: Picks among the ports that are there; taken modulo their number.
    inputs: tuple[int, ...]
    window: str = "each"
    #: 0: a group of its own; else the number of the group that it shares.
    group: int = 0
    capacity: int = 100


@dataclass(frozen=True)
class Blueprint:
    """A whole pipeline."""

    sources: tuple[str, ...]
    nodes: tuple[Node, ...]
    #: The kinds of the sinks, taken in turn by the ports that nobody reads.
    sinks: tuple[str, ...]
    events: int = 6
    collects: bool = False
    lineage: str = "all"


def scene(blueprint: Blueprint) -> Scene:
    """Return the pipeline as one to simulate; the checker is its only judge."""
    traced = blueprint.lineage == "all"
    return Scene(repr(blueprint), lambda world: declare(blueprint, world), False, _no_more, blueprint.collects, traced)


def _no_more(world: World, journal: Journal) -> None:
    """The checker has said all there is to say."""


def declare(blueprint: Blueprint, world: World) -> Graph:
    """Declare the pipeline of a blueprint."""
    pipeline = Pipeline("random")
    outs = [_source(pipeline, world, blueprint, index) for index in range(len(blueprint.sources))]
    read: set[int] = set()
    for index, node in enumerate(blueprint.nodes):
        picks = list(dict.fromkeys(pick % len(outs) for pick in node.inputs))
        read |= set(picks)
        ports = [outs[pick] for pick in picks]
        outs += _node(pipeline, world, node, f"op{index}", ports, blueprint.lineage != "some" or index % 2 == 1)
    unread = [out for index, out in enumerate(outs) if index not in read]
    for index, out in enumerate(unread):
        kind = blueprint.sinks[index % len(blueprint.sinks)]
        pipeline.sink(out, SINKS[kind](world, f"sink{index}"), name=f"sink{index}", **TURNS)
    if blueprint.lineage in ("scope", "kept"):
        _scope(pipeline, 300 if blueprint.lineage == "kept" else None)
    return pipeline.graph()


def _scope(pipeline: Pipeline, room: int | None) -> None:
    """Capture lineage from a source that leads to the first sink, to that sink."""
    operators = pipeline.graph().operators
    port = operators["sink0"].inputs["in"]
    while operators[port.operator].inputs:
        port = next(iter(operators[port.operator].inputs.values()))
    pipeline.lineage(f"{port}", "sink0", keep_bytes=room)


def _source(pipeline: Pipeline, world: World, blueprint: Blueprint, index: int) -> Any:
    kind, events = blueprint.sources[index], blueprint.events
    made: dict[str, Callable[[], Any]] = {
        "generator": lambda: generator(_records, events),
        # Every third event has no records, and is none.
        "sparse": lambda: generator(lambda i: _records(i) if i % 3 else _records(i).slice(0, 0), events),
        "queue": lambda: Queue(world, events, f"queue{index}"),
        "growing": lambda: Growing(world),
        "feeding": lambda: Feed(world, events, f"feed{index}"),
    }
    port = pipeline.source(f"source{index}", made[kind](), **TURNS)
    if kind not in ("queue", "growing", "feeding"):
        return port

    @pipeline.operator(port, name=f"named{index}", deterministic=True, **TURNS)
    def named(table: pa.Table) -> pa.Table:
        return _records_of(table.column(0), pc.bit_wise_xor(pc.multiply(table["n"], 3), 8))

    return named


def _records(index: int) -> pa.Table:
    """Three records per event; some events span two windows, some lie between earlier ones, some come late.

    Of some events all come late, of several sessions and keys, in another order than that of time.
    """
    times = [6 * index - 9 * (index % 3 == 2), 6 * index + 1 - 17 * (index % 4 == 3), 6 * index + 2]
    if index % 5 == 4:
        times = [6 * index - 40, 6 * index - 30, 6 * index - 60]
    return _records_of(pa.array([3 * index, 3 * index + 1, 3 * index + 2]), pa.array(times))


def _records_of(numbers: Any, times: Any) -> pa.Table:
    return pa.table({"n": numbers, "t": times, "k": pc.bit_wise_and(numbers, 1)})


def _node(pipeline: Pipeline, world: World, node: Node, name: str, ports: Sequence[Any], lineage: bool) -> list[Any]:
    settings: dict[str, Any] = {**TURNS, "name": name, "capacity": node.capacity, "lineage": lineage}
    if node.group:
        settings["group"] = f"group{node.group}"
    if node.kind in ("ledger", "asked", "clocked"):
        return [_general(pipeline, world, node, name, ports, settings)]
    window = WINDOWS[node.window]
    if len(ports) > 1 and not window.many_ports:
        window = WINDOWS["waiting"]
    late = [f"{name}.late"] if len(ports) == 1 else [f"{name}.late_{port}" for port in "ab"]
    late = late if window.late_port else []
    # Some records may have lost their time.
    if window.needs_facts:
        settings |= {"on_error": "quarantine"}
    if node.kind in random_verbs.KINDS:
        del settings["name"]
        streams = [_stream(pipeline, port) for port in ports]
        made = random_verbs.declare(pipeline, node.kind, name, streams, WINDOWS[node.window], settings)
        has_late = f"{name}.late" in _ports_of(pipeline, name)
        return [made, *([f"{name}.late"] if has_late else [])]
    if node.kind == "split":
        pipeline.operator(*ports, window=window, outputs=("even", "odd"), deterministic=True, **settings)(_split(ports))
        return [f"{name}.even", f"{name}.odd", *late]
    if node.kind == "picky":
        return [_picky(pipeline, name, ports, settings)]
    if node.kind == "branched":
        return _branched(pipeline, name, ports, settings)
    if node.kind == "enriched":
        return [_enriched(pipeline, world, name, ports, settings)]
    if node.kind == "timeless":
        return [_timeless(pipeline, name, ports, settings)]
    if node.kind == "looked":
        return [_looked(pipeline, world, name, ports, settings)]
    if node.kind == "fussy":
        settings |= {"on_error": "quarantine", "attempts": 2}
    function = _function(node.kind, world, len(ports))
    port = pipeline.operator(*ports, window=window, deterministic=node.kind != "drawn", **settings)(function)
    return [port, *late]


def _function(kind: str, world: World, ports: int) -> Callable[..., Any]:
    def compute(*tables: pa.Table) -> Any:
        table = _together(tables)
        match kind:
            case "same":
                return table
            case "double":
                # Two events of one Input Set.
                return [table, _records_of(pc.multiply(table["n"], 2), table["t"])]
            case "some":
                # Some Input Sets make no event.
                kept = table.filter(pc.not_equal(pc.bit_wise_and(table["n"], 3), 1))
                return kept if table.num_rows and table["n"][0].as_py() % 8 else kept.slice(0, 0)
            case "fussy":
                # Some Input Sets it fails on, whoever tries.
                if 5 in pc.bit_wise_and(table["n"], 7).to_pylist():
                    raise ValueError("five")
                return table
            case "sum":
                return _one(pc.sum(table["n"]).as_py() or 0, table)
            case _:
                return _one(world.draw(), table)

    return _with_ports(compute, ports)


def _picky(pipeline: Pipeline, name: str, ports: Sequence[Any], settings: dict[str, Any]) -> Any:
    """A function of single records, which fails on some of them."""

    def pick(record: dict[str, Any]) -> dict[str, Any]:
        if record["n"] % 8 == 3:
            raise ValueError("three")
        return record

    settings |= {"on_error": "quarantine", "attempts": 1, "deterministic": True, "schema": SCHEMA}
    pipeline.map(ports[0], **settings)(pick)
    return f"{name}.out"


def _branched(pipeline: Pipeline, name: str, ports: Sequence[Any], settings: dict[str, Any]) -> list[Any]:
    """Predicates of single records, the second of which fails on some."""

    def odd(record: dict[str, Any]) -> bool:
        if record["n"] % 8 == 5:
            raise ValueError("five")
        return record["n"] % 2 == 1

    del settings["name"]
    settings |= {"on_error": "quarantine", "attempts": 1, "deterministic": True}
    _stream(pipeline, ports[0]).branch(large=pc.field("n") > 12, odd=odd, name=name, settings=settings)
    return [f"{name}.large", f"{name}.odd"]


def _enriched(pipeline: Pipeline, world: World, name: str, ports: Sequence[Any], settings: dict[str, Any]) -> Any:
    """Asks a service about single records, the same about some; of others the answer cannot be added."""

    def add(record: dict[str, Any], answer: pa.Table) -> dict[str, Any]:
        if record["n"] % 8 == 3:
            raise ValueError("three")
        return {**record, "n": answer["answer"][0].as_py() if answer.num_rows else record["n"]}

    def ask(record: dict[str, Any]) -> str | None:
        return None if record["n"] % 4 == 2 else f"{name} {record['n'] // 2}"

    del settings["name"]
    settings |= {"on_error": "quarantine", "attempts": 1, "deterministic": True, "schema": SCHEMA}
    _stream(pipeline, ports[0]).enrich(Ticker(world), ask, add=add, name=name, **settings)
    return f"{name}.out"


def _ports_of(pipeline: Pipeline, name: str) -> list[str]:
    """Return the output ports of an operator that was just declared."""
    return [f"{name}.{port}" for spec in pipeline._specs if spec.name == name for port in spec.outputs]


def _stream(pipeline: Pipeline, port: Any) -> Stream:
    """Return a stream, which a port is given as in many ways."""
    return Stream(pipeline._port(port, ""), pipeline)


def _looked(pipeline: Pipeline, world: World, name: str, ports: Sequence[Any], settings: dict[str, Any]) -> Any:
    """A function that looks records up in a table which is another one each time that it is read."""

    def add(record: dict[str, Any], extra: dict[int, Any], resources: int) -> dict[str, Any]:
        return {**record, "n": record["n"] + extra[record["k"]]["add"] % 16 * resources}

    def read() -> pa.Table:
        return pa.table({"k": [0, 1], "add": [world.draw(), world.draw()]})

    settings |= {
        "lookups": {"extra": lookup(read, key="k")},
        "setup": lambda: 2,
        "deterministic": True,
        "schema": SCHEMA,
    }
    pipeline.map(ports[0], **settings)(add)
    return f"{name}.out"


def _timeless(pipeline: Pipeline, name: str, ports: Sequence[Any], settings: dict[str, Any]) -> Any:
    """A function after which some records have no time, so that no window of time can place them."""

    def forget(table: pa.Table) -> pa.Table:
        lost = pc.equal(pc.bit_wise_and(table["n"], 7), 5)
        return table.set_column(1, "t", pc.if_else(lost, pa.scalar(None, pa.int64()), table["t"]))

    pipeline.operator(ports[0], deterministic=True, **settings)(forget)
    return f"{name}.out"


def _split(ports: Sequence[Any]) -> Callable[..., Any]:
    def compute(*tables: pa.Table) -> Any:
        table = _together(tables)
        odd = pc.equal(pc.bit_wise_and(table["n"], 1), 1)
        return {"odd": table.filter(odd), "even": [table.filter(pc.invert(odd))]}

    return _with_ports(compute, len(ports))


def _with_ports(compute: Callable[..., Any], ports: int) -> Callable[..., Any]:
    """Give a function as many annotated arguments as it has inputs: that is how its style is known."""

    def one(a: pa.Table) -> Any:
        return compute(a)

    def two(a: pa.Table, b: pa.Table) -> Any:
        return compute(a, b)

    return one if ports == 1 else two


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    known = [table.select(["n", "t", "k"]) for table in tables if "n" in table.schema.names]
    return pa.concat_tables(known) if known else _records_of(pa.array([], pa.int64()), pa.array([], pa.int64()))


def _one(number: int, table: pa.Table) -> pa.Table:
    """One record, at the time of the first one that it stands for."""
    first = pc.min(table["t"]).as_py() if table.num_rows else 0
    return _records_of(pa.array([number]), pa.array([first], pa.int64()))


def _general(
    pipeline: Pipeline, world: World, node: Node, name: str, ports: Sequence[Any], settings: dict[str, Any]
) -> Any:
    del settings["name"]
    connections: dict[str, Any] = {}
    if node.kind == "ledger":
        connections["writes"] = {"book": Transactional(world, f"{name}_book"), "mail": Checkable(world, f"{name}_mail")}
    elif node.kind == "asked":
        connections["reads"] = {"ticker": Ticker(world)}
    operator = {"ledger": _Ledger, "asked": _Asked, "clocked": _Clocked}[node.kind]()
    return pipeline.general(name, operator, *ports, deterministic=True, **connections, **settings)


class _Ledger(Operator):
    """Pairs of events, whatever port they came on; some are also in a set that only the flush closes."""

    def initial(self) -> dict[str, Any]:
        return {"taken": 0, "records": 0}

    def facts(self, table: pa.Table) -> Any:
        return pc.sum(table["n"]).as_py()

    def assign(self, event: Any, state: dict[str, Any]) -> Sequence[Any]:
        pair = ("pair", state["taken"] // 2)
        state["taken"] += 1
        state["records"] += event.rows
        return [pair, ("rest", 0)] if event.facts % 3 == 0 else [pair]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        return [key for key in opened if key == ("pair", state["taken"] // 2 - 1)]

    def flush(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        # A pair that is not complete is dropped.
        return [key for key in opened if key[0] == "rest"]

    def generate(self, input_set: InputSet, context: Context) -> Any:
        total = sum(pc.sum(event.table["n"]).as_py() for event in input_set.events)
        row = _records_of(pa.array([total]), pa.array([context.state["records"]]))
        context.write("book", row)
        if input_set.key[0] == "pair":
            context.write("mail", row)
            context.write("mail", row.slice(0, 0))
        return row


class _Asked(Operator):
    """Asks a service once per event, twice where the event is large; its answer is part of the Output Set."""

    def assign(self, event: Any, state: dict[str, Any]) -> Sequence[Any]:
        return [f"{event.port}-{event.number}"]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        return list(opened)

    def generate(self, input_set: InputSet, context: Context) -> Any:
        table = input_set.events[0].table
        answers = [context.read("ticker", f"{input_set.key} {i}")["answer"][0].as_py() for i in range(table.num_rows)]
        return _records_of(pa.array(answers, pa.int64()), table["t"])


class _Clocked(Operator):
    """All events between two looks at the clock are a set, which is told the time and how many there were before."""

    tick_every = "500 milliseconds"

    def initial(self) -> dict[str, Any]:
        return {"now": 0, "taken": 0, "set": 0}

    def tick(self, now: int, state: dict[str, Any]) -> None:
        state["now"], state["set"] = now, state["set"] + 1

    def assign(self, event: Any, state: dict[str, Any]) -> Sequence[Any]:
        state["taken"] += 1
        return [state["set"]]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        return [key for key in opened if key < state["set"]]

    def generate(self, input_set: InputSet, context: Context) -> Any:
        taken = [context.state["taken"] + event.id.number for event in input_set.events]
        return _records_of(pa.array(taken), pa.array([context.state["now"] // 1_000_000] * len(taken)))
