"""`clew quarantine`: what functions fail on, and what is to become of it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from clew.app.flags import PyFiles, ready_to_load
from clew.app.gc import no_log
from clew.app.target import Bodies, File, Json, LogUrl, Target, named, run_again
from clew.app.terminal import FAILED, complain, explained, print_json, results
from clew.pipeline.graph import Graph
from clew.run import Log, Quarantined, decide_quarantined, quarantine_of, quarantined_records
from clew.words import counted

quarantine = typer.Typer(
    help="What functions fail on: list it, look at it, try it again, or give it up.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="As `list` shows them, such as parse#1.", show_default=False),
]
All = Annotated[bool, typer.Option("--all", help="Everything that is not resolved.")]


@quarantine.command("list")
def list_(
    file: File, log: LogUrl = None, bodies: Bodies = None, py_files: PyFiles = None, as_json: Json = False
) -> None:
    """List what was set aside, with its error."""
    with explained():
        kept = _read(file, log, bodies, py_files, as_json)
        if as_json:
            print_json({"pipeline": kept.graph.name, "quarantined": [_mapping(one) for one in kept.found]})
            return
        if not kept.found:
            typer.echo(f"nothing of pipeline {kept.graph.name} is in quarantine")
            return
        results().print(_table(kept.found))
        for told in _what_is_left(kept.found, named(file, log, py_files), run_again(file, log, py_files)):
            typer.echo(told)


def _what_is_left(found: list[Quarantined], words: str, again: str) -> Iterator[str]:
    """Say what is to be decided, and what was decided of the rest."""
    count = Counter(one.row.status for one in found)
    if count["held"]:
        yield (
            f"{count['held']} not decided: `clew quarantine retry {words} ID` (after the function was mended) or "
            f"`clew quarantine drop {words} ID`, then `{again}`"
        )
    coming = ((count["retry"], "to be tried again"), (count["drop"], "to be dropped"))
    if any(number for number, _ in coming):
        yield f"{_listed(coming)} by the next run: `{again}`"
    done = ((count["retried"], "tried again"), (count["dropped"], "dropped"))
    if any(number for number, _ in done):
        yield f"{_listed(done)} by an earlier run"


def _listed(parts: Iterable[tuple[int, str]]) -> str:
    return ", ".join(f"{number} {what}" for number, what in parts if number)


@quarantine.command()
def show(
    file: File, id: str, log: LogUrl = None, bodies: Bodies = None, py_files: PyFiles = None, as_json: Json = False
) -> None:
    """Show one: its records, the error, and where it came from in your code."""
    with explained():
        kept = _read(file, log, bodies, py_files, as_json)
        (one,) = _chosen(kept.found, [id], False)
        records = quarantined_records(kept.graph, one, kept.log, kept.bodies)
        if as_json:
            rows = {port: table.to_pylist() for port, table in records.items()}
            print_json({**_mapping(one), "frames": one.row.error["frames"], "records": rows})
            return
        error = one.row.error
        typer.echo(f"{one.id}: {one.row.status}, {one.events}")
        typer.echo(f"{error['kind']}: {error['message']} ({counted(error['attempts'], 'attempt')})")
        if error["frames"]:
            typer.echo(error["frames"])
        for port, table in records.items():
            typer.echo(f"{counted(table.num_rows, 'record')} on {port}:")
            for row in table.slice(0, 10).to_pylist():
                typer.echo(f"  {row}")


@quarantine.command()
def retry(
    file: File, ids: Ids = None, all_: All = False, log: LogUrl = None, bodies: Bodies = None, py_files: PyFiles = None
) -> None:
    """Let the next run try it again, with the function as it is then."""
    _decide(file, ids, all_, log, bodies, py_files, "retry", "is tried again")


@quarantine.command()
def drop(
    file: File, ids: Ids = None, all_: All = False, log: LogUrl = None, bodies: Bodies = None, py_files: PyFiles = None
) -> None:
    """Give it up: the next run goes on without it."""
    _decide(file, ids, all_, log, bodies, py_files, "drop", "is dropped")


def _decide(
    file: str, ids: list[str] | None, all_: bool, log: str | None, bodies: str | None, py_files: list[str] | None,
    what: Any, word: str,
) -> None:  # fmt: skip
    with explained():
        kept = _read(file, log, bodies, py_files, False)
        # What cannot be tried again is left where it is, unless it is named.
        open_ones = [one for one in kept.found if what == "drop" or one.placed]
        chosen = _chosen(open_ones if all_ and not ids else kept.found, ids or [], all_)
        decide_quarantined(kept.graph, chosen, what, kept.log, kept.bodies)
        for one in chosen:
            typer.echo(f"{one.id} {word} by the next run: {one.events}")
        typer.echo(f"now: `{run_again(file, log, py_files)}`")


@dataclass(frozen=True)
class _Kept:
    """A pipeline's quarantine, and where its log is."""

    graph: Graph
    log: str | None
    bodies: str | None
    found: list[Quarantined]


def _read(file: str, log: str | None, bodies: str | None, py_files: list[str] | None, as_json: bool) -> _Kept:
    settings = ready_to_load(py_files, {"log": log, "bodies": bodies})
    graph = Target.parse(file).graph()
    place = Log.at(settings.log, graph.name, settings.bodies)
    if not place.exists(graph.name):
        no_log(graph.name, place, run_again(file, log, py_files), as_json)
    found = quarantine_of(graph, settings.log, settings.bodies)
    return _Kept(graph, settings.log, settings.bodies, found)


def _chosen(found: list[Quarantined], ids: list[str], all_: bool) -> list[Quarantined]:
    if all_ and not ids:
        ids = [one.id for one in found if one.open]
    known = {one.id: one for one in found}
    unknown = [id for id in ids if id not in known]
    if unknown or not ids:
        have = ", ".join(one.id for one in found if one.open) or "nothing that is left to decide"
        what = f"{unknown[0]} is not in quarantine" if unknown else "nothing was named"
        complain(f"{what}; there is {have}: name one, or --all")
        raise typer.Exit(FAILED)
    return [known[id] for id in ids]


def _table(found: list[Quarantined]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("id", "status", "events", "error", "record"):
        table.add_column(column)
    for one in found:
        error = one.row.error
        cells = (one.id, one.row.status, one.events, f"{error['kind']}: {error['message']}", error["record"] or "")
        table.add_row(*map(Text, cells))
    return table


def _mapping(one: Quarantined) -> dict[str, Any]:
    error = one.row.error
    return {
        "id": one.id, "operator": one.operator, "status": one.row.status, "events": one.events,
        "input_set": one.row.input_set, "kind": error["kind"], "message": error["message"], "record": error["record"],
        "attempts": error["attempts"],
    }  # fmt: skip
