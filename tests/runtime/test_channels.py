"""Connections: a cache of the log that never shows what the log does not hold, nor too early."""

from typing import Any

import pyarrow as pa

from clew import Capacity, Pipeline
from clew.connectors import generator
from clew.ids import Port
from clew.protocol.rows import Bodies, EventRun, Header, WriteRow
from clew.protocol.step import FinishWrites, LogEvents, LogWrites
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
