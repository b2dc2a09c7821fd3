import datetime
import json
import os
import pickle
import sqlite3
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from clew.connectors import postgres, sqlite
from clew.errors import GraphError, SourceFailed
from clew.pipeline.contracts import Connection, Observed, Replayable, Sink
from tests.connectors.conftest import Database
from tests.connectors.reading import all_events, rows, turn


def numbers(database: Database, count: int) -> None:
    database.execute("CREATE TABLE numbers (id bigint PRIMARY KEY, s text)")
    if count:
        values = ", ".join(f"({2 * i}, 'v{i}%')" for i in range(count))
        database.execute(f"INSERT INTO numbers VALUES {values}")


def test_the_arguments_choose_the_role(database):
    assert isinstance(database.connector(query="SELECT 1 AS a", unique="a"), Replayable)
    assert isinstance(database.connector(query="SELECT 1 AS a"), Observed)
    assert isinstance(database.connector(table="t"), Sink)
    assert isinstance(database.connector(), Connection)
    for wrong in ({"table": "t", "query": "q"}, {"key": ["a"]}, {"unique": "a"}, {"query": "q", "rows_per_event": 0}):
        with pytest.raises(GraphError, match=r"conftest\.py"):
            database.connector(**wrong)


@pytest.mark.parametrize("count", [0, 1, 20, 23])
@pytest.mark.parametrize("events", [1, 2, 5, 100])
def test_a_keyset_reads_every_row_once_and_in_order_whatever_the_turn(database, count, events):
    numbers(database, count)
    source = database.connector(query="SELECT * FROM numbers WHERE s LIKE 'v%'; ", unique="id", rows_per_event=4)
    source.validate()
    found = all_events(source, events)
    assert [row["id"] for row in rows(found)] == [2 * i for i in range(count)]
    assert all(len(table) == 4 for table in found[:-1])


def test_a_keyset_goes_on_at_any_offset(database):
    numbers(database, 23)
    source = database.connector(query="SELECT s, id FROM numbers -- all of them", unique="id", rows_per_event=4)
    snapshot = source.snapshot()
    whole = rows(all_events(source, 100, None, snapshot))
    for events in range(1, 6):
        before, offset, _ = turn(source, snapshot, None, events)
        assert rows(before) + rows(all_events(source, 2, offset, snapshot)) == whole


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("text", ["'a'", "'b'''", "'c%'", "'é'"]),
        ("numeric(20,4)", ["0.1000", "0.2", "12345678.5", "98765432.1"]),
        ("timestamp", ["'2024-01-01 00:00:00'", "'2024-01-01 00:00:00.25'", "'2024-01-02 00:00:00'"]),
        ("timestamptz", ["'2024-01-01 00:00:00+00'", "'2024-01-01 00:00:00.25+00'", "'2024-01-02 00:00:00+00'"]),
        ("date", ["'2024-01-01'", "'2024-01-02'"]),
        ("double precision", ["0.1", "0.2", "1e300"]),
    ],
)
def test_a_key_of_any_ordered_type_survives_json(database, kind, values):
    database.execute(f"CREATE TABLE t (k {kind} PRIMARY KEY)")
    for value in values:
        database.execute(f"INSERT INTO t VALUES ({value})")
    if database.name == "sqlite" and kind == "timestamptz":
        database.execute("UPDATE t SET k = k || ':00'")
    found = rows(all_events(database.connector(query="SELECT * FROM t", unique="k", rows_per_event=1), 1))
    keys = [row["k"] for row in found]
    assert len(keys) == len(values)
    assert keys == sorted(keys)


def test_a_uuid_can_be_a_key(postgres_url):
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE t AS SELECT gen_random_uuid() AS k FROM generate_series(1, 5)")
    found = rows(all_events(postgres(postgres_url, query="SELECT * FROM t", unique="k", rows_per_event=1), 2))
    assert len({row["k"] for row in found}) == 5


@pytest.mark.parametrize("events", [1, 2, 3, 100])
def test_keys_that_are_not_unique_are_refused_also_across_turns(database, events):
    database.execute("CREATE TABLE t (k integer)")
    database.execute("INSERT INTO t VALUES (1), (2), (3), (3), (4)")
    with pytest.raises(SourceFailed, match=r"column k holds 3 more than once, expected unique values; .*leave unique="):
        all_events(database.connector(query="SELECT * FROM t", unique="k", rows_per_event=1), events)


def test_null_keys_are_refused_before_and_after_reading(database):
    database.execute("CREATE TABLE t (k integer)")
    database.execute("INSERT INTO t VALUES (1)")
    source = database.connector(query="SELECT * FROM t", unique="k")
    snapshot = source.snapshot()
    database.execute("INSERT INTO t VALUES (NULL)")
    for read in (source.snapshot, lambda: all_events(source, 5, None, snapshot)):
        with pytest.raises(SourceFailed, match="column k holds null"):
            read()


def test_an_unknown_key_column_is_refused_before_anything_starts(database):
    numbers(database, 1)
    with pytest.raises(SourceFailed, match="no column nothing, only id, s"):
        database.connector(query="SELECT * FROM numbers", unique="nothing").validate()


def test_a_query_is_observed_in_tables_of_rows_per_event(database):
    numbers(database, 23)
    source = database.connector(query="SELECT * FROM numbers ORDER BY id", rows_per_event=10)
    source.validate()
    assert [len(table) for table in source.observe()] == [10, 10, 3]
    assert list(database.connector(query="SELECT * FROM numbers WHERE id < 0").observe()) == []


def test_an_operator_reads_on_the_side(database):
    numbers(database, 3)
    connection = database.connector()
    assert connection.read("SELECT id FROM numbers ORDER BY id;").to_pylist() == [{"id": 0}, {"id": 2}, {"id": 4}]
    assert connection.read("SELECT id, s FROM numbers WHERE id < 0").schema.names == ["id", "s"]


def test_a_read_cannot_write(database):
    numbers(database, 3)
    for sql in ("DELETE FROM numbers", "DELETE FROM numbers RETURNING id"):
        with pytest.raises(SourceFailed):
            database.connector().read(sql)
    assert len(database.execute("SELECT * FROM numbers")) == 3


def test_postgres_types_are_those_of_the_result(postgres_url):
    table = postgres(postgres_url).read(
        """SELECT 1::int2 a, 2::int4 b, 3::int8 c, 1.5::float4 d, 2.5::float8 e, 1.50::numeric(10,2) f, 1.25::numeric g,
        'x'::text h, 'y'::varchar(3) i, true j, DATE '2024-01-02' k, TIMESTAMP '2024-01-02 03:04:05.123456' l,
        TIMESTAMPTZ '2024-01-02 03:04:05+02' m, '\\x00ff'::bytea n, '{"a": [1]}'::jsonb o, NULL::int4 p"""
    )
    assert [str(kind) for kind in table.schema.types] == [
        "int16", "int32", "int64", "float", "double", "decimal128(10, 2)", "decimal128(38, 9)", "string", "string",
        "bool", "date32[day]", "timestamp[us]", "timestamp[us, tz=UTC]", "binary", "string", "int32",
    ]  # fmt: skip
    (row,) = table.to_pylist()
    assert row["f"] == Decimal("1.50")
    assert row["l"] == datetime.datetime(2024, 1, 2, 3, 4, 5, 123456)
    assert row["m"] == datetime.datetime(2024, 1, 2, 1, 4, 5, tzinfo=datetime.UTC)
    assert (row["n"], json.loads(row["o"]), row["p"]) == (b"\x00\xff", {"a": [1]}, None)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT 0.1234567891::numeric AS a", r"column a holds Decimal\('0.1234567891'\), .*cast the column"),
        ("SELECT 'NaN'::numeric AS a", "column a holds"),
        ("SELECT 1::numeric(50,0) AS a", r"column a has type numeric\(50,0\), .*a::text"),
        ("SELECT ARRAY[1] AS a", "column a has type .*cast it in the query"),
        ("SELECT INTERVAL '1 day' AS a", "column a has type interval"),
        ("SELECT 1 AS a, 2 AS a", "twice a"),
    ],
)
def test_what_postgres_holds_and_arrow_cannot_is_refused_by_column(postgres_url, sql, said):
    with pytest.raises(SourceFailed, match=said):
        postgres(postgres_url).read(sql)


def test_sqlite_types_are_the_declared_ones_and_values_are_checked(tmp_path):
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE t (a INTEGER, b REAL, c TEXT, d BLOB, e DECIMAL(10,2), f NUMERIC, g BOOLEAN, h DATE, "
            "i TIMESTAMP, j TIMESTAMPTZ, k VARCHAR(5))"
        )
        connection.execute(
            "INSERT INTO t VALUES (1, 2, 'x', x'00ff', 1.1, 5, 1, '2024-01-02', '2024-01-02T03:04:05', "
            "'2024-01-02 03:04:05+02:00', 'k')"
        )
    table = sqlite(path).read("SELECT *, a + 1 AS l, count(*) OVER () AS m, 1.5 * b AS n, NULL AS o FROM t")
    assert [str(kind) for kind in table.schema.types] == [
        "int64", "double", "string", "binary", "decimal128(10, 2)", "decimal128(38, 9)", "bool", "date32[day]",
        "timestamp[us]", "timestamp[us, tz=UTC]", "string", "int64", "int64", "double", "string",
    ]  # fmt: skip
    (row,) = table.to_pylist()
    assert (row["e"], row["f"], row["g"]) == (Decimal("1.10"), Decimal(5), True)
    assert row["j"] == datetime.datetime(2024, 1, 2, 1, 4, 5, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("INTEGER", "'x'"), ("INTEGER", "1.5"), ("TEXT", "x'00'"), ("BOOLEAN", "2"), ("DATE", "'soon'"),
        ("DECIMAL(10,2)", "1.255"), ("DECIMAL(10,2)", "'much'"), ("TIMESTAMP", "1700000000"),
        ("TIMESTAMP", "'2024-01-02 03:04:05+02:00'"), ("TIMESTAMP", "'2024-01-02 03:04:05.1234567'"),
        ("TIMESTAMPTZ", "'2024-01-02 03:04:05'"), ("REAL", "'x'"), ("BLOB", "'x'"),
    ],
)  # fmt: skip
def test_a_value_in_sqlite_that_is_not_of_its_declared_type_is_refused_by_column(tmp_path, declared, value):
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE t (a {declared})")
        connection.execute(f"INSERT INTO t VALUES ({value})")
    with pytest.raises(SourceFailed, match=r"column a holds .*; cast the column in the query, or declare"):
        sqlite(path).read("SELECT a FROM t")


def test_a_declared_schema_overrides_types_and_chooses_columns(database):
    numbers(database, 3)
    schema = pa.schema([("id", pa.decimal128(10, 0))])
    for source in (
        database.connector(query="SELECT s, id FROM numbers", unique="id", schema=schema),
        database.connector(query="SELECT s, id FROM numbers ORDER BY id", schema=schema),
    ):
        assert source.schema() == schema
        tables = list(source.observe()) if isinstance(source, Observed) else all_events(source, 5)
        assert rows(tables) == [{"id": Decimal(0)}, {"id": Decimal(2)}, {"id": Decimal(4)}]


def test_types_of_a_keyset_are_fixed_by_the_snapshot(tmp_path):
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v REAL)")
        connection.execute("INSERT INTO t VALUES (1, 0.5), (2, NULL)")
    source = sqlite(path, query="SELECT k, v + 1 AS w FROM t", unique="k", rows_per_event=1)
    assert [str(table.schema.field("w").type) for table in all_events(source, 1)] == ["double", "double"]


def test_a_database_that_cannot_be_reached_is_refused_with_its_cure(tmp_path):
    with pytest.raises(SourceFailed, match="unable to open database file; check that the file"):
        sqlite(tmp_path / "missing.db", query="SELECT 1").validate()
    assert not os.path.exists(tmp_path / "missing.db")
    (tmp_path / "a.txt").write_text("no database at all, but long enough to be looked at" * 20)
    with pytest.raises(SourceFailed, match="not a database; name a SQLite database file"):
        sqlite(tmp_path / "a.txt", query="SELECT 1").validate()
    with pytest.raises(SourceFailed, match="check that the server runs"):
        postgres("postgresql://u:secret@127.0.0.1:1/d", query="SELECT 1").validate()


def test_a_missing_table_is_refused_with_its_cure(database):
    with pytest.raises(SourceFailed, match=r"absent.*; check the name of the table"):
        database.connector(query="SELECT * FROM absent").validate()


def test_the_password_is_shown_nowhere(postgres_url):
    shown = []
    urls = ["postgresql://u:sesame@127.0.0.1:1/d", "host=127.0.0.1 port=1 user=u password=sesame dbname=d"]
    for url in [*urls, "postgresql://u@127.0.0.1:1/d?password=sesame"]:
        source = postgres(url, query="SELECT 1")
        shown += [source.describe(), repr(source), repr(postgres(url)), postgres(url, table="t").describe()]
        with pytest.raises(SourceFailed) as failed:
            source.validate()
        shown.append(str(failed.value))
    with pytest.raises(GraphError) as refused:
        postgres("postgresql://u:sesame@h:port:port/d?x")
    shown.append(str(refused.value))
    with pytest.raises(SourceFailed) as failed:
        postgres(psycopg.conninfo.make_conninfo(postgres_url, password="sesame")).read("SELECT * FROM sesame")
    shown.append(str(failed.value))
    assert not [text for text in shown if "sesame" in text]


def test_sql_sources_travel():
    for made in (
        sqlite("a.db", query="SELECT 1 AS a", unique="a", schema=pa.schema([("a", pa.int64())])),
        postgres("postgresql:///d", query="SELECT 1"),
        postgres("postgresql:///d", table="t", key=["k"]),
        sqlite("a.db"),
    ):
        assert pickle.loads(pickle.dumps(made)) == made
