"""`clew chaos`."""

import random
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from clew.app.flags import (
    Conf,
    EngineFlag,
    Jars,
    Master,
    Packages,
    PyFiles,
    make_importable,
    spark_flags,
    spark_options,
    spark_words,
)
from clew.app.settings import EngineName, in_force
from clew.app.target import Bodies, File, Json, Target, named
from clew.app.terminal import FAILED, UNDECIDED, complain, explained, print_json, results
from clew.app.verdict import as_mapping, exit_code, print_verdict
from clew.errors import SetupFailed
from clew.model.certificate import Verdict
from clew.pipeline.graph import Graph
from clew.run import (
    KINDS,
    ChaosFault,
    ChaosOutcome,
    ChaosPlace,
    Kind,
    Log,
    SparkOptions,
    draw,
    kinds_for,
    masked,
    program_of,
    verify,
)
from clew.run import chaos as run_under_faults
from clew.run import status as read_status
from clew.trace import load

#: More faults would take longer to draw and to strike than anybody waits.
MOST_FAULTS = 200

#: The file that says of a directory that `clew chaos` made what it makes there, and may remove it.
_MARK = "made-by-clew-chaos"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What `clew chaos` was asked to do."""

    file: str
    seed: int
    faults: int
    log: str | None
    bodies: str | None
    engine: EngineName
    options: SparkOptions
    only: tuple[Kind, ...]

    @property
    def again(self) -> str:
        """The command that repeats it."""
        words = ["clew", "chaos", self.file, "--seed", str(self.seed), "--faults", str(self.faults)]
        given = {"--log": masked(self.log) if self.log else None, "--bodies": self.bodies}
        given["--engine"] = self.engine if self.engine != "spark" else None
        words += [word for option, value in given.items() if value for word in (option, value)]
        words += spark_words(self.options, secrets=False)
        return shlex.join([*words, "--only", ",".join(self.only)] if self.only else words)

    def directory(self, graph: Graph) -> Path:
        return Path(".clew") / graph.name / f"chaos-{self.seed}"

    def place(self, graph: Graph) -> Log:
        """The log of the run: its own, and its bodies too, wherever the log is."""
        url = self.log or f"sqlite:///{self.directory(graph) / 'log.db'}"
        return Log.at(url, graph.name, str(self.home_of_bodies(graph) / "bodies"))

    def home_of_bodies(self, graph: Graph) -> Path:
        """A directory of its own in the one that was named: bodies of other runs have the same names."""
        directory = self.directory(graph)
        return Path(self.bodies) / graph.name / directory.name if self.bodies else directory

    def command(self, graph: Graph, url: str) -> list[str]:
        """The command line of the run itself."""
        words = [sys.executable, "-m", "clew.app.main", "run", self.file, "--log", url, "--engine", self.engine]
        words += ["--bodies", str(self.place(graph).bodies), "--trace", str(ChaosPlace(self.directory(graph)).trace)]
        return [*words, *spark_words(self.options)]


def chaos(
    file: File,
    seed: Annotated[
        int | None, typer.Option(metavar="S", help="The same seed draws the same faults. [default: a new one]")
    ] = None,
    faults: Annotated[int, typer.Option(metavar="N", min=1, help="How many faults there are to be.")] = 5,
    only: Annotated[
        str | None,
        typer.Option(metavar="KINDS", help=f"Draw these kinds only, as in group,process; of {', '.join(KINDS)}."),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A log that does not exist yet. [default: .clew/PIPELINE/chaos-S/log.db here]"
        ),
    ] = None,
    bodies: Bodies = None,
    engine: EngineFlag = None,
    master: Master = None,
    conf: Conf = None,
    packages: Packages = None,
    jars: Jars = None,
    py_files: PyFiles = None,
    as_json: Json = False,
) -> None:
    """Run a pipeline under random faults, and verify what it leaves in its sinks.

    It writes to the sinks that the pipeline declares: point them at a test system, where they are empty. The log is
    one of its own, which the same command removes before it starts.

    Exit codes: 0 the outcome is explained by a run without failures, and every fault has fired; 1 it is not
    explained, or the run did not finish; 2 the command line is wrong; 4 it cannot be decided, or it is explained
    but some fault had no chance to fire; 130 it was interrupted, or told to end, and the run with it.
    """
    if faults > MOST_FAULTS:
        raise typer.BadParameter(f"there are to be {faults} faults, and one run meets at most {MOST_FAULTS}")
    chosen = seed if seed is not None else random.SystemRandom().randrange(1_000_000)
    kinds = _read_kinds(only)
    with explained():
        flags = spark_flags(master, conf, packages, jars, py_files)
        # A log that the settings name is that of other runs; this one has its own.
        settings = in_force({**flags, "engine": engine, "bodies": bodies})
        options = spark_options(settings.engine, settings, flags)
        if settings.engine == "inline":
            options.refuse_inline()
        request = Request(file, chosen, faults, log, settings.bodies, settings.engine, options, kinds)
        make_importable(settings.py_files)
        if not sys.platform.startswith("linux"):
            raise SetupFailed(f"clew chaos runs on Linux only, and this is {sys.platform}", "run it on Linux")
        # What user code prints would otherwise stand before the answer.
        with redirect_stdout(sys.stderr):
            target = Target.parse(file)
            graph = target.graph()
            outcome, verdict = _strike(graph, target, request)
        if as_json:
            print_json(_as_json(graph, request, outcome, verdict))
        else:
            _show(outcome)
            if verdict is not None:
                print_verdict(verdict)
        raise typer.Exit(_tell(graph, request, outcome, verdict, _say if as_json else typer.echo))


def _strike(graph: Graph, target: Target, request: Request) -> tuple[ChaosOutcome, Verdict | None]:
    """Run the pipeline under faults, and verify it if it has finished."""
    place = request.place(graph)
    drawn = draw(graph, request.seed, request.faults, _kinds(request, place))
    _prepare(graph, request, place)
    _announce(graph, request, drawn)
    directory = request.directory(graph)
    outcome = run_under_faults(graph, lambda url: request.command(graph, url), place, directory, drawn, _say)
    return outcome, _judge(graph, target, request) if not outcome.failure else None


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _read_kinds(text: str | None) -> tuple[Kind, ...]:
    asked = [word.strip() for word in text.split(",")] if text else []
    unknown = [word for word in asked if word not in KINDS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is no kind of fault; there are {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in asked)


def _kinds(request: Request, place: Log) -> tuple[Kind, ...]:
    if place.url.startswith("memory"):
        raise SetupFailed("a log in memory survives no fault", "leave out --log, or name a file or a database")
    possible = kinds_for(request.engine, request.options.master, place.url)
    impossible = [kind for kind in request.only if kind not in possible]
    if impossible:
        cure = f"here there are {', '.join(possible)}"
        raise SetupFailed(f"a run with engine {request.engine} has no faults of kind {', '.join(impossible)}", cure)
    return request.only or possible


def _prepare(graph: Graph, request: Request, place: Log) -> None:
    """Remove what the same command left before, and nothing else."""
    directory, home = request.directory(graph), request.home_of_bodies(graph)
    for own in {directory, home}:
        _refuse_unmarked(own)
    if request.log is not None and place.exists(graph.name):
        found = read_status(graph, place.url, place.bodies)
        if found is None or found.run_id not in _runs_of(ChaosPlace(directory).trace):
            raise SetupFailed(
                f"there is a log at {masked(place.url)} already, which is not of this chaos run",
                "name one that does not exist: a run under faults has a log of its own",
            )
        place.remove(graph.name)
    shutil.rmtree(str(place.bodies), ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)
    for own in (directory, home):
        own.mkdir(parents=True, exist_ok=True)
        (own / _MARK).touch()


def _refuse_unmarked(directory: Path) -> None:
    """Refuse to work in a directory that holds what somebody else has made."""
    if directory.is_dir() and any(directory.iterdir()) and not (directory / _MARK).exists():
        raise SetupFailed(
            f"{directory} holds what clew chaos has not made, expected a directory that is empty or does not exist",
            f"move it away, or use another --seed{' or --bodies' if directory.parts[:1] != ('.clew',) else ''}",
        )


def _runs_of(trace: Path) -> set[Any]:
    return {step.what.get("run") for step in load(str(trace)) if step.kind == "started"} if trace.exists() else set()


def _announce(graph: Graph, request: Request, drawn: Sequence[ChaosFault]) -> None:
    sinks = [sink.describe() for spec in graph.operators.values() for sink in spec.sinks.values()]
    where = f", which writes to {', '.join(sinks)}: this must be a test system" if sinks else ""
    _say(f"{_count(len(drawn), 'fault')} in a run of pipeline {graph.name}{where}")
    _say(f"seed {request.seed} drew: {'; '.join(str(fault) for fault in drawn)}")


def _judge(graph: Graph, target: Target, request: Request) -> Verdict:
    _say("the run has finished; it is verified")
    place, trace = request.place(graph), ChaosPlace(request.directory(graph)).trace
    return verify(
        graph, log=place.url, bodies=str(place.bodies), engine="auto", options=request.options,
        program=lambda: program_of(target.path, target.name), trace=[str(trace)],
    )  # fmt: skip


def _show(outcome: ChaosOutcome) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("fault", "operator", "where", "fired"):
        table.add_column(column, no_wrap=True)
    for fault, fired in zip(outcome.faults, outcome.fired):
        answer = Text("yes") if fired else Text("no", style="bold yellow")
        table.add_row(Text(fault.kind), Text(fault.operator or "-"), Text(fault.where), answer)
    results().print(table)


def _tell(graph: Graph, request: Request, outcome: ChaosOutcome, verdict: Verdict | None, say: Say) -> int:
    """Say what it came to and what to do; returns the exit code."""
    output = ChaosPlace(request.directory(graph)).output
    missed = [fault for fault, fired in zip(outcome.faults, outcome.fired) if not fired]
    if verdict is None:
        complain(f"the run has not finished: {outcome.failure}")
    elif missed:
        which = "; ".join(str(fault) for fault in missed)
        say(f"{_count(len(missed), 'fault')} had no chance to fire before the run ended: {which}")
    if outcome.dropped:
        listed = named(request.file, request.place(graph).url)
        say(
            f"{outcome.dropped} in quarantine when all else was done: dropped; `clew quarantine list {listed}` lists it"
        )
    if verdict is not None and verdict.word == "undecided" and _about_sinks(graph, verdict):
        say("a sink that holds what other runs wrote cannot be judged: empty it, and repeat")
    if verdict is None or verdict.word == "not explained":
        say(f"what the run said is in {output}")
    emptied = "empty the sinks, and " if any(spec.sinks for spec in graph.operators.values()) else ""
    say(f"{emptied}repeat it with: {request.again}")
    if verdict is None:
        return FAILED
    return exit_code(verdict) or (UNDECIDED if missed else 0)


def _about_sinks(graph: Graph, verdict: Verdict) -> bool:
    writers = {spec.name for spec in graph.operators.values() if spec.sinks}
    return any(finding.operator in writers for finding in verdict.findings)


def _as_json(graph: Graph, request: Request, outcome: ChaosOutcome, verdict: Verdict | None) -> dict[str, object]:
    place = ChaosPlace(request.directory(graph))
    faults = [
        {"kind": fault.kind, "operator": fault.operator or None, "where": fault.where, "fired": fired}
        for fault, fired in zip(outcome.faults, outcome.fired)
    ]
    return {
        "pipeline": graph.name,
        "seed": request.seed,
        "faults": faults,
        "starts": outcome.starts,
        "error": outcome.failure or None,
        "dropped": outcome.dropped,
        **(as_mapping(verdict) if verdict else {"verdict": None}),
        "log": masked(request.place(graph).url),
        "trace": str(place.trace),
        "output": str(place.output),
        "again": request.again,
    }


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
