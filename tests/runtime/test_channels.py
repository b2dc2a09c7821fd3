"""Connections: a cache of the log that never shows what the log does not hold, nor too early."""

from typing import Any

import pyarrow as pa

from clew import Capacity, Pipeline
from clew.connectors import generator
from clew.ids import InputSetId, Port
from clew.protocol.rows import Bodies, EventRun, Header, Own, WriteRow
from clew.protocol.step import Acknowledge, FinishWrites, LogEvents, LogWrites
from clew.run import topology
from clew.runtime.channels import Channels
from clew.runtime.codec import checksum
from clew.store.memory import MemoryStore
from tests.simulation.outside import Transactional, World
from tests.simulation.pipelines import Post

OUT, IN, POSTS = Port("post", "out"), Port("post_sink", "in"), Port("post", "posts")


def _pipeline(capacity: int | Capacity = 4, **settings: Any) -> Pipeline:
    pipeline = Pipeline("p")
    source = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), 3))
    posts = pipeline.general("post", Post(), source, writes={"posts": Transactional(World(), "posts")}, **settings)
    pipeline.sink(posts, Transactional(World(), "sink"), capacity=capacity)
    return pipeline


def _channels(store: MemoryStore, **settings: Any) -> Channels:
    graph = _pipeline(**settings).graph()
    store.declare(topology(graph))
    for operator in graph.operators:
        store.take_over(operator)
    return Channels(graph, store)


def _run(first: int, count: int, size: int = 1) -> EventRun:
    body = b"x" * size
    bodies = Bodies((size,) * count, (checksum(body),) * count, body * count)
    return EventRun(OUT, first, (Header(1, size),) * count, (bodies,))


def _numbers(channels: Channels, events: int = 100) -> list[int]:
    return [run.first + i for run in channels.take(IN, events, 10**6) for i in range(len(run.headers))]


def _write(number: int) -> WriteRow:
    return WriteRow(number, (), (Bodies((1,), (checksum(b"w"),), b"w"),))


def test_what_is_logged_is_found_without_being_sent() -> None:
    store = MemoryStore()
    channels = _channels(store)
    store.commit("post", 1, [LogEvents(_run(1, 2))])
    assert _numbers(channels) == [1, 2]


def test_what_is_sent_twice_is_taken_once() -> None:
    store = MemoryStore()
    channels = _channels(store)
    assert _numbers(channels) == []
    store.commit("post", 1, [LogEvents(_run(1, 2))])
    channels.send(_run(1, 2))
    channels.send(_run(1, 2))
    assert _numbers(channels) == [1, 2]


def test_what_is_sent_with_a_gap_is_read_from_the_log() -> None:
    store = MemoryStore()
    channels = _channels(store)
    assert _numbers(channels) == []
    store.commit("post", 1, [LogEvents(_run(1, 1))])
    store.commit("post", 1, [LogEvents(_run(2, 1))])
    channels.send(_run(2, 1))
    assert _numbers(channels) == [1, 2]


def test_a_full_connection_has_no_room_until_its_receiver_has_acknowledged() -> None:
    store = MemoryStore()
    channels = _channels(store)
    store.commit("post", 1, [LogEvents(_run(1, 9))])
    channels.resend(OUT)
    assert not channels.room("post")
    channels.acknowledge(IN, 5)
    assert not channels.room("post"), "four events are left, and four may wait"
    channels.acknowledge(IN, 9)
    assert channels.room("post")


def test_what_did_not_fit_beside_the_first_events_is_read_once_they_are_acknowledged() -> None:
    store = MemoryStore()
    channels = _channels(store, capacity=Capacity(events=100, bytes=10))
    store.commit("post", 1, [LogEvents(_run(1, 2, size=4))])
    store.commit("post", 1, [LogEvents(_run(3, 2, size=4))])
    assert _numbers(channels) == [1, 2]
    assert not channels.room("post")
    channels.acknowledge(IN, 2)
    assert _numbers(channels) == [3, 4]


def test_events_wait_for_the_writes_logged_with_them() -> None:
    store = MemoryStore()
    channels = _channels(store, after_write=True)
    store.commit("post", 1, [LogEvents(_run(1, 1)), LogWrites(POSTS, (_write(1),))])
    channels.resend(OUT)
    assert _numbers(channels) == []
    store.commit("post", 1, [FinishWrites(POSTS, 1, 1)])
    assert _numbers(channels) == [1]


class _Busy(MemoryStore):
    """A log into which another thread commits while a receiver looks at it."""

    commit_between = False

    def undone_writes(self, port: Port, limit: int) -> list[WriteRow]:
        found = super().undone_writes(port, limit)
        if self.commit_between:
            self.commit_between = False
            self.commit("post", 1, [LogEvents(_run(1, 1)), LogWrites(POSTS, (_write(1),))])
        return found


def test_events_wait_for_their_writes_also_if_they_are_logged_while_a_receiver_looks() -> None:
    store = _Busy()
    channels = _channels(store, after_write=True)
    store.commit_between = True
    assert _numbers(channels) == []
    channels.resend(OUT)
    assert _numbers(channels) == []


class Apart:
    """The sink in one process and all else in another, on one log; what is rung is heard when the test says so."""

    def __init__(self, capacity: int = 4, **settings: Any) -> None:
        self.store = MemoryStore()
        graph = _pipeline(capacity, **settings).graph()
        self.store.declare(topology(graph))
        for operator in graph.operators:
            self.store.take_over(operator)
        self.rung: list[str] = []
        self.sending = Channels(graph, self.store, {"numbers", "post"}, self.rung.extend)
        self.receiving = Channels(graph, self.store, {"post_sink"}, self.rung.extend)

    def send(self, first: int, count: int) -> None:
        self.store.commit("post", 1, [LogEvents(_run(first, count))])
        self.sending.send(_run(first, count))

    def acknowledge(self, first: int, count: int) -> None:
        self.store.commit("post_sink", 1, [Acknowledge(IN, first, count, first, Own(InputSetId(first)))])
        self.receiving.acknowledge(IN, first + count - 1)


def test_operators_elsewhere_are_rung_for() -> None:
    apart = Apart()
    apart.send(1, 1)
    assert apart.rung == ["post_sink"]
    assert _numbers(apart.receiving) == [1]
    apart.acknowledge(1, 1)
    assert apart.rung == ["post_sink", "post"]


def test_what_others_have_logged_is_read_once_there_is_news() -> None:
    apart = Apart(capacity=10)
    assert _numbers(apart.receiving) == []
    apart.send(1, 2)
    apart.send(3, 1)
    assert _numbers(apart.receiving) == []
    apart.receiving.news(["post_sink"])
    assert _numbers(apart.receiving) == [1, 2, 3]
    apart.acknowledge(1, 2)
    apart.send(4, 2)
    # Whoever hears nothing looks all the same, now and then.
    apart.receiving.news()
    assert _numbers(apart.receiving) == [3, 4, 5]


def test_only_what_is_new_is_read_of_the_log() -> None:
    apart = Apart(capacity=10)
    apart.send(1, 3)
    assert _numbers(apart.receiving) == [1, 2, 3]
    asked: list[int] = []
    unacknowledged = apart.store.unacknowledged

    def counting(receiver: Port, after: int, max_events: int, max_bytes: int) -> list[EventRun]:
        asked.append(after)
        return unacknowledged(receiver, after, max_events, max_bytes)

    apart.store.unacknowledged = counting  # type: ignore[method-assign]
    apart.send(4, 1)
    apart.receiving.news(["post_sink"])
    assert _numbers(apart.receiving) == [1, 2, 3, 4]
    assert asked == [3, 4]


def test_a_full_connection_to_an_operator_elsewhere_stops_the_sender_until_there_is_room() -> None:
    apart = Apart(capacity=4)
    assert apart.sending.room("post")
    apart.send(1, 3)
    assert apart.sending.room("post")
    apart.send(4, 1)
    assert not apart.sending.room("post")
    assert _numbers(apart.receiving) == [1, 2, 3, 4]
    apart.acknowledge(1, 2)
    # Nobody need have rung: what is known to be full is asked for.
    assert apart.sending.room("post")


def test_what_does_not_fit_waits_in_the_log() -> None:
    apart = Apart(capacity=2)
    assert _numbers(apart.receiving) == []
    for first in range(1, 8):
        apart.send(first, 1)
    apart.receiving.news()
    taken = []
    while numbers := _numbers(apart.receiving, 1):
        taken += numbers
        apart.acknowledge(numbers[0], 1)
    assert taken == [1, 2, 3, 4, 5, 6, 7]


def test_events_wait_for_the_writes_of_a_sender_elsewhere() -> None:
    apart = Apart(capacity=10, after_write=True)
    assert _numbers(apart.receiving) == []
    apart.store.commit("post", 1, [LogEvents(_run(1, 1)), LogWrites(POSTS, (_write(1),))])
    apart.receiving.news()
    assert _numbers(apart.receiving) == []
    apart.store.commit("post", 1, [FinishWrites(POSTS, 1, 1)])
    assert _numbers(apart.receiving) == [1]


def test_a_sender_elsewhere_that_recovers_lets_its_receivers_look() -> None:
    apart = Apart(capacity=10)
    apart.sending.resend(OUT)
    assert apart.rung == ["post_sink"]
