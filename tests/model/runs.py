"""Finished runs to be judged: made by the inline engine, and changed afterwards by hand."""

import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from clew import Pipeline
from clew.model.certificate import Finding, Verdict
from clew.model.verify import verify
from clew.run import run
from clew.trace import TraceStep


@dataclass(frozen=True)
class Finished:
    """A run that has come to its end, with its log in a SQLite file."""

    pipeline: Pipeline
    directory: Path

    @property
    def path(self) -> Path:
        return self.directory / "log.db"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    @property
    def bodies(self) -> Path:
        return self.directory / "bodies"

    def verify(self, trace: Iterable[TraceStep] | None = None) -> Verdict:
        return verify(self.pipeline.graph(), self.url, str(self.bodies), trace=trace)

    def change(self, *statements: str, **values: Any) -> None:
        """Change the log by hand; the last statement must change something."""
        change(self.path, *statements, **values)

    def ask(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(query).fetchall()


def finished(pipeline: Pipeline, directory: Path, **rest: Any) -> Finished:
    """Run a pipeline to its end."""
    made = Finished(pipeline, directory)
    run(pipeline, log=made.url, bodies=str(made.bodies), engine="inline", **rest)
    return made


def change(database: Path, *statements: str, **values: Any) -> None:
    """Change a database by hand; the last statement must change something."""
    with closing(sqlite3.connect(database)) as connection, connection:
        changed = [connection.execute(statement, values).rowcount for statement in statements]
    assert changed[-1] > 0, "nothing was changed"


def rows(database: Path, table: str) -> list[Any]:
    """Return the rows of a table; none where there is no such table yet."""
    with closing(sqlite3.connect(database)) as connection:
        made = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchall()
        return connection.execute(f"SELECT * FROM {table}").fetchall() if made else []


def wait_for(ready: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.01)


def explained(verdict: Verdict) -> bool:
    """Say whether a verdict is `explained`, and show what is not."""
    assert [str(finding) for finding in verdict.findings] == []
    return verdict.word == "explained"


def only(verdict: Verdict, word: str = "not explained") -> Finding:
    """Return the one finding of a verdict."""
    assert verdict.word == word, [str(finding) for finding in verdict.findings]
    assert len(verdict.findings) == 1, [str(finding) for finding in verdict.findings]
    return verdict.findings[0]


def first(verdict: Verdict, word: str = "not explained") -> Finding:
    """Return the first finding of a verdict; others may follow from it."""
    assert verdict.word == word, [str(finding) for finding in verdict.findings]
    return verdict.findings[0]


def numbers(index: int) -> pa.Table:
    """Return event `index` of a source: three records."""
    return pa.table({"n": [3 * index, 3 * index + 1, 3 * index + 2], "x": [index / 7, 1.5, -index / 3]})
