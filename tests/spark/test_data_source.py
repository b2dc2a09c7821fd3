"""The log as tables of Spark: what they hold is what the log tells event by event."""

import datetime as dt
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from clew import Count, Pipeline, files, generator
from clew.errors import BodyDamaged, ClewError, SetupFailed
from clew.ids import EventId, Port
from clew.lineage.trace import backward
from clew.pipeline.schema import normalise
from clew.run import Log, gc, run, topology
from clew.runtime.past import records
from clew.spark.tables import Range, RecordsTable
from clew.store.base import KeptStore, LogReader
from pyspark_clew import DefaultSource
from tests.docs.pages import ROOT, blocks
from tests.lineage.pipelines import EVENTS, diamond
from tests.pipeline.arrow_types import KEPT
from tests.spark.outside import said, script
from tests.spark.test_types import all_types, given_column

Tables = Callable[..., DataFrame]
SOURCE = Port("numbers", "out")
WRITES = Port("threes_sink", "writes:out")
MADE = [*(Port(operator, "out") for operator in ("some", "chance", "joined", "threes")), WRITES]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The log of a diamond that was run in this process, without Spark."""
    directory = tmp_path_factory.mktemp("diamond")
    if request.param == "sqlite":
        found = f"sqlite:///{directory / 'log.db'}"
    else:
        found = request.getfixturevalue("postgres_server").url
    run(diamond(directory), log=found, bodies=str(directory / "bodies"), engine="inline", fresh=True)
    return found


@pytest.fixture(scope="module")
def store(url: str) -> Iterator[KeptStore]:
    with closing(Log.at(url, "diamond").open("diamond")) as opened:
        yield opened


@pytest.fixture(scope="module")
def known(spark: SparkSession) -> SparkSession:
    """The session, told of Clew: an installation that is edited in place cannot be found by its path."""
    spark.dataSource.register(DefaultSource)
    return spark


@pytest.fixture
def tables(known: SparkSession, url: str) -> Tables:
    def table(name: str, **options: str) -> DataFrame:
        asked = {"log": url, "pipeline": "diamond", "table": name, **options}
        return known.read.format("clew").options(**asked).load()

    return table


def told(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def traced(store: KeptStore, port: Port) -> Iterator[tuple[Any, ...]]:
    """Yield the relation of a port's events to what they were made of, one trace for each."""
    last = store.extent(port)[1] - store.ends(port)
    for number in range(1, last + 1):
        event = EventId(port, number)
        for step in backward(store, event).steps_at(event):
            for before in step.inputs:
                yield (*before.port, before.number, *port, number, step.input_set, step.operator)


def test_lineage_is_what_traces_tell_event_by_event(tables: Tables, store: KeptStore) -> None:
    expected = sorted(row for port in MADE for row in traced(store, port))
    assert len(expected) > EVENTS
    assert told(tables("lineage")) == expected
    assert told(tables("lineage", port="joined")) == sorted(traced(store, Port("joined", "out")))


def test_events_are_those_of_the_log(tables: Tables, store: KeptStore) -> None:
    event_log = store.table("EVENT_LOG")
    made_of = {(operator, port, number): origin for number, operator, port, origin in store.table("EVENT_LINEAGE")}
    expected = []
    for port in (SOURCE, *MADE[:-1]):
        for run_ in store.events(port, 1, 10_000):
            for number, header in enumerate(run_.headers, run_.first):
                entries = [row for row in event_log if (row[0], *row[2:4]) == (number, *port)]
                taken = sorted((*row[4:], row[1]) for row in entries if row[4] is not None)
                expected.append(
                    (*port, number, header.rows, header.size, header.end, made_of.get((*port, number)), "done", taken)
                )
    for number in range(1, store.extent(WRITES)[1] + 1):
        taken = [("threes_sink", "out", None, "done")]
        expected.append((*WRITES, number, None, None, False, made_of[(*WRITES, number)], "done", taken))
    found = [(*row[:-1], sorted(tuple(one) for one in row[-1])) for row in tables("events").collect()]
    assert sorted(found, key=lambda row: row[:3]) == sorted(expected, key=lambda row: row[:3])


@pytest.mark.parametrize("port", ["numbers", "joined.out"])
def test_records_of_a_port_are_those_of_its_events(tables: Tables, store: KeptStore, port: str) -> None:
    sent = Port.parse(port)
    expected = [
        (number, place, *record.values())
        for number in range(1, store.extent(sent)[1] + 1)
        for place, record in enumerate(records(store, EventId(sent, number), None).to_pylist())
    ]
    assert expected
    assert told(tables("records", port=port)) == sorted(expected)


def test_partitions_are_ranges_of_events_and_together_they_are_the_table(tables: Tables, store: KeptStore) -> None:
    cut = tables("lineage", events_per_partition="25")
    assert cut.rdd.getNumPartitions() == sum(-(-store.extent(port)[1] // 25) for port in (SOURCE, *MADE))
    assert told(cut) == told(tables("lineage"))


def moments(index: int) -> pa.Table:
    """Records with nulls, times of all kinds, and text that makes some bodies large enough for a file."""
    utc = dt.datetime(2026, 3, 29, 1, 30, 0, 123456, dt.UTC)
    return pa.table(
        {
            "at": pa.array([utc, None], pa.timestamp("us", "UTC")),
            "local": pa.array([None, dt.datetime(2026, 3, 29, 2, 30)], pa.timestamp("us")),
            "time": pa.array([dt.time(1, 2, 3, 4), None], pa.time64("us")),
            "amount": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "nested": [{"a": [1, None]}, None],
            "text": ["x" * 20_000 * (index % 2), None],
        }
    )


def test_nulls_timestamps_and_bodies_in_files_come_as_they_were_sent(known: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("moments")
    pipeline.sink(pipeline.source("moments", generator(moments, 4)), files(tmp_path / "out"))
    log = f"sqlite:///{tmp_path / 'log.db'}"
    run(pipeline, log=log, engine="inline")
    assert list((tmp_path / "log.db.bodies").glob("moments/*"))
    reader = known.read.format("clew").options(log=log, pipeline="moments", table="records", port="moments")
    known.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        found = reader.load().orderBy("_clew_event", "_clew_record").toArrow()
    finally:
        known.conf.set("spark.sql.session.timeZone", "UTC")
    assert found["_clew_event"].to_pylist() == [1, 1, 2, 2, 3, 3, 4, 4]
    assert found["_clew_record"].to_pylist() == [0, 1] * 4
    sent = pa.concat_tables(moments(index) for index in range(4))
    assert normalise(found.select(sent.column_names)).to_pylist() == sent.to_pylist()


def test_every_type_of_a_port_is_a_type_of_the_table(known: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("types")
    pipeline.source("source", generator(all_types, 1, schema=all_types(0).schema))
    log = tmp_path / "log.db"
    run(pipeline, log=f"sqlite:///{log}", engine="inline")
    options = {"log": f"sqlite:///{log}", "pipeline": "types", "table": "records", "port": "source"}
    found = normalise(known.read.format("clew").options(**options).load().orderBy("_clew_record").toArrow())
    for number, kept in enumerate(KEPT):
        column, expected = found[f"c{number}"].combine_chunks(), given_column(kept.normal)
        assert column.type == expected.type, kept
        # Compared as arrays: Python has no values for the furthest moments.
        assert column.equals(expected), kept


def test_a_log_whose_events_are_all_collected_has_no_rows(known: SparkSession, tmp_path: Path) -> None:
    log = f"sqlite:///{tmp_path / 'log.db'}"
    pipeline = diamond(tmp_path)
    run(pipeline, log=log, engine="inline")
    gc(pipeline.graph(), log)
    asked = {"log": log, "pipeline": "diamond", "port": "numbers"}
    assert known.read.format("clew").options(table="records", **asked).load().count() == 0
    assert read_here(DefaultSource({"table": "events", **asked})) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"table": "events", "log": "sqlite:///nowhere/log.db"}, "diamond has no log at sqlite:////.*; run it there"),
        ({"table": "events", "log": "paper:"}, "'paper:' is no log that Clew knows; use sqlite:///PATH, postgresql"),
        ({"table": "events", "pipeline": "sales"}, "is of pipeline diamond, not sales; name another one"),
        ({"table": "events", "pipeline": ""}, "not said of which pipeline the log is; set option pipeline"),
        ({"table": "event"}, "a log has no table 'event'; set option table to one of lineage, events, records"),
        ({}, "a log has no table ''; set option table to one of lineage"),
        ({"table": "records"}, "table records is of one port, and none is named; set option port to OPERATOR.PORT"),
        ({"table": "records", "port": "nobody"}, "no port nobody.out in this log; there are: chance.out, joined.out, "),
        ({"table": "lineage", "port": "some.late"}, "there is no port some.late in this log; there are: chance.out"),
        ({"table": "records", "port": "threes_sink.writes:out"}, "has sent no records, so that its columns are not"),
        ({"table": "events", "prot": "some"}, "clew has no option prot; leave it out; there are: log, bodies, "),
        ({"table": "events", "events_per_partition": "0"}, "events_per_partition is '0'; set it to a whole number"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_a_cure(log: str, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ClewError, match=sentence):
        read_here(DefaultSource({"log": log, "pipeline": "diamond", **options}))


def read_here(source: DefaultSource) -> list[pa.RecordBatch]:
    """Do in this process what Spark does in several."""
    reader = source.reader(source.schema())
    return [batch for partition in reader.partitions() for batch in reader.read(partition)]


def test_spark_hands_on_what_the_data_source_says(known: SparkSession, log: str) -> None:
    with pytest.raises(AnalysisException, match=r"there is no port nobody\.out in this log; there are: chance\.out, "):
        known.read.format("clew").options(log=log, pipeline="diamond", table="records", port="nobody").load()


def test_a_column_that_the_table_has_itself_is_refused_with_a_cure(tmp_path: Path) -> None:
    pipeline = Pipeline("again")
    source = pipeline.source("read", generator(lambda index: pa.table({"_clew_event": [index], "n": [index]}), 2))
    pipeline.sink(source, files(tmp_path / "out"))
    log = f"sqlite:///{tmp_path / 'log.db'}"
    run(pipeline, log=log, engine="inline")
    with pytest.raises(
        ClewError, match=r"port read\.out has a column _clew_event of its own, .*; let an operator rename"
    ):
        read_here(DefaultSource({"log": log, "pipeline": "again", "table": "records", "port": "read"}))


def test_a_port_that_has_sent_nothing_has_no_records_and_no_columns(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with closing(Log.at(url, "diamond").open("diamond")) as store:
        store.declare(topology(diamond(tmp_path).graph()))
    with pytest.raises(
        SetupFailed, match=r"port some\.out has sent no records, so that its columns are not known; run"
    ):
        read_here(DefaultSource({"log": url, "pipeline": "diamond", "table": "records", "port": "some"}))
    assert read_here(DefaultSource({"log": url, "pipeline": "diamond", "table": "lineage"})) == []


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("log")
    found = f"sqlite:///{directory / 'log.db'}"
    run(diamond(directory), log=found, engine="inline")
    return found


def test_spark_finds_the_data_source_by_itself_where_clew_is_on_the_path(log: str) -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    assert said(script("tables.py", log, "diamond", PYTHONPATH=path)) == 3 * EVENTS


def test_the_page_tells_which_records_a_result_was_made_of(known: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", generator(lambda i: pa.table({"amount": [i, 10 * i]}), 6))

    @pipeline.operator(orders, window=Count(3))
    def totals(table: pa.Table) -> pa.Table:
        return pa.table({"total": [sum(table["amount"].to_pylist())]})

    pipeline.sink(totals, files(tmp_path / "totals"))
    log = f"sqlite:///{tmp_path / 'shop.db'}"
    run(pipeline, log=log, engine="inline")
    (block,) = blocks(ROOT / "docs" / "spark.md", "python")
    names: dict[str, Any] = {}
    exec(block.replace("sqlite:///shop.db", log), names)
    found = told(names["orders_behind"](known).select("total", "amount"))
    assert found == sorted(
        (total, n) for total, some in ((33, range(3)), (132, range(3, 6))) for i in some for n in (i, 10 * i)
    )


class Forgetting:
    """A reader of a log from which a collector takes the first events, and their file, while they are read."""

    def __init__(self, log: LogReader, collected: int) -> None:
        self._log, self._collected = log, collected

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def extent(self, port: Port) -> tuple[int, int]:
        return self._collected, self._log.extent(port)[1]


def test_what_is_collected_while_it_is_read_is_passed_over(tmp_path: Path) -> None:
    pipeline = Pipeline("large")
    pipeline.source("large", generator(lambda i: pa.table({"text": [str(i) * 20_000]}), 4), max_turn_events=1)
    url = f"sqlite:///{tmp_path / 'log.db'}"
    run(pipeline, log=url, engine="inline")
    place, port = Log.at(url, "large"), Port("large", "out")
    table = RecordsTable(port, place.bodies)
    with closing(place.reader("large")) as log:
        for run_ in log.events(port, 1, 2):
            for bodies in run_.bodies:
                Path(str(place.bodies), str(bodies.file)).unlink()
        schema = table.schema(log)
        collected: Any = Forgetting(log, 2)
        found = pa.concat_tables(table.rows(collected, Range(port, 1, 5), schema))
        assert found["_clew_event"].to_pylist() == [3, 4]
        with pytest.raises(BodyDamaged):
            list(table.rows(log, Range(port, 1, 5), schema))
