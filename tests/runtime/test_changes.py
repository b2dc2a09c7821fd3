"""What is decided of a changed pipeline, on values alone: the cases that are rare in a run."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from clew import Count, Each, Operator, Pipeline, generator, sqlite
from clew.errors import GraphChanged
from clew.ids import InputSetId, Port
from clew.pipeline.graph import Graph
from clew.protocol.rows import StateRow
from clew.protocol.step import ResolveAside, StoreVersion
from clew.runtime.changes import compare, is_as_it_was, plan, refuse
from clew.runtime.pending import Held, Logged

EMPTY = {"latest": {}, "sent": {}, "writes": {}, "ended": [], "seq": 0, "input_set": 0}


def graph(window: Any = None, read: str = "orders", more: bool = False, **reads: Any) -> Graph:
    pipeline = Pipeline("p")
    pipeline.source("orders", generator(lambda index: pa.table({"n": [index]}), 9))
    if more:
        pipeline.source("returns", generator(lambda index: pa.table({"n": [index]}), 9))

    @pipeline.operator(f"{read}", name="sums", window=window or Each())
    def sums(table: pa.Table) -> pa.Table:
        return table

    pipeline.sink("sums", sqlite("sink.db", table="sums"), name="keep")
    return pipeline.graph()


def held(spec: Any, context: Mapping[str, Any] | None = None, **rest: Any) -> Held:
    version = {"parts": dict(spec.version), "mixed": 0, "changes": []}
    return Held(StateRow(1, {**EMPTY, **(context or {})}, {}), version, **rest)


def logged(of: Graph, **changed: Held) -> Logged:
    """Return a log in which every operator has begun, and has nothing before it, but for what is told."""
    links = {link.receiver: link.sender for link in of.links}
    return Logged(links, {name: held(spec) for name, spec in of.operators.items()} | changed)


def offers(now: Graph, log: Logged) -> list[str]:
    return [finding.offer for finding in compare(now, log)]


def test_what_is_as_it_was_has_nothing_to_tell() -> None:
    was, links = graph(), {link.receiver: link.sender for link in graph().links}
    versions = {name: {"parts": dict(spec.version)} for name, spec in was.operators.items()}
    assert is_as_it_was(graph(), links, versions)
    assert not is_as_it_was(graph(Count(2)), links, versions)
    assert not is_as_it_was(graph(more=True), links, versions)
    assert (offers(graph(), logged(was)), plan(graph(), logged(was), ()).writes) == ([], ())


def test_a_window_with_something_in_quarantine_cannot_change() -> None:
    was = graph()
    log = logged(was, sums=held(was.operators["sums"], aside=(3,), aside_ports=frozenset(["in"])))
    assert offers(graph(Count(2)), log) == [
        'sums: its window changed from {"sums": "Each()"} to {"sums": "Count(size=2, by=None)"}, and 1 of its Input '
        "Sets is in quarantine; this cannot be accepted: put it back, decide on them with `clew quarantine`, and "
        "change it then"
    ]


def test_an_input_with_something_in_quarantine_cannot_move() -> None:
    was = graph()
    log = logged(was, sums=held(was.operators["sums"], aside=(3,), aside_ports=frozenset(["in"])))
    assert offers(graph(read="returns", more=True), log)[1:] == [
        "sums.in: reads returns.out from #1 on, and read orders.out before, of which 1 is in quarantine; this cannot "
        "be accepted: put it back, decide on them with `clew quarantine`, and change it then"
    ]


def test_what_is_in_quarantine_of_an_operator_that_is_gone_is_dropped_with_it() -> None:
    was, now = graph(), graph()
    log = logged(was, old=held(was.operators["sums"], aside=(3, 4)))
    assert offers(now, log) == ["old: is gone, and 2 are in quarantine; --accept old drops all of these"]
    writes = plan(now, log, compare(now, log)).writes
    assert [write for write in writes if isinstance(write, ResolveAside)] == [
        ResolveAside("old", 3, None), ResolveAside("old", 4, None),
    ]  # fmt: skip
    assert writes[-1] == StoreVersion("old", None)


def test_a_port_that_has_ended_cannot_read_another_one() -> None:
    was = graph()
    log = logged(was, sums=held(was.operators["sums"], {"ended": ["in"]}))
    assert offers(graph(read="returns", more=True), log) == [
        "returns: is a new source; it is read from the start",
        "sums.in: reads returns.out from #1 on, and read orders.out before, which has ended; this cannot be "
        "accepted: give it a new name",
    ]


def test_an_operator_that_has_finished_can_read_nothing_else() -> None:
    was = graph()
    log = logged(was, sums=held(was.operators["sums"], {"ended": ["in"], "flushed": True}))
    assert offers(graph(read="returns", more=True), log)[1:] == [
        "sums: reads returns.out on sums.in now, but has finished; this cannot be accepted: give it a new name"
    ]


def test_a_source_that_was_gone_cannot_come_back() -> None:
    was = graph()
    log = logged(was, returns=Held(StateRow(1, EMPTY, {}), None))
    assert offers(graph(more=True), log) == [
        "returns: was gone, and had begun before it went; this cannot be accepted: give it a new name"
    ]


def test_a_source_that_is_gone_is_read_no_further() -> None:
    log = logged(graph(more=True))
    assert offers(graph(), log) == ["returns: is gone, and nothing waits for it; what it has not read is not read"]


def test_what_an_operator_asks_may_move() -> None:
    def asking(place: str) -> Graph:
        pipeline = Pipeline("p")
        orders = pipeline.source("orders", generator(lambda index: pa.table({"n": [index]}), 9))
        pipeline.general("ask", Operator(), orders, reads={"prices": sqlite(place)})
        return pipeline.graph()

    (told,) = offers(asking("b.db"), logged(asking("a.db")))
    assert told == 'ask: reads {"prices": "sqlite b.db"} now, and read {"prices": "sqlite a.db"} before'


def test_a_removed_operator_that_had_not_begun_is_told_only_if_something_waits() -> None:
    was, now = graph(), graph()
    version = {"parts": dict(was.operators["sums"].version), "mixed": 0, "changes": []}
    log = logged(was, late=Held(version=version))
    links = {**log.links, Port("late", "in"): Port("orders", "out")}
    assert offers(now, Logged(links, log.operators)) == []
    waits = Held(version=version, waiting={"in": range(4, 7)})
    log = Logged(links, {**log.operators, "late": waits})
    assert offers(now, log) == [
        "late: is gone, and 3 events wait on late.in: orders.out#4..6; --accept late drops all of these"
    ]


def test_many_events_are_told_shortly() -> None:
    was = graph()
    numbers = frozenset({1, 3, 5, 7, 9, 11})
    opened = {InputSetId(1): frozenset(("in", number) for number in numbers)}
    log = logged(was, sums=held(was.operators["sums"], taken={"in": numbers}, open=opened))
    (told,) = offers(graph(Count(2)), log)
    assert "1 Input Set with orders.out#1, orders.out#3, orders.out#5, orders.out#7 and 2 more on in is open" in told


def test_what_cannot_be_accepted_is_refused_whatever_is_accepted() -> None:
    was = graph()
    log = logged(was, sums=held(was.operators["sums"], aside=(3,)))
    with pytest.raises(GraphChanged, match="this cannot be accepted"):
        refuse("p", compare(graph(Count(2)), log), ["all", "sums"])
