"""One machine that runs a pipeline in one thread: a seed decides who works next, a schedule who crashes where.

The protocol, the runtime and the supervisor's policy are the real ones. A crash throws the runners of a group away,
or everything that the process held; what the log and the outside world hold stays.
"""

import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal
from unittest import mock

from clew import admission, trace
from clew.faultpoint import POINTS, CrashInjected, Fault, arm
from clew.model.certificate import Finding
from clew.model.checker import Checker
from clew.model.retraction import check_trace
from clew.model.work import Here
from clew.pipeline.graph import Graph
from clew.runtime import bodies, writes
from clew.runtime.channels import Channels
from clew.runtime.collect import collect
from clew.runtime.engine import InlineEngine
from clew.runtime.lookups import keep_lookups
from clew.runtime.progress import Progress
from clew.runtime.runner import Outcome, Runner, Surroundings
from clew.supervisor import threads
from clew.supervisor.threads import Policy, Supervisor, make_runner
from clew.trace import TraceStep
from tests.figures import FIRED, SCHEDULED, SCHEDULES, SEVERAL, UNDECIDED, tally
from tests.simulation.evidence import Evidence
from tests.simulation.journal import Journal
from tests.simulation.outside import World
from tests.simulation.pipelines import SCENES, Scene

#: After its last fault a run ends within this many times the rounds that a whole run without failures takes.
LIVELY = 5
#: The same for pipelines drawn at random, which have no such run to be held against: three times what was seen.
MOST_ROUNDS = 120
#: After its last fault a run ends within so many steps, whoever is left waiting: five times what was seen.
MOST_STEPS = 1_500


@dataclass(frozen=True, repr=False)
class Schedule:
    """All that may differ from one run to another; its repr is a call that replays it."""

    seed: int = 0
    #: Armed crash points, as `clew.faultpoint` reads them, without the action.
    faults: tuple[str, ...] = ()
    #: What dies at each crash, in order: "group", or "machine" with all that was not durable. The last one holds on.
    scopes: tuple[str, ...] = ("group",)
    #: Writes to the outside, counted from 1, whose answer is lost, and those that are refused.
    lost: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    #: Whether it goes on to its end as if another fault were still to come: nobody's turns come in rounds.
    waiting: bool = False

    def __repr__(self) -> str:
        told = [
            f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if getattr(self, one.name) != one.default
        ]
        return f"Schedule({', '.join(told)})"

    @property
    def size(self) -> int:
        """How many faults there are to be."""
        return len(self.faults) + len(self.lost) + len(self.refused)


@dataclass
class Visits:
    """Every visit of a crash point, and which of them is a crash."""

    #: Crashes by their places.
    faults: frozenset[str] = frozenset()
    #: Crashes by how many visits, of any point, lie between one and the next.
    gaps: list[int] = field(default_factory=list)
    reached: Counter[tuple[str, str]] = field(default_factory=Counter)
    fired: list[str] = field(default_factory=list)
    since: int = 0

    def is_crash(self, point: str, operator: str) -> bool:
        self.reached[point, operator] += 1
        place = visit(point, operator, self.reached[point, operator])
        if place not in self.faults and not (self.gaps and self.since >= self.gaps[0]):
            self.since += 1
            return False
        self.gaps, self.since = self.gaps[1:], 0
        self.fired.append(place)
        return True


@dataclass
class _Fuse(Fault):
    """Stands at a crash point for all operators."""

    visits: Visits = field(default_factory=Visits)

    def due(self, operator: str) -> bool:
        return self.visits.is_crash(self.point, operator)


def visit(point: str, operator: str, nth: int) -> str:
    """Name one visit of a crash point."""
    return f"{point}@{operator}#{nth}" if operator else f"{point}#{nth}"


class NotFired(AssertionError):
    """A fault of a schedule did not come to pass: the schedule shows nothing."""


class NoEnd(AssertionError):
    """A run does not come to its end, or not as soon as it should."""


class NotExplained(AssertionError):
    """The checker finds that no run without failures explains this one."""


class Unlike(AssertionError):
    """The world is not what the pipeline leaves there without failures."""


@dataclass
class Result:
    """What a run left."""

    graph: Graph
    world: World
    journal: Journal
    #: The steps that the run made, all of its processes'.
    trace: list[TraceStep]
    #: How often each crash point was reached, by (point, operator).
    reached: dict[tuple[str, str], int]
    #: The same at the moment of the last crash.
    reached_at_crash: dict[tuple[str, str], int]
    #: The crashes, by their places.
    fired: tuple[str, ...]
    steps: int
    #: Rounds in which every group had its turn, after the last fault.
    rounds: int
    #: Whether some of the faults wanted have found no place, and whether the run waited for them to its end.
    missed: bool = False
    waiting: bool = False
    #: Whether the checker could not decide on everything, for want of lineage.
    undecided: bool = False

    @property
    def struck(self) -> int:
        """How many faults have fired."""
        return len(self.fired) + len(self.world.struck)

    @property
    def reached_operators(self) -> list[str]:
        return sorted({operator for _, operator in self.reached if operator})


@dataclass
class _Group:
    """A group of operators: down, recovering one by one, up, or ended."""

    name: str
    operators: tuple[str, ...]
    weight: int
    runners: list[Runner] = field(default_factory=list)
    recovered: int = 0
    failures: int = 0
    turns: int = 0
    at: int = 0
    quiet: int = 0
    #: How many steps in a row found nothing to do while the log was as it is.
    idle: int = 0
    looked: int = 0

    @property
    def ended(self) -> bool:
        up = self.recovered == len(self.operators)
        return up and self.quiet >= len(self.runners) and all(runner.finished for runner in self.runners)

    def crash(self) -> None:
        self.runners, self.recovered, self.at, self.quiet, self.idle = [], 0, 0, 0, 0

    def look(self, outcome: Outcome, commits: int) -> None:
        """Learn what a step came to, with the log at so many commits."""
        worked = outcome == "worked"
        self.quiet = 0 if worked else self.quiet + 1
        self.idle = 0 if worked else self.idle + 1 if self.looked == commits else 1
        self.looked = commits

    def rests(self, commits: int) -> bool:
        """Whether nothing but time can bring it something to do."""
        return self.looked == commits and self.idle > 0 and self.idle >= len(self.runners)


class Machine:
    """Runs one scene by one schedule.

    A rehearsal runs as if another fault were still to come, to its end; `gaps` are crashes that have no place yet.
    """

    def __init__(
        self,
        scene: Scene,
        schedule: Schedule,
        directory: str | None = None,
        rehearsal: bool = False,
        gaps: Sequence[int] = (),
    ) -> None:
        self._scene = scene
        self._rehearsal = rehearsal
        self._drawn = bool(gaps)
        self._schedule = schedule
        self._random = random.Random(schedule.seed)
        # Time passes as it likes, and whoever crashes.
        self._pauses = random.Random(schedule.seed)
        self._now = 0
        self.world = World(frozenset(schedule.lost), frozenset(schedule.refused))
        self.graph: Graph = scene.declare(self.world)
        self._directory = directory
        self.journal = Journal(directory, lossy="machine" in schedule.scopes)
        self.journal.declare(admission.topology(self.graph))
        # Some groups are slow, some fast, so that each may run far ahead of the others.
        self._groups = [
            _Group(name, operators, self._random.choice((1, 3, 9))) for name, operators in self.graph.groups.items()
        ]
        self._visits = Visits(frozenset(schedule.faults), list(gaps))
        arm(*(_Fuse(point, action="raise", visits=self._visits) for point in POINTS))
        self._reached_at_crash: dict[tuple[str, str], int] = {}
        self._trace: list[TraceStep] = []
        self._crashes = self._steps = self._rounds = 0
        #: How many faults have struck, and the step at which the last one did.
        self._struck = self._struck_at = 0
        self._boot()

    @property
    def fired(self) -> tuple[str, ...]:
        return tuple(self._visits.fired)

    def run(self) -> Result:
        """Run to the end; raises when a fault did not fire, or when the pipeline does not come to its end."""
        with trace.listening(self._trace.append):
            return self._run()

    def _run(self) -> Result:
        while not self._over:
            self._steps += 1
            if self._since_fault() >= MOST_STEPS:
                raise NoEnd(f"no end {self._since_fault()} steps after the last fault: {self._where()}")
            if self.waits:
                self._one()
            else:
                self._round()
        arm()
        missed = set(self._schedule.faults) - set(self._visits.fired)
        left = bool(missed or self._visits.gaps or self.world.missed)
        if left and not self._rehearsal and not self._drawn:
            raise NotFired(f"these faults were scheduled and did not fire: {missed or self._schedule}")
        return Result(
            self.graph, self.world, self.journal, self._trace, dict(self._visits.reached), self._reached_at_crash,
            tuple(self._visits.fired), self._steps, self._rounds, left, self.waits,
        )  # fmt: skip

    def _boot(self) -> None:
        """Start the process: nothing of an earlier one is left but the log."""
        channels = Channels(self.graph, self.journal)
        engine = InlineEngine(self.graph)
        around = Surroundings(
            self.graph, self.journal, engine, channels, Progress(), self._directory, False, lambda: self._now
        )
        self._around = around
        keep_lookups(self.graph, self.journal, self._directory, durable=False)
        self._supervisor = Supervisor(around, Policy())
        self._is_final = admission.is_finished(self.graph, self.journal)

    @property
    def waits(self) -> bool:
        """Whether a fault is still to come, or it is to go on as if one were."""
        missing = len(self._schedule.faults) > len(self._visits.fired)
        waits = self._rehearsal or self._schedule.waiting
        return waits or self.world.failures_to_come or missing or bool(self._visits.gaps)

    def _since_fault(self) -> int:
        """Return how many steps were made since a fault has struck."""
        struck = len(self._visits.fired) + len(self.world.struck)
        if struck > self._struck:
            self._struck, self._struck_at = struck, self._steps
        return self._steps - self._struck_at

    @property
    def _over(self) -> bool:
        return self._is_final or all(group.ended for group in self._groups)

    def _one(self) -> None:
        """Let one group do one thing."""
        if self._scene.collects and self._random.random() < 0.1:
            self._collect()
            return
        waiting = self._waiting()
        (group,) = self._random.choices(waiting, [group.weight for group in waiting])
        self._act(group)

    def _round(self) -> None:
        """After the last fault nobody is left waiting: every group does one thing, in some order."""
        self._rounds += 1
        if self._scene.collects:
            self._collect()
        waiting = self._waiting()
        for group in self._random.sample(waiting, len(waiting)):
            self._act(group)

    def _waiting(self) -> list[_Group]:
        """Return the groups that may find something to do; if only time can bring that, all that have not ended."""
        groups = [group for group in self._groups if not group.ended]
        return [group for group in groups if not group.rests(self.journal.commits)] or groups

    def _act(self, group: _Group) -> None:
        self._now += self._pauses.choice((1_000, 200_000, 1_500_000))
        try:
            if group.recovered < len(group.operators):
                self._recover(group)
            else:
                self._step(group)
        except CrashInjected as crash:
            self._crash(group, crash)

    def _recover(self, group: _Group) -> None:
        if not group.runners:
            group.runners = [make_runner(self.graph.operators[name], self._around) for name in group.operators]
            group.turns = self._turns(group)
        group.runners[group.recovered].recover()
        group.recovered += 1

    def _step(self, group: _Group) -> None:
        runner = group.runners[group.at]
        group.at = (group.at + 1) % len(group.runners)
        commits = self.journal.commits
        runner.pace.limit = self._random.randint(1, runner.spec.settings.max_turn_events)
        outcome = runner.step()
        if outcome == "held":
            self._decide(runner.spec.name)
        group.look(outcome, commits)

    def _decide(self, operator: str) -> None:
        """Somebody looks at what is set aside, and has some of it tried again, though nothing was mended."""
        for row in self.journal.asides(operator):
            if row.status == "held":
                status: Literal["retry", "drop"] = "retry" if self._pauses.random() < 0.3 else "drop"
                self.journal.decide_asides(operator, [row.number], status)

    def _crash(self, group: _Group | None, crash: CrashInjected) -> None:
        scope = self._schedule.scopes[min(self._crashes, len(self._schedule.scopes) - 1)]
        self._crashes += 1
        self._reached_at_crash = dict(self._visits.reached)
        if group is not None:
            group.failures = 1 if self._turns(group) > group.turns else group.failures + 1
            restart = self._supervisor._may_restart(group.name, group.operators, crash, group.failures)
            assert restart, f"the supervisor gave {group.name} up after {group.failures} failures"
            group.crash()
        if scope == "machine":
            self.journal.cut_power()
            for other in self._groups:
                other.crash()
            self._boot()

    def _collect(self) -> None:
        try:
            collect(self.journal, self._directory, admission.kept_events(self.graph, self.journal))
        except CrashInjected as crash:
            self._crash(None, crash)

    def _turns(self, group: _Group) -> int:
        return self._supervisor._turns(group.operators)

    def _where(self) -> str:
        return ", ".join(
            f"{group.name} {'ended' if group.ended else f'{group.recovered}/{len(group.operators)} up'}"
            for group in self._groups
        )


def simulate(scene: Scene, schedule: Schedule) -> Result:
    """Run a scene by a schedule, and judge what it left in the world."""
    with _replayed(scene, schedule):
        result = _run(scene, schedule)
        _judge(scene, result)
    return result


@contextmanager
def _replayed(scene: Scene, schedule: Schedule) -> Iterator[None]:
    """Say how a failure can be seen again."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"replay it with simulate({scene.replay}, {schedule})")
        raise


def _judge(scene: Scene, result: Result) -> None:
    try:
        scene.judge(result.world, result.journal)
    except AssertionError as error:
        raise Unlike(str(error)) from error
    if scene.deterministic:
        expected, found = baseline(scene).world.holdings(), result.world.holdings()
        if found != expected:
            raise Unlike(f"the sinks hold {found}, without failures they hold {expected}")
    most = _lively(scene)
    if result.rounds > most:
        raise NoEnd(f"{result.rounds} rounds after the last fault, expected at most {most}")


def show(scene: Scene, schedule: Schedule) -> None:
    """Run a scene by a schedule, and count it in the figures of the suite."""
    tally(SCHEDULED, by=schedule.size)
    _count(simulate(scene, schedule))


def show_drawn(scene: Scene, wanted: Schedule, gaps: Sequence[int]) -> None:
    """Run a scene with crashes that are drawn, and count the schedule that this makes: of the faults that have struck.

    A run that did not wait to its end for one that it passed by is not that of the others alone: they are run again.
    """
    if scene.deterministic:
        wanted, gaps = _fitted(baseline(scene), wanted, gaps)
    with _directory(scene) as directory:
        machine = Machine(scene, wanted, directory, gaps=gaps)
        with _no_waiting():
            result = _finished(machine, scene, wanted)
        schedule = replace(_met(wanted, result), waiting=result.waiting)
        again = result.missed and not result.waiting
        if not again:
            with _replayed(scene, schedule):
                judge(result, directory, scene)
                _judge(scene, result)
    # What was drawn and found no place is not in the schedule.
    tally(SCHEDULED, by=schedule.size if result.missed else wanted.size + len(gaps))
    _count(simulate(scene, schedule) if again else result)


def _fitted(usual: Result, wanted: Schedule, gaps: Sequence[int]) -> tuple[Schedule, list[int]]:
    """Bring faults into the length of a run, so that they find their place in it."""
    share = max(sum(usual.reached.values()) // len(gaps), 1)
    lost, refused = (tuple(n for n in some if n <= usual.world.writes) for some in (wanted.lost, wanted.refused))
    return replace(wanted, lost=lost, refused=refused), [gap % share for gap in gaps]


def _finished(machine: "Machine", scene: Scene, wanted: Schedule) -> Result:
    """Run to the end; where that fails, what has fired by then is the schedule to replay."""
    try:
        return machine.run()
    except BaseException as error:
        met = replace(wanted, faults=machine.fired, waiting=machine.waits)
        error.add_note(f"replay it with simulate({scene.replay}, {met})")
        raise


def _count(result: Result) -> None:
    """Count a run by the faults that have struck in it; one without any shows nothing of failures."""
    tally(FIRED, by=result.struck)
    tally(SCHEDULES, by=int(result.struck >= 1))
    tally(SEVERAL, by=int(result.struck >= 2))
    tally(UNDECIDED, by=int(result.undecided))


def _lively(scene: Scene) -> int:
    """Return how many rounds a run may take after its last fault."""
    return LIVELY * baseline(scene).rounds if scene.name in SCENES else MOST_ROUNDS


def judge(result: Result, root: str | None, scene: Scene) -> None:
    """Let the checker say whether some run without failures explains this one.

    What was collected is judged as if it were still there; what is left without it must not be found wrong either.
    """
    whole = _findings(result, Evidence(result.journal, root, whole=True))
    lacking = [] if scene.traced else [finding for finding in whole if _lacks_lineage(finding)]
    result.undecided = bool(lacking)
    found = [finding for finding in whole if finding not in lacking]
    if scene.collects:
        left = _findings(result, Evidence(result.journal, root))
        found += [finding for finding in left if finding.weight == "wrong"]
    if found:
        raise NotExplained(f"{found[0].weight}: {found[0]}")


def _findings(result: Result, evidence: Evidence) -> list[Finding]:
    verdict = Checker(result.graph, evidence, Here(result.graph)).check()
    # None of the operators here hangs on chance; where one seemed to, the judge would believe what was logged.
    assert not verdict.as_logged, verdict.as_logged
    return [*verdict.findings, *check_trace(evidence, result.trace)]


def _lacks_lineage(finding: Finding) -> bool:
    """Say whether something cannot be decided because lineage of it was not captured."""
    return finding.weight == "undecided" and finding.fact.startswith("no lineage was captured of it")


@lru_cache(maxsize=256)
def rehearse(scene: Scene, schedule: Schedule) -> Result:
    """Run a scene as if another fault were still to come: what is reached here after the last crash can be next."""
    return _run(scene, schedule, rehearsal=True)


def discover(scene: Scene, wanted: Schedule, gaps: Sequence[int]) -> Schedule:
    """Return a schedule whose faults all fire: of those wanted what one run meets, and its crashes by their places."""
    return _met(wanted, _run(scene, wanted, rehearsal=True, gaps=gaps))


def _met(wanted: Schedule, result: Result) -> Schedule:
    """Return what a run has met of the faults wanted."""
    lost, refused = (tuple(n for n in some if n in result.world.struck) for some in (wanted.lost, wanted.refused))
    return replace(wanted, faults=result.fired or wanted.faults, lost=lost, refused=refused)


def _run(scene: Scene, schedule: Schedule, rehearsal: bool = False, gaps: Sequence[int] = ()) -> Result:
    with _no_waiting(), _directory(scene) as directory:
        result = Machine(scene, schedule, directory, rehearsal, gaps).run()
        if not rehearsal:
            judge(result, directory, scene)
        return result


# Of pipelines that are drawn at random there is no end, and a run of each is nothing to keep.
@lru_cache(maxsize=64)
def baseline(scene: Scene) -> Result:
    """Return a run without failures."""
    return _run(scene, Schedule())


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Let a failed write be tried again at once, and nobody write down where each crash came from."""
    with mock.patch.object(writes.time, "sleep", _nothing), mock.patch.object(threads, "_tell_failure", _nothing):
        yield


def _nothing(*_: object) -> None:
    pass


@contextmanager
def _directory(scene: Scene) -> Iterator[str | None]:
    """Give a scene that collects garbage a place for body files, however small the bodies are."""
    if not scene.collects:
        yield None
        return
    root = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=root) as place, mock.patch.object(bodies, "INLINE_LIMIT", 0):
        yield place
