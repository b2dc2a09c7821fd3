"""Planted bugs: each is a mistake that a log protocol can make, and a simulation that misses one is broken."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from clew.errors import ClewError
from clew.protocol.log.alg6_source import Resume
from clew.protocol.step import Acknowledge, FinishSets, LogEvents, OpenSets, Step, StoreState
from clew.runtime import operator, source
from clew.runtime.channels import Channels
from clew.runtime.inputs import Inputs
from clew.runtime.perform import Writer
from clew.runtime.writes import Writes
from tests.simulation.machine import Schedule, baseline, rehearse, simulate
from tests.simulation.outside import Transactional
from tests.simulation.pipelines import SCENES


def sends_before_the_commit() -> AbstractContextManager[Any]:
    perform = Writer.perform

    def wrong(writer: Writer, step: Step, point: str = "") -> None:
        for run in step.sends:
            writer.channels.send(run)
        perform(writer, step, point)

    return mock.patch.object(Writer, "perform", wrong)


def acknowledges_before_the_outputs() -> AbstractContextManager[Any]:
    perform = Writer.perform

    def wrong(writer: Writer, step: Step, point: str = "") -> None:
        early = (Acknowledge, FinishSets, OpenSets, StoreState)
        if any(isinstance(write, LogEvents) for write in step.writes):
            perform(writer, Step(tuple(write for write in step.writes if isinstance(write, early))))
            step = replace(step, writes=tuple(write for write in step.writes if not isinstance(write, early)))
        perform(writer, step, point)

    return mock.patch.object(Writer, "perform", wrong)


def keeps_no_marker_in_the_sink() -> AbstractContextManager[Any]:
    write = Transactional.write

    def wrong(sink: Transactional, action: Any, tables: Iterator[Any], schema: Any) -> None:
        sink.world.markers.clear()
        write(sink, action, tables, schema)

    return mock.patch.object(Transactional, "write", wrong)


def repeats_writes_without_a_question() -> AbstractContextManager[Any]:
    return mock.patch.object(Writes, "_unsettled", lambda writes, name, undone: list(undone))


def forgets_pending_writes() -> AbstractContextManager[Any]:
    return mock.patch.object(Writes, "recover", return_value=None)


def reads_the_outside_again() -> AbstractContextManager[Any]:
    recover = source.recover_source

    def wrong(*args: Any) -> Resume:
        resume = recover(*args)
        return Resume("observe") if resume.at == "stored" else resume

    def complete(runner: source.SourceRunner) -> None:
        """Observe again although the action is complete."""
        assert runner.spec.source is not None
        task = source.ObserveTask(runner.place(runner.context.turn + 1))
        offset = runner.context.state.get("offset")
        (effect,) = runner.around.engine.map(runner.job(0, ""), [task]).results
        runner._resume = Resume("stored", offset, effect)

    observe = source.SourceRunner._observe

    def either(runner: source.SourceRunner) -> None:
        action = runner.around.store.last_read_action(runner.spec.name)
        again = action is not None and action.complete and isinstance(runner.spec.source, source.Observed)
        (complete if again else observe)(runner)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(source, "recover_source", wrong))
    stack.enter_context(mock.patch.object(source.SourceRunner, "_observe", either))
    return stack


def loses_the_global_state() -> AbstractContextManager[Any]:
    recover = operator.recover_processing

    def wrong(context: Any, logic: Any, *rest: Any) -> Any:
        return replace(recover(context, logic, *rest), state=logic.initial())

    return mock.patch.object(operator, "recover_processing", wrong)


def loses_open_input_sets() -> AbstractContextManager[Any]:
    recover = operator.recover_processing
    return mock.patch.object(operator, "recover_processing", lambda c, logic, row, *_: recover(c, logic, row, [], {}))


def does_not_resend() -> AbstractContextManager[Any]:
    return mock.patch.object(Channels, "resend", return_value=None)


def skips_an_input() -> AbstractContextManager[Any]:
    reset = Inputs.reset
    return mock.patch.object(
        Inputs, "reset", lambda inputs, latest: reset(inputs, {port: n + 1 for port, n in latest.items()})
    )


def loses_what_is_not_durable() -> AbstractContextManager[Any]:
    """Every commit is taken for one that need not be synced."""
    perform = Writer.perform
    return mock.patch.object(
        Writer, "perform", lambda writer, step, point="": perform(writer, replace(step, durable=False), point)
    )


CANARIES: list[tuple[Callable[[], AbstractContextManager[Any]], str, str]] = [
    (sends_before_the_commit, "linear", "group"),
    (acknowledges_before_the_outputs, "linear", "group"),
    (keeps_no_marker_in_the_sink, "linear", "group"),
    (repeats_writes_without_a_question, "diamond", "group"),
    (forgets_pending_writes, "linear", "group"),
    (reads_the_outside_again, "observed", "group"),
    (loses_the_global_state, "stateful", "group"),
    (loses_open_input_sets, "linear", "group"),
    (does_not_resend, "linear", "group"),
    (skips_an_input, "linear", "group"),
    (loses_what_is_not_durable, "diamond", "machine"),
]


@pytest.mark.parametrize(("bug", "scene", "scope"), CANARIES, ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_bug_is_found(bug: Callable[[], AbstractContextManager[Any]], scene: str, scope: str) -> None:
    # Made before anything is planted: it is what the planted bug is found by.
    baseline(SCENES[scene])
    for schedule in _schedules(scene, scope):
        with _planted(bug):
            try:
                simulate(SCENES[scene], schedule)
            except (AssertionError, ClewError, KeyError):
                return
    raise AssertionError(f"no schedule found that the pipeline {bug.__name__.replace('_', ' ')}")


@contextmanager
def _planted(bug: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    with bug():
        yield


def _schedules(scene: str, scope: str) -> Iterator[Schedule]:
    """Yield one schedule per crash point and operator, in the middle of the run, until one finds the bug."""
    for seed in (1, 2):
        for (point, where), count in rehearse(SCENES[scene], Schedule(seed)).reached.items():
            yield Schedule(seed, (f"{point}@{where}#{(count + 1) // 2}",), (scope,))
