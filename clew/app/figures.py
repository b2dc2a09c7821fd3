"""How the figures of a run are written: as a table, as a line, as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from clew.run import OperatorProgress

_COLOURS = {
    "running": "green",
    "finished": "bold green",
    "blocked": "yellow",
    "recovering": "cyan",
    "restarting": "bold yellow",
    "failed": "bold red",
}


def picture(pipeline: str, seconds: float, rows: Iterable[OperatorProgress]) -> Group:
    """Draw the figures of all operators, and below them the last errors, which need the whole width."""
    rows = list(rows)
    title = Text(f"{pipeline}  {_clock(seconds)}", style="bold")
    return Group(title, _table(rows), *_errors(rows))


def _table(rows: Sequence[OperatorProgress]) -> Table:
    # Groups are shown where they say more than the operator's own name.
    grouped = any(row.group != row.operator for row in rows)
    drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    drawn.add_column("operator", no_wrap=True, overflow="ellipsis")
    if grouped:
        drawn.add_column("group", no_wrap=True, overflow="ellipsis")
    drawn.add_column("phase", no_wrap=True, min_width=10)
    cells = [_cells(row) for row in rows]
    for index, figure in enumerate(_FIGURES):
        # Where a terminal is narrow, names are cut, never numbers.
        width = max([len(figure), *(len(row[index]) for row in cells)])
        drawn.add_column(figure, justify="right", no_wrap=True, min_width=width)
    for row, numbers in zip(rows, cells):
        group = [Text(row.group)] if grouped else []
        drawn.add_row(Text(row.operator), *group, Text(row.phase, style=_COLOURS.get(row.phase, "dim")), *numbers)
    return drawn


_FIGURES = ("in", "out", "writes", "backlog", "turn events", "restarts")


def _cells(row: OperatorProgress) -> list[Text]:
    numbers = (row.events_in, row.events_out, row.writes, row.backlog, row.turn_events, row.restarts)
    return [Text(f"{number:,}" if number else "-") for number in numbers]


def _errors(rows: Sequence[OperatorProgress]) -> list[Text]:
    """Write the last error of each group; its operators fail together."""
    last = {row.group: row for row in rows if row.last_error}
    return [
        Text(
            f"{group}: {_first_line(row.last_error)}",
            style="red" if row.phase == "failed" else "yellow",
            no_wrap=True,
            overflow="ellipsis",
        )
        for group, row in last.items()
    ]


def line(row: OperatorProgress) -> str:
    """Write an operator's figures while it works."""
    figures = {
        "in": row.events_in,
        "out": row.events_out,
        "writes": row.writes,
        "backlog": row.backlog,
        "turn_events": row.turn_events,
        "restarts": row.restarts,
    }
    words = [f"{name}={number}" for name, number in figures.items()]
    if row.phase == "failed":
        words.append(f"error={_first_line(row.last_error)}")
    return " ".join([row.operator, row.phase, *words])


def restarted(row: OperatorProgress) -> str:
    """Write that an operator's group was restarted."""
    return f"{row.operator} restarted (restarts={row.restarts}){_after(row, ' after ')}"


def summary(row: OperatorProgress) -> str:
    """Write what an operator has done, when the run is over."""
    parts = [f"{_count(row.events_in, 'event')} in", f"{row.events_out} out"]
    if row.writes:
        parts.append(_count(row.writes, "write"))
    parts.append(_count(row.turns, "turn"))
    if row.restarts:
        parts.append(_count(row.restarts, "restart") + _after(row, ", the last after "))
    return f"{row.operator}: {row.phase}; {', '.join(parts)}"


def _after(row: OperatorProgress, words: str) -> str:
    """Write what came before a restart; a process that was killed has left no word of that."""
    return f"{words}{_first_line(row.last_error)}" if row.last_error else ""


def as_mapping(row: OperatorProgress) -> Mapping[str, Any]:
    """Return an operator's figures as JSON has them."""
    return row._asdict()


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
