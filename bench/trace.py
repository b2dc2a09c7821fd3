"""How long a trace over three operators takes in a log of a million events, backward and forward.

source -> each -> tens (10 events -> 1) -> last, in turns of a thousand events, written to the log as the protocol does
so. SQLite, and PostgreSQL where `--postgres URL` names one. Medians over events chosen at random.
"""

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

from figures import report

from clew.ids import Capture, EventId, InputSetId, Port
from clew.lineage.trace import Trace, backward, forward
from clew.protocol.rows import Bodies, EventRun, Every, Header, Lineage, Own
from clew.protocol.step import Acknowledge, FinishSets, LogEvents, LogLineage, Write
from clew.store.base import KeptStore, Topology
from clew.store.postgres import PostgresStore, drop_log
from clew.store.sqlite import SqliteStore

OPERATORS = ("source", "each", "tens", "last")
OUT = {name: Port(name, "out") for name in OPERATORS}
IN = {name: Port(name, "in") for name in OPERATORS[1:]}
TURN = 1_000
_BODY = b"x" * 100


def topology() -> Topology:
    """Return the pipeline's connections, with lineage everywhere."""
    links = tuple((OUT[a], IN[b]) for a, b in pairwise(OPERATORS))
    captures = {name: Capture(("in",) if name in IN else (), ("out",)) for name in OPERATORS}
    return Topology("trace", "trace", OPERATORS, links, captures)


def fill(store: KeptStore, events: int) -> None:
    """Write a log of so many events of the source."""
    store.declare(topology())
    turns = {name: store.take_over(name) for name in OPERATORS}
    for first in range(1, events + 1, TURN):
        for name, writes in _turn(first, min(TURN, events - first + 1)):
            store.commit(name, turns[name], writes, durable=False)


def _turn(first: int, count: int) -> Iterator[tuple[str, list[Write]]]:
    tenth, tens = (first - 1) // 10 + 1, count // 10
    yield "source", [LogEvents(_events("source", first, count)), _lineage("source", first, 1, (count, 1))]
    yield "each", _made("each", first, count, first, count, Own(InputSetId(first)), (1, count))
    yield "tens", _made("tens", first, count, tenth, tens, Every(InputSetId(tenth), 10), (1, tens))
    yield "last", _made("last", tenth, tens, tenth, tens, Own(InputSetId(tenth)), (1, tens))


def _made(
    name: str, first: int, count: int, made: int, sets: int, assigned: Any, counts: tuple[int, int]
) -> list[Write]:
    return [
        Acknowledge(IN[name], first, count, first, assigned),
        LogEvents(_events(name, made, sets)),
        _lineage(name, made, made, counts),
        FinishSets(name, InputSetId(made), sets),
    ]


def _events(name: str, first: int, count: int) -> EventRun:
    bodies = Bodies((len(_BODY),) * count, (crc32(_BODY),) * count, _BODY * count)
    return EventRun(OUT[name], first, (Header(1, len(_BODY)),) * count, (bodies,))


def _lineage(name: str, first: int, input_set: int, counts: tuple[int, int]) -> LogLineage:
    return LogLineage(Lineage(OUT[name], first, InputSetId(input_set), (counts,)))


def measure(store: KeptStore, events: int, traces: int) -> dict[str, float]:
    """Return the median milliseconds of traces, backward and forward."""
    draw = random.Random(7)
    ends = [EventId(OUT["last"], draw.randint(1, events // 10)) for _ in range(traces)]
    begins = [EventId(OUT["source"], draw.randint(1, events)) for _ in range(traces)]
    back = [_milliseconds(backward, store, event, 12) for event in ends]
    ahead = [_milliseconds(forward, store, event, 3) for event in begins]
    return {"back_ms": round(statistics.median(back), 2), "forward_ms": round(statistics.median(ahead), 2)}


def _milliseconds(ask: Callable[[KeptStore, EventId], Trace], store: KeptStore, event: EventId, steps: int) -> float:
    start = time.perf_counter()
    found = ask(store, event)
    took = 1000 * (time.perf_counter() - start)
    assert len(found.steps) >= steps, found
    return took


def main() -> None:
    """Measure, print, and end with one line of JSON."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, default=1_000_000)
    arguments.add_argument("--traces", type=int, default=101)
    arguments.add_argument("--postgres", metavar="URL")
    given = arguments.parse_args()
    told: dict[str, Any] = {"events": given.events, "traces": given.traces}
    home = Path(tempfile.mkdtemp(prefix="clew-bench-"))
    with closing(SqliteStore(home / "log.db")) as store:
        fill(store, given.events)
        told["sqlite"] = measure(store, given.events, given.traces)
    shutil.rmtree(home)
    if given.postgres:
        drop_log(given.postgres, "clew_trace")
        with closing(PostgresStore(given.postgres, schema="clew_trace")) as store:
            fill(store, given.events)
            told["postgres"] = measure(store, given.events, given.traces)
        drop_log(given.postgres, "clew_trace")
    report("trace", told)


if __name__ == "__main__":
    main()
