"""Pipelines of every kind, small, for the checker to judge their runs."""

import json
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from clew import Batch, Count, Operator, Pipeline, Tumbling
from clew.connectors import files, generator, postgres, sqlite
from clew.pipeline.operators import Context, Event, InputSet
from clew.pipeline.windows import Header
from tests.model.runs import numbers

EVENTS = 40
START = datetime(2024, 1, 1, tzinfo=UTC)


def start(name: str, events: int = EVENTS) -> tuple[Pipeline, Any]:
    pipeline = Pipeline(name)
    return pipeline, pipeline.source("numbers", generator(numbers, events), max_turn_events=7)


def each(directory: Path) -> Pipeline:
    pipeline, source = start("each")

    @pipeline.operator(source, deterministic=True, max_turn_events=5)
    def doubled(table: pa.Table) -> pa.Table:
        return table.set_column(0, "n", pc.multiply(table["n"], 2))

    pipeline.sink(doubled, sqlite(directory / "sink.db", table="doubled"))
    return pipeline


def batch(directory: Path) -> Pipeline:
    pipeline, source = start("batch")

    @pipeline.operator(source, window=Batch(), deterministic=True, max_turn_events=6)
    def sums(table: pa.Table) -> pa.Table:
        return pa.table({"n": [pc.sum(table["n"]).as_py()]})

    pipeline.sink(sums, sqlite(directory / "sink.db", table="sums"))
    return pipeline


def count(directory: Path) -> Pipeline:
    pipeline, source = start("count")

    @pipeline.operator(source, window=Count(7), deterministic=True)
    def sums(table: pa.Table) -> pa.Table:
        return pa.table({"n": [pc.sum(table["n"]).as_py()], "x": [pc.sum(table["x"]).as_py()]})

    pipeline.sink(sums, sqlite(directory / "sink.db", table="sums"))
    return pipeline


def timed(minutes: int) -> Callable[[int], pa.Table]:
    """Return a source's function: two records per event, `minutes` apart."""

    def make(index: int) -> pa.Table:
        at = [START + timedelta(minutes=minutes * number) for number in (2 * index, 2 * index + 1)]
        return pa.table({"at": pa.array(at, pa.timestamp("us", "UTC")), "n": [index, -index]})

    return make


def tumbling(directory: Path) -> Pipeline:
    pipeline = Pipeline("tumbling")
    left = pipeline.source("left", generator(timed(7), 30), max_turn_events=4)
    right = pipeline.source("right", generator(timed(19), 12), max_turn_events=3)

    @pipeline.operator(left, right, window=Tumbling("1 hour", on="at"), deterministic=True, max_turn_events=5)
    def hourly(left: pa.Table, right: pa.Table) -> pa.Table:
        at = (left if left.num_rows else right)["window_start"][0]
        return pa.table({"at": [at.as_py()], "left": [left.num_rows], "right": [right.num_rows]})

    pipeline.sink(hourly, sqlite(directory / "sink.db", table="hourly"))
    return pipeline


def tumbling_numbers(directory: Path) -> Pipeline:
    """Whole numbers below zero, and dates."""
    pipeline, source = start("tumbling_numbers")

    @pipeline.operator(source, deterministic=True)
    def shifted(table: pa.Table) -> pa.Table:
        return pa.table({"n": pc.subtract(table["n"], 60)})

    @pipeline.operator(shifted, window=Tumbling(25, on="n"), deterministic=True)
    def bins(table: pa.Table) -> pa.Table:
        return pa.table({"start": table["window_start"][:1], "rows": [table.num_rows]})

    pipeline.sink(bins, sqlite(directory / "sink.db", table="bins"))
    return pipeline


def several_functions(directory: Path) -> Pipeline:
    pipeline, source = start("several_functions")

    @pipeline.operator(source, window=Count(3), deterministic=True, max_turn_events=4)
    def threes(table: pa.Table) -> pa.Table:
        return pa.table({"n": [pc.sum(table["n"]).as_py()]})

    @pipeline.also(threes, window=Batch(), outputs="batches")
    def batches(table: pa.Table) -> pa.Table:
        return pa.table({"rows": [table.num_rows]})

    @pipeline.also(threes, outputs="singles")
    def singles(table: pa.Table) -> pa.Table:
        return table.slice(0, 1)

    pipeline.sink(threes, sqlite(directory / "sink.db", table="threes"))
    pipeline.sink("threes.batches", sqlite(directory / "sink.db", table="batches"))
    pipeline.sink("threes.singles", sqlite(directory / "sink.db", table="singles"))
    return pipeline


def several_ports(directory: Path) -> Pipeline:
    """Several output ports, several events on one, and none at all for some Input Sets."""
    pipeline, source = start("several_ports")

    @pipeline.operator(source, outputs=("even", "odd", "none"), deterministic=True)
    def split(table: pa.Table) -> Mapping[str, Any]:
        if table["n"][0].as_py() % 5 == 0:
            return {"even": table.slice(0, 0)}
        return {"even": [table.slice(0, 1), table.slice(1, 0), table.slice(1)], "odd": table}

    pipeline.sink("split.even", sqlite(directory / "sink.db", table="split"))
    pipeline.sink("split.odd", sqlite(directory / "sink.db", table="split"))
    pipeline.sink("split.none", sqlite(directory / "sink.db", table="empty"))
    return pipeline


class Rates(Operator):
    """Groups events by a fact, counts them in its state, looks rates up on the side, and writes a report."""

    size = 4

    def initial(self) -> dict[str, Any]:
        return {"seen": {}, "total": 0}

    def facts(self, table: pa.Table) -> Any:
        return str(table["n"][0].as_py() % 5)

    def assign(self, event: Header, state: dict[str, Any]) -> Sequence[Any]:
        state["seen"] = {key: seen for key, seen in state["seen"].items() if seen < self.size}
        state["total"] += 1
        if state["total"] % 9 == 0:
            return ()
        state["seen"][event.facts] = state["seen"].get(event.facts, 0) + 1
        return (event.facts, "all") if state["total"] % 4 == 0 else (event.facts,)

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        return [key for key in opened if state["seen"].get(key, 0) >= self.size]

    def flush(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        return sorted(key for key in opened if key != "2")

    @staticmethod
    def fold(folded: Any, event: Event) -> Any:
        return (folded or 0) + event.table.num_rows

    def generate(self, input_set: InputSet, context: Context) -> Any:
        rate = context.read("rates", "SELECT rate FROM rates")["rate"][0].as_py()
        total = pc.sum(input_set.table()["n"]).as_py()
        context.write("report", pa.table({"key": [input_set.key], "events": [len(input_set.events)]}))
        if total % 2:
            context.write("report", pa.table({"key": [input_set.key], "events": [-1]}))
        return pa.table({"total": [total * rate], "seen": [context.state["total"]], "rows": [input_set.folded]})


def rates_database(directory: Path) -> Path:
    path = directory / "rates.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE rates (rate REAL)")
        connection.execute("INSERT INTO rates VALUES (1.25)")
    return path


def general(directory: Path, deterministic: bool = True) -> Pipeline:
    pipeline, source = start("general")
    rates = pipeline.general(
        "rates", Rates(), source, reads={"rates": sqlite(rates_database(directory))},
        writes={"report": sqlite(directory / "report.db", table="report")}, deterministic=deterministic,
        max_turn_events=6,
    )  # fmt: skip
    pipeline.sink(rates, sqlite(directory / "sink.db", table="rates"))
    return pipeline


def two_functions(directory: Path) -> Pipeline:
    """A general operator with two generative functions, which uses no state."""
    pipeline, source = start("two_functions")
    pipeline.general("halves", Halves(), source, outputs=("low", "high"), deterministic=True)
    pipeline.sink("halves.low", files(directory / "low"))
    pipeline.sink("halves.high", files(directory / "high"))
    return pipeline


class Halves(Operator):
    """Sends pairs of events to the one function, and single ones to the other."""

    functions = ("low", "high")

    def assign(self, event: Header, state: dict[str, Any]) -> Sequence[Any]:
        return [("low", event.number // 2), ("high", event.number)]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        latest = max((key for function, key in opened if function == "low"), default=0)
        return [label for label in opened if label[0] == "high" or label[1] < latest]

    def low(self, input_set: InputSet, context: Context) -> Any:
        return {"low": pa.table({"events": [len(input_set.events)]})}

    def high(self, input_set: InputSet, context: Context) -> Any:
        return {"high": [input_set.table().slice(0, 1), input_set.table().slice(1)]}


# Sources.

TYPED = pa.schema(
    [
        ("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(12, 2)), ("paid", pa.bool_()),
        ("day", pa.date32()), ("at", pa.timestamp("us")), ("weight", pa.float64()),
    ]
)  # fmt: skip


def typed(first: int, rows: int) -> pa.Table:
    """Return records of the usual types, with nulls, quotes, line breaks and empty strings."""
    names = ["plain", "with, comma", 'with "quotes"', "line\nbreak", "", None, "ümläut"]
    ids = range(first, first + rows)
    columns = [
        list(ids),
        [names[i % len(names)] for i in ids],
        [None if i % 11 == 10 else Decimal(i).scaleb(-2) for i in ids],
        [None if i % 5 == 4 else i % 2 == 0 for i in ids],
        [(START + timedelta(days=i)).date() for i in ids],
        [(START + timedelta(seconds=i, microseconds=i)).replace(tzinfo=None) for i in ids],
        [None if i % 7 == 6 else i / 3 for i in ids],
    ]
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, TYPED)], schema=TYPED)


def write_sources(directory: Path) -> None:
    """Write the same records as files of each format, and into a database."""
    for kind in ("csv", "jsonl", "parquet"):
        (directory / kind).mkdir()
        for number, size in enumerate((35, 1, 60)):
            _write(directory / kind / f"part-{number}.{kind}", typed(100 * number, size), kind)
    with closing(sqlite3.connect(directory / "source.db")) as connection, connection:
        connection.execute(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT, price DECIMAL_TEXT(12,2), paid BOOLEAN, day DATE, "
            "at TIMESTAMP, weight REAL)"
        )
        rows = [_texts(row) for row in typed(0, 80).to_pylist()]
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def _write(path: Path, table: pa.Table, kind: str) -> None:
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=20)
    elif kind == "csv":
        pa.csv.write_csv(table, path)
    else:
        rows = [dict(zip(row, _texts(row))) for row in table.to_pylist()]
        # A field that is null may be missing.
        kept = [{name: value for name, value in row.items() if value is not None} for row in rows]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in kept))


def _texts(row: Mapping[str, Any]) -> list[Any]:
    return [str(v) if isinstance(v, Decimal) else v.isoformat() if hasattr(v, "isoformat") else v for v in row.values()]


def _to_sink(name: str, directory: Path, source: Any) -> Pipeline:
    pipeline = Pipeline(name)
    stream = pipeline.source("orders", source, max_turn_events=3)
    pipeline.sink(stream, sqlite(directory / "sink.db", table="orders"))
    return pipeline


def from_csv(directory: Path) -> Pipeline:
    write_sources(directory)
    return _to_sink("from_csv", directory, files(directory / "csv", rows_per_event=10, schema=TYPED))


def from_csv_inferred(directory: Path) -> Pipeline:
    write_sources(directory)
    return _to_sink("from_csv_inferred", directory, files(directory / "csv", rows_per_event=10))


def from_text_of_others(directory: Path) -> Pipeline:
    """A CSV file that Arrow did not write: other words for true, spaces, one column with empty lines."""
    (directory / "csv").mkdir()
    (directory / "csv" / "B.CSV").write_text("id,ok,at\r\n1,True,2024-01-01T10:00:00Z\r\n2,0,2024-01-01 11:00:00Z\r\n")
    (directory / "csv" / "_SUCCESS").write_text("")
    (directory / "single").mkdir()
    (directory / "single" / "a.csv").write_text('\ufeffname\na\n\n""\nb\n')
    pipeline = Pipeline("from_text_of_others")
    for name, place in (("orders", directory / "csv"), ("single", directory / "single" / "*.csv")):
        stream = pipeline.source(name, files(place))
        pipeline.sink(stream, files(directory / f"{name}_out", format="csv"))
    return pipeline


def from_json(directory: Path) -> Pipeline:
    write_sources(directory)
    return _to_sink("from_json", directory, files(directory / "jsonl", rows_per_event=10, schema=TYPED))


def from_json_inferred(directory: Path) -> Pipeline:
    (directory / "nested").mkdir()
    rows = [
        {"id": i, "tags": ["a", "b"][: i % 3], "place": {"x": i / 3, "y": i}, "at": "2024-01-01"} for i in range(30)
    ]
    (directory / "nested" / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n\n" for row in rows))
    pipeline = Pipeline("from_json_inferred")
    stream = pipeline.source("orders", files(directory / "nested", rows_per_event=4))
    pipeline.sink(stream, files(directory / "out", format="jsonl"))
    return pipeline


def from_parquet(directory: Path) -> Pipeline:
    write_sources(directory)
    # Two places, the later name first, one file in both.
    places = [directory / "parquet" / "part-2.parquet", directory / "parquet"]
    return _to_sink("from_parquet", directory, files(places, rows_per_event=10))


def from_keyset(directory: Path) -> Pipeline:
    write_sources(directory)
    query = "SELECT * FROM orders WHERE name IS NOT '%' -- all"
    return _to_sink(
        "from_keyset", directory, sqlite(directory / "source.db", query=query, unique="id", rows_per_event=9)
    )


def from_query(directory: Path) -> Pipeline:
    write_sources(directory)
    source = sqlite(directory / "source.db", query="SELECT id, price FROM orders ORDER BY price", rows_per_event=9)
    return _to_sink("from_query", directory, source)


def from_observed(directory: Path) -> Pipeline:
    return _to_sink("from_observed", directory, generator(numbers, 12, replayable=False))


# Sinks.


def to_upsert(directory: Path) -> Pipeline:
    """Rows are replaced, within a write and from write to write."""
    pipeline, source = start("to_upsert")

    @pipeline.operator(source, deterministic=True)
    def keyed(table: pa.Table) -> pa.Table:
        return pa.table({"key": pc.bit_wise_and(table["n"], 7), "shop": ["a", "b", "a"], "n": table["n"]})

    pipeline.sink(keyed, sqlite(directory / "sink.db", table="keyed", key=("key", "shop")), max_turn_events=3)
    return pipeline


def to_files(directory: Path) -> Pipeline:
    pipeline = Pipeline("to_files")
    source = pipeline.source("orders", generator(lambda index: typed(10 * index, 10), 12), max_turn_events=4)
    for kind in ("csv", "jsonl", "parquet"):
        pipeline.sink(source, files(directory / kind, format=kind), name=f"to_{kind}", max_turn_events=3)
    return pipeline


def empty(directory: Path) -> Pipeline:
    """Nothing comes, and nothing goes."""
    pipeline, source = start("empty", events=0)

    @pipeline.operator(source, deterministic=True)
    def same(table: pa.Table) -> pa.Table:
        return table

    pipeline.sink(same, sqlite(directory / "sink.db", table="same"))
    pipeline.sink(source, files(directory / "out"), name="copies")
    return pipeline


PIPELINES: dict[str, Callable[[Path], Pipeline]] = {
    make.__name__: make
    for make in (
        each, batch, count, tumbling, tumbling_numbers, several_functions, several_ports, general, two_functions,
        from_csv, from_csv_inferred, from_text_of_others, from_json, from_json_inferred, from_parquet, from_keyset,
        from_query, from_observed, to_upsert, to_files, empty,
    )
}  # fmt: skip


# Everything in PostgreSQL.


def all_postgres(url: str) -> Pipeline:
    """A source, a sink that appends and one that replaces, all in one database."""
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, note json, price numeric(30,4), amount numeric, day date, "
            "at timestamptz, local timestamp, weight double precision, small real, raw bytea, ok boolean)"
        )
        connection.execute(
            "INSERT INTO orders SELECT i, json_build_object('i', i), i * 1.0001, i / 8.0, date '2024-01-01' + i, "
            "timestamptz '2024-01-01 00:00:00+02' + i * interval '1 s', timestamp '2024-01-01' + i * interval '1 ms', "
            "i / 7.0::double precision, 0.1, '\\x00ff', i % 2 = 0 FROM generate_series(1, 50) AS i"
        )
    pipeline = Pipeline("All-postgres")
    source = postgres(url, query="SELECT * FROM orders WHERE note::text LIKE '%i%'", unique="id", rows_per_event=6)
    orders = pipeline.source("orders", source, max_turn_events=2)

    @pipeline.operator(orders, deterministic=True, max_turn_events=2)
    def keyed(table: pa.Table) -> pa.Table:
        return table.set_column(0, "id", pc.bit_wise_and(table["id"], 7))

    pipeline.sink(orders, postgres(url, table="public.copies"), name="copies")
    pipeline.sink(keyed, postgres(url, table="latest", key="id"), max_turn_events=2)
    return pipeline
