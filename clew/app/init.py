"""`clew init`."""

import csv
import io
import re
import shlex
from collections import Counter
from datetime import datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from clew.app.terminal import explained
from clew.errors import SetupFailed

_COMMANDS = ("clew check pipeline.py", "clew run pipeline.py", "clew status pipeline.py", "clew verify pipeline.py")
_TEMPLATES = {
    "pipeline.py": "pipeline.py",
    "test_pipeline.py": "test_pipeline.py",
    "clew.toml": "clew.toml",
    "README.md": "README.md",
    ".gitignore": "gitignore",
}
_ITEMS = ("apples", "bread", "cheese")
_ORDERS = 240


def init(
    directory: Annotated[
        str, typer.Argument(metavar="[DIR]", help="Where to; it is made if there is none.", show_default=False)
    ] = ".",
) -> None:
    """Make a small project that runs as it is: a pipeline, its data, its settings and a test. Overwrites nothing."""
    with explained():
        place = Path(directory)
        made = project(_name(place))
        _refuse_to_overwrite(place, made)
        try:
            for name, text in made.items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_text(text)
        except OSError as error:
            raise SetupFailed(
                f"{error.filename or place} cannot be written: {error.strerror}", "name another directory"
            ) from error
        typer.echo(f"made {', '.join(made)} in {place.resolve()}")
        typer.echo("now try:")
        there = [] if directory == "." else [f"cd {shlex.quote(directory)}"]
        for command in (*there, *_COMMANDS):
            typer.echo(f"  {command}")


def project(name: str) -> dict[str, str]:
    """Return the files of a project, by their names in it."""
    rows = list(_orders())
    totals = Counter[str]()
    for _, item, cents, status in rows:
        totals[item] += int(cents) if status == "paid" else 0
    words = {"name": name, "commands": "\n".join(_COMMANDS), **{item: str(totals[item]) for item in _ITEMS}}
    texts = {file: _filled(template, words) for file, template in _TEMPLATES.items()}
    return {**texts, "data/orders.csv": _csv([("time", "item", "cents", "status"), *rows])}


def _filled(template: str, words: dict[str, str]) -> str:
    text = (files("clew.app") / "project" / f"{template}.template").read_text()
    # Only these words: what else is in braces is code.
    return re.sub(r"\{(\w+)\}", lambda found: words.get(found[1], found[0]), text)


def _orders() -> "list[tuple[str, str, str, str]]":
    """Make orders of ten days, in the order of their times."""
    start = datetime(2026, 1, 1)
    return [
        (
            (start + timedelta(hours=number)).isoformat(sep=" "),
            _ITEMS[number * 7 % 3 if number % 4 else number % 3],
            str(100 + number * 37 % 900),
            "open" if number % 5 == 0 else "paid",
        )
        for number in range(_ORDERS)
    ]


def _csv(rows: "list[tuple[str, str, str, str]]") -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _name(place: Path) -> str:
    """Name the pipeline after its directory, in the letters that a name may have."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", place.resolve().name).strip("_-")
    return name if re.match(r"[A-Za-z_]", name) else f"pipeline_{name}".rstrip("_")


def _refuse_to_overwrite(place: Path, made: dict[str, str]) -> None:
    if place.exists() and not place.is_dir():
        raise SetupFailed(f"{place} is a file", "name a directory, or one that is to be made")
    there = [name for name in made if (place / name).exists()]
    if there:
        raise SetupFailed(
            f"{', '.join(there)} in {place.resolve()} would be overwritten", "name another directory: clew init DIR"
        )
