"""What the user's own code does wrong is shown to the user, and costs nothing that was committed."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from clew import Count, Pipeline
from clew.connectors import generator
from clew.errors import RunFinished, SinkFailed, UserFunctionFailed
from clew.run import run
from clew.supervisor.threads import Policy
from tests.simulation.outside import Transactional, World


def _numbers(index: int) -> pa.Table:
    return pa.table({"n": [index]})


class _Poison:
    """A function that cannot bear one of its events, until it is mended."""

    def __init__(self, bad: int) -> None:
        self.bad: int | None = bad
        self.calls: list[list[int]] = []

    def pipeline(self, world: World, **settings: Any) -> Pipeline:
        pipeline = Pipeline("poison")
        source = pipeline.source("numbers", generator(_numbers, 20), max_turn_events=8)

        @pipeline.operator(source, max_turn_events=8, **settings)
        def picky(table: pa.Table) -> pa.Table:
            numbers = table["n"].to_pylist()
            self.calls.append(numbers)
            if self.bad in numbers:
                raise ValueError(f"cannot bear {self.bad}")
            return table

        pipeline.sink(picky, Transactional(world, "sink"))
        return pipeline


def test_a_function_that_raises_stops_the_run_with_operator_event_and_frames_and_resumes_once_mended(
    tmp_path: Path,
) -> None:
    world, poison = World(), _Poison(13)
    log = f"sqlite:///{tmp_path / 'log.db'}"
    with pytest.raises(UserFunctionFailed) as failed:
        run(poison.pipeline(world), log=log, engine="inline")
    assert failed.value.operator == "picky"
    assert failed.value.events == "numbers.out#14"
    assert (failed.value.kind, failed.value.message, failed.value.attempts) == ("ValueError", "cannot bear 13", 3)
    assert "raise ValueError" in failed.value.frames
    assert __file__ in failed.value.frames
    assert "clew/runtime" not in failed.value.frames
    assert poison.calls.count([13]) >= 3, "the culprit had its attempts alone"

    poison.bad, poison.calls = None, []
    run(poison.pipeline(world), log=log, engine="inline")
    assert poison.calls[0] == [13], "the run resumes at the event it stopped at: those before are committed"
    assert world.rows["sink"] == [(n,) for n in range(20)]


def test_a_function_that_fails_once_costs_an_attempt_and_nothing_else(tmp_path: Path) -> None:
    world, poison = World(), _Poison(13)
    pipeline = poison.pipeline(world)
    calls = iter([None, None])

    def once(table: pa.Table) -> pa.Table:
        if 13 in table["n"].to_pylist() and next(calls, "mended") is None:
            raise ConnectionError("for a moment")
        return table

    (spec,) = [spec for spec in pipeline._specs if spec.name == "picky"]
    object.__setattr__(spec.functions[0], "run", once)
    progress = run(pipeline, log=f"sqlite:///{tmp_path / 'log.db'}", engine="inline")
    assert progress.rows()["picky"].restarts == 0
    assert world.rows["sink"] == [(n,) for n in range(20)]


def test_a_window_whose_function_raises_at_the_flush_resumes_at_the_flush(tmp_path: Path) -> None:
    world, mended = World(), False
    log = f"sqlite:///{tmp_path / 'log.db'}"

    def declare() -> Pipeline:
        pipeline = Pipeline("flushed")
        source = pipeline.source("numbers", generator(_numbers, 7), max_turn_events=3)

        @pipeline.operator(source, window=Count(5), max_turn_events=3)
        def fives(table: pa.Table) -> pa.Table:
            if table.num_rows < 5 and not mended:
                raise ValueError("an incomplete window")
            return pa.table({"sum": [pc.sum(table["n"]).as_py()]})

        pipeline.sink(fives, Transactional(world, "sink"))
        return pipeline

    with pytest.raises(UserFunctionFailed, match="incomplete"):
        run(declare(), log=log, engine="inline")
    mended = True
    run(declare(), log=log, engine="inline")
    assert world.rows["sink"] == [(10,), (11,)]


def test_a_sink_that_stays_down_stops_the_run_after_its_attempts_and_the_writes_follow_later(tmp_path: Path) -> None:
    world = World(refused=frozenset({2, 3, 4}))
    log = f"sqlite:///{tmp_path / 'log.db'}"
    poison = _Poison(-1)
    with pytest.raises((UserFunctionFailed, SinkFailed), match="refused"):
        run(poison.pipeline(world), log=log, engine="inline", policy=Policy(0.01))
    run(poison.pipeline(world), log=log, engine="inline")
    assert world.rows["sink"] == [(n,) for n in range(20)]


def test_a_finished_log_is_final(tmp_path: Path) -> None:
    world, poison = World(), _Poison(-1)
    log = f"sqlite:///{tmp_path / 'log.db'}"
    run(poison.pipeline(world), log=log, engine="inline")
    with pytest.raises(RunFinished, match="--fresh"):
        run(poison.pipeline(world), log=log, engine="inline")
    assert world.rows["sink"] == [(n,) for n in range(20)]
