"""Every source and every sink that needs no Spark: one run that crashes at each crash point there is for it.

All points of the connector's operator are armed at once, for their first visit or their second. The run recovers from
one crash after the other, and ends; those of Spark are in tests/spark.
"""

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from clew import Pipeline, delta, files, generator, http, postgres, sqlite
from clew.faultpoint import POINTS, Fault, arm
from clew.run import run, verify
from clew.supervisor.threads import Policy
from tests.connectors.http_server import serving
from tests.processes.cases import FILES, OBSERVED, REPLAYED, TABLE, Kind

EVENTS = 6
TURNS: dict[str, Any] = {"max_turn_events": 1, "attempts": 1}
#: Only the crashes that are armed may stop it, and each of them strikes once.
PATIENT = Policy(first_delay=0.001, longest_delay=0.001, give_up_after=len(POINTS) + 1, poll=0.01)
#: Passed once in a run, or once in a recovery, so that a second visit is not sure to come.
ONCE = {"before-flush", "after-end", "before-action-logged", "after-action-logged", "after-effect-stored",
        "after-action-complete", "before-effect-dropped", "after-effect-dropped"}  # fmt: skip
HTTP: Kind = {point: nth for point, nth in TABLE.items() if point != "sink-before-commit"}


def event(index: int) -> pa.Table:
    return pa.table({"n": [index, index], "day": ["mon", "tue"]})


EXPECTED = Counter({(index, day): 1 for index in range(EVENTS) for day in ("mon", "tue")})


@pytest.fixture(params=[1, 2], ids=["first", "second"])
def nth(request: pytest.FixtureRequest) -> Iterator[int]:
    yield request.param
    arm()


def crashing(pipeline: Pipeline, operator: str, nth: int, kind: Kind, directory: Path) -> None:
    """Run to the end through a crash at each point of an operator, and see that the points of its kind were hit."""
    place = {"log": f"sqlite:///{directory / 'log.db'}", "bodies": str(directory / "bodies")}
    armed = arm(*(f"{point}@{operator}#{nth}:raise" for point in POINTS if not point.endswith("-collect")))
    run(pipeline, engine="inline", policy=PATIENT, **place)
    arm()
    assert _missed(armed) == [], "a point was visited and its fault did not fire"
    fired = {fault.point for fault in armed if fault.fired}
    wanted = set(kind) if nth == 1 else set(kind) - ONCE
    assert wanted <= fired, f"no crash at {sorted(wanted - fired)}"
    verdict = verify(pipeline, engine="inline", **place)
    assert verdict.word == "explained", verdict.findings


def _missed(armed: list[Fault]) -> list[str]:
    return [fault.point for fault in armed if fault.seen >= fault.nth and not fault.fired]


# Sources.


def parquet(place: Path) -> Any:
    for index in range(EVENTS):
        pq.write_table(event(index), place / f"{index}.parquet")
    return files(place / "*.parquet")


def csv(place: Path) -> Any:
    for index in range(EVENTS):
        pc.write_csv(event(index), place / f"{index}.csv")
    return files(place / "*.csv")


def lines(place: Path) -> Any:
    for index in range(EVENTS):
        rows = event(index).to_pylist()
        (place / f"{index}.jsonl").write_text("".join(f'{{"n": {r["n"]}, "day": "{r["day"]}"}}\n' for r in rows))
    return files(place / "*.jsonl")


def growing(place: Path) -> Any:
    parquet(place)
    for path in place.iterdir():
        os.utime(path, (1_700_000_000, 1_700_000_000))
    (place / "_DONE").touch()
    return files(place, follow=True, settle=0, poll="10 milliseconds", until="_DONE")


def queried(place: Path) -> Any:
    return _queried(place, unique="id")


def observed_query(place: Path) -> Any:
    return _queried(place, unique=None)


def _queried(place: Path, unique: str | None) -> Any:
    path = place / "source.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, day TEXT)")
        rows = [(row["n"], row["day"]) for index in range(EVENTS) for row in event(index).to_pylist()]
        database.executemany("INSERT INTO t (n, day) VALUES (?, ?)", rows)
    columns = "id, n, day" if unique else "n, day"
    return sqlite(path, query=f"SELECT {columns} FROM t", unique=unique, rows_per_event=2)


def generated(place: Path) -> Any:
    return generator(event, EVENTS)


def observed_generator(place: Path) -> Any:
    return generator(event, EVENTS, replayable=False)


SOURCES: dict[Callable[[Path], Any], Kind] = {
    parquet: REPLAYED, csv: REPLAYED, lines: REPLAYED, growing: REPLAYED, queried: REPLAYED,
    observed_query: OBSERVED, generated: REPLAYED, observed_generator: OBSERVED,
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_a_source_crashes_at_each_of_its_crash_points(source: Callable[[Path], Any], nth: int, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pipeline = Pipeline("sources")
    read = pipeline.source("source", source(tmp_path / "in"), **TURNS)
    pipeline.sink(read, sqlite(tmp_path / "out.db", table="t"), name="sink", **TURNS)
    crashing(pipeline, "source", nth, SOURCES[source], tmp_path)
    assert rows_of_sqlite(tmp_path / "out.db") == EXPECTED


# Sinks.


def into(pipeline: Pipeline, sink: Any) -> Pipeline:
    source = pipeline.source("source", generator(event, EVENTS), **TURNS)
    pipeline.sink(source, sink, name="sink", **TURNS)
    return pipeline


def rows_of_sqlite(path: Path) -> Counter[Any]:
    with closing(sqlite3.connect(path)) as database:
        return Counter(database.execute("SELECT n, day FROM t").fetchall())


def multiset(table: pa.Table) -> Counter[Any]:
    return Counter((row["n"], row["day"]) for row in table.to_pylist())


@pytest.mark.parametrize("key", [None, ["n", "day"]], ids=["append", "upsert"])
def test_sqlite_crashes_at_each_of_its_crash_points(key: Any, nth: int, tmp_path: Path) -> None:
    sink = sqlite(tmp_path / "out.db", table="t", key=key)
    crashing(into(Pipeline("sinks"), sink), "sink", nth, TABLE, tmp_path)
    assert rows_of_sqlite(tmp_path / "out.db") == EXPECTED


@pytest.mark.parametrize("key", [None, ["n", "day"]], ids=["append", "upsert"])
def test_postgres_crashes_at_each_of_its_crash_points(key: Any, nth: int, tmp_path: Path, postgres_url: str) -> None:
    import psycopg

    crashing(into(Pipeline("sinks"), postgres(postgres_url, table="t", key=key)), "sink", nth, TABLE, tmp_path)
    with psycopg.connect(postgres_url) as database:
        assert Counter(database.execute("SELECT n, day FROM t").fetchall()) == EXPECTED


@pytest.mark.parametrize("format", ["parquet", "csv", "jsonl"])
def test_files_crash_at_each_of_their_crash_points(format: str, nth: int, tmp_path: Path) -> None:
    crashing(into(Pipeline("sinks"), files(tmp_path / "out", format=format)), "sink", nth, FILES, tmp_path)
    readers = {"parquet": pq.read_table, "csv": pc.read_csv, "jsonl": pj.read_json}
    found = [multiset(readers[format](path)) for path in (tmp_path / "out").glob(f"*.{format}")]
    assert sum(found, Counter()) == EXPECTED


def test_partitioned_files_crash_at_each_of_their_crash_points(nth: int, tmp_path: Path) -> None:
    crashing(into(Pipeline("sinks"), files(tmp_path / "out", partition_by="day")), "sink", nth, FILES, tmp_path)
    found = [
        Counter((n, path.parent.name.removeprefix("day=")) for n in pq.ParquetFile(path).read()["n"].to_pylist())
        for path in (tmp_path / "out").glob("day=*/*.parquet")
    ]
    assert sum(found, Counter()) == EXPECTED


@pytest.mark.parametrize("key", [None, ["n", "day"]], ids=["append", "upsert"])
def test_delta_crashes_at_each_of_its_crash_points(key: Any, nth: int, tmp_path: Path) -> None:
    crashing(into(Pipeline("sinks"), delta(tmp_path / "out", key=key)), "sink", nth, TABLE, tmp_path)
    assert multiset(DeltaTable(tmp_path / "out").to_pyarrow_table()) == EXPECTED


@pytest.mark.parametrize("checked", [False, True], ids=["unchecked", "checked"])
def test_http_crashes_at_each_of_its_crash_points(checked: bool, nth: int, tmp_path: Path) -> None:
    with serving() as server:
        check = server.url("/writes/{key}") if checked else None
        sink = http(server.url(), check=check, holds=server.url(), timeout=2)
        crashing(into(Pipeline("sinks"), sink), "sink", nth, HTTP, tmp_path)
        assert Counter((row["n"], row["day"]) for row in server.records()) == EXPECTED
