"""`clew status`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from clew.app.flags import PyFiles, ready_to_load
from clew.app.gc import no_log
from clew.app.target import Bodies, File, Json, LogUrl, Target, run_again
from clew.app.terminal import explained, print_json, results
from clew.run import Log, OperatorStatus, ProcessStatus, RunStatus
from clew.run import status as read_status


def status(
    file: File, log: LogUrl = None, bodies: Bodies = None, py_files: PyFiles = None, as_json: Json = False
) -> None:
    """Show what the log says of a run, whether or not it is going on. Changes nothing."""
    with explained():
        named, settings = log, ready_to_load(py_files, {"log": log, "bodies": bodies})
        log, bodies = settings.log, settings.bodies
        graph = Target.parse(file).graph()
        found = read_status(graph, log, bodies)
        if found is None:
            no_log(graph.name, Log.at(log, graph.name, bodies), run_again(file, named, py_files), as_json)
        elif as_json:
            print_json(as_mapping(found))
        else:
            _show(found, run_again(file, named, py_files))


def as_mapping(run: RunStatus) -> Mapping[str, Any]:
    """Return a status as JSON has it."""
    own: dict[str, Any] = {"pipeline": run.pipeline, "run": run.run_id, "log": run.log, "exists": True}
    own |= {"finished": run.finished, "events": run.events, "operators": [asdict(o) for o in run.operators]}
    return own | ({"processes": [asdict(process) for process in run.processes]} if run.processes else {})


def _show(run: RunStatus, again: str) -> None:
    console = results()
    console.print(f"pipeline {run.pipeline}, run {run.run_id}, log {run.log}")
    console.print(_table(run))
    for operator in run.operators:
        for number, what in ((operator.late, "records came too late"), (operator.quarantined, "in quarantine")):
            if number:
                typer.echo(f"{operator.operator}: {number} {what}")
    # Where groups are threads, and nobody runs them now, there is no process to tell of.
    if any(process.group is not None or process.alive for process in run.processes):
        console.print(_processes(run))
    typer.echo(_verdict(run, again))


def _table(run: RunStatus) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("operator", no_wrap=True)
    table.add_column("status")
    for number in ("incarnation", "last turn", "acknowledged", "backlog", "sent", "writes", "undone writes"):
        table.add_column(number, justify="right")
    for operator in run.operators:
        table.add_row(*_cells(operator))
    return table


def _cells(operator: OperatorStatus) -> list[Text]:
    backlog = {port: waiting.events for port, waiting in operator.backlog.items()}
    # What never ran is "dead" in the log, a word that would alarm here.
    state = "not started" if operator.status == "dead" and operator.incarnation == 0 else operator.status
    if not operator.declared:
        state = f"{state} (no longer in the file)"
    cells = [operator.operator, state, str(operator.incarnation), str(operator.turn)]
    cells += [_per_port(figures, alone) for figures, alone in (
        (operator.acknowledged, "in"), (backlog, "in"), (operator.sent, "out"), (operator.writes, "out"),
        (operator.undone_writes, "out"),
    )]  # fmt: skip
    return [Text(cell) for cell in cells]


def _processes(run: RunStatus) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("process", "pid", "host", "state", "incarnation", "restarts", "last error"):
        table.add_column(column, no_wrap=column == "process", justify="right" if column == "pid" else "left")
    for process in run.processes:
        cells = [process.role, str(process.pid), process.host, _state(process), _incarnation(process)]
        cells += [_restarts(process), process.last_error.partition("\n")[0] or "-"]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _state(process: ProcessStatus) -> str:
    if process.alive:
        return f"alive, {process.left:.1f} s left"
    if process.left > 0:
        return "gone"
    return "ended" if process.ended else f"silent for {process.silent:.0f} s"


def _incarnation(process: ProcessStatus) -> str:
    """Write the incarnation of a group; its operators are named where theirs are not the same."""
    if len(set(process.incarnations.values())) == 1:
        return str(next(iter(process.incarnations.values())))
    return ", ".join(f"{operator} {number}" for operator, number in process.incarnations.items()) or "-"


def _restarts(process: ProcessStatus) -> str:
    return str(process.restarts) + (f", {process.restarts_inside} inside" if process.restarts_inside else "")


def _per_port(figures: Mapping[str, int], alone: str) -> str:
    """Write a figure per port; a port that is the only one, and called as usual, needs no name."""
    if list(figures) == [alone]:
        return str(figures[alone])
    return ", ".join(f"{port} {count}" for port, count in figures.items()) or "-"


def _verdict(run: RunStatus, again: str) -> str:
    if run.finished:
        return f"finished: {run.events} events logged"
    if not run.started:
        return f"not started; `{again}` starts it"
    done = sum(operator.finished for operator in run.operators if operator.declared)
    of = sum(operator.declared for operator in run.operators)
    ended = f"{done} of {of} operators have finished, {run.events} events logged"
    supervisor = next((process for process in run.processes if process.role == "supervisor"), None)
    if supervisor is not None and supervisor.alive:
        return f"not finished: {ended}; it is run by process {supervisor.pid} on {supervisor.host}"
    return f"not finished: {ended}; `{again}` resumes it"
