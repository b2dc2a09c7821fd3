"""Runs and plain rows must tell the same story: random histories, in every backend at once."""

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings

from clew.errors import ClewError
from clew.ids import InputSetId, Port
from clew.protocol.rows import AsideRow, Member
from clew.protocol.step import Write
from clew.store.base import Entry, KeptStore, LogReader, Store
from clew.store.memory import MemoryStore
from clew.store.postgres import PostgresStore, drop_log
from clew.store.postgres_reader import PostgresReader
from clew.store.sqlite import SqliteStore
from clew.store.sqlite_reader import SqliteReader
from tests.store.histories import IN, OUT, Draw, World, steps
from tests.store.logs import OPERATORS, SENDERS, SINK_TABLE, TOPOLOGY, each_event, each_member, tables
from tests.store.views import postgres_views, sqlite_views

#: Where some collections keep events, and write actions.
KEPT = {OUT["reader"]: 5, OUT["mapper"]: 3, Port("sink", "writes:table"): 2}
Steps = list[tuple[str, Any, list[Draw]]]


@dataclass
class Backend:
    """A log and the stores open on it; with two of them, each sees that the other wrote."""

    open: Callable[[], KeptStore]
    views: Callable[[], dict[Any, Any]] | None = None
    reader: Callable[[], LogReader] | None = None
    stores: list[KeptStore] = field(default_factory=list)
    incarnations: dict[str, int] = field(default_factory=dict)

    @property
    def store(self) -> KeptStore:
        if not self.stores:
            self.stores.append(self.open())
        return self.stores[-1]

    def swap(self) -> None:
        """Go on with another store on the same log, as another process would."""
        if self.views is not None:
            if len(self.stores) < 2:
                self.stores.append(self.open())
            self.stores.reverse()

    def reopen(self) -> None:
        if self.views is not None:
            self.close()

    def close(self) -> None:
        while self.stores:
            self.stores.pop().close()

    def take(self, kind: str, subject: Any, writes: list[Write]) -> Any:
        """Take a step; returns its result, or the class of its refusal."""
        try:
            match kind:
                case "commit":
                    return self.store.commit(subject, self.incarnations[subject], writes)
                case "collect":
                    return self.store.collect(subject, KEPT if subject == 3 else {})
                case "take over":
                    self.incarnations[subject] = self.store.take_over(subject)
                case "zombie":
                    return self.store.commit(subject, self.incarnations[subject] - 1, writes)
                case "swap":
                    self.swap()
                case "reopen":
                    self.reopen()
        except ClewError as error:
            return type(error)
        return None


def _plain(rows: list[AsideRow]) -> list[Any]:
    """What went through JSON has lists for tuples."""
    return [json.loads(json.dumps(asdict(row))) for row in rows]


def answers(store: KeptStore, world: World) -> dict[Any, Any]:
    """Everything a store can be asked, in a form that does not depend on how runs are cut."""
    return {
        **tables(store),
        "operators": store.operators(),
        "asides": {operator: _plain(store.asides(operator)) for operator in OPERATORS},
        "keyed": {operator: store.keyed(operator) for operator in OPERATORS},
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
        **lineage_answers(store),
        "files": store.referenced_files(),
        "schema": store.schema(OUT["reader"]),
    }


def lineage_answers(store: KeptStore) -> dict[Any, Any]:
    """Everything that lineage can ask, one number at a time and several at once."""
    known = store.table("EVENT_LINEAGE")
    ports = sorted({Port(operator, port) for _, operator, port, _ in known})
    # Input Sets before and after those that something was made of, too, and several at once.
    sets = [(InputSetId(s + near), count) for s in sorted({s for *_, s in known}) for near, count in ((-1, 1), (0, 7))]
    asked = [(InputSetId(number), 1) for number in range(1, 40)] + [(InputSetId(3), 9)]
    return {
        "extent": {port: store.extent(port) for port in (*OUT.values(), Port("sink", "writes:table"))},
        "origins": {port: [store.origins(port, *some) for some in asked] for port in ports},
        "inputs of": {name: [_each(store.inputs_of(name, *some)) for some in asked] for name in OPERATORS},
        "joined": {receiver: [store.joined(receiver, *some) for some in asked] for receiver in IN.values()},
        "passed over": {receiver: [store.passed_over(receiver, *some) for some in asked] for receiver in IN.values()},
        "outputs of": {name: [store.outputs_of(name, *some) for some in sets] for name in OPERATORS},
        "worn": {name: store.worn(name) for name in OPERATORS},
        "ends": {port: store.ends(port) for port in OUT.values()},
        "undone from": {receiver: store.undone_from(receiver) for receiver in IN.values()},
        "first inputs": {name: [store.first_inputs(name, number) for number, _ in asked] for name in OPERATORS},
        "reads of": {name: store.reads_of(name, InputSetId(1), 9) for name in OPERATORS},
        "label": {name: [store.label(name, number) for number, _ in asked] for name in OPERATORS},
        "asides of": {name: [_plain(store.asides_of(name, *some)) for some in asked] for name in OPERATORS},
        "retried as": {name: [store.retried_as(name, number) for number, _ in asked] for name in OPERATORS},
        "seen": {name: [store.seen(name, number) for number, _ in asked] for name in OPERATORS},
        "action": [store.read_action("reader", number) for number, _ in asked],
    }


def _each(members: list[Member]) -> list[tuple[int, Port, int, int]]:
    return sorted((m.seq + i, m.port, m.first + i, m.input_set) for m in members for i in range(m.count))


def _kept(store: Store, port: tuple[str, str]) -> set[int]:
    return {row[0] for row in store.table("EVENT_LOG") if (row[2], row[3]) == port}


def follow(history: Steps, backends: dict[str, Backend]) -> World:
    """Take every step in all backends; each must have the same outcome in all of them."""
    for backend in backends.values():
        backend.store.declare(TOPOLOGY)
        backend.incarnations.update({operator: backend.store.take_over(operator) for operator in OPERATORS})
    world = World()
    for kind, subject, parts in history:
        after, writes = world.after(subject, parts) if kind in ("commit", "zombie") else (world, [])
        outcomes = {name: backend.take(kind, subject, writes) for name, backend in backends.items()}
        assert len(set(outcomes.values())) == 1, (kind, subject, writes, outcomes)
        if kind == "commit" and outcomes["memory"] is None:
            world = after
    return world


@contextmanager
def all_backends(directory: Path, postgres_url: str) -> Iterator[dict[str, Backend]]:
    path, schema = directory / f"{uuid.uuid4().hex}.db", f"s{uuid.uuid4().hex[:12]}"
    backends = {
        "memory": Backend(MemoryStore),
        "sqlite": Backend(lambda: SqliteStore(path), lambda: sqlite_views(str(path)), lambda: SqliteReader(path)),
        "postgres": Backend(
            lambda: PostgresStore(postgres_url, schema=schema),
            lambda: postgres_views(postgres_url, schema),
            lambda: PostgresReader(postgres_url, schema=schema),
        ),
    }
    try:
        yield backends
    finally:
        for backend in backends.values():
            backend.close()
        drop_log(postgres_url, schema)


@given(history=steps)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@example(history=[])
def test_all_backends_and_their_views_tell_the_same_story(tmp_path: Path, store_database: str, history: Steps) -> None:
    with all_backends(tmp_path, store_database) as backends:
        world = follow(history, backends)
        told = {name: answers(backend.store, world) for name, backend in backends.items()}
        for name, backend in backends.items():
            for question, answer in told["memory"].items():
                assert told[name][question] == answer, (name, question)
            check_first_sets(backend.store, backends["memory"].store)
            for table, rows in backend.views().items() if backend.views is not None else ():
                assert rows == told["memory"][table], (name, table)
            if backend.reader is not None:
                with closing(backend.reader()) as reader:
                    check_reader(reader, told["memory"])


def check_first_sets(store: KeptStore, plain: KeptStore) -> None:
    """Retention may err by a few Input Sets, to the safe side."""
    for port in OUT.values():
        collected, last = plain.extent(port)
        for number in range(collected + 1, last + 2):
            found, first = store.first_set(port, number), plain.first_set(port, number)
            assert first is None or (found is not None and found <= first), (port, number)


def check_reader(reader: LogReader, told: dict[Any, Any]) -> None:
    """Who only reads is told the same, port by port; all at once, and a few events at a time."""
    writes = Port("sink", "writes:table")
    for port in {*OUT.values(), writes}:
        expected = entries_of(told["EVENT_LOG"], port)
        assert reader.entries(port, 1, 1_000) == expected, port
        for first in range(1, 20, 3):
            assert reader.entries(port, first, 3) == [e for e in expected if first <= e.number < first + 3], port
    for port in OUT.values():
        expected = told["events"].get(port, [])
        headers = [
            (run.port, run.first + i, head)
            for run in reader.headers(port, 1, 1_000)
            for i, head in enumerate(run.headers)
        ]
        assert headers == [event[:3] for event in expected]
        assert each_event(reader.events(port, 1, 1_000)) == expected
    logged = {Port(op, port) for _, _, op, port, *_ in told["EVENT_LOG"] if port is not None and port != "files"}
    assert logged & set(OUT.values()) <= set(reader.ports())


def entries_of(event_log: list[tuple[Any, ...]], port: Port) -> list[Entry]:
    """Return what the table EVENT_LOG has of the events, or the write actions, of a port."""
    sender = (port.operator, None if port.name.startswith("writes:") else port.name)
    found = [
        Entry(number, Port(rec_op, rec_p), input_set, status)
        for number, status, send_op, send_p, rec_op, rec_p, input_set in event_log
        if (send_op, send_p) == sender and rec_p is not None
    ]
    return sorted(found, key=lambda e: (e.receiver, e.number, e.input_set or 0))
