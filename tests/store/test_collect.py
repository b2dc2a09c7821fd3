"""What a collection forgets, and what it must not (C2, B1), alike in every backend."""

import pytest

from clew.errors import UnexpectedRow
from clew.ids import InputSetId, Port
from clew.protocol.rows import Bodies, Own
from clew.protocol.step import AddReadAction, FixSchema, LogReadEvent, LogStateEvent, StoreState
from clew.store.base import Collected, KeptStore, Store
from tests.store.conftest import Place
from tests.store.logs import (
    COUNTER_IN,
    COUNTER_OUT,
    MAPPER_IN,
    MAPPER_OUT,
    READER_OUT,
    SINK_IN,
    SINK_TABLE,
    Pen,
    ack,
    each_event,
    events,
    finish,
    in_file,
    lineage,
    listed,
    opened,
    writes,
    written,
)


def numbers(store: Store, operator: str = "reader") -> list[int]:
    return sorted({row[0] for row in store.table("EVENT_LOG") if row[2] == operator})


def pass_through(pen: Pen, first: int, count: int) -> None:
    """Both receivers of the reader take events and are done with them."""
    pen("mapper", ack(MAPPER_IN, first, count, Own(InputSetId(first))), finish("mapper", first, count))
    pen("counter", ack(COUNTER_IN, first, count, Own(InputSetId(first))), finish("counter", first, count))


def test_an_event_stays_until_every_receiver_is_done_with_it(store: Store, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 6))
    pen("mapper", ack(MAPPER_IN, 1, 5, Own(InputSetId(1))), finish("mapper", 1, 3), finish("mapper", 5))
    assert store.collect() == Collected(0, ())
    pen("counter", ack(COUNTER_IN, 1, 2, listed(1)), finish("counter", 1))
    assert store.collect() == Collected(2, ())
    assert numbers(store) == [3, 4, 5, 6]
    pen("counter", ack(COUNTER_IN, 3, 4, listed()))
    assert store.collect() == Collected(1, ())
    assert numbers(store) == [4, 5, 6]
    assert [number for _, number, _, _ in each_event(store.events(READER_OUT, 4, 3))] == [4, 5, 6]


def test_an_event_stays_until_all_its_input_sets_are_done(store: Store, pen: Pen) -> None:
    pen("mapper", events(MAPPER_OUT, 1, 3))
    pen("sink", ack(SINK_IN, 1, 1, listed(1)), ack(SINK_IN, 2, 2, listed(1, 2)), finish("sink", 1))
    assert store.collect().events == 1
    pen("sink", finish("sink", 2))
    assert store.collect().events == 2


def test_an_event_that_an_undone_write_names_stays(store: Store, pen: Pen) -> None:
    pen("mapper", events(MAPPER_OUT, 1, 4))
    pen("sink", ack(SINK_IN, 1, 4, listed(1)), finish("sink", 1), writes(1, ((MAPPER_OUT, 3, 1),)))
    assert store.collect().events == 2
    assert numbers(store, "mapper") == [3, 4]
    pen("sink", written(1))
    assert store.collect().events == 2
    assert store.table("EVENT_LOG") == []


def test_the_last_events_stay_for_grace(store: Store, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 5))
    pass_through(pen, 1, 5)
    assert store.collect(grace=2).events == 3
    assert store.collect(grace=7).events == 0
    assert numbers(store) == [4, 5]


def test_a_port_without_a_receiver_is_collected_at_once(store: Store, pen: Pen) -> None:
    pen("counter", events(COUNTER_OUT, 1, 3))
    assert store.collect(grace=1).events == 2


def test_entries_bodies_and_lineage_go_together(store: Store, pen: Pen) -> None:
    pen("mapper", events(MAPPER_OUT, 1, 4), lineage(MAPPER_OUT, 1, 1, (0, 1), (2, 2)))
    pen("sink", ack(SINK_IN, 1, 3, listed(1)), finish("sink", 1))
    store.collect()
    assert numbers(store, "mapper") == [4]
    assert [row[0] for row in store.table("EVENT_DATA")] == [4]
    assert store.table("EVENT_LINEAGE") == [(4, "mapper", "out", 3)]


def test_what_belongs_to_a_finished_input_set_goes_with_its_last_event(store: Store, pen: Pen) -> None:
    effect = Bodies((1,), (1,), None, "effect", 0)
    pen("mapper", events(MAPPER_OUT, 1, 3))
    pen(
        "sink",
        ack(SINK_IN, 1, 3, Own(InputSetId(1))),
        opened("sink", (2, ("main", None)), (3, ("main", None))),
        LogStateEvent("sink", 1, InputSetId(1), {}),
        LogStateEvent("sink", 3, InputSetId(3), {}),
        LogReadEvent("sink", "prices", 1, effect, InputSetId(3)),
    )
    pen("sink", finish("sink", 1), finish("sink", 3))
    assert store.collect() == Collected(1, ())
    assert [row[0] for row in store.table("STATE")] == [3]
    assert store.open_sets("sink") == {2: ("main", None)}
    pen("sink", finish("sink", 2))
    assert store.collect() == Collected(2, ("effect",))
    assert store.table("STATE") == []
    assert store.read_event("sink", "prices", 1) is None


def test_a_file_is_given_up_with_the_last_row_that_refers_to_it(store: Store, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 4, (in_file(1, 2, "a"), in_file(3, 2, "b"))))
    pen("reader", events(READER_OUT, 5, 1, (in_file(5, 1, "a", 99),)))
    pass_through(pen, 1, 3)
    assert store.collect() == Collected(3, ())
    assert store.referenced_files() == {"a", "b"}
    pass_through(pen, 4, 1)
    assert store.collect() == Collected(1, ("b",))
    pass_through(pen, 5, 1)
    assert store.collect() == Collected(1, ("a",))
    assert store.referenced_files() == set()


def test_what_is_collected_stays_so_when_a_later_collection_keeps_more(store: KeptStore, pen: Pen) -> None:
    made = Port("sink", "writes:table")
    pen("sink", writes(1, (), (), ()), written(1, 3))
    store.collect()
    store.collect(keep={made: 2})
    assert store.extent(made) == (3, 3)


def test_c2_counters_outlive_rows(store: Store, pen: Pen) -> None:
    fill_and_empty(store, pen)
    assert_counters_stand(pen)


def test_c2_counters_outlive_rows_and_the_process(place: Place) -> None:
    store = place.declared()
    fill_and_empty(store, Pen(store))
    store.close()
    assert_counters_stand(Pen(place.declared()))


def fill_and_empty(store: Store, pen: Pen) -> None:
    pen(
        "reader",
        AddReadAction("reader", "files", 2, ""),
        FixSchema(READER_OUT, b"schema"),
        events(READER_OUT, 1, 5),
        StoreState("reader", 3, {"offset": 5}, {}),
    )
    pass_through(pen, 1, 5)
    pen("sink", writes(1, (), (), ()), written(1, 3))
    store.collect()
    assert store.table("EVENT_LOG") == []
    assert store.table("EVENT_DATA") == []
    assert store.undone_writes(SINK_TABLE, 9) == []


def assert_counters_stand(pen: Pen) -> None:
    """Nothing starts again at 1, and nothing that was done can be done again."""
    refused = [
        ("reader", events(READER_OUT, 1, 1)),
        ("reader", FixSchema(READER_OUT, b"other")),
        ("reader", StoreState("reader", 3, {}, {})),
        ("reader", AddReadAction("reader", "files", 2, "")),
        ("mapper", finish("mapper", 5)),
        ("sink", writes(1, ())),
        ("sink", written(3)),
    ]
    for operator, write in refused:
        with pytest.raises(UnexpectedRow):
            pen(operator, write)
    state = pen.store.state("reader")
    assert state is not None
    assert state.context == {"offset": 5}
    pen("reader", events(READER_OUT, 6, 2), StoreState("reader", 4, {}, {}))
    with pytest.raises(UnexpectedRow):
        pen("mapper", ack(MAPPER_IN, 1, 1, listed(6)))
    assert pen.store.backlog(MAPPER_IN).events == 2
    pen("mapper", ack(MAPPER_IN, 6, 1, listed(6)), finish("mapper", 6))
    pen("sink", writes(4, ()), written(4))
    assert [event[1] for event in each_event(pen.store.unacknowledged(MAPPER_IN, 6, 9, 999))] == [7]
