"""A changed pipeline is taken over in one transaction, by every backend alike."""

from dataclasses import replace

import pytest

from clew.errors import StaleWriter, UnexpectedRow, WrongLog
from clew.faultpoint import CrashInjected, arm
from clew.ids import Port
from clew.protocol.step import BeginAfter, ForgetKeys, ForgetPort, StoreKeyed, StoreState, StoreVersion
from clew.store.base import Store
from tests.store.logs import (
    COUNTER_IN,
    MAPPER_IN,
    READER_OUT,
    TOPOLOGY,
    Pen,
    ack,
    each_member,
    events,
    finish,
    listed,
    tables,
)

LATE_IN = Port("late", "in")


#: The small pipeline with `late` in the place of `counter`.
CHANGED = replace(
    TOPOLOGY,
    operators=("late", "mapper", "reader", "sink"),
    links=(*(link for link in TOPOLOGY.links if link[1] != COUNTER_IN), (READER_OUT, LATE_IN)),
)


def test_versions_are_kept_by_operator_and_go_with_it(store: Store) -> None:
    assert store.versions() == {}
    store.change(TOPOLOGY, [StoreVersion("mapper", {"parts": {"code": "a"}}), StoreVersion("sink", {"mixed": 1})])
    assert store.versions() == {"mapper": {"parts": {"code": "a"}}, "sink": {"mixed": 1}}
    store.change(TOPOLOGY, [StoreVersion("mapper", {"parts": {"code": "b"}}), StoreVersion("sink", None)])
    assert store.versions() == {"mapper": {"parts": {"code": "b"}}}


def test_what_is_remembered_of_keys_is_forgotten_for_one_operator(store: Store, pen: Pen) -> None:
    for operator in ("mapper", "counter"):
        pen(operator, StoreKeyed(operator, (("f", "a", 1), ("f", "b", 2))))
    store.change(TOPOLOGY, [ForgetKeys("mapper")])
    assert (store.keyed("mapper"), len(store.keyed("counter"))) == ([], 2)


def test_a_version_can_be_stored_with_a_turn(store: Store, pen: Pen) -> None:
    pen("mapper", StoreVersion("mapper", {"mixed": 3}))
    assert store.versions() == {"mapper": {"mixed": 3}}


def test_a_new_receiver_begins_after_what_was_sent_before(store: Store, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 5))
    store.change(CHANGED, [BeginAfter(LATE_IN, 4, 1)])
    assert store.backlog(LATE_IN).events == 1
    assert [row[0] for row in store.table("EVENT_LOG") if row[4] == "late" and row[1] == "done"] == [1, 2, 3, 4]
    Pen(store, ["late"])("late", ack(LATE_IN, 5, 1, listed(1), seq=5))
    assert each_member(store, "late") == [(5, LATE_IN, 5, 1)]


def test_a_new_receiver_begins_after_what_was_collected(store: Store, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 5))
    for receiver in (MAPPER_IN, COUNTER_IN):
        pen(receiver.operator, ack(receiver, 1, 3, listed()))
    assert store.collect().events == 3
    store.change(CHANGED, [BeginAfter(LATE_IN, 4, 1)])
    assert store.backlog(LATE_IN).events == 1
    assert [row[:2] for row in store.table("EVENT_LOG") if row[4] == "late"] == [(4, "done"), (5, "undone")]


def test_a_port_that_is_forgotten_begins_anew(store: Store, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 5))
    pen("mapper", ack(MAPPER_IN, 1, 3, listed(1)))
    assert each_member(store, "mapper")
    store.change(TOPOLOGY, [finish("mapper", 1), ForgetPort(MAPPER_IN), BeginAfter(MAPPER_IN, 2, 4)])
    assert each_member(store, "mapper") == []
    assert store.backlog(MAPPER_IN).events == 3
    Pen(store, ["mapper"])("mapper", ack(MAPPER_IN, 3, 1, listed(2), seq=7))
    assert each_member(store, "mapper") == [(7, MAPPER_IN, 3, 2)]


def test_connections_that_are_gone_are_gone(store: Store, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 5))
    store.change(CHANGED, [])
    assert COUNTER_IN not in {receiver for _, receiver in store.links()}
    assert not [row for row in store.table("EVENT_LOG") if row[4] == "counter"]


def test_f1_an_operator_that_is_changed_has_a_new_incarnation_and_others_go_on(store: Store, pen: Pen) -> None:
    store.change(TOPOLOGY, [StoreState("mapper", 1, {}, {}), StoreVersion("counter", {})])
    with pytest.raises(StaleWriter):
        pen("mapper", StoreState("mapper", 2, {}, {}))
    pen("counter", StoreState("counter", 1, {}, {}))


def test_s1_a_change_with_one_refused_write_changes_nothing(store: Store, pen: Pen) -> None:
    pen("mapper", StoreState("mapper", 5, {}, {}))
    before, links = tables(store), store.links()
    with pytest.raises(UnexpectedRow):
        store.change(CHANGED, [StoreVersion("mapper", {"mixed": 1}), StoreState("mapper", 5, {}, {})])
    assert (tables(store), store.links(), store.versions()) == (before, links, {})
    pen("mapper", StoreState("mapper", 6, {}, {}))


def test_s1_a_change_that_dies_before_it_commits_changes_nothing(store: Store, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 5))
    before, links = tables(store), store.links()
    (fault,) = arm("inside-commit@late:raise")
    try:
        with pytest.raises(CrashInjected):
            store.change(CHANGED, [StoreVersion("late", {}), BeginAfter(LATE_IN, 5, 1)])
    finally:
        arm()
    assert fault.fired
    assert (tables(store), store.links(), store.versions()) == (before, links, {})


def test_another_pipelines_log_is_not_changed(store: Store) -> None:
    with pytest.raises(WrongLog):
        store.change(replace(TOPOLOGY, pipeline="another"), [])
