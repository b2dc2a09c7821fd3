"""The loop of a middle or sink operator: Algorithms 2 to 5, resumed by Algorithms 7 to 9."""

import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal

from clew import trace
from clew.errors import (
    AnswerRefused,
    BodyDamaged,
    ClewError,
    EngineFailed,
    GraphError,
    HookFailed,
    NotPlaced,
    SinkFailed,
    SourceFailed,
    StaleWriter,
    StoreFailed,
    TurnTimedOut,
)
from clew.faultpoint import fault_point
from clew.ids import EventId, InputSetId, Port
from clew.pipeline.graph import OperatorSpec
from clew.pipeline.unplaced import UNPLACED, of_label
from clew.protocol.log.alg2_update import Retaken, Update, update
from clew.protocol.log.alg3_generate import Aside, Productions, generate
from clew.protocol.log.alg9_processing import recover_processing
from clew.protocol.log.context import Arrival, Context, InputSet
from clew.protocol.rows import AsideRow, LookupRow
from clew.protocol.step import FixSchema, Step, StoreVersion
from clew.runtime.bodies import INLINE_BODY, BodyPlace
from clew.runtime.changes import begun_anew
from clew.runtime.engine import Job
from clew.runtime.inputs import Inputs
from clew.runtime.progress import Clock
from clew.runtime.runner import Outcome, Runner, Surroundings
from clew.runtime.task import Failure, GenerateTask, Part, SetWork
from clew.runtime.watch import Watch
from clew.runtime.writes import Writes

#: What comes before the events of a turn: what the clock decided, what a person did, and what is assigned anew.
First = tuple[Any, tuple[AsideRow, ...], Retaken | None]
#: Failures that no other Input Set would escape.
_NOT_THE_DATA = (BodyDamaged, StoreFailed, SourceFailed, SinkFailed, StaleWriter, HookFailed)
#: How many bytes of bodies one turn takes at most; what is in files counts too, for the sake of the executors.
TURN_BYTES = 64 << 20
#: How many bytes of inline bodies a turn's tasks carry at most; Spark refuses a task over 128 MiB.
TURN_INLINE_BYTES = 32 << 20


class OperatorRunner(Runner):
    """Runs a middle or sink operator."""

    def __init__(self, spec: OperatorSpec, around: Surroundings) -> None:
        super().__init__(spec, around)
        self._inputs = Inputs(spec, around)
        self._writes = Writes(self, around)
        #: The event that the failing turn began with, and how often it has failed.
        self._failing = (0, 0)
        #: Input Sets that are set aside in this turn, with how; and those whose failing records are.
        self._aside: dict[InputSetId, Failure] = {}
        self._sifted: set[InputSetId] = set()
        self._watch = Watch(around.now, tuple(spec.inputs))
        self._lookups: tuple[LookupRow, ...] = ()
        #: The version that is logged when the pending events are assigned anew, where they are to be.
        self._retakes: StoreVersion | None = None

    def _recover(self) -> None:
        store, name = self.around.store, self.spec.name
        self._writes.recover()
        self._lookups = tuple(store.lookups(name))
        state = store.state(name)
        fault_point("after-restore", name)
        self.context = recover_processing(
            self.context, self.spec.logic, state, store.members(name), store.open_sets(name), store.keyed(name)
        )
        self._inputs.reset(self.context.latest)
        # Asked of the log: a group may be restarted after its events were assigned anew.
        again = self.around.retaken.get(name)
        self._retakes = None if again is None or store.versions().get(name) == again else StoreVersion(name, again)
        fault_point("after-recovered-input", name)

    def step(self) -> Outcome:
        if self.finished:
            return "finished"
        if not self.around.channels.room(self.spec.name):
            return "blocked"
        if self._retakes is not None:
            self._retake(self._retakes)
            return "worked"
        clock = Clock()
        self._inputs.gather(self.pace.limit, TURN_BYTES)
        arrivals = self._inputs.arrivals(self._facts_job(), clock)
        fault_point("after-gather", self.spec.name)
        decision, asked = self._decide(arrivals), self._asked(arrivals)
        nothing: Outcome = "held" if self.context.flushed else "idle"
        if self.context.rests and not arrivals and decision is None and not asked:
            return nothing
        plan = update(self.context, self.spec.logic, arrivals, decision, asked)
        if plan.nothing:
            return nothing
        trace.record("assigned", self.spec.name, turn=plan.context.turn, events=len(plan.taken), sets=len(plan.closed))
        fault_point("before-flush" if plan.ends else "after-assign", self.spec.name)
        plan, made = self._generate(plan, arrivals, (decision, asked, None), clock)
        trace.record("generated", self.spec.name, turn=plan.context.turn, sets=len(plan.closed))
        fault_point("after-generate", self.spec.name)
        self._commit(plan, made)
        self.pace.took(len(plan.taken), clock.work)
        backlog = sum(self.around.channels.backlog(Port(self.spec.name, port)).events for port in self.spec.inputs)
        sent = sum(len(output.headers) for part in made for output in part.outputs.values())
        taken = sum(not event.end for event in arrivals[: len(plan.taken)])
        self.around.progress.turn(self.spec.name, taken, sent, backlog, clock)
        self.around.progress.set(self.spec.name, late=self.late)
        return "worked"

    def _retake(self, version: StoreVersion) -> None:
        """Assign all pending events anew: a turn that takes no others, committed with the version it is for."""
        clock = Clock()
        spans = [span for opened in self.context.opened.values() for span in opened.spans]
        events = self._inputs.taken_again(spans, self._facts_job(), clock)
        retaken = Retaken(begun_anew(self.spec, self.context.state), tuple(events))
        before = replace(self.context.draft(), state=deepcopy(retaken.state))
        first = (self._decide([event for event, _ in events], before), (), retaken)
        plan = update(self.context, self.spec.logic, (), *first)
        plan, made = self._generate(plan, (), first, clock)
        self._commit(plan, made, version)
        self._retakes = None

    def _facts_job(self) -> Job:
        return self.job(self.context.turn + 1, "facts")

    def _decide(self, arrivals: Sequence[Arrival], context: Context | None = None) -> Any:
        """Ask the clock, before any event is taken; a port on which something waits is not quiet."""
        context = context or self.context
        self._watch.tick(event.port for event in arrivals)
        decision = None if context.flushed else self.spec.logic.decide(context.memory([]), self._watch)
        if decision is not None:
            self._watch.decided = self._watch.now
        return decision

    def _asked(self, arrivals: Sequence[Arrival]) -> tuple[AsideRow, ...]:
        """Look whether somebody has decided on what is set aside; not while there is other work."""
        if not self.context.held or arrivals:
            return ()
        rows = self.around.store.asides(self.spec.name)
        return tuple(row for row in rows if row.status in ("retry", "drop"))

    def patience(self) -> float | None:
        if self.context.flushed:
            return None
        self._watch.tick(())
        waits = self.spec.logic.patience(self.context.memory([]), self._watch)
        return None if waits is None else waits / 1e6

    def _commit(self, plan: Update, made: Sequence[Productions], version: StoreVersion | None = None) -> None:
        """Algorithm 3, Steps 4 to 6; events that must not be seen before the writes are held back until then."""
        sink = next(iter(self.spec.sinks)) if self.spec.is_sink else None
        context, step = generate(plan, made, sink, self._set_aside(plan, made), self.capture)
        if version is not None:
            step = replace(step, writes=(*step.writes, version), durable=True)
        if self.spec.general is not None:
            _check_state(self.spec, context.state)
        self.context = context
        context.settle()
        held = step.sends if self.spec.settings.after_write else ()
        point = "after-end" if self.context.finished else "after-commit"
        self.writer.perform(replace(step, sends=()) if held else step, point)
        for write in step.writes:
            if isinstance(write, FixSchema):
                self.fixed(write)
        self._writes.expect(step.writes)
        self._inputs.committed()
        self._failing = (0, 0)
        self._aside, self._sifted = {}, set()
        if self.finished:
            trace.record("finished", self.spec.name)
        fault_point("after-wake", self.spec.name)
        self._writes.perform()
        self.writer.perform(Step(sends=held))

    def _set_aside(self, plan: Update, made: Sequence[Productions]) -> list[Aside]:
        """Return what this turn sets aside, in the order in which its Input Sets closed."""
        attempts = self.spec.settings.attempts
        failed: dict[InputSetId, list[Aside]] = {}
        for part in made:
            for number, place, error in part.failed:
                failed.setdefault(number, []).append(Aside(number, (place,), {**error, "attempts": attempts}))
        for closed in plan.closed:
            if closed.number in self._aside:
                told = self._aside[closed.number].told(attempts)
                failed[closed.number] = [Aside(closed.number, closed.only, told)]
        return [one for closed in plan.closed for one in failed.get(closed.number, ())]

    def _generate(
        self, plan: Update, arrivals: Sequence[Arrival], first: First, clock: Clock
    ) -> tuple[Update, list[Productions]]:
        """Algorithm 3, Step 3, for all Input Sets that closed; a turn that fails is cut down to what succeeds.

        `first` is what comes before the events.
        """
        made: list[Productions] = []
        while True:
            with clock:
                made, failed = self._attempt(plan, made, clock)
            if failed is None:
                self.absence.over()
                return plan, made
            if isinstance(failed, Failure) and isinstance(failed.error, HookFailed):
                # No shorter turn would do better.
                raise failed.error
            arrivals = self._shorter(plan, arrivals, failed)
            before, plan = plan, update(self.context, self.spec.logic, arrivals, *first)
            made = _reusable(before, plan, made)

    def _attempt(
        self, plan: Update, made: Sequence[Productions], clock: Clock
    ) -> tuple[list[Productions], Failure | ClewError | None]:
        """Run what is not made yet; return the good Output Sets before the first failure, and that failure."""
        have = {number for part in made for number in part.sets}
        closed = [s for s in plan.closed if s.number not in have]
        if self.spec.is_sink or not closed:
            return list(made), None
        try:
            results = self._run(plan, closed, clock)
        except (TurnTimedOut, EngineFailed) as error:
            return list(made), error
        good = list(made)
        for result in results:
            if isinstance(result, Failure):
                return good, result
            good.append(result)
        return good, None

    def _run(self, plan: Update, closed: Sequence[InputSet], clock: Clock) -> list[Productions | Failure]:
        turn = plan.context.turn
        inputs = self.input_schemas(plan.context)
        place = self.place(turn)
        work = [
            SetWork(s.number, s.label[0], s.label[1], parts, deepcopy(s.state), s.only, self._mode(s))
            for s, parts in zip(closed, _within_limits([self._inputs.parts(s) for s in closed], place))
        ]
        task = GenerateTask(place, inputs, self.output_schemas(), tuple(work), self._lookups)
        results = self._submit(self.job(turn, self._about(closed)), task, clock)
        return self._agreed(results, turn, task, closed, clock)

    def _mode(self, closed: InputSet) -> Literal["", "aside", "sift"]:
        if closed.number in self._aside:
            return "aside"
        return "sift" if closed.number in self._sifted else ""

    def _submit(self, job: Job, task: GenerateTask, clock: Clock) -> list[Productions | Failure]:
        """Run the Input Sets, each kind of function in its way, and return results in their order."""
        results: list[Productions | Failure] = []
        for style, part in _by_style(self, task):
            if style == "aside":
                results += [Productions((work.number,)) for work in part.sets]
                continue
            if style == "unplaced":
                results += [self._unplaced(work) for work in part.sets]
                continue
            if style == "dataframe":
                ran = self.around.engine.frames(job, part)
                results += ran.results
            else:
                slices = _slices(part, self.around.engine.parallelism)
                ran = self.around.engine.map(job, slices)
                results += [made for result in ran.results for made in result]
            clock.work += ran.seconds
        return results

    def _unplaced(self, work: SetWork) -> Failure:
        """Say why an event has no place: a failure of this operator, though its sender has seen it first."""
        port, number, why = of_label(work.key)
        record = "" if why.record is None else f"record {why.record[0]} {why.record[1]}"
        error = NotPlaced(self.spec.name, str(EventId(self.spec.inputs[port], number)), why.reason, why.frames, record)
        message = f"{record}: {why.reason}" if record else why.reason
        return Failure(work.number, "NotPlaced", message, why.frames, error)

    def style(self, function: str) -> str:
        """Return how a function is run; what has no place has no function."""
        return "unplaced" if function == UNPLACED else self.spec.function(function).style

    def _agreed(
        self,
        results: list[Productions | Failure],
        turn: int,
        task: GenerateTask,
        closed: Sequence[InputSet],
        clock: Clock,
    ) -> list[Productions | Failure]:
        """Make tasks that met a port's first records at the same time agree on its schema."""
        learned: dict[str, bytes] = {}
        agreed = True
        for result in results:
            for schema in () if isinstance(result, Failure) else result.schemas:
                agreed &= learned.setdefault(schema.port.name, schema.schema) == schema.schema
        if agreed:
            return _fix_once(results)
        again = replace(task, outputs={**task.outputs, **learned})
        results = self._submit(self.job(turn, self._about(closed)), again, clock)
        first = tuple(FixSchema(Port(self.spec.name, port), schema) for port, schema in learned.items())
        for index, result in enumerate(results):
            if not isinstance(result, Failure):
                results[index] = replace(result, schemas=first)
                break
        return results

    def _shorter(self, plan: Update, arrivals: Sequence[Arrival], failed: Failure | ClewError) -> Sequence[Arrival]:
        """Return the events to try next, or raise when the culprit has had all its attempts."""
        culprit = _culprit(plan, failed)
        count = len(plan.taken)
        if count > 1:
            self.pace.one_by_one()
        if culprit is not None and culprit.closed_at < plan.context.seq and plan.taken:
            # All that closed before the failing Input Set is kept.
            keep = culprit.closed_at - plan.taken[0].seq
            if keep > 0:
                return arrivals[: len(arrivals) - count + keep]
        elif count > 1:
            return arrivals[: max(1, len(arrivals) // 2)]
        if count > 1:
            return arrivals[: len(arrivals) - count + 1]
        self._count_attempt(plan, failed, culprit)
        return arrivals

    def _count_attempt(self, plan: Update, failed: Failure | ClewError, culprit: InputSet | None) -> None:
        if isinstance(failed, Failure) and self.absence.awaited(failed.error):
            return
        seq, times = self._failing
        times = times + 1 if seq == plan.context.seq else 1
        self._failing = (plan.context.seq, times)
        if times < self.spec.settings.attempts and not _is_final(failed):
            return
        if self.spec.settings.on_error == "quarantine" and self._quarantine(plan, failed, culprit):
            self._failing = (0, 0)
            return
        about = self._about([culprit] if culprit else plan.closed)
        if isinstance(failed, Failure):
            raise self.failed(failed, about, times)
        if isinstance(failed, TurnTimedOut):
            raise TurnTimedOut(self.spec.name, about, failed.seconds)
        raise failed

    def _quarantine(self, plan: Update, failed: Failure | ClewError, culprit: InputSet | None) -> bool:
        """Set what is to blame aside: the records, where the function takes single ones, or the whole Input Set."""
        if culprit is None and len(plan.closed) == 1:
            # It was cut off, or Spark gave it up, and there was nothing else in the turn.
            culprit = plan.closed[0]
        if culprit is None:
            return False
        if not isinstance(failed, Failure):
            failed = Failure(culprit.number, type(failed).__name__, str(failed), "")
        if isinstance(failed.error, _NOT_THE_DATA) and not isinstance(failed.error, AnswerRefused):
            return False
        if failed.record is not None and culprit.number not in self._sifted:
            self._sifted.add(culprit.number)
        else:
            self._aside[culprit.number] = failed
        return True

    def _about(self, sets: Sequence[InputSet]) -> str:
        """Name the events of some Input Sets, shortened where there are many."""
        spans = [span for s in sets for span in s.spans]
        names = []
        for span in spans[:4]:
            first = EventId(self.spec.inputs[span.port], span.first)
            names.append(f"{first}" if span.count == 1 else f"{first}..{span.first + span.count - 1}")
        more = f" and {len(spans) - 4} more" if len(spans) > 4 else ""
        return ", ".join(names) + more


def _check_state(spec: OperatorSpec, state: dict[str, Any]) -> None:
    """Refuse a global state that would not come back from the log as it is."""
    try:
        same = json.loads(json.dumps(state)) == state
    except (TypeError, ValueError):
        same = False
    if not same:
        raise GraphError(
            f"the global state of {spec.name} is {state!r}, which JSON would change; keep to text, numbers, true, "
            "false, None, lists, and dicts with text as keys",
            spec.location,
        )


def _within_limits(sets: Sequence[tuple[Part, ...]], place: BodyPlace) -> Iterator[tuple[Part, ...]]:
    """Keep tasks small: what Input Sets hold inline beyond the limits goes to files that the tasks read."""
    carried = 0
    for parts in sets:
        inline = [run for part in parts for run in part.bodies if run.data is not None]
        carried += sum(sum(run.lengths) for run in inline)
        large = any(length > INLINE_BODY for run in inline for length in run.lengths)
        if not inline or place.root is None or (carried < TURN_INLINE_BYTES and not large):
            yield parts
        else:
            yield tuple(replace(part, bodies=tuple(place.spill(part.bodies))) for part in parts)


def _is_final(failed: Failure | ClewError) -> bool:
    """Say whether trying again cannot help: Clew itself refused the data."""
    return isinstance(failed, Failure) and failed.error is not None


def _culprit(plan: Update, failed: Failure | ClewError) -> InputSet | None:
    if not isinstance(failed, Failure):
        return None
    return next((s for s in plan.closed if s.number == failed.number), None)


def _reusable(before: Update, after: Update, made: Sequence[Productions]) -> list[Productions]:
    """Keep the productions whose Input Sets are the same in the shorter turn."""
    same = {s.number for s in after.closed} & {s.number for s in before.closed}
    old = {s.number: s for s in before.closed}
    same = {s.number for s in after.closed if s.number in same and s.spans == old[s.number].spans}
    return [part for part in made if same.issuperset(part.sets)]


def _by_style(runner: OperatorRunner, task: GenerateTask) -> list[tuple[str, GenerateTask]]:
    """Cut the Input Sets into stretches of one style, keeping their order."""
    parts: list[tuple[str, list[SetWork]]] = []
    for work in task.sets:
        style = "aside" if work.mode == "aside" else runner.style(work.function)
        if parts and parts[-1][0] == style:
            parts[-1][1].append(work)
        else:
            parts.append((style, [work]))
    return [(style, replace(task, sets=tuple(works))) for style, works in parts]


def _slices(task: GenerateTask, parallelism: int) -> list[GenerateTask]:
    """Spread the Input Sets over the cores, consecutive ones together."""
    size = max(1, -(-len(task.sets) // parallelism))
    return [replace(task, sets=task.sets[at : at + size]) for at in range(0, len(task.sets), size)]


def _fix_once(results: list[Productions | Failure]) -> list[Productions | Failure]:
    """Keep each new schema in the first result that has it."""
    seen: set[Port] = set()
    kept: list[Productions | Failure] = []
    for result in results:
        if not isinstance(result, Failure) and result.schemas:
            new = tuple(schema for schema in result.schemas if schema.port not in seen)
            seen |= {schema.port for schema in new}
            result = replace(result, schemas=new)
        kept.append(result)
    return kept
