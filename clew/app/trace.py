"""`clew trace`: where an event came from, and where it went."""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer
from rich.text import Text
from rich.tree import Tree

from clew.app.flags import PyFiles, ready_to_load
from clew.app.graph import Mermaid
from clew.app.target import Bodies, File, Json, LogUrl, Target
from clew.app.terminal import explained, print_json, results
from clew.errors import SetupFailed
from clew.ids import WRITES, EventId, InputSetId, Port
from clew.lineage.steps import Step
from clew.lineage.trace import Trace
from clew.pipeline.graph import Graph
from clew.protocol.log.runs import consecutive
from clew.protocol.rows import AsideRow
from clew.provenance.records import RecordTrace
from clew.retrace import named_event, named_port, records_of, trace_back, trace_forward, trace_record
from clew.words import counted

trace = typer.Typer(help="Where an event came from, and where it went.", no_args_is_help=True, rich_markup_mode=None)

Event = Annotated[
    str, typer.Argument(metavar="PORT#ID", help="An event, such as paid.out#17; of a sink, its write action.")
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="PORT",
        help="Only along the paths to this port, which lies before the event (back) or after it (forward).",
    ),
]

#: What to do where the log does not say more.
_CURE = "take its lineage=False back, or let a scope lead there, and run again"
Record = Annotated[int | None, typer.Option("--record", metavar="N", help="One record of the event, counted from 0.")]

#: How many records of one port are shown.
_MOST_RECORDS = 10
#: How many of a step's reads, and of what was set aside, are shown.
_MOST = 5


@trace.command()
def back(
    file: File, event: Event, record: Record = None, to: To = None, log: LogUrl = None, bodies: Bodies = None,
    py_files: PyFiles = None, mermaid: Mermaid = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Show what an event was made of, back to the sources; or what one of its records can have been made of."""
    if record is None:
        _trace(file, event, to, log, bodies, py_files, mermaid, as_json, trace_back)
    else:
        _trace_record(file, event, record, to, log, bodies, py_files, mermaid, as_json, "back")


@trace.command("forward")
def forward_(
    file: File, event: Event, record: Record = None, to: To = None, log: LogUrl = None, bodies: Bodies = None,
    py_files: PyFiles = None, mermaid: Mermaid = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Show what was made of an event, to the ends of the pipeline; or what one of its records can have a part in."""
    if record is None:
        _trace(file, event, to, log, bodies, py_files, mermaid, as_json, trace_forward)
    else:
        _trace_record(file, event, record, to, log, bodies, py_files, mermaid, as_json, "forward")


def _trace(
    file: str, event: str, to: str | None, log: str | None, bodies: str | None, py_files: list[str] | None,
    mermaid: bool, as_json: bool, ask: Any,
) -> None:  # fmt: skip
    with explained():
        _one_form(mermaid, as_json)
        settings = ready_to_load(py_files, {"log": log, "bodies": bodies})
        graph = Target.parse(file).graph()
        port = None if to is None else named_port(graph, to)
        found: Trace = ask(graph, named_event(graph, event), port, log=settings.log, bodies=settings.bodies)
        if as_json:
            print_json(_as_json(found))
        elif mermaid:
            typer.echo(_as_mermaid(found))
        else:
            results().print(_as_tree(graph, found))
            if port is not None and not (found.steps or found.cut or found.begins):
                what = "has a part in it" if found.direction == "back" else "was made of it"
                typer.echo(f"no event of {port.told} {what}")
            _tell_ends(graph, found, port)


def _trace_record(
    file: str, event: str, record: int, to: str | None, log: str | None, bodies: str | None, py_files: list[str] | None,
    mermaid: bool, as_json: bool, direction: Literal["back", "forward"],
) -> None:  # fmt: skip
    with explained():
        if mermaid:
            raise SetupFailed("--record has no --mermaid", "leave one of them out; --json has the records")
        settings = ready_to_load(py_files, {"log": log, "bodies": bodies})
        graph = Target.parse(file).graph()
        port = None if to is None else named_port(graph, to)
        given: dict[str, Any] = {"log": settings.log, "bodies": settings.bodies}
        # What functions that are run again print is not part of the answer.
        with redirect_stdout(sys.stderr):
            found = trace_record(graph, event, record, port, direction=direction, **given)
        if as_json:
            places = {str(event): list(places) for event, places in found.records.items()}
            sets = sorted({*found.widened, *found.changed})
            whole = [{"operator": operator, "input_set": number} for operator, number in sets]
            late = [{"event": str(event), "record": place, "operator": by} for event, place, by in found.late]
            served = [{"operator": operator, "input_set": number} for operator, number in found.read_whole]
            answer = {
                "records": places,
                "not_narrowed": whole,
                "records_passed_over": late,
                "reads_not_narrowed": served,
            }
            print_json({**_as_json(found.trace), **answer})
            return
        for one in _by_port(found):
            typer.echo(_named([e for e, _ in one]) if one[0][0].port.name.startswith(WRITES) else f"{one[0][0].port}")
            for line in (*_shown_records(graph, one, given), *_became(found, dict(one))):
                typer.echo(f"  {line}")
        _tell_ends(graph, found.trace, port)
        _tell_whole(found.widened, "it was declared otherwise then")
        _tell_whole(found.changed, "run again, it does not give what it gave then; clew replay shows both")


def _tell_whole(sets: Iterable[tuple[str, int]], why: str) -> None:
    """Say of which Input Sets nothing is left out."""
    for operator, own in _by_operator(sets).items():
        what = f"Input Set{'s' if len(own) > 1 else ''} {_ranges(own)} of {operator}"
        typer.echo(f"all records of {what} are shown: {why}")


def _one_form(mermaid: bool, as_json: bool) -> None:
    if mermaid and as_json:
        raise SetupFailed("--mermaid and --json are two forms of one answer", "leave one of them out")


def _by_operator(sets: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for operator, number in sets:
        found.setdefault(operator, []).append(number)
    return found


def _tell_ends(graph: Graph, found: Trace, to: Port | None) -> None:
    """Say where nothing is known further, though a port may lie beyond, and of which Input Sets events may be gone.

    A trace that hid it would be taken for the whole.
    """
    for port in found.begins:
        spec = graph.operators.get(port.operator)
        why = (
            "no lineage scope leads to what a source reads"
            if spec and spec.is_source
            else "a lineage scope begins here"
        )
        beyond = "" if to is None else f", and no lineage leads there from {to.told}"
        typer.echo(f"{port.told} is where the trace begins: {why}{beyond}")
    for cut in found.cut:
        typer.echo(f"the trace ends at {cut.told}: no lineage is captured of all that comes there; {_CURE}")
    for event, operator in found.passed[:_MOST]:
        typer.echo(
            f"{event.told} is in no Input Set of {operator}: it came too late for its windows, or before {operator}"
        )
    if len(found.passed) > _MOST:
        typer.echo(f"and {counted(len(found.passed) - _MOST, 'further event')} so")
    for operator, sets in _by_operator((step.operator, step.input_set) for step in found.edge).items():
        what = f"Input Set{'s' if len(sets) > 1 else ''} {_ranges(sets)} of {operator}"
        verb = "may have taken" if found.direction == "back" else "may have made"
        typer.echo(f"{what} {verb} further events, which the log has forgotten; keep= of a lineage scope keeps more")


def _by_port(found: RecordTrace) -> list[list[tuple[EventId, tuple[int, ...]]]]:
    """Return the records of a trace port by port, in the order in which the trace met them."""
    ports: dict[Port, list[tuple[EventId, tuple[int, ...]]]] = {}
    for event, places in found.records.items():
        ports.setdefault(event.port, []).append((event, places))
    return [sorted(one) for one in ports.values()]


def _shown_records(
    graph: Graph, one: Sequence[tuple[EventId, tuple[int, ...]]], given: Mapping[str, Any]
) -> Iterable[str]:
    shown = 0
    total = sum(len(places) for _, places in one)
    for event, places in one:
        if event.port.name.startswith(WRITES):
            yield f"record {', '.join(map(str, places))}"
            return
        rows = records_of(graph, event, **given).to_pylist() if shown < _MOST_RECORDS else []
        for place in places[: _MOST_RECORDS - shown]:
            yield f"#{event.number} record {place}: {rows[place]}"
            shown += 1
    if total > shown:
        yield f"and {counted(total - shown, 'further record')} of {counted(len(one), 'event')}"


def _became(found: RecordTrace, records: Mapping[EventId, tuple[int, ...]]) -> Iterable[str]:
    """Say of records of one port what was read for them, and what became of those that no event leads on from."""

    def has_part(row: AsideRow, step: Step) -> bool:
        return row.records is None or any(set(row.records) & set(records.get(event, ())) for event in step.inputs)

    steps = {id(step): step for event in records for step in found.trace.steps_at(event)}.values()
    own = [replace(step, asides=tuple(row for row in step.asides if has_part(row, step))) for step in steps]
    reads = _reads(own, found.read_whole)
    return (*reads, *_asides(own), *_dropped(own), *_late([one for one in found.late if one[0] in records]))


def _late(late: Sequence[tuple[EventId, int, str]]) -> Iterable[str]:
    for event, place, operator in late[:_MOST]:
        yield f"record {place} of {event.told} is in no window of {operator}: it came too late"
    if len(late) > _MOST:
        yield f"and {counted(len(late) - _MOST, 'further record')} so"


def _as_tree(graph: Graph, found: Trace) -> Tree:
    """Draw the events of one port together, with the Input Sets that lead on from them."""
    tree = Tree(Text(_named([found.start]), style="bold"))
    _draw(graph, found, [found.start], tree)
    return tree


def _draw(graph: Graph, found: Trace, events: Sequence[EventId], above: Tree) -> None:
    steps: dict[str, list[Step]] = {}
    for step in {id(step): step for event in events for step in found.steps_at(event)}.values():
        steps.setdefault(step.operator, []).append(step)
    for operator, own in steps.items():
        branch = above.add(_told(graph, operator, own, found.direction))
        for line in (*_reads(own), *_asides(own), *_dropped(own)):
            branch.add(Text(line, style="dim"))
        onward = {event for step in own for event in (step.inputs if found.direction == "back" else step.outputs)}
        for port in sorted({event.port for event in onward}):
            met = sorted(event for event in onward if event.port == port)
            _draw(graph, found, met, branch.add(Text(_named(met), style="bold")))


def _told(graph: Graph, operator: str, steps: Sequence[Step], direction: str) -> Text:
    spec = graph.operators.get(operator)
    if spec is not None and spec.is_source:
        return Text(f"read by {operator} from {spec.source.describe() if spec.source else ''}")
    sets = _ranges(step.input_set for step in steps)
    verb = "made by" if direction == "back" else "taken by"
    return Text(f"{verb} {operator} in Input Set{'s' if len(steps) > 1 else ''} {sets}")


def _reads(steps: Sequence[Step], whole: Collection[tuple[str, InputSetId]] = ()) -> Iterable[str]:
    """Tell of reads; `whole` are the Input Sets of which it must be said that these served more than is asked for."""
    reads = [(read, (step.operator, step.input_set) in whole) for step in steps for read in step.reads]
    for read, of_all in reads[:_MOST]:
        yield f"read {read}{' for its whole Input Set' if of_all else ''}: {read.description}"
    if len(reads) > _MOST:
        yield f"and {counted(len(reads) - _MOST, 'further read')}"


def _asides(steps: Sequence[Step]) -> Iterable[str]:
    rows = [(step.operator, row) for step in steps for row in step.asides]
    for operator, row in rows[:_MOST]:
        error = f"{row.error.get('kind')}: {row.error.get('message')}"
        yield f"set aside as {operator}#{row.number} ({row.status}): {error}"
    if len(rows) > _MOST:
        yield f"and {counted(len(rows) - _MOST, 'further one')} set aside"


def _dropped(steps: Sequence[Step]) -> Iterable[str]:
    sets = [step.input_set for step in steps if step.dropped]
    if sets:
        one = len(sets) == 1
        what = f"Input Set{'' if one else 's'} {_ranges(sets)} {'was' if one else 'were'} given to no function"
        yield f"{what}: dropped, or part of another one"


def _named(events: Sequence[EventId]) -> str:
    """Name events of one port; write actions by their connection."""
    port = events[0].port
    what = f"write {port.told}" if port.name.startswith(WRITES) else f"{port}"
    text = f"{what}#{_ranges(event.number for event in events)}"
    return text if len(events) == 1 else f"{text} ({len(events)} events)"


def _ranges(numbers: Iterable[int]) -> str:
    parts = [
        f"{first}" if count == 1 else f"{first}..{first + count - 1}" for first, count in consecutive(sorted(numbers))
    ]
    return ", ".join(parts[:8]) + (", ..." if len(parts) > 8 else "")


def _as_mermaid(found: Trace) -> str:
    """Write the events and Input Sets of a trace as a flowchart, in the direction in which the data went."""
    names: dict[Any, str] = {}

    def node(key: Any) -> str:
        return names.setdefault(key, f"n{len(names)}")

    lines = ["flowchart LR", f'    {node(found.start)}["{_named([found.start])}"]']
    for step in found.steps:
        for event in (*step.inputs, *step.outputs):
            if event not in names:
                lines.append(f'    {node(event)}["{_named([event])}"]')
        own = node((step.operator, step.input_set))
        lines.append(f'    {own}(["{step.operator} {step.input_set}{", dropped" if step.dropped else ""}"])')
        lines += [f"    {node(event)} --> {own}" for event in step.inputs]
        for read in step.reads:
            lines.append(f'    {node(read)}[("{read}")] --> {own}')
        lines += [f"    {own} --> {node(event)}" for event in step.outputs]
        for row in step.asides:
            told = f"set aside as {step.operator}#{row.number} ({row.status}): {row.error.get('kind')}"
            lines.append(f'    {own} -.-> {node((step.operator, "aside", row.number))}["{told}"]')
    lines += [f'    {node(port)}["{port.told}: no lineage is captured here"]' for port in found.cut]
    return "\n".join(lines)


def _as_json(found: Trace) -> Mapping[str, Any]:
    return {
        "event": str(found.start),
        "direction": found.direction,
        "steps": [
            {
                "operator": step.operator,
                "input_set": step.input_set,
                "inputs": [str(event) for event in step.inputs],
                "outputs": [str(event) for event in step.outputs],
                "reads": [{"action": str(read), "description": read.description} for read in step.reads],
                "quarantined": [
                    {"id": f"{step.operator}#{row.number}", "status": row.status, "error": dict(row.error)}
                    for row in step.asides
                ],
                "dropped": step.dropped,
            }
            for step in found.steps
        ],
        "cut": [str(port) for port in found.cut],
        "begins": [str(port) for port in found.begins],
        "passed_over": [{"event": str(event), "operator": operator} for event, operator in found.passed],
        "may_lack_events": [{"operator": step.operator, "input_set": step.input_set} for step in found.edge],
    }
