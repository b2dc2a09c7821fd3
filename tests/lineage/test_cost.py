"""A trace costs what it shows: the rows that it reads do not grow with the log."""

from pathlib import Path

import pyarrow as pa
import pytest

from clew import Count, Pipeline
from clew.connectors import files, generator
from clew.ids import EventId, Port
from clew.lineage.trace import backward, forward
from clew.run import Log, run
from clew.store.sqlite_writer import SqliteLog


def chain(directory: Path, events: int) -> str:
    pipeline = Pipeline("chain")
    source = pipeline.source("source", generator(lambda index: pa.table({"n": [index]}), events), max_turn_events=50)

    @pipeline.operator(source, max_turn_events=50)
    def each(table: pa.Table) -> pa.Table:
        return table

    @pipeline.operator(each, window=Count(10), max_turn_events=50)
    def tens(table: pa.Table) -> pa.Table:
        return table.slice(0, 1)

    pipeline.sink(tens, files(directory / "out"))
    url = f"sqlite:///{directory / 'log.db'}"
    run(pipeline, log=url, engine="inline")
    return url


def rows_read(directory: Path, events: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return how many rows a trace back and a trace forward read, in the middle of a log."""
    directory.mkdir()
    store = Log.at(chain(directory, events), "chain").open("chain")
    read = []
    fetch = SqliteLog.fetch

    def counted(log: SqliteLog, sql: str, *values: object) -> list[tuple[object, ...]]:
        rows = fetch(log, sql, *values)
        read.append(len(rows))
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(SqliteLog, "fetch", counted)
        assert len(backward(store, EventId(Port("tens", "out"), events // 20)).events(Port("source", "out"))) == 10
        back = sum(read)
        assert forward(store, EventId(Port("source", "out"), events // 2)).events(Port("tens", "out"))
    store.close()
    return back, sum(read) - back


def test_the_rows_that_a_trace_reads_do_not_grow_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = rows_read(tmp_path / "small", 200, monkeypatch)
    large = rows_read(tmp_path / "large", 4_000, monkeypatch)
    # How turns were cut may differ by a row or two.
    assert large[0] <= small[0] + 8
    assert large[1] <= small[1] + 8
