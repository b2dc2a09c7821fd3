"""What cannot be traced is refused with a sentence that says what to do."""

from pathlib import Path

import pytest

from clew.errors import EventExpired, NoSuchEvent, NoSuchPort, NotCaptured
from clew.ids import EventId, Port
from clew.lineage.trace import backward, forward
from clew.run import Log, gc, run
from clew.store.base import KeptStore
from tests.lineage.pipelines import EVENTS, diamond

THREES, SOURCE = Port("threes", "out"), Port("numbers", "out")


@pytest.fixture
def store(tmp_path: Path) -> KeptStore:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    run(diamond(tmp_path, lineage=False), log=url, engine="inline")
    return Log.at(url, "diamond").open("diamond")


def test_a_number_that_was_never_sent(store: KeptStore) -> None:
    # The last event is the end of the stream, which is nobody's.
    for number in (EVENTS + 1, EVENTS + 2):
        with pytest.raises(NoSuchEvent, match=f"numbers.out has sent events 1 to {EVENTS}; name one of them"):
            backward(store, EventId(SOURCE, number))
    with pytest.raises(NoSuchEvent):
        forward(store, EventId(SOURCE, 0))


def test_a_port_that_has_sent_nothing_yet(tmp_path: Path) -> None:
    from clew.run import topology

    store = Log.at(f"sqlite:///{tmp_path / 'log.db'}", "diamond").open("diamond")
    store.declare(topology(diamond(tmp_path).graph()))
    with pytest.raises(NoSuchEvent, match=r"threes\.out has sent no event yet; run the pipeline first"):
        backward(store, EventId(THREES, 1))


def test_an_unknown_operator_or_port(store: KeptStore) -> None:
    with pytest.raises(NoSuchPort, match=r"there is no port nobody\.out in this log; there are: chance\.out, "):
        backward(store, EventId(Port("nobody", "out"), 1))
    with pytest.raises(NoSuchPort, match=r"no port threes\.late in this log"):
        backward(store, EventId(THREES, 1), to=Port("threes", "late"))


def test_a_port_that_no_path_leads_to(store: KeptStore) -> None:
    with pytest.raises(NoSuchPort, match=r"no port some\.out after chance\.out; there are: joined\.out, threes\.out"):
        forward(store, EventId(Port("chance", "out"), 1), to=Port("some", "out"))
    with pytest.raises(NoSuchPort, match=r"no port threes_sink\.out before threes\.out; there are: chance\.out, "):
        backward(store, EventId(THREES, 1), to=Port("threes_sink", "writes:out"))


def test_a_port_without_capture(store: KeptStore) -> None:
    with pytest.raises(NotCaptured, match=r"no lineage is captured for some\.out; take its lineage=False back"):
        backward(store, EventId(Port("some", "out"), 1))


def test_a_trace_says_where_it_was_cut(store: KeptStore) -> None:
    assert backward(store, EventId(THREES, 1)).cut == (Port("some", "out"),)
    assert forward(store, EventId(SOURCE, 1)).cut == (SOURCE,)


def test_an_event_that_was_collected(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    pipeline = diamond(tmp_path)
    run(pipeline, log=url, engine="inline")
    gc(pipeline.graph(), url)
    store = Log.at(url, "diamond").open("diamond")
    with pytest.raises(EventExpired, match=r"threes\.out#1 is no longer in the log, which has forgotten the events up"):
        backward(store, EventId(THREES, 1))
    writes = Port("threes_sink", "writes:out")
    with pytest.raises(EventExpired):
        backward(store, EventId(writes, 1))
