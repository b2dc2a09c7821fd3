"""The loop of a source: Algorithm 1, resumed by Algorithm 6."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from clew import trace
from clew.errors import ClewError, EngineFailed, SourceFailed, TurnTimedOut
from clew.faultpoint import fault_point
from clew.ids import Port
from clew.pipeline.contracts import Framed, Observed, Replayable
from clew.protocol.log.alg1_source import complete_action, drop_effect, emit, parts_of, start_action
from clew.protocol.log.alg6_source import Resume, recover_source
from clew.protocol.log.context import restore
from clew.protocol.rows import Bodies, EventRun, ReadEventRow, cut_bodies
from clew.protocol.step import FixSchema
from clew.runtime.bodies import load
from clew.runtime.engine import Ran
from clew.runtime.progress import Clock
from clew.runtime.runner import Outcome, Runner
from clew.runtime.task import EffectTask, Events, Failure, ObserveTask, ReadTask, Task

#: The name of a source's connection to its outside system, as READ_ACTION has it.
CONNECTION = "in"


class SourceRunner(Runner):
    """Runs a source: one read action, whose effect becomes events."""

    _resume = Resume("start")
    _snapshot: Any = None
    _attempts = 0

    def _recover(self) -> None:
        store, name = self.around.store, self.spec.name
        self.context = restore(self.context, store.state(name))
        action = store.last_read_action(name)
        events = self._read_events(action.action) if action else []
        self._resume = recover_source(self.context, action, events, self._by_offset)
        if self._resume.at in ("stored", "drop") and isinstance(self.spec.source, Replayable):
            self._snapshot = self._load_snapshot(self._resume.effects)
        fault_point("after-source-restore", name)

    def _read_events(self, action: int) -> list[ReadEventRow]:
        """Return the rows of an action's event, one per run of bodies that its effect is stored in."""
        rows = (self.around.store.read_event(self.spec.name, part, action) for part in parts_of(CONNECTION))
        # `takewhile` does not tell mypy that there is no None among what it takes.
        return list(takewhile(lambda row: row is not None, rows))  # type: ignore[arg-type]

    @property
    def _by_offset(self) -> bool:
        """Whether the action can be replayed with nothing stored first."""
        return isinstance(self.spec.source, Replayable) and not self.spec.source.stores_snapshot

    def step(self) -> Outcome:
        match self._resume.at:
            case "start":
                return self._start()
            case "observe":
                return self._observe()
            case "stored" | "replay":
                if not self.around.channels.room(self.spec.name):
                    return "blocked"
                self._emit()
            case "drop":
                self._drop()
            case "finished":
                return "finished"
        return "worked"

    def _start(self) -> Outcome:
        """Step 1."""
        self._add_action()
        return "worked"

    def _add_action(self) -> None:
        assert self.spec.source is not None
        fault_point("before-action-logged", self.spec.name)
        self.context, step = start_action(self.context, CONNECTION, self.spec.source.describe())
        self.writer.perform(step, "after-action-logged")
        self._resume = Resume("replay") if self._by_offset else Resume("observe")

    def _observe(self) -> Outcome:
        """Steps 2.a and 2.b: store the effect, then log the action as complete."""
        source = self.spec.source
        if isinstance(source, Replayable):
            self._snapshot = self._looked_at(source)
            effects = [self._store_snapshot(self._snapshot)]
        elif isinstance(source, Framed):
            effects = self._observe_frame(source)
        else:
            assert isinstance(source, Observed)
            effects = self._run([ObserveTask(self.place(self.context.turn + 1))], source.describe(), Clock())
        fault_point("after-effect-stored", self.spec.name)
        self.writer.perform(complete_action(self.context, CONNECTION, *effects), "after-action-complete")
        self._resume = Resume("stored", None, tuple(effects))
        return "worked"

    def _looked_at(self, source: Replayable) -> Any:
        """Return a source as it is now, once it can be reached."""
        while True:
            try:
                snapshot = source.snapshot()
            except SourceFailed as error:
                if not self.absence.awaited(error):
                    raise
            else:
                self.absence.over()
                return snapshot

    def _observe_frame(self, source: Framed) -> list[Bodies]:
        turn = self.context.turn + 1
        job = self.job(turn, source.describe())
        return self._tried(lambda: self.around.engine.observe(job, self.place(turn), source.rows_per_event), job.about)

    def _emit(self) -> None:
        """Steps 2.c and 3: one turn of events."""
        clock = Clock()
        tasks, last = self._plan()
        with clock:
            results: list[Events] = (
                self._run(tasks, f"{self.spec.name} from {self._resume.offset}", clock) if tasks else []
            )
        if last is None:
            last = sum(result.pieces for result in results) < self._asked
        offset = self._offset_after(results)
        trace.record("read", self.spec.name, offset=self._resume.offset, pieces=sum(r.pieces for r in results))
        fault_point("after-source-read", self.spec.name)
        run = EventRun(
            Port(self.spec.name, "out"),
            0,
            tuple(header for result in results for header in result.headers),
            tuple(body for result in results for body in result.bodies),
        )
        stored = len(self._resume.effects)
        schema = self._learned(results)
        self.context, step = emit(
            self.context, CONNECTION, run, offset, last, stored, schema, self._ends, bool(self.capture.outputs)
        )
        self.writer.perform(step, "after-end" if self.finished else "after-source-commit")
        if self.finished:
            trace.record("finished", self.spec.name)
        if schema:
            self.fixed(schema)
        self._attempts = 0
        self.pace.took(len(run.headers), clock.work)
        self.around.progress.turn(self.spec.name, 0, len(run.headers), 0, clock)
        after = ("drop" if stored else "finished") if last else self._resume.at
        self._resume = Resume(after, offset, self._resume.effects)

    def _plan(self) -> tuple[list[Task], bool | None]:
        place, schemas = self.place(self.context.turn + 1), self.output_schemas()
        source, offset = self.spec.source, self._resume.offset
        self._asked = self.pace.limit
        if isinstance(source, Replayable):
            plan = source.plan(self._snapshot, offset, self.pace.limit)
            # More tasks than cores would pay a task's fixed cost more often than it saves.
            cuts = _cuts(0, len(plan.slices), self.around.engine.parallelism)
            return [ReadTask(place, self._snapshot, plan.slices[a:b], schemas) for a, b in cuts], plan.last
        effects = self._resume.effects
        count = sum(len(effect) for effect in effects)
        start = offset or 0
        stop = min(start + self.pace.limit, count)
        self._stop = stop
        cuts = _cuts(start, stop, self.around.engine.parallelism)
        return [EffectTask(place, cut_bodies(effects, a, b), schemas) for a, b in cuts], stop == count

    #: Whether the stream ends with the read action.
    _ends = True
    _asked = 0
    _stop = 0

    def _offset_after(self, results: Sequence[Events]) -> Any:
        if not isinstance(self.spec.source, Replayable):
            return self._stop
        offsets = [result.offset for result in results if result.offset is not None]
        return offsets[-1] if offsets else self._resume.offset

    def _learned(self, results: Sequence[Events]) -> FixSchema | None:
        schemas = [result.schema for result in results if result.schema is not None]
        return FixSchema(Port(self.spec.name, "out"), schemas[0]) if schemas else None

    def _run(self, tasks: Sequence[Task], about: str, clock: Clock) -> list[Any]:
        """Run tasks, again where those of the first turn met columns of different types: all take the first's then."""
        results = self._tried(lambda: self._mapped(tasks, about, clock), about)
        if not _disagree(results):
            return results
        self._attempts += 1
        return self._run([_with_schema(task, results) for task in tasks], about, clock)

    def _mapped(self, tasks: Sequence[Task], about: str, clock: Clock) -> Ran:
        ran = self.around.engine.map(self.job(self.context.turn + 1, about), tasks)
        clock.work += ran.seconds
        return ran

    def _tried(self, compute: Callable[[], Ran], about: str) -> list[Any]:
        """Compute something; a failure of the outside system is tried again before it stops the run."""
        while True:
            try:
                results = compute().results
            except (EngineFailed, TurnTimedOut):
                self._attempts += 1
                if self._attempts >= self.spec.settings.attempts:
                    raise
                continue
            failures = [result for result in results if isinstance(result, Failure)]
            if not failures:
                self.absence.over()
                return results
            if self.absence.awaited(failures[0].error):
                continue
            self._attempts += 1
            if self._attempts >= self.spec.settings.attempts:
                raise self.failed(failures[0], about, self._attempts)

    def _drop(self) -> None:
        """Step 2.d."""
        assert self.spec.source is not None
        fault_point("before-effect-dropped", self.spec.name)
        self.spec.source.release(self._snapshot)
        stored = len(self._resume.effects)
        self.writer.perform(drop_effect(self.context, CONNECTION, stored), "after-effect-dropped")
        self._resume = Resume("finished" if self.finished else "start")

    def _store_snapshot(self, snapshot: Any) -> Bodies:
        data = json.dumps(snapshot).encode()
        return self.place(self.context.turn + 1).store([[data]])[0]

    def _load_snapshot(self, effects: Sequence[Bodies]) -> Any:
        if not effects:
            raise ClewError(f"the stored listing of source {self.spec.name} is gone from the log; start a --fresh run")
        (data,) = load(self.around.bodies, effects)
        return json.loads(bytes(data))


def _cuts(start: int, stop: int, parts: int) -> list[tuple[int, int]]:
    """Cut a range into at most `parts` of about the same size."""
    size = max(1, -(-(stop - start) // parts))
    return [(at, min(at + size, stop)) for at in range(start, stop, size)]


def _disagree(results: Sequence[Any]) -> bool:
    schemas = {result.schema for result in results if isinstance(result, Events) and result.schema is not None}
    return len(schemas) > 1


def _with_schema(task: Task, results: Sequence[Any]) -> Task:
    schema = next(result.schema for result in results if isinstance(result, Events) and result.schema is not None)
    assert isinstance(task, ReadTask | EffectTask)
    return replace(task, outputs={"out": schema})
