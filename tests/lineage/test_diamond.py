"""Every traced relation is the one that the records themselves tell, with crashes too."""

from pathlib import Path
from typing import Any

import pytest

from clew.faultpoint import arm
from clew.ids import EventId, Port
from clew.lineage.trace import backward, forward
from clew.pipeline.schema import from_bytes
from clew.run import Log, run, verify
from clew.runtime.bodies import load
from clew.runtime.codec import decode
from clew.store.base import KeptStore
from tests.lineage.pipelines import EVENTS, diamond
from tests.model.runs import explained

SOURCE = Port("numbers", "out")
PORTS = [Port(operator, "out") for operator in ("some", "chance", "joined", "threes")]
CRASHES = [
    (),
    ("after-commit@some#3", "inside-commit@chance#4", "after-generate@joined#2"),
    (
        "after-source-commit@numbers#2", "after-wake@chance#2", "after-recovered-input@joined",
        "before-write@threes_sink",
    ),
]  # fmt: skip


def made_of(store: KeptStore, port: Port) -> dict[EventId, set[EventId]]:
    """Return what each event of a port comes from, as its records tell it."""
    schema = store.schema(port)
    assert schema is not None
    told: dict[EventId, set[EventId]] = {}
    for run_ in store.events(port, 1, 10_000):
        bodies = load(None, run_.bodies)
        for number, header in enumerate(run_.headers, run_.first):
            if not header.end:
                lists = decode(next(bodies), from_bytes(schema))["made_of"].to_pylist()
                told[EventId(port, number)] = {EventId(SOURCE, one) for some in lists for one in some}
    return told


@pytest.mark.parametrize("crashes", CRASHES, ids=["none", "middle", "all over"])
@pytest.mark.usefixtures("unarmed")
def test_lineage_is_what_the_records_tell_backward_and_forward(
    log_url: str, crashes: tuple[str, ...], tmp_path: Path
) -> None:
    faults = arm(*(f"{crash}:raise" for crash in crashes))
    pipeline = diamond(tmp_path)
    run(pipeline, log=log_url, engine="inline")
    assert all(fault.fired for fault in faults)
    arm()
    store = Log.at(log_url, "diamond").open("diamond")
    try:
        for port in PORTS:
            told = made_of(store, port)
            assert told
            for event, origins in told.items():
                assert set(backward(store, event).events(SOURCE)) == origins, event
                assert set(backward(store, event, to=SOURCE).events(SOURCE)) == origins, event
            for number in range(1, EVENTS + 1):
                source = EventId(SOURCE, number)
                expected = {event for event, origins in told.items() if source in origins}
                assert set(forward(store, source).events(port)) == expected, (source, port)
                assert set(forward(store, source, to=port).events(port)) == expected, (source, port)
        _check_reads(store)
        _check_writes(store)
    finally:
        store.close()
    # The judge follows the lineage of all of them, chance's too.
    assert explained(verify(pipeline, log=log_url, engine="inline"))


def _check_reads(store: KeptStore) -> None:
    """Each read action is in the lineage of the events that it served, and says what was asked."""
    for event, origins in made_of(store, Port("chance", "out")).items():
        (step,) = [step for step in backward(store, event).steps if step.operator == "chance"]
        (read,) = step.reads
        assert read.description == f"price of {sorted(origin.number for origin in origins)}"


def _check_writes(store: KeptStore) -> None:
    """What was written leads back to the events that were written, and they lead there."""
    writes = Port("threes_sink", "writes:out")
    _, last = store.extent(writes)
    met: list[EventId] = []
    for number in range(1, last + 1):
        met += backward(store, EventId(writes, number), to=Port("threes", "out")).events(Port("threes", "out"))
    assert sorted(met) == sorted(made_of(store, Port("threes", "out")))
    assert [forward(store, event).events(writes)[0].port for event in met] == [writes] * len(met)


def whole(trace: Any) -> set[tuple[Any, ...]]:
    """Return a trace as the pairs of events in it."""
    return {(before, after) for step in trace.steps for before in step.inputs for after in step.outputs}


def test_all_paths_of_a_trace_are_those_of_its_steps(tmp_path: Path) -> None:
    """Forward from an event and backward from what it meets give the same pairs between the two."""
    log_url = f"sqlite:///{tmp_path / 'log.db'}"
    run(diamond(tmp_path), log=log_url, engine="inline")
    store = Log.at(log_url, "diamond").open("diamond")
    source, target = EventId(SOURCE, 7), Port("threes", "out")
    ahead = forward(store, source, to=target)
    for event in ahead.events(target):
        back = backward(store, event, to=SOURCE)
        assert source in back.events(SOURCE)
    assert {pair for pair in whole(ahead) if pair[0] == source} <= {
        pair for event in ahead.events(target) for pair in whole(backward(store, event))
    } | {pair for pair in whole(forward(store, source)) if pair[0] == source}
    store.close()
