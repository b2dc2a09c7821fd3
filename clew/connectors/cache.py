"""A connection whose answers are remembered for a while: for enrichment, where many events ask the same."""

import os
import threading
import time
from collections import OrderedDict
from typing import Any

import pyarrow as pa

from clew.errors import GraphError
from clew.pipeline.contracts import Connection
from clew.pipeline.location import caller


class Cached(Connection):
    """Answers from memory what this process has asked before, unless it is too old.

    What was read is logged with each Output Set all the same, so a replay asks neither the memory nor the system.
    """

    def __init__(self, connection: Connection, seconds: float, entries: int) -> None:
        self._connection, self._seconds, self._entries = connection, seconds, entries
        #: By process: a lock that another thread holds would stay locked in a fork.
        self._memories: dict[int, _Memory] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Cached, (self._connection, self._seconds, self._entries)

    def describe(self) -> str:
        return f"{self._connection.describe()}, remembered for {self._seconds:g} s"

    def schema(self) -> pa.Schema | None:
        return self._connection.schema()

    def read(self, action: str) -> pa.Table:
        memory = self._memories.setdefault(os.getpid(), _Memory())
        # Before it is asked: an answer is as old as its question.
        now = time.monotonic()
        found = memory.recall(action, now - self._seconds)
        if found is None:
            found = self._connection.read(action)
            memory.keep(action, now, found, self._entries)
        return found


class _Memory:
    """The latest answers, those that were not wanted for longest first."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, tuple[float, pa.Table]] = OrderedDict()
        self._lock = threading.Lock()

    def recall(self, action: str, since: float) -> pa.Table | None:
        with self._lock:
            asked, table = self._answers.get(action, (since, None))
            if asked <= since:
                return None
            self._answers.move_to_end(action)
            return table

    def keep(self, action: str, asked: float, table: pa.Table, entries: int) -> None:
        with self._lock:
            self._answers[action] = asked, table
            self._answers.move_to_end(action)
            while len(self._answers) > entries:
                self._answers.popitem(last=False)


def cached(connection: Connection, *, seconds: float, entries: int = 1000) -> Cached:
    """Remember the answers of a connection in each worker process.

    An answer may be up to `seconds` old. Of more than `entries` different actions, the one that was not wanted for
    longest is forgotten.
    """
    if seconds <= 0 or entries < 1:
        message = f"cached is to keep {entries} answers for {seconds:g} s; give it at least 1, for more than 0 s"
        raise GraphError(message, caller())
    return Cached(connection, seconds, entries)
