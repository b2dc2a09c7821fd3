import datetime
import math
import multiprocessing
import sqlite3
import threading
from dataclasses import replace
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from clew import faultpoint
from clew.connectors import postgres, sqlite
from clew.errors import SinkFailed, StaleWriter
from clew.faultpoint import CrashInjected
from clew.pipeline.contracts import WriteAction

FIRST = WriteAction("run1", "totals", "out", 1, incarnation=1)


def table(*pairs: tuple[int, str | None]) -> pa.Table:
    return pa.table(
        {"k": pa.array([k for k, _ in pairs], pa.int64()), "v": pa.array([v for _, v in pairs], pa.string())}
    )


def write(sink, action: WriteAction, *tables: pa.Table) -> None:
    sink.write(action, iter(tables), tables[0].schema if tables else table().schema)


def found(database, what: str = "k, v", name: str = '"target"') -> list[tuple]:
    return sorted(database.execute(f"SELECT {what} FROM {name}"), key=repr)


def test_rows_are_appended_and_the_marker_moves_with_them(database):
    sink = database.connector(table="target")
    sink.validate_target()
    assert not sink.applied(FIRST)
    write(sink, FIRST, table((1, "a")), table((1, "a"), (2, None)))
    assert sink.applied(FIRST)
    assert not sink.applied(replace(FIRST, number=2))
    write(sink, replace(FIRST, number=2), table((3, "")))
    assert found(database) == [(1, "a"), (1, "a"), (2, None), (3, "")]
    assert database.execute("SELECT run, operator, connection, incarnation, last FROM clew_writes") == [
        ("run1", "totals", "out", 1, 2)
    ]


def test_a_repeat_is_skipped_whatever_its_incarnation(database):
    sink = database.connector(table="target")
    write(sink, FIRST, table((1, "a")))
    for incarnation in (1, 2):
        write(sink, replace(FIRST, incarnation=incarnation), table((1, "a")))
    assert found(database) == [(1, "a")]


def test_a_zombie_is_refused_and_changes_nothing(database):
    sink = database.connector(table="target")
    write(sink, replace(FIRST, incarnation=3), table((1, "a")))
    for number in (1, 2):
        with pytest.raises(StaleWriter) as refused:
            write(sink, replace(FIRST, number=number, incarnation=2), table((2, "b")))
    assert (refused.value.operator, refused.value.incarnation, refused.value.current) == ("totals", 2, 3)
    assert found(database) == [(1, "a")]


def test_a_repeat_fences_the_writer_before_it(database):
    sink = database.connector(table="target")
    write(sink, FIRST, table((1, "a")))
    write(sink, replace(FIRST, incarnation=2), table((1, "a")))
    with pytest.raises(StaleWriter):
        write(sink, replace(FIRST, number=2), table((2, "b")))


def test_runs_operators_and_connections_have_markers_of_their_own(database):
    sink = database.connector(table="target")
    for action in (FIRST, replace(FIRST, run="run2"), replace(FIRST, operator="o"), replace(FIRST, connection="c")):
        write(sink, action, table((1, "a")))
    assert len(found(database)) == 4


@pytest.mark.parametrize("point", ["sink-before-commit", "sink-after-commit"])
@pytest.mark.parametrize("key", [None, ["k"]])
def test_a_crash_at_the_commit_leaves_the_write_once(database, point, key):
    sink = database.connector(table="target", key=key)
    write(sink, FIRST, table((1, "a")))
    second = replace(FIRST, number=2)
    (fault,) = faultpoint.arm(f"{point}@totals:raise")
    with pytest.raises(CrashInjected):
        write(sink, second, table((2, "b")))
    assert fault.fired
    assert sink.applied(second) is (point == "sink-after-commit")
    assert len(found(database)) == (2 if point == "sink-after-commit" else 1)
    write(sink, replace(second, incarnation=2), table((2, "b")))
    assert found(database) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("point", ["sink-before-commit", "sink-after-commit"])
def test_a_killed_writer_leaves_the_write_once(database, point):
    sink = database.connector(table="target")
    child = multiprocessing.get_context("fork").Process(target=_killed_at, args=(point, sink))
    child.start()
    child.join(60)
    assert child.exitcode == -9
    write(sink, replace(FIRST, incarnation=2), table((1, "a")))
    assert found(database) == [(1, "a")]


def _killed_at(point: str, sink) -> None:
    faultpoint.arm(f"{point}:kill")
    write(sink, FIRST, table((1, "a")))


def test_a_failing_input_rolls_everything_back(database):
    def tables():
        yield table((1, "a"))
        raise RuntimeError("the body cannot be read")

    sink = database.connector(table="target")
    with pytest.raises(RuntimeError, match="the body cannot be read"):
        sink.write(FIRST, tables(), table().schema)
    assert not sink.applied(FIRST)
    write(sink, FIRST, table((1, "a")))
    assert found(database) == [(1, "a")]


def test_rows_with_a_known_key_are_replaced_and_the_last_one_wins(database):
    sink = database.connector(table="target", key=["k"])
    write(sink, FIRST, table((1, "a"), (2, "b"), (1, "c")), table((3, "d"), (1, "e")))
    assert found(database) == [(1, "e"), (2, "b"), (3, "d")]
    write(sink, replace(FIRST, number=2), table((2, "x"), (4, "y"), (2, None)))
    assert found(database) == [(1, "e"), (2, None), (3, "d"), (4, "y")]


def test_a_key_of_several_columns_or_of_all_of_them_is_kept(database):
    sink = database.connector(table="target", key=["k", "v"])
    for number in (1, 2):
        write(sink, replace(FIRST, number=number), table((1, "a"), (1, "b"), (1, "a")))
    assert found(database) == [(1, "a"), (1, "b")]


def test_an_empty_write_moves_the_marker_and_makes_the_table(database):
    sink = database.connector(table="target", key="k")
    write(sink, FIRST)
    assert sink.applied(FIRST)
    assert found(database) == []


def test_every_plain_type_reads_back_equal(database):
    utc = datetime.UTC
    columns = pa.table(
        {
            "i8": pa.array([1, None], pa.int8()), "i64": pa.array([2**63 - 1, -(2**63)], pa.int64()),
            "u32": pa.array([2**32 - 1, 0], pa.uint32()), "f": pa.array([0.1, 1e-300], pa.float64()),
            "inf": pa.array([math.inf, -math.inf], pa.float64()), "s": pa.array(['a "b"\n,\\.', ""]),
            "nul": pa.array(["\\N", None]), "b": pa.array([True, False]), "bin": pa.array([b"\x00\xff", b""]),
            "dec": pa.array([Decimal("12345678901234567890.123456789"), Decimal("-0.000000001")], pa.decimal128(38, 9)),
            "day": pa.array([datetime.date(2024, 1, 2), datetime.date(1, 1, 1)]),
            "ts": pa.array([datetime.datetime(2024, 1, 2, 3, 4, 5, 6), None], pa.timestamp("us")),
            "tz": pa.array([datetime.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=utc)] * 2, pa.timestamp("us", "UTC")),
        }
    )  # fmt: skip
    for key in (None, ["i64"]):
        name = f'odd "name" {"" if key is None else "keyed"}'
        database.connector(table=name, key=key).write(replace(FIRST, operator=name), iter([columns]), columns.schema)
        quoted = name.replace('"', '""')
        back = database.connector().read(f'SELECT * FROM "{quoted}" ORDER BY i64 DESC')
        assert back.to_pylist() == columns.to_pylist()


def test_decimals_are_exact_text_in_sqlite_and_numeric_in_postgres(database):
    exact = pa.table({"d": pa.array([Decimal("0.10")], pa.decimal128(10, 2))})
    write(database.connector(table="target"), FIRST, exact)
    assert found(database, "d") == ([("0.10",)] if database.name == "sqlite" else [(Decimal("0.10"),)])


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.timestamp("ns"), pa.uint64(), pa.null()]
)
def test_a_type_without_an_exact_place_is_refused_by_column(database, kind):
    with pytest.raises(SinkFailed, match=r"column x has type .* no exact place for; make it a plain column"):
        database.connector(table="target").write(FIRST, iter([]), pa.schema([("x", kind)]))


def test_nan_is_refused_where_it_would_become_null(tmp_path):
    with pytest.raises(SinkFailed, match="column f holds NaN"):
        write(sqlite(tmp_path / "a.db", table="t"), FIRST, pa.table({"f": [math.nan]}))


def test_a_time_that_has_no_text_is_refused(tmp_path):
    far = pa.table({"t": pa.array([253402300800_000_000], pa.timestamp("us"))})
    with pytest.raises(
        SinkFailed, match=r"column t has a time outside of the years 1 to 9999.*; make it a whole number"
    ):
        write(sqlite(tmp_path / "a.db", table="t"), FIRST, far)


def test_a_null_or_missing_key_is_refused(database):
    sink = database.connector(table="target", key=["k"])
    holes = pa.table({"k": pa.array([None], pa.int64()), "v": ["a"]})
    with pytest.raises(SinkFailed, match="key column k holds null; fill it in"):
        write(sink, FIRST, holes)
    with pytest.raises(SinkFailed, match="no column k, which key= names"):
        write(sink, FIRST, pa.table({"v": ["a"]}))
    assert not sink.applied(FIRST)


def test_a_table_of_the_users_own_is_written_to_and_keeps_its_other_columns(database):
    database.execute("CREATE TABLE target (k bigint UNIQUE, v varchar(10) NOT NULL, more integer DEFAULT 7)")
    write(database.connector(table="target", key=["k"]), FIRST, table((1, "a"), (1, "b")))
    assert found(database, "k, v, more") == [(1, "b", 7)]


def test_a_table_that_does_not_fit_is_refused_with_its_cure(database):
    database.execute("CREATE TABLE target (k bigint)")
    with pytest.raises(SinkFailed, match=r"check .*columns"):
        write(database.connector(table="target"), FIRST, table((1, "a")))
    database.execute("CREATE TABLE keyless (k bigint, v text)")
    with pytest.raises(SinkFailed, match="give the table a primary key or a unique index on the columns of key="):
        write(database.connector(table="keyless", key=["k"]), FIRST, table((1, "a")))
    database.execute("CREATE TABLE strict (k bigint, v text CHECK (v <> 'a'))")
    with pytest.raises(SinkFailed, match="check the records against the table's constraints"):
        write(database.connector(table="strict"), FIRST, table((1, "a")))


def test_writers_that_start_at_once_do_not_collide(database):
    failures: list[BaseException] = []

    def one(number: int) -> None:
        try:
            for step in (1, 2):
                write(
                    database.connector(table="target", key=["k"]),
                    replace(FIRST, operator=f"o{number}", number=step), table((number, f"{step}"), (100, "shared")),
                )  # fmt: skip
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert found(database) == sorted([*((n, "2") for n in range(6)), (100, "shared")], key=repr)


def test_two_attempts_of_one_write_leave_it_once(database):
    sink = database.connector(table="target")
    threads = [threading.Thread(target=write, args=(sink, FIRST, table((1, "a")))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found(database) == [(1, "a")]


def test_a_sink_that_cannot_be_reached_is_refused_with_its_cure(tmp_path, postgres_url):
    with pytest.raises(SinkFailed, match=r"sink sqlite .*unable to open"):
        sqlite(tmp_path / "missing" / "a.db", table="t").validate_target()
    with pytest.raises(SinkFailed, match="check that the server runs"):
        postgres("postgresql://127.0.0.1:1/d", table="t").validate_target()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE SCHEMA closed")
        connection.execute("DROP ROLE IF EXISTS clew_guest")
        connection.execute("CREATE ROLE clew_guest LOGIN")
    guest = psycopg.conninfo.make_conninfo(postgres_url, user="clew_guest")
    with pytest.raises(SinkFailed, match=r"permission denied.*; grant the user the right"):
        write(postgres(guest, table="closed.t"), FIRST, table((1, "a")))


def test_a_schema_can_be_named_with_the_table(postgres_url):
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE SCHEMA shop")
    write(postgres(postgres_url, table="shop.target", key=["k"]), FIRST, table((1, "a")))
    assert postgres(postgres_url).read("SELECT * FROM shop.target").to_pylist() == [{"k": 1, "v": "a"}]


def test_a_sqlite_sink_makes_the_file_and_commits_to_disk(tmp_path):
    path = tmp_path / "new.db"
    write(sqlite(path, table="target"), FIRST, table((1, "a")))
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT k, v FROM target").fetchall() == [(1, "a")]


def test_a_sql_sink_is_transactional_and_checkable(database):
    sink = database.connector(table="target")
    assert (sink.transactional, sink.idempotent, sink.checkable) == (True, False, True)
