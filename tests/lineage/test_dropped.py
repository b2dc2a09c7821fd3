"""Input Sets that were given to no function are neither run again nor compared; those that made nothing are."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Operator, Pipeline, Session, Sliding
from clew.connectors import files, generator
from clew.errors import NoSuchFunction, SetDropped
from clew.ids import InputSetId
from clew.pipeline.operators import Context, InputSet
from clew.pipeline.windows import Header
from clew.retrace import diff, replay, trace_forward
from clew.run import run

Function = Callable[[pa.Table], pa.Table]
Declared = Callable[[Function], Pipeline]


class Pairs(Operator):
    """Gives every two events to a function; one that is left at the end, to none."""

    def __init__(self, function: Function) -> None:
        self.function = function

    def assign(self, event: Header, state: dict[str, Any]) -> Sequence[Any]:
        return [(event.number - 1) // 2]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        return sorted(opened)[:-1]

    def flush(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        return ()

    def generate(self, input_set: InputSet, context: Context) -> Any:
        return self.function(input_set.table())


def same(table: pa.Table) -> pa.Table:
    return table.select(["t"])


def nothing(table: pa.Table) -> pa.Table:
    return same(table).slice(0, 0)


def only_from_four(table: pa.Table) -> pa.Table:
    return same(table) if min(table["t"].to_pylist()) >= 4 else nothing(table)


def declared(directory: Path, times: Sequence[int], declare: Callable[[Pipeline, Any, Function], Any]) -> Declared:
    def make(function: Function) -> Pipeline:
        pipeline = Pipeline("dropping")
        source = pipeline.source("times", generator(lambda i: pa.table({"t": [times[i]]}), len(times)))
        pipeline.sink(declare(pipeline, source, function), files(directory / "out"))
        return pipeline

    return make


def in_pairs(pipeline: Pipeline, source: Any, function: Function) -> Any:
    return pipeline.general("made", Pairs(function), source)


def in_windows(window: Any) -> Callable[[Pipeline, Any, Function], Any]:
    return lambda pipeline, source, function: pipeline.operator(source, window=window, name="made")(function)


def logged(make: Declared, directory: Path, function: Function) -> str:
    url = f"sqlite:///{directory / 'log.db'}"
    run(make(function), log=url, engine="inline")
    return url


def changed(make: Declared, url: str, function: Function) -> dict[InputSetId, bool]:
    """Return of each Input Set that is compared whether it gives something else now."""
    return {one.input_set: not one.same for one in diff(make(function).graph(), "made", log=url)}


def test_what_a_flush_drops_is_not_compared_and_what_made_nothing_is(tmp_path: Path) -> None:
    make = declared(tmp_path, range(7), in_pairs)
    url = logged(make, tmp_path, only_from_four)
    # The seventh event is alone in Input Set 4, which was never given to the function.
    assert changed(make, url, only_from_four) == {1: False, 2: False, 3: False}
    assert changed(make, url, same) == {1: True, 2: True, 3: False}


def test_what_a_flush_drops_is_not_run_again_and_said(tmp_path: Path) -> None:
    make = declared(tmp_path, range(7), in_pairs)
    url = logged(make, tmp_path, same)
    graph = make(same).graph()
    with pytest.raises(SetDropped) as error:
        replay(graph, "made", "times#7", log=url)
    assert str(error.value) == (
        "times.out#7 is in no Input Set that a function of made was given, so nothing can be run again; "
        "`clew trace forward` shows what became of it"
    )
    assert [step.dropped for step in trace_forward(graph, "times#7", log=url).steps] == [True]
    assert [step.dropped for step in trace_forward(graph, "times#6", log=url, to="made").steps] == [False]


def test_windows_that_share_their_events_with_later_ones_are_compared(tmp_path: Path) -> None:
    make = declared(tmp_path, range(4), in_windows(Sliding(4, every=2, on="t")))
    url = logged(make, tmp_path, nothing)
    found = changed(make, url, same)
    assert found == {1: True, 2: True, 3: True}


def test_the_one_function_of_an_operator_may_have_another_name_now(tmp_path: Path) -> None:
    make = declared(tmp_path, range(4), in_windows(Sliding(4, every=2, on="t")))
    url = logged(make, tmp_path, same)
    assert set(changed(make, url, nothing).values()) == {True}


def test_a_function_that_is_there_no_more_is_said(tmp_path: Path) -> None:
    window = Sliding(4, every=2, on="t", late="late")
    make = declared(tmp_path, range(4), in_windows(window))
    url = logged(make, tmp_path, same)
    with pytest.raises(NoSuchFunction) as error:
        changed(make, url, nothing)
    assert str(error.value) == (
        "Input Set 1 of made is for the function same, but made has only nothing, nothing-late; "
        "give a function that name to run it again"
    )


def test_a_session_that_became_part_of_another_is_not_compared(tmp_path: Path) -> None:
    make = declared(tmp_path, [0, 6, 4, 30], in_windows(Session(5, on="t", lateness=20)))
    url = logged(make, tmp_path, nothing)
    assert changed(make, url, same) == {1: True, 3: True}
    # The event that had its session alone is run again in the one that took it in.
    (again,) = replay(make(same).graph(), "made", "times#2", log=url)
    assert (again.input_set, len(again.events)) == (1, 3)
    steps = trace_forward(make(same).graph(), "times#2", log=url).steps
    assert [(step.input_set, step.dropped) for step in steps] == [(1, False), (2, True)]
