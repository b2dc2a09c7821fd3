"""How long lineage is kept: by time and by size, scope by scope; what stays can be traced as before."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Count, Pipeline, files, generator
from clew.errors import EventExpired, GraphErrors
from clew.ids import EventId, Port
from clew.lineage.retention import Keep, kept
from clew.lineage.trace import Trace, backward
from clew.run import Log, Policy, gc, run
from clew.store.base import KeptStore
from tests.lineage.pipelines import EVENTS, diamond

SOURCE, JOINED, THREES = Port("numbers", "out"), Port("joined", "out"), Port("threes", "out")


class Kept:
    """A finished run whose events were logged one second after the other, port by port."""

    def __init__(self, directory: Path, **keep: Any) -> None:
        self.pipeline: Pipeline = diamond(directory)
        self.pipeline.lineage(SOURCE_NAME, "threes", **keep)
        self.url = f"sqlite:///{directory / 'log.db'}"
        run(self.pipeline, log=self.url, engine="inline")
        with closing(sqlite3.connect(directory / "log.db")) as database, database:
            database.execute("UPDATE sent SET at = 1000 * first")

    def ask(self, question: Callable[[KeptStore], Any]) -> Any:
        store = Log.at(self.url, "diamond").open("diamond")
        try:
            return question(store)
        finally:
            store.close()

    def traces(self) -> dict[EventId, Trace]:
        """Return what all events of the target come from, as far as they are in the log."""

        def all_of(store: KeptStore) -> dict[EventId, Trace]:
            collected, last = store.extent(THREES)
            # The last event is the end of the stream.
            numbers = range(collected + 1, last)
            return {EventId(THREES, n): backward(store, EventId(THREES, n)) for n in numbers}

        found: dict[EventId, Trace] = self.ask(all_of)
        return found


SOURCE_NAME = "numbers"


def test_what_is_kept_by_time_can_be_traced_as_before_and_the_rest_is_gone(tmp_path: Path) -> None:
    made = Kept(tmp_path)
    before = made.traces()
    # Events of the target from the second on are young enough.
    keep = made.ask(lambda store: kept(store, [Keep(SOURCE, THREES, seconds=10)], now=11.5))
    collected = made.ask(lambda store: store.collect(keep=keep))
    assert collected.events > 0
    after = made.traces()
    assert sorted(after) == sorted(before)[1:]
    assert after == {event: trace for event, trace in before.items() if event in after}
    with pytest.raises(EventExpired):
        made.ask(lambda store: backward(store, EventId(THREES, 1)))
    # Of the source, what only the first event of the target came from; to the nearest Input Set.
    oldest = min(event.number for trace in after.values() for event in trace.events(SOURCE))
    assert 0 < made.ask(lambda store: store.extent(SOURCE)[0]) < oldest


def test_what_is_kept_by_size_has_room_and_one_event_more_would_not(tmp_path: Path) -> None:
    made = Kept(tmp_path)

    def size(store: KeptStore, needed: dict[Port, int]) -> int:
        return sum(store.bytes_from(port, number) for port, number in needed.items())

    def check(store: KeptStore) -> None:
        whole = kept(store, [Keep(SOURCE, THREES)], now=0)
        assert whole[THREES] == 1
        limit = size(store, whole) - 1
        fewer = kept(store, [Keep(SOURCE, THREES, bytes=limit)], now=0)
        assert fewer[THREES] > 1
        assert size(store, fewer) <= limit
        nothing = kept(store, [Keep(SOURCE, THREES, bytes=1)], now=0)
        assert nothing[THREES] == store.extent(THREES)[1] + 1

    made.ask(check)


def test_what_stays_for_what_is_in_quarantine_takes_no_room_from_what_is_kept(tmp_path: Path) -> None:
    limit = 40_000

    def first_kept(name: str, broken: int) -> tuple[int, int]:
        (tmp_path / name).mkdir()
        pipeline = Pipeline(name)

        def pass_on(record: dict[str, Any]) -> dict[str, Any]:
            if record["n"] == broken:
                raise ValueError("broken")
            return record

        source = pipeline.source(
            "source", generator(lambda i: pa.table({"n": [i], "pad": ["x" * 400]}), 200), max_turn_events=10
        )
        passed = source.map(pass_on, name="passed", on_error="quarantine", attempts=1, max_turn_events=10)
        passed.window(Count(10)).aggregate(name="tens", total=("n", "sum")).sink(files(tmp_path / name), name="sink")
        url = f"sqlite:///{tmp_path / name / 'log.db'}"
        run(pipeline, log=url, engine="inline")
        store = Log.at(url, name).open(name)
        try:
            tens = Port("tens", "out")
            return kept(store, [Keep(Port("source", "out"), tens, bytes=limit)], now=0)[tens], store.extent(tens)[1]
        finally:
            store.close()

    whole, held = first_kept("whole", broken=-1), first_kept("held", broken=3)
    # All events of the source stay for the record that failed, so that more of the others have room.
    assert 1 < held[0] < whole[0] <= whole[1]
    assert held[0] <= held[1]


def test_scopes_add_up_port_by_port(tmp_path: Path) -> None:
    made = Kept(tmp_path)

    def check(store: KeptStore) -> None:
        short, long = Keep(SOURCE, JOINED, seconds=1), Keep(SOURCE, THREES)
        both = kept(store, [short, long], now=1e6)
        assert both == {**kept(store, [long], now=1e6)}
        assert THREES not in kept(store, [short], now=1e6)

    made.ask(check)


def test_gc_leaves_what_the_scopes_keep_and_no_more(tmp_path: Path) -> None:
    everything = Kept(tmp_path)
    before = everything.traces()
    gc(everything.pipeline.graph(), everything.url)
    assert everything.traces() == before
    # Beyond the target nothing is kept.
    assert everything.ask(lambda store: store.extent(Port("threes_sink", "writes:out"))[0]) > 0


def test_what_is_still_to_be_made_keeps_what_it_will_come_from(tmp_path: Path) -> None:
    """Collection beside the run: a window that is open needs events that are done, of the operators before it."""
    pipeline = diamond(tmp_path)
    pipeline.lineage(SOURCE_NAME, "threes", keep="1 hour")
    url = f"sqlite:///{tmp_path / 'log.db'}"
    run(pipeline, log=url, engine="inline", policy=Policy(collect_every=0.05))
    store = Log.at(url, "diamond").open("diamond")
    met = set()
    _, last = store.extent(THREES)
    for number in range(1, last):
        trace = backward(store, EventId(THREES, number))
        # The scope begins there: how the source read its events is beyond it.
        assert trace.cut == (SOURCE,)
        met |= set(trace.events(SOURCE))
    assert len(met) == EVENTS
    store.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keep": "a while"}, "lineage is to be kept for 'a while': 'a while' is not a duration"),
        ({"keep_bytes": 0}, "lineage is to be kept in 0 bytes; give a whole number, 1 or more"),
    ],
)
def test_what_cannot_be_kept_is_said(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    pipeline = diamond(tmp_path)
    pipeline.lineage("numbers", "threes", **given)
    with pytest.raises(GraphErrors, match=said):
        pipeline.graph()
