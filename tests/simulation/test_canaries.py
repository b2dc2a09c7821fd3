"""Planted bugs: each is a mistake that a log protocol can make, and a suite that misses one is broken."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from clew import Piece, WriteAction
from clew.errors import ClewError
from clew.faultpoint import CrashInjected, arm
from clew.ids import Port
from clew.pipeline.operators import WindowLogic
from clew.pipeline.sessions import Session
from clew.protocol.log import alg3_generate
from clew.protocol.log.alg3_generate import Output, Productions
from clew.protocol.log.alg6_source import Resume
from clew.protocol.rows import cut_bodies
from clew.protocol.step import (
    Acknowledge,
    FinishSets,
    LogEvents,
    LogWrites,
    OpenSets,
    Step,
    StoreState,
)
from clew.runtime import following, operator, source
from clew.runtime.channels import Channels
from clew.runtime.inputs import Inputs
from clew.runtime.perform import Writer
from clew.runtime.runner import Outcome, Runner
from clew.runtime.writes import Writes
from clew.store.memory import MemoryStore
from tests.figures import CAUGHT, FOUND_BY, PLANTED, tally
from tests.simulation import machine
from tests.simulation.machine import (
    NoEnd,
    NotExplained,
    NotFired,
    Schedule,
    Unlike,
    baseline,
    rehearse,
    simulate,
    visit,
)
from tests.simulation.outside import Feed, Transactional
from tests.simulation.pipelines import SCENES, Scene
from tests.simulation.random_pipelines import Blueprint, Node
from tests.simulation.random_pipelines import scene as scene_of
from tests.soak import SOAK


def sends_before_the_commit() -> AbstractContextManager[Any]:
    perform = Writer.perform

    def wrong(writer: Writer, step: Step, point: str = "") -> None:
        for run in step.sends:
            writer.channels.send(run)
        perform(writer, step, point)

    return mock.patch.object(Writer, "perform", wrong)


def performs_before_the_commit() -> AbstractContextManager[Any]:
    """Write actions reach the outside before the transaction that logs them; the sink hides that they come again."""
    commit = operator.OperatorRunner._commit

    def wrong(runner: operator.OperatorRunner, plan: Any, made: Any) -> None:
        _, step = operator.generate(plan, made, next(iter(runner.spec.sinks)) if runner.spec.is_sink else None)
        for write in step.writes:
            if isinstance(write, LogWrites):
                runner._writes._run(write.port.name, write.writes, check=False)
                runner._writes._tell("written", write.port, write.writes)
        commit(runner, plan, made)

    return mock.patch.object(operator.OperatorRunner, "_commit", wrong)


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


def names_a_write_anew_after_a_restart() -> AbstractContextManager[Any]:
    """What the outside knows a write by holds the number of its writer's incarnation."""
    name = property(lambda action: f"{action.run}-{action.operator}-{action.incarnation}-{action.number:09d}")
    return mock.patch.object(WriteAction, "name", name)


def forgets_pending_writes() -> AbstractContextManager[Any]:
    return mock.patch.object(Writes, "recover", return_value=None)


def reads_the_outside_again() -> AbstractContextManager[Any]:
    recover = source.recover_source

    def wrong(*args: Any) -> Resume:
        resume = recover(*args)
        return Resume("observe") if resume.at == "stored" else resume

    def complete(runner: source.SourceRunner) -> Outcome:
        """Observe again although the action is complete."""
        assert runner.spec.source is not None
        task = source.ObserveTask(runner.place(runner.context.turn + 1))
        offset = runner.context.state.get("offset")
        (effect,) = runner.around.engine.map(runner.job(0, ""), [task]).results
        runner._resume = Resume("stored", offset, (effect,))
        return "worked"

    observe = source.SourceRunner._observe

    def either(runner: source.SourceRunner) -> Outcome:
        action = runner.around.store.last_read_action(runner.spec.name)
        again = action is not None and action.complete and isinstance(runner.spec.source, source.Observed)
        return (complete if again else observe)(runner)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(source, "recover_source", wrong))
    stack.enter_context(mock.patch.object(source.SourceRunner, "_observe", either))
    return stack


def does_not_log_what_was_seen() -> AbstractContextManager[Any]:
    complete = following.complete_next

    def wrong(*args: Any) -> Any:
        after, step = complete(*args)
        return after, replace(step, writes=tuple(w for w in step.writes if not isinstance(w, StoreState)))

    return mock.patch.object(following, "complete_next", wrong)


def skips_an_action_that_was_not_complete() -> AbstractContextManager[Any]:
    observe = following.FollowingRunner._observe

    def wrong(runner: following.FollowingRunner) -> Outcome:
        if runner._news is None:
            # As if what was found before the crash had been read.
            runner.context.state["seen"] = (runner.context.state.get("seen") or 0) + 1
        return observe(runner)

    return mock.patch.object(following.FollowingRunner, "_observe", wrong)


def loses_the_global_state() -> AbstractContextManager[Any]:
    recover = operator.recover_processing

    def wrong(context: Any, logic: Any, *rest: Any) -> Any:
        return replace(recover(context, logic, *rest), state=logic.initial())

    return mock.patch.object(operator, "recover_processing", wrong)


def loses_open_input_sets() -> AbstractContextManager[Any]:
    recover = operator.recover_processing
    return mock.patch.object(operator, "recover_processing", lambda c, logic, row, *_: recover(c, logic, row, [], {}))


def forgets_its_keys() -> AbstractContextManager[Any]:
    recover = operator.recover_processing
    return mock.patch.object(
        operator, "recover_processing", lambda c, logic, row, m, o, _: recover(c, logic, row, m, o)
    )


def leaves_events_behind_when_sessions_become_one() -> AbstractContextManager[Any]:
    """The log does not hear that events of one session now belong to another."""
    return mock.patch.object(alg3_generate, "rejoins", return_value=())


def sorts_late_records() -> AbstractContextManager[Any]:
    """Late records leave in the order of their times, and not as they came."""
    pick = Session.pick_late
    return mock.patch.object(Session, "pick_late", lambda window, *late: pick(window, *late).sort_by("t"))


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


def does_not_check_the_fence() -> AbstractContextManager[Any]:
    """A writer that was taken over commits as if nothing had happened."""
    commit = MemoryStore.commit

    def wrong(store: MemoryStore, operator: str, incarnation: int, writes: Any, durable: bool = True) -> None:
        commit(store, operator, store._rows.operators[operator].incarnation, writes, durable)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(MemoryStore, "commit", wrong))
    # A group that is thought to be dead goes on until its next commit.
    stack.enter_context(mock.patch.object(machine._Group, "crash", _goes_on))
    return stack


def _goes_on(group: Any) -> None:
    for runner in group.runners:
        with suppress(CrashInjected):
            runner.step()
    group.runners, group.recovered, group.at, group.quiet, group.idle = [], 0, 0, 0, 0


def computes_logged_outputs_again() -> AbstractContextManager[Any]:
    """What was logged before a crash is made once more after it, under new numbers."""
    return _stands_elsewhere(-1)


def _stands_elsewhere(by: int) -> AbstractContextManager[Any]:
    """After a crash an operator, and the log with it, takes inputs to stand so many events further."""
    recover = operator.recover_processing

    def wrong(context: Any, logic: Any, *rest: Any) -> Any:
        recovered = recover(context, logic, *rest)
        recovered.latest = {port: max(number + by, 0) for port, number in recovered.latest.items()}
        return recovered

    def acknowledged(store: MemoryStore, write: Acknowledge) -> None:
        store._rows.last_acknowledged[write.receiver] = write.first - 1
        acknowledge(store, write)

    acknowledge = MemoryStore._acknowledge
    stack = ExitStack()
    stack.enter_context(mock.patch.object(operator, "recover_processing", wrong))
    stack.enter_context(mock.patch.object(MemoryStore, "_acknowledge", acknowledged))
    return stack


def does_not_flush_after_a_restart() -> AbstractContextManager[Any]:
    """Windows that are open when the stream ends are forgotten, if the operator was ever restarted."""
    perform = WindowLogic.flush

    def wrong(logic: WindowLogic, state: Any, opened: Any) -> Any:
        return () if _restarted(logic) else perform(logic, state, opened)

    init = operator.OperatorRunner._recover

    def recover(runner: operator.OperatorRunner) -> None:
        if runner.writer.incarnation > 1:
            _RESTARTED.add(id(runner.spec.logic))
        init(runner)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(WindowLogic, "flush", wrong))
    stack.enter_context(mock.patch.object(operator.OperatorRunner, "_recover", recover))
    return stack


_RESTARTED: set[int] = set()


def _restarted(logic: WindowLogic) -> bool:
    return id(logic) in _RESTARTED


def puts_an_event_into_the_wrong_window() -> AbstractContextManager[Any]:
    """After a crash, the first event that comes is counted to the window before."""
    recover = operator.recover_processing

    def wrong(context: Any, logic: Any, *rest: Any) -> Any:
        recovered = recover(context, logic, *rest)
        for own in recovered.state.values():
            if isinstance(own, dict) and own.get("n"):
                own["n"] -= 1
        return recovered

    return mock.patch.object(operator, "recover_processing", wrong)


def exchanges_two_output_sets() -> AbstractContextManager[Any]:
    """Of two Output Sets made in one turn, the later is sent first."""
    generate = operator.OperatorRunner._generate

    def wrong(runner: operator.OperatorRunner, *args: Any) -> Any:
        plan, made = generate(runner, *args)
        if runner.writer.incarnation > 1 and len(plan.closed) > 1 and not runner.spec.is_sink:
            plan = replace(plan, closed=(*plan.closed[1::-1], *plan.closed[2:]))
            made = list(_one_by_one(made))
            made = [made[1], made[0], *made[2:]]
        return plan, made

    return mock.patch.object(operator.OperatorRunner, "_generate", wrong)


def _one_by_one(made: Sequence[Productions]) -> Iterator[Productions]:
    """Cut productions of several Input Sets into productions of one each."""
    for part in made:
        for index, number in enumerate(part.sets):
            outputs = {port: _cut(output, index) for port, output in part.outputs.items()}
            writes = {name: _cut(output, index) for name, output in part.writes.items()}
            reads = tuple(read for read in part.reads if read.input_set == number)
            yield Productions((number,), outputs, writes, reads, part.schemas if index == 0 else ())


def _cut(output: Output, index: int) -> Output:
    first = sum(output.counts[:index])
    stop = first + output.counts[index]
    return Output(output.counts[index : index + 1], output.headers[first:stop], cut_bodies(output.bodies, first, stop))


# The same mistakes where nobody minds them on the way, so that it is left to the checker to find them.


def _together(*bugs: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    stack = ExitStack()
    for bug in bugs:
        stack.enter_context(bug)
    return stack


def sends_before_the_commit_and_nobody_minds() -> AbstractContextManager[Any]:
    """The log lets a receiver acknowledge what it does not hold."""
    acknowledge = MemoryStore._acknowledge

    def unguarded(store: MemoryStore, write: Acknowledge) -> None:
        sender = store._senders[write.receiver]
        sent = store._rows.last_sent.get(sender, 0)
        store._rows.last_sent[sender] = max(sent, write.first + write.count - 1)
        acknowledge(store, write)
        store._rows.last_sent[sender] = sent

    return _together(sends_before_the_commit(), mock.patch.object(MemoryStore, "_acknowledge", unguarded))


def acknowledges_before_the_outputs_and_nobody_minds() -> AbstractContextManager[Any]:
    """Events are numbered by those that the log holds, so that no number is missing."""
    recover = Runner.recover

    def unguarded(runner: Runner) -> None:
        recover(runner)
        rows = runner.around.store._rows  # type: ignore[attr-defined]
        last = {port: rows.last_sent.get(Port(runner.spec.name, port), 0) for port in runner.spec.outputs}
        runner.context = replace(runner.context, sent=last)

    return _together(acknowledges_before_the_outputs(), mock.patch.object(Runner, "recover", unguarded))


def _all_is_kept() -> AbstractContextManager[Any]:
    """A feed gives again what was released, and takes any release for what it is."""

    def read(feed: Feed, snapshot: Any, piece: Any) -> Iterator[Piece]:
        return (Piece(pa.table({"n": [n], "t": [3 * n]}), n + 1) for n in range(*piece))

    def release(feed: Feed, snapshot: Any) -> None:
        feed.world.consumed[feed.name] = max(feed.world.consumed.get(feed.name, 0), snapshot["to"])

    return _together(mock.patch.object(Feed, "read", read), mock.patch.object(Feed, "release", release))


def does_not_log_what_was_seen_and_nobody_minds() -> AbstractContextManager[Any]:
    return _together(does_not_log_what_was_seen(), _all_is_kept())


def skips_an_action_that_was_not_complete_and_nobody_minds() -> AbstractContextManager[Any]:
    return _together(skips_an_action_that_was_not_complete(), _all_is_kept())


def skips_an_input_and_nobody_minds() -> AbstractContextManager[Any]:
    """The operator takes it for one that it has, and the log for one that was acknowledged."""
    return _stands_elsewhere(1)


#: Who finds a bug, by what is raised then.
FINDERS: dict[type[BaseException], str] = {
    NotExplained: "the checker",
    Unlike: "a look at the sinks",
    NoEnd: "the limit of steps",
    AssertionError: "a guard of the simulated world",
    ClewError: "a guard of the engine",
}
#: Those who judge what a run has left; the others end it on its way.
JUDGES = (FINDERS[NotExplained], FINDERS[Unlike])
#: Bugs of which nothing is left to judge. All but the last two are planted again where nobody minds them.
GUARDED: tuple[Callable[[], AbstractContextManager[Any]], ...] = (
    sends_before_the_commit,
    acknowledges_before_the_outputs,
    does_not_log_what_was_seen,
    skips_an_action_that_was_not_complete,
    skips_an_input,
    does_not_resend,
    loses_what_is_not_durable,
)
#: In how many schedules a bug is found before the next one is looked for.
ENOUGH = 10**9 if SOAK else 5
#: A bug, the pipelines that it is looked for in, and what dies.
CANARIES: list[tuple[Callable[[], AbstractContextManager[Any]], tuple[str, ...], str]] = [
    (sends_before_the_commit, ("drawn", "linear"), "group"),
    (performs_before_the_commit, ("linear",), "group"),
    (acknowledges_before_the_outputs, ("linear",), "group"),
    (keeps_no_marker_in_the_sink, ("linear",), "group"),
    (repeats_writes_without_a_question, ("diamond",), "group"),
    (names_a_write_anew_after_a_restart, ("diamond",), "group"),
    (forgets_pending_writes, ("linear",), "group"),
    (reads_the_outside_again, ("observed",), "group"),
    (does_not_log_what_was_seen, ("fed",), "group"),
    (skips_an_action_that_was_not_complete, ("fed",), "group"),
    (loses_the_global_state, ("stateful",), "group"),
    (loses_open_input_sets, ("linear",), "group"),
    (forgets_its_keys, ("timed",), "group"),
    (leaves_events_behind_when_sessions_become_one, ("timed",), "group"),
    (sorts_late_records, ("timed",), "group"),
    (does_not_resend, ("linear",), "group"),
    (skips_an_input, ("linear",), "group"),
    (loses_what_is_not_durable, ("diamond",), "machine"),
    (does_not_check_the_fence, ("drawn",), "group"),
    (computes_logged_outputs_again, ("drawn",), "group"),
    (does_not_flush_after_a_restart, ("linear",), "group"),
    (puts_an_event_into_the_wrong_window, ("linear",), "group"),
    (exchanges_two_output_sets, ("linear", "drawn"), "group"),
    (sends_before_the_commit_and_nobody_minds, ("drawn", "linear"), "group"),
    (acknowledges_before_the_outputs_and_nobody_minds, ("linear",), "group"),
    (does_not_log_what_was_seen_and_nobody_minds, ("fed",), "group"),
    (skips_an_action_that_was_not_complete_and_nobody_minds, ("fed",), "group"),
    (skips_an_input_and_nobody_minds, ("linear",), "group"),
]


@pytest.mark.parametrize(("bug", "scenes", "scope"), CANARIES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_is_found(
    bug: Callable[[], AbstractContextManager[Any]], scenes: tuple[str, ...], scope: str
) -> None:
    tried, found = 0, Counter[str]()
    for name in scenes:
        # Made before anything is planted: it is what the planted bug is found by.
        baseline(SCENES[name])
        for schedule in _schedules(name, scope):
            if found.total() >= ENOUGH and (bug in GUARDED or any(found[judge] for judge in JUDGES)):
                break
            tried += 1
            with bug():
                found[_finder(SCENES[name], schedule)] += 1
                del found[""]
    words = bug.__name__.replace("_", " ")
    tally(PLANTED, words, tried)
    assert found, f"none of {tried} schedules found that the pipeline {words}"
    judged = any(found[judge] for judge in JUDGES)
    assert judged or bug in GUARDED, f"nobody who judges a run found that the pipeline {words}: {found}"
    tally(CAUGHT, words, found.total())
    for finder, times in found.items():
        tally(FOUND_BY, f"{words}, {finder}", times)


def _finder(scene: Scene, schedule: Schedule) -> str:
    """Say who finds something wrong; nobody does where the run only breaks, in a way that says nothing."""
    try:
        simulate(scene, schedule)
    except NotFired:
        # The bug has changed what the schedule meets: that shows nothing.
        return ""
    except (AssertionError, ClewError) as error:
        return next(finder for kind, finder in FINDERS.items() if isinstance(error, kind))
    except KeyError:
        return ""
    finally:
        arm()
        _RESTARTED.clear()
    return ""


@pytest.mark.parametrize("collects", [False, True])
def test_the_checker_finds_that_a_write_came_twice_though_all_of_it_was_collected(collects: bool) -> None:
    """Of a pipeline drawn at random there is no run to hold it against: the checker is its only judge."""
    nodes = (Node("same", (0,)), Node("sum", (1,), "count2"))
    drawn = scene_of(Blueprint(("generator",), nodes, ("transactional",), 8, collects))
    for number in range(1, 4):
        schedule = Schedule(1, (visit("sink-after-commit", "sink0", number),))
        result = simulate(drawn, schedule)
        assert bool(result.journal._rows.collected_writes) == collects
        with keeps_no_marker_in_the_sink(), pytest.raises(NotExplained, match="more often than written"):
            simulate(drawn, schedule)


def _schedules(scene: str, scope: str) -> Iterator[Schedule]:
    """Yield one schedule per crash point and operator, in the middle of the run."""
    for (point, where), count in rehearse(SCENES[scene], Schedule(1)).reached.items():
        yield Schedule(1, (visit(point, where, (count + 1) // 2),), (scope,))
