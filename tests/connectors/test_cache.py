"""A connection that is remembered for a while."""

import multiprocessing
import pickle
import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest

from clew.connectors import cache, cached
from clew.errors import GraphError
from clew.pipeline.contracts import Connection


class Counting(Connection):
    """Answers with how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def describe(self) -> str:
        return "counting"

    def read(self, action: str) -> pa.Table:
        self.asked.append(action)
        if action == "fail":
            raise ConnectionError("no answer")
        return pa.table({"n": [len(self.asked)]})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(cache, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def n(connection: Connection, action: str = "a") -> int:
    value: int = connection.read(action)["n"][0].as_py()
    return value


def test_the_same_action_is_asked_once_until_its_answer_is_too_old(clock: SimpleNamespace) -> None:
    inner = Counting()
    memory = cached(inner, seconds=60)
    assert [n(memory), n(memory), n(memory, "b"), n(memory)] == [1, 1, 2, 1]
    clock.now += 59.9
    assert n(memory) == 1
    clock.now += 0.1
    assert [n(memory), n(memory)] == [3, 3]
    assert memory.describe() == "counting, remembered for 60 s"


def test_what_was_not_wanted_for_longest_is_forgotten_first(clock: SimpleNamespace) -> None:
    inner = Counting()
    memory = cached(inner, seconds=60, entries=2)
    for action in ("a", "b", "a", "c", "a", "c", "b"):
        n(memory, action)
    assert inner.asked == ["a", "b", "c", "b"]


def test_an_answer_is_as_old_as_its_question(clock: SimpleNamespace) -> None:
    class Slow(Counting):
        def read(self, action: str) -> pa.Table:
            clock.now += 50
            return super().read(action)

    memory = cached(Slow(), seconds=60)
    assert n(memory) == 1
    clock.now += 15
    assert n(memory) == 2


def test_a_failure_is_not_remembered() -> None:
    inner = Counting()
    memory = cached(inner, seconds=60)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            memory.read("fail")
    assert inner.asked == ["fail", "fail"]


def test_it_travels_without_its_memory() -> None:
    memory = cached(Counting(), seconds=60, entries=5)
    assert n(memory) == 1
    other = pickle.loads(pickle.dumps(memory))
    # The connection went along as it was, having been asked once; the answer did not.
    assert n(other) == 2
    assert n(memory) == 1


def test_many_threads_may_ask_at_once() -> None:
    memory = cached(Counting(), seconds=60, entries=3)
    failures: list[BaseException] = []

    def ask(seed: int) -> None:
        try:
            for step in range(300):
                memory.read(str((seed * step) % 7))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_fork_does_not_wait_for_a_lock_of_its_parent() -> None:
    memory = cached(Counting(), seconds=60)
    n(memory)
    (own,) = memory._memories.values()
    with own._lock:
        child = multiprocessing.get_context("fork").Process(target=n, args=(memory,))
        child.start()
        child.join(30)
    assert child.exitcode == 0


@pytest.mark.parametrize("settings", [{"seconds": 0}, {"seconds": 1, "entries": 0}])
def test_a_cache_of_nothing_is_refused(settings: dict[str, int]) -> None:
    with pytest.raises(GraphError, match="give it at least 1, for more than 0 s") as wrong:
        cached(Counting(), **settings)
    assert wrong.value.location.startswith(__file__)
