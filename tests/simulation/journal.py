"""The log of a simulated run: the memory store, watched, and able to lose what was not yet durable."""

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal

from clew.ids import InputSetId, Port
from clew.pipeline.schema import from_bytes
from clew.protocol.rows import Bodies, EventRun
from clew.protocol.step import LogEvents, LogReadEvent, Write
from clew.runtime.bodies import load
from clew.runtime.codec import decode, decode_stream
from clew.store.base import NO_PORTS, Collected
from clew.store.memory import MemoryStore
from clew.store.memory_rows import Rows, copied
from tests.simulation.outside import Row

#: The rows that collection removes, by a key and a number each.
_NUMBERED = ("sent", "entries", "writes", "state_events", "decisions")


class Journal(MemoryStore):
    """A log that remembers every commit, and forgets what a power cut takes."""

    def __init__(self, bodies: str | None = None, lossy: bool = False) -> None:
        super().__init__()
        self._bodies = bodies
        self._lossy = lossy
        #: How often anything in it changed that an operator may wait for.
        self.commits = 0
        #: The rows as of the last durable commit, while later ones are not durable yet (D1).
        self._safe: Rows | None = None
        #: What events hold, by number; None for the end of a port.
        self._held: dict[Port, dict[int, bytes | None]] = {}
        self._reads: dict[tuple[str, str], dict[int, int]] = {}
        self._collected = Rows()
        #: What was in the body files that were collected.
        self.files: dict[str, bytes] = {}

    def take_over(self, operator: str) -> int:
        incarnation = super().take_over(operator)
        self.commits += 1
        self._safe = None
        return incarnation

    def commit(self, operator: str, incarnation: int, writes: Sequence[Write], durable: bool = True) -> None:
        keep = self._lossy and not durable and self._safe is None
        before = copied(self._rows) if keep else None
        super().commit(operator, incarnation, writes, durable)
        self.commits += 1
        self._safe = None if durable else self._safe or before
        for write in writes:
            if isinstance(write, LogEvents):
                self._remember(write.run)
            elif isinstance(write, LogReadEvent) and write.input_set is not None:
                reads = self._reads.setdefault((operator, write.connection), {})
                assert write.action not in reads, f"read action {write.action} of {operator} was logged twice"
                reads[write.action] = self._answer(write.effect)

    def decide_asides(self, operator: str, numbers: Sequence[int], status: Literal["retry", "drop"]) -> int:
        self.commits += 1
        return super().decide_asides(operator, numbers, status)

    def collect(self, grace: int = 0, keep: Mapping[Port, int] = NO_PORTS) -> Collected:
        """Collect durably, as every store does: the files it names are removed next, for good."""
        self._collected = self.whole()
        collected = super().collect(grace, keep)
        if self._bodies is not None:
            self.files |= {name: (Path(self._bodies) / name).read_bytes() for name in collected.files}
        self.commits += 1
        self._safe = None
        return collected

    def whole(self) -> Rows:
        """Return the rows as if nothing had been collected: those that were, as they were then."""
        whole, gone = copy(self._rows), self._collected
        for name in _NUMBERED:
            setattr(whole, name, _together(getattr(gone, name), getattr(self._rows, name)))
        whole.read_events = gone.read_events | self._rows.read_events
        whole.lineage = {
            port: [*_missing(gone.lineage.get(port, ()), pairs), *pairs] for port, pairs in self._rows.lineage.items()
        }
        whole.collected_writes = {}
        return whole

    def cut_power(self) -> None:
        """Lose every commit that was not durable."""
        self.commits += 1
        if self._safe is not None:
            self._rows, self._safe = self._safe, None

    def rows(self, port: Port) -> list[Row]:
        """Return all records ever logged on a port, in order."""
        schema = self.schema(port)
        return [row for _, body in sorted(self._held.get(port, {}).items()) for row in _rows(body, schema)]

    def side_reads(self, operator: str, connection: str) -> Counter[int]:
        """Return the answers of the side-effect reads that were logged."""
        return Counter(self._reads.get((operator, connection), {}).values())

    def _remember(self, run: EventRun) -> None:
        """Read at once: bodies may be collected later. An event that was logged is never logged again."""
        kept = self._held.setdefault(run.port, {})
        bodies = load(self._bodies, run.bodies)
        for index, header in enumerate(run.headers):
            number = run.first + index
            assert number not in kept, f"{run.port}#{number} was logged twice"
            kept[number] = None if header.end else bytes(next(bodies))

    def _answer(self, effect: Bodies) -> int:
        (body,) = load(self._bodies, [effect])
        answer: int = decode_stream(body).column(-1)[0].as_py()
        return answer


def _rows(body: bytes | None, schema: bytes | None) -> list[Row]:
    if body is None:
        return []
    assert schema is not None
    return [tuple(row.values()) for row in decode(body, from_bytes(schema)).to_pylist()]


def _together(gone: Mapping[Any, Mapping[int, Any]], left: Mapping[Any, Mapping[int, Any]]) -> dict[Any, Any]:
    return {key: {**gone.get(key, {}), **rows} for key, rows in left.items()}


def _missing(pairs: Sequence[tuple[int, InputSetId]], left: Sequence[tuple[int, InputSetId]]) -> list[Any]:
    """Return the pairs that are not left; one that stands twice is left twice."""
    kept = set(left)
    return [pair for pair in pairs if pair not in kept]
