"""Runs say exactly what the events said one by one, in fewer rows where the pattern is closed."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clew.ids import InputSetId, Port
from clew.pipeline.windows import Count, Each, Window
from clew.protocol.log.alg2_update import update
from clew.protocol.log.runs import Taken, acknowledgements, consecutive, finished, lineages
from clew.protocol.rows import Every, Listed, Own, sets_of
from clew.protocol.step import Acknowledge
from tests.protocol.scene import arrivals, started, windowed

OUT = Port("OP", "out")


def expand(runs: Sequence[Acknowledge]) -> list[Taken]:
    """Return the events that some runs acknowledge, one by one."""
    return [
        Taken(run.receiver.name, run.first + index, run.seq + index, sets_of(run.assignment, index))
        for run in runs
        for index in range(run.count)
    ]


def taken(pattern: Sequence[tuple[str, tuple[int, ...]]], seq: int = 1, **latest: int) -> list[Taken]:
    """Number events, given as port and Input Sets, as Algorithm 2 does."""
    events = []
    for index, (port, sets) in enumerate(pattern):
        latest[port] = latest.get(port, 0) + 1
        events.append(Taken(port, latest[port], seq + index, tuple(InputSetId(s) for s in sets)))
    return events


def compressed(window: Window, count: int, before: int = 0) -> list[Acknowledge]:
    """Return the runs for `count` events of a window, after `before` events of an earlier turn."""
    logic = windowed(f=window)
    context = update(started(logic), logic, arrivals(*range(1, before + 1))).context
    done = update(context, logic, arrivals(*range(before + 1, before + count + 1)))
    runs = list(acknowledgements("OP", done.taken))
    assert expand(runs) == list(done.taken)
    return runs


ports = st.sampled_from(["left", "right"])
any_sets = st.lists(st.integers(1, 6), max_size=3, unique=True).map(tuple)
#: Stretches as windows make them: `length` events of each of `sets` consecutive Input Sets, from `first` on.
stretches = st.builds(
    lambda port, first, lengths: [(port, (first + at,)) for at, length in enumerate(lengths) for _ in range(length)],
    ports,
    st.integers(1, 9),
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
)
patterns = st.one_of(
    st.lists(st.tuples(ports, any_sets), max_size=20),
    st.lists(stretches | st.lists(st.tuples(ports, any_sets), max_size=3), max_size=5).map(
        lambda parts: [event for part in parts for event in part]
    ),
)


@given(patterns, st.integers(1, 50), st.integers(0, 50))
@example([("left", (1,)), ("left", (2,)), ("left", (2,)), ("left", (3,))], 1, 0)
@example([("left", (1,)), ("left", (2,)), ("left", (3,)), ("left", (3,))], 1, 0)
@example([("left", (1,)), ("left", (1,)), ("left", (2,)), ("left", (3,)), ("left", (3,))], 1, 0)
@example([("left", ()), ("left", (1,)), ("right", (2,)), ("left", (2,)), ("left", (1, 2))], 1, 0)
def test_runs_expand_to_exactly_the_events_taken(
    pattern: list[tuple[str, tuple[int, ...]]], seq: int, before: int
) -> None:
    """Algorithm 2, Step 2: every event keeps its own number, order and Input Sets."""
    events = taken(pattern, seq, left=before, right=before // 2)
    assert expand(list(acknowledgements("OP", events))) == events


@given(patterns)
def test_there_are_never_more_runs_than_events(pattern: list[tuple[str, tuple[int, ...]]]) -> None:
    """Design, Section 4: a run costs what an event costs, or less."""
    runs = list(acknowledgements("OP", taken(pattern)))
    assert len(runs) <= len(pattern)
    assert all(run.count > 0 for run in runs)


@given(st.integers(1, 5), st.integers(0, 20), st.integers(0, 60))
def test_a_count_window_is_one_run_wherever_the_turn_begins(size: int, before: int, count: int) -> None:
    """Design, Section 4: "every n events one", also from the middle of an Input Set."""
    assert len(compressed(Count(size), count, before)) == min(1, count)


def test_a_hundred_events_each_with_its_own_input_set_are_one_run() -> None:
    """Design, Section 4: "each event its own Input Set"."""
    (run,) = compressed(Each(), 100)
    assert run == Acknowledge(Port("OP", "in"), 1, 100, 1, Own(InputSetId(1)))


@pytest.mark.parametrize(("before", "skip"), [(0, 0), (1, 1)])
def test_a_hundred_events_in_pairs_are_one_run(before: int, skip: int) -> None:
    """Design, Section 4: Count(2), from the start or from the middle of a pair."""
    (run,) = compressed(Count(2), 100, before)
    assert (run.count, run.assignment) == (100, Every(InputSetId(1), 2, skip))


def test_events_of_one_input_set_are_one_run() -> None:
    """Design, Section 4: "a listed set"."""
    (run,) = acknowledgements("OP", taken([("in", (7, 9))] * 50))
    assert (run.count, run.assignment) == (50, Listed((InputSetId(7), InputSetId(9))))


def test_events_in_no_input_set_are_one_run() -> None:
    """Design, Section 1: the Input Set `none`."""
    (run,) = acknowledgements("OP", taken([("in", ())] * 50))
    assert (run.count, run.assignment) == (50, Listed(()))


def test_a_run_ends_where_another_port_comes_between() -> None:
    """Algorithm 2, Step 2: numbers and order of a run are both consecutive."""
    runs = list(acknowledgements("OP", taken([("left", (1,)), ("right", (2,)), ("left", (3,))])))
    assert [(run.receiver.name, run.first, run.seq) for run in runs] == [
        ("left", 1, 1),
        ("right", 1, 2),
        ("left", 2, 3),
    ]


sets_and_counts = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 4)), max_size=12, unique_by=lambda p: p[0])
ascending = st.tuples(st.integers(1, 9), st.lists(st.integers(0, 4), max_size=12)).map(
    lambda drawn: [(drawn[0] + at, count) for at, count in enumerate(drawn[1])]
)


@given(sets_and_counts | ascending, st.integers(1, 50))
def test_lineage_pairs_are_those_of_the_events_one_by_one(pairs: list[tuple[int, int]], first: int) -> None:
    """Algorithm 3, Step 4 (5b): (event, Input Set), for Input Sets in any order, zeros included."""
    sets, counts = [InputSetId(s) for s, _ in pairs], [count for _, count in pairs]
    starts = accumulate(counts, initial=first)
    naive = [(start + at, s) for (s, count), start in zip(pairs, starts) for at in range(count)]
    assert [pair for lineage in lineages(OUT, first, sets, counts) for pair in lineage.pairs()] == naive


def test_lineage_of_a_map_is_one_row() -> None:
    """Design, Section 4: one output per Input Set, run-length coded."""
    (lineage,) = lineages(OUT, 5, [InputSetId(n) for n in range(1, 101)], [1] * 100)
    assert (lineage.first, lineage.input_set, lineage.counts) == (5, 1, ((1, 100),))


def test_lineage_of_a_filter_is_exact() -> None:
    """Design, Section 4: "zeros included, [...] so that a filter is exact too"."""
    (lineage,) = lineages(OUT, 1, [InputSetId(n) for n in range(1, 6)], [0, 0, 1, 1, 0])
    assert lineage.counts == ((0, 2), (1, 2), (0, 1))


def test_input_sets_without_outputs_have_no_lineage() -> None:
    """Algorithm 3, Step 4 (5b): an entry per output event."""
    assert list(lineages(OUT, 1, [InputSetId(1), InputSetId(2)], [0, 0])) == []
    assert list(lineages(OUT, 1, [], [])) == []


@given(st.sets(st.integers(1, 40)))
def test_finished_input_sets_are_those_given_and_no_others(numbers: set[int]) -> None:
    """Algorithm 3, Step 4 (4)."""
    runs = list(finished("OP", [InputSetId(number) for number in numbers]))
    assert [run.first + at for run in runs for at in range(run.count)] == sorted(numbers)
    assert all(after.first > before.first + before.count for before, after in pairwise(runs))


def test_consecutive_numbers_are_one_stretch() -> None:
    """Design, Section 4: runs of status."""
    assert list(consecutive([1, 2, 3, 7, 9, 10])) == [(1, 3), (7, 1), (9, 2)]
    assert list(consecutive([])) == []
