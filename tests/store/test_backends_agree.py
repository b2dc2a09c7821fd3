"""Runs and plain rows must tell the same story: random histories, in every backend at once."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings

from clew.errors import ClewError
from clew.store.base import Store
from clew.store.memory import MemoryStore
from clew.store.sqlite import SqliteStore
from tests.store.histories import IN, OUT, Draw, World, steps
from tests.store.logs import OPERATORS, SENDERS, SINK_TABLE, TOPOLOGY, Pen, each_event, each_member, tables
from tests.store.views import view_tables

Steps = list[tuple[str, Any, list[Draw]]]


def answers(store: Store, world: World) -> dict[str, Any]:
    """Everything a store can be asked, in a form that does not depend on how runs are cut."""
    return {
        **tables(store),
        "operators": store.operators(),
        "members": {operator: each_member(store, operator) for operator in OPERATORS},
        "open sets": {operator: store.open_sets(operator) for operator in OPERATORS},
        "state": {operator: store.state(operator) for operator in OPERATORS},
        "read action": store.last_read_action("reader"),
        "read event": store.read_event("reader", "files", world.action),
        "writes": [store.undone_writes(SINK_TABLE, 2), store.undone_writes(SINK_TABLE, 99)],
        "backlog": {receiver: store.backlog(receiver) for receiver in IN.values()},
        "waiting": {
            receiver: each_event(store.unacknowledged(receiver, world.taken.get(receiver, 0), 5, 40))
            for receiver in SENDERS
        },
        "events": {
            port: each_event(store.events(port, min(kept), len(kept)))
            for port in OUT.values()
            for kept in [_kept(store, port)]
            if kept
        },
        "files": store.referenced_files(),
        "schema": store.schema(OUT["reader"]),
    }


def _kept(store: Store, port: tuple[str, str]) -> set[int]:
    return {row[0] for row in store.table("EVENT_LOG") if (row[2], row[3]) == port}


def outcome(action: Callable[[], Any]) -> Any:
    """What a call returns, or the class of its refusal."""
    try:
        return action()
    except ClewError as error:
        return type(error)


def follow(history: Steps, stores: dict[str, Store]) -> World:
    """Take every step in all stores; each must have the same outcome in all of them."""
    for store in stores.values():
        store.declare(TOPOLOGY)
    pens = {name: Pen(store) for name, store in stores.items()}
    world = World()
    for kind, subject, parts in history:
        after, writes = world.after(subject, parts) if kind == "commit" else (world, [])
        outcomes = {
            name: outcome(
                {
                    "commit": lambda pen=pen: pen(subject, *writes),
                    "collect": lambda pen=pen: pen.store.collect(subject),
                    "take over": lambda pen=pen: pen.incarnations.update({subject: pen.store.take_over(subject)}),
                }[kind]
            )
            for name, pen in pens.items()
        }
        assert len(set(outcomes.values())) == 1, (kind, subject, writes, outcomes)
        if outcomes["memory"] is None:
            world = after
    return world


@given(steps)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_all_backends_tell_the_same_story(history: Steps) -> None:
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory())
        stores: dict[str, Store] = {"memory": MemoryStore(), "sqlite": SqliteStore(Path(directory) / "log.db")}
        for store in stores.values():
            stack.callback(store.close)
        world = follow(history, stores)
        told = {name: answers(store, world) for name, store in stores.items()}
        for name in told:
            for question in told["memory"]:
                assert told[name][question] == told["memory"][question], (name, question)
            if name != "memory":
                assert view_tables(name, stores[name]) == {t: told[name][t] for t in view_tables(name, stores[name])}
