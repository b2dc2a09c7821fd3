"""What a commit does, and what it refuses (S1, F1, C1), alike in every backend."""

import pytest

from clew.errors import StaleWriter, UnexpectedRow, WrongLog
from clew.ids import InputSetId, Port
from clew.protocol.rows import DROPPED, AsideRow, Bodies, Every, Own, ReadActionRow, ReadEventRow, StateRow, WriteRow
from clew.protocol.step import (
    AddReadAction,
    CompleteReadAction,
    DropReadEvent,
    FinishReadEvent,
    FixSchema,
    LogReadEvent,
    LogStateEvent,
    Rejoin,
    ResolveAside,
    SetAside,
    SetOperator,
    StoreState,
    Write,
)
from clew.store.base import KeptStore, Store, Topology
from tests.store.logs import (
    COUNTER_IN,
    MAPPER_IN,
    MAPPER_OUT,
    OPERATORS,
    READER_OUT,
    SINK_TABLE,
    TOPOLOGY,
    Pen,
    ack,
    each_event,
    each_member,
    events,
    finish,
    in_file,
    inline,
    lineage,
    listed,
    opened,
    run,
    tables,
    writes,
    written,
)

EFFECT = Bodies((3,), (9,), b"abc")


def test_operators_that_never_ran_are_dead(store: Store) -> None:
    assert [(row.operator, row.status, row.incarnation) for row in store.operators()] == [
        (operator, "dead", 0) for operator in OPERATORS
    ]


def test_taking_over_counts_incarnations_and_restarts_the_operator(store: Store) -> None:
    assert [store.take_over("mapper"), store.take_over("mapper")] == [1, 2]
    row = next(row for row in store.operators() if row.operator == "mapper")
    assert (row.status, row.incarnation) == ("restarted", 2)


def test_an_operator_says_that_it_runs(store: Store, pen: Pen) -> None:
    pen("mapper", SetOperator("mapper", "running"))
    assert {row.operator: row.status for row in store.operators()}["mapper"] == "running"


def test_f1_a_stale_writer_is_refused_and_changes_nothing(store: Store, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 2))
    store.take_over("reader")
    before = tables(store)
    with pytest.raises(StaleWriter) as refused:
        pen("reader", events(READER_OUT, 3, 1))
    assert (refused.value.incarnation, refused.value.current) == (1, 2)
    assert tables(store) == before


def test_f1_taking_over_one_operator_leaves_the_others_alone(store: Store, pen: Pen) -> None:
    store.take_over("mapper")
    pen("reader", events(READER_OUT, 1, 2))
    assert len(store.table("EVENT_LOG")) == 4


def test_s1_a_commit_with_one_refused_write_changes_nothing(store: Store, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 3))
    before = tables(store)
    with pytest.raises(UnexpectedRow):
        pen(
            "mapper",
            ack(MAPPER_IN, 1, 2, Own(InputSetId(1))),
            finish("mapper", 1, 2),
            StoreState("mapper", 1, {}, {}),
            events(MAPPER_OUT, 1, 2),
            FixSchema(MAPPER_OUT, b"schema"),
            events(MAPPER_OUT, 4, 2),
        )
    assert tables(store) == before
    assert store.state("mapper") is None
    assert store.schema(MAPPER_OUT) is None
    # The counters went back as well: the same numbers are still the next ones.
    pen("mapper", ack(MAPPER_IN, 1, 2, Own(InputSetId(1))), finish("mapper", 1, 2), events(MAPPER_OUT, 1, 2))


@pytest.mark.parametrize("first", [1, 2, 4, 9])
def test_c1_events_that_do_not_follow_the_last_are_refused(store: Store, pen: Pen, first: int) -> None:
    pen("reader", events(READER_OUT, 1, 2))
    with pytest.raises(UnexpectedRow):
        pen("reader", events(READER_OUT, first, 2))


@pytest.mark.parametrize(("first", "count"), [(1, 1), (2, 2), (4, 1), (3, 9)])
def test_c1_acknowledgements_that_do_not_follow_or_run_ahead_are_refused(
    store: Store, pen: Pen, first: int, count: int
) -> None:
    pen("reader", events(READER_OUT, 1, 4))
    pen("mapper", ack(MAPPER_IN, 1, 2, listed(1)))
    with pytest.raises(UnexpectedRow):
        pen("mapper", ack(MAPPER_IN, first, count, listed(1)))


def test_a_schema_is_fixed_once(store: Store, pen: Pen) -> None:
    assert store.schema(READER_OUT) is None
    pen("reader", FixSchema(READER_OUT, b"\x00one"))
    pen("reader", FixSchema(READER_OUT, b"\x00one"))
    with pytest.raises(UnexpectedRow):
        pen("reader", FixSchema(READER_OUT, b"two"))
    assert store.schema(READER_OUT) == b"\x00one"


def test_a_state_id_grows(store: Store, pen: Pen) -> None:
    pen("mapper", StoreState("mapper", 4, {"b": 1, "a": [None, "ü"]}, {"x": {"2": 3}}))
    for stale in (4, 3):
        with pytest.raises(UnexpectedRow):
            pen("mapper", StoreState("mapper", stale, {}, {}))
    assert store.state("mapper") == StateRow(4, {"b": 1, "a": [None, "ü"]}, {"x": {"2": 3}})
    pen("mapper", StoreState("mapper", 9, {}, {}))
    assert store.table("STATE") == [(9, "mapper", '{"context":{},"state":{}}')]


def test_an_input_set_is_finished_once(store: Store, pen: Pen) -> None:
    pen("mapper", finish("mapper", 3, 2))
    pen("mapper", finish("mapper", 1, 1))
    for first, count in [(3, 1), (4, 1), (1, 1), (2, 2), (4, 5), (1, 9)]:
        with pytest.raises(UnexpectedRow):
            pen("mapper", finish("mapper", first, count))
    pen("mapper", finish("mapper", 2), finish("mapper", 5))


def test_no_event_joins_an_input_set_that_is_done(store: Store, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 3))
    pen("mapper", finish("mapper", 2))
    for assignment in (listed(1, 2), Own(InputSetId(1)), Every(InputSetId(1), 2)):
        with pytest.raises(UnexpectedRow):
            pen("mapper", ack(MAPPER_IN, 1, 3, assignment))


def test_an_entry_is_done_when_its_input_set_is(store: Store, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 5))
    pen("mapper", ack(MAPPER_IN, 1, 2, Own(InputSetId(1))), ack(MAPPER_IN, 3, 2, listed(2, 7)), finish("mapper", 2))
    pen("counter", ack(COUNTER_IN, 1, 1, listed()), ack(COUNTER_IN, 2, 3, Every(InputSetId(4), 2, 1)))
    entries = {(row[0], row[4], row[6]): row[1] for row in store.table("EVENT_LOG")}
    assert entries == {
        (1, "mapper", 1): "undone",
        (2, "mapper", 2): "done",
        (3, "mapper", 2): "done",
        (3, "mapper", 7): "undone",
        (4, "mapper", 2): "done",
        (4, "mapper", 7): "undone",
        (5, "mapper", None): "undone",
        (1, "counter", 0): "done",
        (2, "counter", 4): "undone",
        (3, "counter", 5): "undone",
        (4, "counter", 5): "undone",
        (5, "counter", None): "undone",
    }


def test_members_are_what_is_acknowledged_and_undone_in_the_order_taken(store: Store, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 6))
    pen("mapper", ack(MAPPER_IN, 1, 4, Every(InputSetId(1), 3, 1), seq=11), ack(MAPPER_IN, 5, 1, listed(), seq=15))
    pen("mapper", ack(MAPPER_IN, 6, 1, listed(2, 3), seq=16), finish("mapper", 1))
    assert each_member(store, "mapper") == [
        (13, MAPPER_IN, 3, 2),
        (14, MAPPER_IN, 4, 2),
        (16, MAPPER_IN, 6, 2),
        (16, MAPPER_IN, 6, 3),
    ]
    order = [(member.seq, member.input_set) for member in store.members("mapper")]
    assert order == sorted(order)
    assert store.members("counter") == []


def test_an_event_is_passed_over_once_it_is_acknowledged_and_until_it_joins_an_input_set(
    store: KeptStore, pen: Pen
) -> None:
    pen("reader", events(READER_OUT, 1, 6))
    # The first one is not done: what is said of the others does not wait for it.
    pen("mapper", ack(MAPPER_IN, 1, 1, listed(1)), ack(MAPPER_IN, 2, 3, listed()), ack(MAPPER_IN, 5, 1, listed(1, 2)))
    assert store.passed_over(MAPPER_IN, 1, 9) == [2, 3, 4]
    assert store.passed_over(MAPPER_IN, 3, 1) == [3]
    assert store.passed_over(COUNTER_IN, 1, 9) == []
    pen("mapper", Rejoin(MAPPER_IN, 3, 1, 3, InputSetId(2)), finish("mapper", 1, 2))
    assert store.passed_over(MAPPER_IN, 1, 9) == [2, 4]
    pen("counter", ack(COUNTER_IN, 1, 6, listed()))
    store.collect(keep={READER_OUT: 4})
    assert store.passed_over(MAPPER_IN, 1, 9) == [4]


def test_labels_are_kept_while_an_input_set_is_open(store: Store, pen: Pen) -> None:
    pen("mapper", opened("mapper", (1, ("main", None)), (2, ("late", ["k", 1.5]))))
    pen("mapper", opened("mapper", (3, ("main", {"window": 7}))), finish("mapper", 2))
    assert store.open_sets("mapper") == {1: ("main", None), 3: ("main", {"window": 7})}


def test_an_input_set_that_was_dropped_can_be_told_from_one_that_made_nothing(store: KeptStore, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 2))
    pen("mapper", ack(MAPPER_IN, 1, 2, Own(InputSetId(1))), opened("mapper", (1, ("main", 1)), (2, ("main", 2))))
    pen("mapper", opened("mapper", (2, DROPPED)), finish("mapper", 1, 2))
    assert [store.label("mapper", InputSetId(number)) for number in (1, 2)] == [("main", 1), DROPPED]
    assert store.open_sets("mapper") == {}


def test_labels_come_back_so_that_input_sets_can_be_looked_up_by_them(store: Store, pen: Pen) -> None:
    """A window of some keys is labelled by its start and its group; in JSON that is a list."""
    pen("mapper", opened("mapper", (1, ("main", (0, (8, "k"))))))
    assert {label: number for number, label in store.open_sets("mapper").items()} == {("main", (0, (8, "k"))): 1}


def test_events_come_back_as_they_were_sent(store: Store, pen: Pen) -> None:
    first = run(READER_OUT, 1, 4, (inline(1, 2), in_file(3, 2, "a.arrows", 100)))
    last = run(READER_OUT, 5, 3, end=True)
    pen("reader", events(READER_OUT, 1, 4, first.bodies), events(READER_OUT, 5, 3, end=True))
    expected = each_event([first, last])
    assert each_event(store.unacknowledged(MAPPER_IN, 0, 99, 9999)) == expected
    assert each_event(store.events(READER_OUT, 2, 5)) == expected[1:6]
    assert store.unacknowledged(MAPPER_IN, 7, 99, 9999) == []


def test_events_without_bodies_are_told_by_their_headers(store: Store, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 2, ()))
    assert [bodies for _, _, _, bodies in each_event(store.events(READER_OUT, 1, 2))] == [(), ()]
    assert [row[4] for row in store.table("EVENT_DATA")] == [None, None]


@pytest.mark.parametrize(
    ("after", "max_events", "max_bytes", "numbers"),
    [
        (0, 99, 9999, [1, 2, 3, 4, 5]),
        (0, 3, 9999, [1, 2, 3]),
        (1, 3, 9999, [2, 3, 4]),
        (0, 99, 27, [1, 2, 3]),
        (0, 99, 26, [1, 2]),
        (2, 99, 1, [3]),
        (4, 99, 0, [5]),
    ],
)
def test_a_receiver_takes_as_much_as_it_asks_for(
    store: Store, pen: Pen, after: int, max_events: int, max_bytes: int, numbers: list[int]
) -> None:
    pen("reader", events(READER_OUT, 1, 2))
    pen("reader", events(READER_OUT, 3, 3))
    taken = each_event(store.unacknowledged(MAPPER_IN, after, max_events, max_bytes))
    assert [number for _, number, _, _ in taken] == numbers


def test_the_backlog_is_what_is_not_acknowledged(store: Store, pen: Pen) -> None:
    assert store.backlog(MAPPER_IN).events == 0
    pen("reader", events(READER_OUT, 1, 3))
    pen("reader", events(READER_OUT, 4, 2, (in_file(4, 2, "a"),)))
    pen("mapper", ack(MAPPER_IN, 1, 2, listed(1)))
    found = store.backlog(MAPPER_IN)
    assert (found.events, found.bytes) == (3, len(b"body of 3") + 10 + 11)
    assert store.backlog(COUNTER_IN).events == 5


def test_a_port_without_a_receiver_logs_its_events_as_done(store: Store, pen: Pen) -> None:
    other = Port("counter", "out")
    pen("counter", events(other, 1, 2))
    assert store.table("EVENT_LOG") == [
        (1, "done", "counter", "out", None, None, None),
        (2, "done", "counter", "out", None, None, None),
    ]


def test_lineage_is_told_event_by_event(store: Store, pen: Pen) -> None:
    pen("mapper", events(MAPPER_OUT, 1, 5), lineage(MAPPER_OUT, 1, 10, (2, 2), (0, 3), (1, 1)))
    pen("mapper", lineage(MAPPER_OUT, 6, 16, (0, 2)), events(MAPPER_OUT, 6, 1), lineage(MAPPER_OUT, 6, 18, (1, 1)))
    assert [(row[0], row[3]) for row in store.table("EVENT_LINEAGE")] == [
        (1, 10), (2, 10), (3, 11), (4, 11), (5, 15), (6, 18),
    ]  # fmt: skip


def test_a_read_action_is_added_then_completed_once(store: Store, pen: Pen) -> None:
    assert store.last_read_action("reader") is None
    pen("reader", AddReadAction("reader", "files", 3, "read a.csv"))
    assert store.last_read_action("reader") == ReadActionRow(3, "files", "read a.csv", False)
    pen("reader", CompleteReadAction("reader", "files", 3))
    assert store.table("READ_ACTION") == [(3, "complete", "reader", "files", "read a.csv")]
    refused: list[Write] = [
        CompleteReadAction("reader", "files", 3),
        CompleteReadAction("reader", "files", 4),
        AddReadAction("reader", "files", 3, "again"),
    ]
    for write in refused:
        with pytest.raises(UnexpectedRow):
            pen("reader", write)


def test_a_read_event_keeps_its_effect_until_it_is_dropped(store: Store, pen: Pen) -> None:
    pen("reader", AddReadAction("reader", "files", 1, ""), LogReadEvent("reader", "files", 1, EFFECT))
    assert store.read_event("reader", "files", 1) == ReadEventRow(1, "files", "undone", EFFECT)
    pen("reader", FinishReadEvent("reader", "files", 1))
    with pytest.raises(UnexpectedRow):
        pen("reader", FinishReadEvent("reader", "files", 1))
    with pytest.raises(UnexpectedRow):
        pen("reader", FinishReadEvent("reader", "files", 2))
    pen("reader", DropReadEvent("reader", "files", 1), DropReadEvent("reader", "files", 7))
    assert store.read_event("reader", "files", 1) == ReadEventRow(1, "files", "done", None)
    assert store.table("EVENT_DATA") == []


def test_a_side_effect_read_is_done_in_its_input_set(store: Store, pen: Pen) -> None:
    pen("mapper", LogReadEvent("mapper", "prices", 1, in_file(1, 1, "effect"), InputSetId(5)))
    assert store.table("EVENT_LOG") == [(1, "done", "mapper", "prices", None, None, 5)]
    assert store.table("EVENT_DATA") == [(1, "mapper", "prices", None, "file:effect@0+10")]
    assert store.referenced_files() == {"effect"}


def test_a_state_event_is_done_with_its_input_set(store: Store, pen: Pen) -> None:
    pen("mapper", LogStateEvent("mapper", 8, InputSetId(2), {"sum": 4}))
    assert store.table("EVENT_LOG") == [(8, "undone", "mapper", None, None, None, 2)]
    assert store.table("STATE") == [(8, "mapper", '{"sum":4}')]
    pen("mapper", finish("mapper", 2))
    assert store.table("EVENT_LOG") == [(8, "done", "mapper", None, None, None, 2)]


def test_write_actions_are_numbered_and_done_once(store: Store, pen: Pen) -> None:
    named = ((MAPPER_OUT, 1, 3),)
    pen("sink", writes(1, named, named), writes(3, (), bodies=(inline(1, 1), in_file(2, 1, "w"))))
    assert store.undone_writes(SINK_TABLE, 9) == [
        WriteRow(1, named),
        WriteRow(2, named),
        WriteRow(3, (), (inline(1, 1), in_file(2, 1, "w"))),
    ]
    pen("sink", written(2))
    assert [row.number for row in store.undone_writes(SINK_TABLE, 9)] == [1, 3]
    assert [row.number for row in store.undone_writes(SINK_TABLE, 1)] == [1]
    for write in (written(2), written(1, 2), written(4), writes(3, ()), writes(5, ())):
        with pytest.raises(UnexpectedRow):
            pen("sink", write)
    pen("sink", written(1), written(3))
    assert store.undone_writes(SINK_TABLE, 9) == []
    assert {row[1] for row in store.table("EVENT_LOG")} == {"done"}


def test_what_was_set_aside_is_found_by_its_input_set_and_by_the_one_that_tries_it_again(
    store: KeptStore, pen: Pen
) -> None:
    def aside(number: int, input_set: int, records: tuple[int, ...] | None) -> AsideRow:
        return AsideRow(number, InputSetId(input_set), ("f", None), None, (("in", 1, 1, 1),), records, {"kind": "E"})

    rows = (aside(1, 7, (0,)), aside(2, 5, None), aside(3, 7, (2,)), aside(4, 8, None))
    pen("mapper", events(MAPPER_OUT, 1, 1), SetAside("mapper", rows))
    pen("counter", SetAside("counter", (aside(1, 7, None),)))
    pen("mapper", ResolveAside("mapper", 2, 9), ResolveAside("mapper", 3, None))

    def found(first: int, count: int) -> list[tuple[int, int, str]]:
        return [(one.number, one.input_set, one.status) for one in store.asides_of("mapper", InputSetId(first), count)]

    assert found(7, 1) == [(1, 7, "held"), (3, 7, "dropped")]
    assert found(5, 3) == [(1, 7, "held"), (2, 5, "retried"), (3, 7, "dropped")]
    assert found(9, 5) == found(6, 1) == []
    again = store.retried_as("mapper", InputSetId(9))
    assert again == store.asides("mapper")[1]
    assert store.retried_as("mapper", InputSetId(7)) is None
    assert store.retried_as("counter", InputSetId(9)) is None


def test_a_log_of_another_pipeline_is_refused(store: Store) -> None:
    with pytest.raises(WrongLog, match="shop"):
        store.declare(Topology("bank", "f1", (), ()))


def test_a_pipeline_may_declare_itself_again(store: Store, pen: Pen) -> None:
    pen("reader", events(READER_OUT, 1, 2))
    store.declare(TOPOLOGY)
    pen("mapper", ack(MAPPER_IN, 1, 2, listed(1)))
    assert [row.incarnation for row in store.operators()] == [1, 1, 1, 1]


def test_f1_an_operator_writes_no_rows_of_another(store: Store, pen: Pen) -> None:
    with pytest.raises(UnexpectedRow):
        pen("mapper", events(READER_OUT, 1, 1))
