"""`clew settings`."""

from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from clew.app.flags import Set
from clew.app.settings import Found, Settings, find, from_texts, shown
from clew.app.target import Json
from clew.app.terminal import explained, print_json, results


def settings(others: Set = None, as_json: Json = False) -> None:
    """Show the settings that hold here, and where each was said: flag, environment, file or default."""
    with explained():
        rows = _rows(find(from_texts(others or ())))
        if as_json:
            print_json([{"setting": name, "value": value, "from": origin} for name, value, origin in rows])
        else:
            _show(rows)


def _rows(found: Found) -> list[tuple[str, Any, str]]:
    rows: list[tuple[str, Any, str]] = []
    for name in Settings.model_fields:
        value = shown(name, getattr(found.settings, name))
        if name == "conf" and value:
            rows += [(f"conf.{key}", text, found.origins[f"conf.{key}"]) for key, text in value.items()]
        else:
            rows.append((name, value, found.origins.get(name, "default")))
    return rows


def _show(rows: list[tuple[str, Any, str]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("setting", "value", "from"):
        table.add_column(column, no_wrap=True)
    for name, value, origin in rows:
        table.add_row(Text(name), Text(_text(value)), Text(origin, style="dim" if origin == "default" else ""))
    results().print(table)
    typer.echo("docs/settings.md says what each is for", err=True)


def _text(value: Any) -> str:
    if isinstance(value, list | dict):
        return ", ".join(value) or "-"
    return "-" if value is None else str(value)
