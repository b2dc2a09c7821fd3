"""A place of its own for one run: log, database, files; and what they hold after it."""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql

from clew.ids import Port
from clew.model.certificate import Finding
from clew.model.read import opened_log
from clew.model.retraction import check_trace
from clew.pipeline.schema import from_bytes
from clew.run import Log
from clew.runtime.bodies import load
from clew.runtime.codec import decode
from clew.runtime.collect import collect
from clew.store.base import TABLES, Store
from clew.trace import load as load_trace
from tests.processes.nursery import Ending, Job, Nursery

Rows = Counter[tuple[str, ...]]


@dataclass(frozen=True)
class Place:
    """Where one run keeps its log and writes to."""

    pipeline: str
    directory: Path
    log: str
    sink: str

    def job(self, *faults: str, collect_every: float | None = None, busy: float | None = None, **env: str) -> Job:
        env = {"SINK": self.sink, "FILES": str(self.directory / "files"), **env}
        bodies, trace = str(self.directory / "bodies"), str(self.directory / "trace.jsonl")
        return Job(self.pipeline, self.log, bodies, env, faults, collect_every, busy, trace)

    def finish(self, nursery: Nursery, **env: str) -> Ending:
        """Run to the end without faults."""
        ending = nursery.run(self.job(**env))
        assert ending.finished, f"it does not finish ({ending.code}): {ending.error}"
        return ending

    def table(self, name: str) -> Rows:
        """Return the rows of a table, as text, with how often each is there."""
        if self.sink.startswith("postgres"):
            with psycopg.connect(self.sink) as connection:
                rows = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(name))).fetchall()
        else:
            with closing(sqlite3.connect(self.sink)) as connection:
                rows = connection.execute(f'SELECT * FROM "{name}"').fetchall()
        return Counter(tuple(str(value) for value in row) for row in rows)

    def files(self, name: str) -> Rows:
        """Return the records of the files that a sink wrote; hidden ones do not count."""
        paths = sorted((self.directory / "files" / name).glob("[!.]*.jsonl"))
        rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        return Counter(tuple(str(value) for value in row.values()) for row in rows)

    def logged(self, port: Port) -> list[dict[str, Any]]:
        """Return the records that the log holds of a port."""
        with self.store() as store:
            schema, state = store.schema(port), store.state(port.operator)
            if schema is None or state is None:
                return []
            bodies = [run for e in store.events(port, 1, state.context["sent"].get(port.name, 0)) for run in e.bodies]
            tables = [decode(b, from_bytes(schema)) for b in load(str(self.directory / "bodies"), bodies)]
            return [row for table in tables for row in table.to_pylist()]

    def retracted(self) -> list[Finding]:
        """Return what the log says of the trace of all processes that there were."""
        with opened_log(self.log, self.pipeline, str(self.directory / "bodies")) as log:
            return check_trace(log, load_trace(str(self.directory / "trace.jsonl")))

    def collected(self) -> int:
        """Collect garbage, and return how many events went."""
        with self.store() as store:
            return collect(store, str(self.directory / "bodies")).events

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return all that the log holds."""
        with self.store() as store:
            operators = [(row.operator, row.status, row.incarnation) for row in store.operators()]
            return {"operators": operators, **{name: store.table(name) for name in TABLES}}

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Open the log."""
        store = Log.at(self.log, self.pipeline, str(self.directory / "bodies")).open(self.pipeline)
        try:
            yield store
        finally:
            store.close()


@contextmanager
def place(pipeline: str, directory: Path, server: str | None) -> Iterator[Place]:
    """Make a place in `directory`: on SQLite, or in a database of its own on a PostgreSQL server."""
    name = f"run_{uuid4().hex[:12]}"
    home = directory / name
    home.mkdir()
    if server is None:
        yield Place(pipeline, home, f"sqlite:///{home / 'log.db'}", str(home / "sink.db"))
        return
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            url = server.removesuffix("postgres") + name
            yield Place(pipeline, home, url, url)
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
