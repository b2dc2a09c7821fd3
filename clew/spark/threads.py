"""A fixed number of threads that take work in the order in which it comes."""

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Threads:
    """Some threads, which live as long as they are wanted: Spark keeps a thread of its own for each that asks it.

    They are daemons, because one that hangs in the user's code must not hold up the end of the process.
    """

    def __init__(self, name: str, count: int) -> None:
        self._count = count
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        for _ in range(count):
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Callable[[], None]) -> None:
        """Have it done by the first thread that is free."""
        self._work.put(work)

    def close(self) -> None:
        """Let the threads end after what was submitted."""
        for _ in range(self._count):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
