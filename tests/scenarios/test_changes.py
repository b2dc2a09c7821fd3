"""Scenario 18: the pipeline's code changed between two runs."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Context, Count, Each, InputSet, Operator, Pipeline, Tumbling, files, generator
from clew.errors import GraphChanged, RunFinished, SetupFailed, UserFunctionFailed
from clew.faultpoint import arm
from clew.ids import Port
from clew.protocol.step import StoreVersion
from clew.run import changes, gc, topology
from tests.scenarios.shop import EVENTS, MADE, TURNS, Shop, numbers, sums


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return Shop(tmp_path, None if request.param == "sqlite" else request.getfixturevalue("postgres_url"))


@pytest.fixture
def embedded(tmp_path: Path) -> Shop:
    """Where the backend makes no difference."""
    return Shop(tmp_path, None)


def found(shop: Shop, pipeline: Pipeline) -> list[str]:
    """Return what `clew check --log` would say of a change."""
    told = changes(pipeline.graph(), shop.log, shop.bodies)
    assert told is not None
    return [finding.offer for finding in told]


def refused(shop: Shop, pipeline: Pipeline, **rest: Any) -> list[str]:
    """Run a changed pipeline, which is refused and touches nothing; return the facts."""
    before = shop.logged(pipeline.name)
    with pytest.raises(GraphChanged) as error:
        shop.run(pipeline, **rest)
    assert shop.logged(pipeline.name) == before
    text = str(error.value).splitlines()
    # One fact per line, between what it is about and what to do.
    assert [line.strip() for line in text[1:-1]] == list(error.value.changes)
    assert text[-1] == (
        "put it back as it was to go on, accept what can be accepted, or start from the beginning with --fresh"
    )
    return list(error.value.changes)


def test_scenario_18_when_the_run_is_cut_off_events_do_wait(embedded: Shop) -> None:
    """What the cases below would be worth if nothing waited."""
    embedded.cut_off()
    assert embedded.waiting("sums.in") == [6, 7]
    assert embedded.rows("numbers") == numbers(0, MADE)
    assert embedded.rows("sums") == sums(0, 5, stop=5)


# What is compatible goes on, and is told.


def test_scenario_18_a_function_with_a_new_body_makes_what_is_not_yet_logged(shop: Shop) -> None:
    shop.cut_off()
    changed = shop.pipeline(version=2)
    assert found(shop, changed) == [
        "doubled: its code changed; what it made stays as it is, and the new code makes what is not made yet"
    ]
    shop.run(changed)
    # What the first run logged stays as it was made, and all after it is the new function's.
    assert shop.rows("numbers") == numbers(0, MADE) + numbers(MADE, version=2)
    assert shop.rows("sums") == sums(0, 5)


def test_scenario_18_a_change_is_told_once(embedded: Shop, caplog: pytest.LogCaptureFixture) -> None:
    embedded.cut_off()
    embedded.cut_off(version=2)
    told = [record.__dict__["what"] for record in caplog.records if record.msg == "pipeline changed"]
    assert [text.split(";")[0] for text in told] == ["doubled: its code changed"]
    caplog.clear()
    embedded.cut_off(version=2)
    assert not [record for record in caplog.records if record.msg == "pipeline changed"]


def test_scenario_18_a_new_sink_gets_what_comes_from_now_on(shop: Shop) -> None:
    shop.cut_off()
    gc(shop.pipeline().graph(), shop.log, shop.bodies)
    changed = shop.pipeline(extra=True)
    assert [text for text in found(shop, changed) if "code" not in text] == [
        f"extra_sink: is a new sink, and writes doubled.out from #{MADE + 1} on"
    ]
    shop.run(changed)
    assert shop.rows("extra") == numbers(MADE)
    assert shop.rows("numbers") == numbers()
    assert shop.rows("sums") == sums(0, 5)


def test_scenario_18_a_new_sink_on_a_port_that_has_ended_gets_its_end(shop: Shop) -> None:
    shop.crash(shop.pipeline(), "before-write@sums_sink#3")
    assert shop.look(lambda store: store.events(Port("doubled", "out"), EVENTS + 1, 1)[0].headers[0].end)
    shop.run(shop.pipeline(extra=True))
    assert shop.look(lambda store: {row.operator: row.status for row in store.operators()})["extra_sink"] == "finished"
    assert shop.rows("numbers") == numbers()
    assert shop.rows("sums") == sums(0, 5)


def test_scenario_18_a_window_without_open_input_sets_may_change(embedded: Shop) -> None:
    embedded.cut_off(window=Each())
    assert embedded.waiting("sums.in") == []
    changed = embedded.pipeline(window=Count(2))
    told = 'sums: its window changed from {"total": "Each()"} to {"total": "Count(size=2, by=None)"}; no Input '
    assert f"{told}Set is open, and the new one begins with the next event" in found(embedded, changed)
    embedded.run(changed)
    assert embedded.rows("sums") == sums(0, 1, stop=MADE) + sums(MADE, 2)


def test_scenario_18_an_operator_for_which_nothing_waits_may_go(embedded: Shop) -> None:
    embedded.cut_off(window=Each())
    changed = embedded.pipeline(sums=False)
    assert found(embedded, changed)[1:] == [
        "sums: is gone, and nothing waits for it",
        "sums_sink: is gone, and nothing waits for it",
    ]
    embedded.run(changed)
    assert embedded.rows("numbers") == numbers()
    assert embedded.rows("sums") == sums(0, 1, stop=MADE)


def test_scenario_18_a_sink_without_undone_writes_may_move(embedded: Shop) -> None:
    embedded.cut_off()
    changed = embedded.pipeline(table="moved")
    (told,) = [text for text in found(embedded, changed) if text.startswith("numbers_sink")]
    assert "table moved now; what was written to" in told
    assert told.endswith("table numbers stays there")
    embedded.run(changed)
    assert embedded.rows("numbers") == numbers(0, MADE)
    assert embedded.rows("moved") == numbers(MADE)


def test_scenario_18_a_log_that_does_not_say_what_operators_were_takes_them_as_they_are(embedded: Shop) -> None:
    """As logs of earlier versions are: connections are told from the log, and the rest is believed."""
    embedded.cut_off()
    names = ("orders", "doubled", "sums", "sums_sink", "numbers_sink")
    graph = embedded.pipeline().graph()
    with embedded.opened() as store:
        store.change(topology(graph), [StoreVersion(name, None) for name in names])
    assert refused(embedded, embedded.pipeline(sums=False))[0].startswith("sums: is gone, and 2 events wait on sums.in")
    embedded.run(embedded.pipeline(version=2))
    assert embedded.rows("numbers") == numbers(0, MADE) + numbers(MADE, version=2)


# What concerns events that wait is refused, and can be accepted.

WAITS = "doubled.out#6..7"
#: What changes; what is said of it, and what then becomes of the tables when it is accepted.
ACCEPTED: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "the window": (
        {"window": Count(3)},
        'sums: its window changed from {"total": "Count(size=5, by=None)"} to {"total": "Count(size=3, by=None)"}, and '
        f"1 Input Set with {WAITS} on in is open; --accept sums assigns these events anew under the new window",
        {"sums": sums(0, 5, stop=5) + sums(5, 3), "numbers": numbers()},
    ),
    "the window, to one that needs facts": (
        {"window": Tumbling(4, on="n")},
        f"1 Input Set with {WAITS} on in is open; --accept sums assigns these events anew under the new window",
        {"sums": sums(0, 5, stop=5) + Counter([(5, 3), (8, 4)]), "numbers": numbers()},
    ),
    "the window, to one under which something is complete at once": (
        {"window": Each()},
        f"1 Input Set with {WAITS} on in is open; --accept sums assigns these events anew under the new window",
        {"sums": sums(0, 5, stop=5) + sums(5, 1), "numbers": numbers()},
    ),
    "an operator is removed": (
        {"sums": False},
        f"sums: is gone, and 2 events wait on sums.in: {WAITS}; --accept sums drops all of these",
        {"sums": sums(0, 5, stop=5), "numbers": numbers()},
    ),
    "a connection is moved": (
        {"sums_read": "orders"},
        f"sums.in: reads orders.out from #9 on, and read doubled.out before, and 2 events wait there: {WAITS}; "
        "--accept sums drops them: nobody gets them on this port",
        {"sums": sums(0, 5, stop=5) + sums(8, 5), "numbers": numbers()},
    ),
    "an operator is renamed": (
        {"doubled": "twice"},
        f"sums.in: reads twice.out from #1 on, and read doubled.out before, and 2 events wait there: {WAITS}; "
        "--accept sums drops them: nobody gets them on this port",
        # The eighth order waited for doubled, and is gone with it.
        {"sums": sums(0, 5, stop=5) + sums(8, 5), "numbers": numbers(0, MADE) + numbers(8)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ACCEPTED)
def test_scenario_18_what_concerns_waiting_events_is_refused_and_done_as_it_says_when_accepted(
    shop: Shop, case: str
) -> None:
    how, fact, tables = ACCEPTED[case]
    shop.cut_off()
    changed = shop.pipeline(**how)
    assert any(text.endswith(fact) for text in refused(shop, changed)), refused(shop, changed)
    # What waits is not collected, whatever the graph is now.
    assert gc(changed.graph(), shop.log, shop.bodies).events
    assert shop.waiting("sums.in") == [6, 7]
    shop.run(changed, accept=["all"])
    assert {name: shop.rows(name) for name in tables} == tables
    with pytest.raises(RunFinished):
        shop.run(changed)


@pytest.mark.parametrize("case", ACCEPTED)
def test_scenario_18_what_is_put_back_goes_on_as_if_nothing_had_been(embedded: Shop, case: str) -> None:
    embedded.cut_off()
    refused(embedded, embedded.pipeline(**ACCEPTED[case][0]))
    embedded.run(embedded.pipeline())
    assert embedded.rows("numbers") == numbers()
    assert embedded.rows("sums") == sums(0, 5)


#: In the transaction of the change, in that of the turn that assigns events anew, and after either.
CRASHES = {
    "the window": ("inside-commit@sums#1", "inside-commit@sums#2", "after-recovered-input@sums", "after-commit@sums"),
    "the window, to one under which something is complete at once": ("after-generate@sums", "after-wake@sums"),
    "an operator is removed": ("inside-commit@sums", "after-take-over@doubled"),
    "a connection is moved": ("inside-commit@sums#1", "after-take-over@sums"),
    "an operator is renamed": ("inside-commit@sums#1", "inside-commit@doubled", "after-take-over@twice"),
}


def _crash(shop: Shop, case: str, point: str) -> None:
    how, _, tables = ACCEPTED[case]
    shop.cut_off()
    shop.crash(shop.pipeline(**how), point, accept=["all"])
    shop.run(shop.pipeline(**how), accept=["all"])
    assert {name: shop.rows(name) for name in tables} == tables


@pytest.mark.parametrize(("case", "point"), [(case, point) for case, points in CRASHES.items() for point in points])
def test_scenario_18_a_crash_while_a_change_is_taken_over_leaves_all_of_it_or_nothing(
    embedded: Shop, case: str, point: str
) -> None:
    _crash(embedded, case, point)


@pytest.mark.parametrize(("case", "point"), [("the window", "inside-commit@sums#2"),
                                             ("an operator is renamed", "inside-commit@sums#1")])  # fmt: skip
def test_scenario_18_so_it_does_on_a_server(tmp_path: Path, postgres_url: str, case: str, point: str) -> None:
    _crash(Shop(tmp_path, postgres_url), case, point)


def merged(shop: Shop, inputs: int, fails: bool = False) -> Pipeline:
    """Sums over several inputs, of which there may be more or fewer."""
    pipeline = Pipeline("merged")
    made = [lambda index, i=i: pa.table({"n": [100 * i + index]}) for i in range(inputs)]
    streams = [pipeline.source(f"orders{i}", generator(each, EVENTS), **TURNS) for i, each in enumerate(made)]

    def total(*tables: pa.Table) -> pa.Table:
        numbers = [n for table in tables if table.num_columns for n in table["n"].to_pylist()]
        if fails and 4 in numbers:
            raise ValueError("broken")
        return pa.table({"n": numbers})

    def two(a: pa.Table, b: pa.Table) -> pa.Table:
        return total(a, b)

    def three(a: pa.Table, b: pa.Table, c: pa.Table) -> pa.Table:
        return total(a, b, c)

    two.__name__ = three.__name__ = "total"
    function: Any = two if inputs == 2 else three
    summed = pipeline.operator(*streams, name="sums", window=Count(7), **TURNS)(function)
    pipeline.sink(summed, shop.table("merged"), **TURNS)
    return pipeline


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)], ids=["more", "fewer"])
def test_scenario_18_an_operator_of_several_inputs_may_get_more_or_fewer(
    embedded: Shop, before: int, after: int
) -> None:
    shop = embedded
    with pytest.raises(UserFunctionFailed, match="broken"):
        shop.run(merged(shop, before, fails=True))
    waiting = {port: shop.waiting(f"sums.{port}", "merged") for port in "abc"[:before]}
    assert all(waiting.values())
    written = shop.rows("merged")
    told = refused(shop, merged(shop, after))
    assert any("assigns these events anew under the new window" in text for text in told)
    assert any("drops them" in text for text in told) == (after < before)
    shop.run(merged(shop, after), accept=["sums"])
    # Of the input that is gone what was written before is there, and no more; of the new one all is.
    expected = Counter((100 * i + n,) for i in range(after) for n in range(EVENTS))
    assert shop.rows("merged") == expected + Counter(row for row in written if row[0] >= 100 * after)


def test_scenario_18_an_accepted_change_need_not_be_accepted_again(embedded: Shop) -> None:
    embedded.cut_off()
    embedded.cut_off(accept=["sums"], fails_at=9, window=Count(3))
    embedded.run(embedded.pipeline(window=Count(3)))
    assert embedded.rows("sums") == sums(0, 5, stop=5) + sums(5, 3)


def test_scenario_18_only_what_is_named_is_accepted(embedded: Shop) -> None:
    embedded.cut_off()
    changed = embedded.pipeline(doubled="twice")
    assert [text.partition(":")[0] for text in refused(embedded, changed, accept=["sums"])] == ["doubled"]
    with pytest.raises(SetupFailed, match="--accept total names no operator; there are all, doubled, numbers_sink"):
        embedded.run(changed, accept=["total"])


def test_scenario_18_a_group_that_is_restarted_does_not_assign_events_anew_again(embedded: Shop) -> None:
    """Its second incarnation finds in the log that this is done."""
    embedded.cut_off()
    (fault,) = arm("after-commit@sums#2:raise")
    try:
        embedded.run(embedded.pipeline(window=Count(3)), accept=["sums"])
    finally:
        arm()
    assert fault.fired
    assert embedded.rows("sums") == sums(0, 5, stop=5) + sums(5, 3)


def test_scenario_18_an_operator_that_comes_back_goes_on_with_its_numbers(shop: Shop) -> None:
    """Its sink would take writes that begin again at 1 for old ones, and skip them."""
    shop.cut_off()
    shop.cut_off(accept=["sums"], fails_at=9, sums=False)
    before = shop.look(lambda store: store.state("sums_sink").context["writes"]["out"])
    shop.run(shop.pipeline())
    assert shop.rows("sums") == sums(0, 5, stop=5) + sums(9, 5)
    assert shop.look(lambda store: store.state("sums_sink").context["writes"]["out"]) > before
    assert shop.rows("numbers") == numbers()


# Sinks.


def test_scenario_18_undone_writes_are_performed_at_the_new_place_when_that_is_accepted(shop: Shop) -> None:
    shop.crash(shop.pipeline(), "before-write@numbers_sink#3")
    undone = shop.look(lambda store: [row.number for row in store.undone_writes(Port("numbers_sink", "out"), 99)])
    assert undone == [3]
    written = shop.rows("numbers")
    changed = shop.pipeline(table="moved")
    (told,) = refused(shop, changed)
    assert "and 1 write (#3) is not known to be done there; --accept numbers_sink performs them at the new" in told
    shop.run(changed, accept=["numbers_sink"])
    assert shop.rows("numbers") == written
    assert shop.rows("moved") == numbers() - written
    assert written


def test_scenario_18_a_renamed_sink_is_one_that_is_gone_and_one_that_is_new(shop: Shop) -> None:
    shop.crash(shop.pipeline(), "before-write@numbers_sink#3")
    sent = shop.look(lambda store: store.state("doubled").context["sent"]["out"])
    written = shop.rows("numbers")
    (told,) = refused(shop, shop.pipeline(numbers="copies"))
    assert "1 write to numbers_sink.out is undone: #3" in told
    assert "a sink under a new name writes again what reaches it from then on" in told
    shop.run(shop.pipeline(numbers="copies"), accept=["numbers_sink"])
    assert shop.rows("numbers") == written + numbers(sent)


# What cannot be accepted.


@pytest.mark.parametrize("all_at_once", [False, True], ids=["while it is read", "when it has been read"])
def test_scenario_18_a_source_that_has_begun_cannot_read_elsewhere(embedded: Shop, all_at_once: bool) -> None:
    embedded.cut_off(all_at_once=all_at_once)
    (told,) = refused(embedded, embedded.pipeline(events=20, all_at_once=all_at_once), accept=["all"])
    sent = EVENTS + 1 if all_at_once else 8
    assert told == (
        f"orders: reads generator, 20 events now, and the run has begun to read generator, 12 events ({sent} events "
        "sent); this cannot be accepted: give it a new name, or start a new log"
    )


def test_scenario_18_files_of_another_directory_would_never_be_read(tmp_path: Path) -> None:
    shop = Shop(tmp_path, None)
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "part.csv").write_text("n\n1\n2\n3\n4\n")

    def reading(place: str) -> Pipeline:
        pipeline = Pipeline("reads")
        source = pipeline.source("orders", files(tmp_path / place, rows_per_event=1), **TURNS)
        pipeline.sink(source, shop.table("numbers"), **TURNS)
        return pipeline

    shop.crash(reading("a"), "before-write@orders_sink#2")
    (told,) = refused(shop, reading("b"), accept=["all"])
    assert told.endswith("this cannot be accepted: give it a new name, or start a new log")
    shop.run(reading("a"))
    assert shop.rows("numbers") == Counter([(1,), (2,), (3,), (4,)])


def test_scenario_18_events_that_are_in_output_sets_already_cannot_be_assigned_anew(embedded: Shop) -> None:
    """Each event has records of two windows, of which one has fired: its records would be seen twice."""

    def windowed(size: int, broken: bool = False) -> Pipeline:
        pipeline = Pipeline("spans")
        source = pipeline.source(
            "orders", generator(lambda index: pa.table({"n": [3 * index, 3 * index + 2]}), EVENTS), **TURNS
        )

        def total(table: pa.Table) -> pa.Table:
            if broken and 5 in table["n"].to_pylist():
                raise ValueError("broken")
            return pa.table({"first": table["n"].slice(0, 1), "count": [len(table)]})

        counted = pipeline.operator(source, name="sums", window=Tumbling(size, on="n"), **TURNS)(total)
        pipeline.sink(counted, embedded.table("sums"), **TURNS)
        return pipeline

    with pytest.raises(UserFunctionFailed, match="broken"):
        embedded.run(windowed(4, broken=True))
    (told,) = refused(embedded, windowed(8), accept=["all"])
    assert (
        "of orders.out#2 Output Sets were made already, and they would be made again; this cannot be accepted: give it"
        in told
    )
    embedded.run(windowed(4))
    assert sum(count for _, count in embedded.rows("sums")) == 2 * EVENTS


def test_scenario_18_a_finished_log_is_final_whatever_has_changed(embedded: Shop) -> None:
    embedded.run(embedded.pipeline())
    for how in ({"version": 2}, {"extra": True}, {"sums": False}, {"events": 20}):
        with pytest.raises(RunFinished):
            embedded.run(embedded.pipeline(**how), accept=["all"])  # type: ignore[arg-type]


def test_scenario_18_fresh_gets_past_a_change(embedded: Shop) -> None:
    embedded.cut_off()
    embedded.run(embedded.pipeline(doubled="twice"), fresh=True)
    assert embedded.rows("sums") >= sums(0, 5)


def test_scenario_18_before_a_run_has_begun_its_graph_may_change(embedded: Shop) -> None:
    embedded.look(lambda store: store.declare(topology(embedded.pipeline(doubled="twice").graph())))
    embedded.run(embedded.pipeline())
    assert embedded.rows("numbers") == numbers()


# General operators.


class Ledger(Operator):
    """Writes pairs of events down."""

    def __init__(self, connection: str, size: int = 2) -> None:
        self.connection = connection
        self.size = size

    def initial(self) -> dict[str, Any]:
        return {"seen": 0}

    def assign(self, event: Any, state: dict[str, Any]) -> list[int]:
        state["seen"] += 1
        return [(state["seen"] - 1) // self.size]

    def ready(self, state: dict[str, Any], opened: Any) -> list[int]:
        return [key for key in opened if key < state["seen"] // self.size]

    def generate(self, input_set: InputSet, context: Context) -> None:
        context.write(self.connection, pa.concat_tables([event.table for event in input_set.events]))


def kept(shop: Shop, connection: str = "book", size: int = 2, inputs: int = 1, **settings: Any) -> Pipeline:
    pipeline = Pipeline("kept")
    streams = [
        pipeline.source(f"orders{i}", generator(lambda index: pa.table({"n": [index]}), EVENTS), **TURNS)
        for i in range(3)
    ]
    ledger, ports = Ledger(connection, size), ("left", "right", "middle")[:inputs]
    writes, settings = {connection: shop.table("book")}, TURNS | settings
    pipeline.general("ledger", ledger, *streams[:inputs], ports=ports, writes=writes, **settings)
    return pipeline


def test_scenario_18_a_connection_where_writes_wait_cannot_be_renamed_unless_that_is_accepted(shop: Shop) -> None:
    shop.crash(kept(shop), "before-write@ledger#2")
    told = refused(shop, kept(shop, "journal"))
    assert told == [
        "ledger.book: is no longer written to, and 1 write waits there: #2; --accept ledger drops them: they are never "
        "performed"
    ]
    shop.run(kept(shop, "journal"), accept=["ledger"])
    assert shop.rows("book") == Counter((n,) for n in range(EVENTS) if n not in (2, 3))


def test_scenario_18_a_general_operator_may_go_on_with_other_code_and_the_input_sets_it_has(embedded: Shop) -> None:
    embedded.crash(kept(embedded), "after-commit@ledger#3")
    assert embedded.waiting("ledger.in", "kept") == [3]
    (told,) = refused(embedded, kept(embedded, size=3))
    assert told == (
        "ledger: how it forms Input Sets changed, and 1 Input Set with orders0.out#3 on in is open; --accept ledger "
        "keeps them and the global state as they are, and goes on with the new code"
    )
    embedded.run(kept(embedded, size=3), accept=["ledger"])
    assert embedded.rows("book") == Counter((n,) for n in range(EVENTS))


def test_scenario_18_the_events_of_an_input_that_is_gone_are_dropped_when_that_is_accepted(shop: Shop) -> None:
    shop.crash(kept(shop, inputs=3, size=20), "after-commit@ledger#4")
    waiting = shop.waiting("ledger.middle", "kept")
    assert len(waiting) > 1
    assert shop.look(lambda store: store.state("ledger").context["latest"]["middle"], "kept") == 1
    (told,) = refused(shop, kept(shop, inputs=2, size=20))
    assert told == (
        f"ledger.middle: has no such port, and read orders2.out before, and {len(waiting)} events wait there: "
        f"orders2.out#1..{len(waiting)}; --accept ledger drops them: nobody gets them on this port"
    )
    shop.run(kept(shop, inputs=2, size=20), accept=["ledger"])
    assert shop.rows("book") == Counter({(n,): 2 for n in range(EVENTS)})


def test_scenario_18_what_was_a_sink_cannot_become_an_operator_of_the_same_name(embedded: Shop) -> None:
    embedded.cut_off()
    changed = embedded.pipeline(numbers=None)

    @changed.operator("doubled", name="numbers_sink", **TURNS)
    def same(table: pa.Table) -> pa.Table:
        return table

    assert refused(embedded, changed, accept=["all"]) == [
        "numbers_sink: was declared as sink, and is operator now; this cannot be accepted: give it a new name"
    ]
