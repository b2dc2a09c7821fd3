"""`clew check`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer

from clew.app.explain import Explained, explain
from clew.app.flags import PyFiles, ready_to_load
from clew.app.target import File, Json, Target, near, split_location
from clew.app.terminal import FAILED, explained, print_json
from clew.errors import GraphError, GraphErrors, SetupFailed
from clew.pipeline.graph import Graph, warnings
from clew.run import Finding as Changed
from clew.run import changes, masked
from clew.words import counted


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `check` has to say."""

    kind: Literal["error", "warning"]
    location: str
    message: str

    def __str__(self) -> str:
        place = f"{near(self.location)}: " if self.location else ""
        return f"{place}{self.kind}: {self.message}"


def check(
    file: File,
    in_words: Annotated[
        bool,
        typer.Option("--explain", help="Say of each operator what it does, what is promised, and what a crash costs."),
    ] = False,
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            metavar="URL",
            help="Say also what has changed since the run in this log, and what would become of it.",
        ),
    ] = None,
    py_files: PyFiles = None,
    as_json: Json = False,
) -> None:
    """Say everything that is wrong with a pipeline's declaration; exit 1 if anything is. Starts nothing."""
    with explained():
        settings = ready_to_load(py_files)
        graph, findings = _examine(Target.parse(file))
        changed = _changes(graph, log)
        failed = graph is None or any(not found.compatible for found in changed or ())
        told = explain(settings.applied_to(graph)) if graph is not None and in_words else []
        if as_json:
            name = graph.name if graph is not None else None
            answer = {"ok": not failed, "pipeline": name, "findings": [asdict(found) for found in findings]}
            own = {"fingerprint": graph.fingerprint, "operators": [asdict(each) for each in told]} if graph else {}
            since = {} if changed is None else {"changes": [asdict(found) for found in changed]}
            print_json({**answer, **since, **(own if in_words else {})})
        else:
            if graph is not None and in_words:
                _explain(graph, told)
            _tell(graph, findings)
            _tell_changes(log, changed)
        if failed:
            raise typer.Exit(FAILED)


def _changes(graph: Graph | None, log: str | None) -> tuple[Changed, ...] | None:
    """Return what is not as it was when the run in a log began, if a log was named."""
    if graph is None or log is None:
        return None
    found = changes(graph, log)
    if found is None:
        raise SetupFailed(
            f"pipeline {graph.name} has no log at {masked(log)}", "name the log of a run, or leave out --log"
        )
    return found


def _tell_changes(log: str | None, found: Sequence[Changed] | None) -> None:
    if log is None or found is None:
        return
    for one in found:
        typer.echo(f"{'changed' if one.compatible else 'refused'}: {one.offer}", err=not one.compatible)
    if not found:
        typer.echo(f"nothing that the run in {masked(log)} depends on has changed")


def _examine(target: Target) -> tuple[Graph | None, list[Finding]]:
    """Return the graph, unless there are errors, and what was found."""
    try:
        graph = target.graph()
    except GraphErrors as errors:
        return None, [_error(error) for error in errors.errors]
    except GraphError as error:
        return None, [_error(error)]
    return graph, [Finding("warning", *split_location(text)) for text in warnings(graph)]


def _error(error: GraphError) -> Finding:
    return Finding("error", error.location, error.message)


def _explain(graph: Graph, told: Sequence[Explained]) -> None:
    typer.echo(f"pipeline {graph.name}, fingerprint {graph.fingerprint}")
    for each in told:
        typer.echo(f"\n{each.operator}")
        for topic, text in each.lines():
            typer.echo(f"  {topic}: {text}")
    typer.echo("")


def _tell(graph: Graph | None, findings: Sequence[Finding]) -> None:
    for found in findings:
        typer.echo(str(found), err=found.kind == "error")
    if graph is not None:
        shape = ", ".join(
            counted(number, what)
            for number, what in (
                (len(graph.operators), "operator"),
                (len(graph.links), "connection"),
                (len(graph.groups), "group"),
            )
        )
        typer.echo(f"pipeline {graph.name}: {shape}; no errors")
