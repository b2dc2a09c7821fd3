import datetime
import json
import os
import pickle
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew import faultpoint
from clew.connectors import files
from clew.errors import SinkFailed
from clew.faultpoint import CrashInjected
from clew.pipeline.contracts import WriteAction
from tests.connectors.reading import all_events, rows

ACTION = WriteAction("run1", "totals", "out", 7, incarnation=3)
TABLE = pa.table({"i": [1, 2, None], "s": ["a", "", None]})


@pytest.fixture(autouse=True)
def _disarm():
    yield
    faultpoint.arm()


def visible(directory) -> list[str]:
    return sorted(name for name in os.listdir(directory) if not name.startswith("."))


@pytest.mark.parametrize("format", ["parquet", "csv", "jsonl"])
def test_one_write_action_is_one_file_that_reads_back_equal(tmp_path, format):
    out = files(tmp_path / "out", format=format)
    out.validate_target()
    assert not out.applied(ACTION)
    out.write(ACTION, iter([TABLE, TABLE]), TABLE.schema)
    assert out.applied(ACTION)
    assert visible(tmp_path / "out") == [f"run1-totals-out-000000007.{format}"]
    assert rows(all_events(files(tmp_path / "out"), 5)) == TABLE.to_pylist() * 2


@pytest.mark.parametrize("format", ["parquet", "csv", "jsonl"])
def test_a_repeat_under_a_later_incarnation_leaves_the_same_single_file(tmp_path, format):
    out = files(tmp_path, format=format)
    for incarnation in (3, 4):
        out.write(WriteAction("run1", "totals", "out", 7, incarnation), iter([TABLE]), TABLE.schema)
    assert len(os.listdir(tmp_path)) == 1
    assert rows(all_events(files(tmp_path), 5)) == TABLE.to_pylist()


def test_an_empty_write_leaves_a_valid_empty_file(tmp_path):
    for format in ("parquet", "csv", "jsonl"):
        files(tmp_path, format=format).write(ACTION, iter([]), TABLE.schema)
    assert pq.read_table(tmp_path / f"{ACTION.name}.parquet").schema == TABLE.schema
    assert (tmp_path / f"{ACTION.name}.csv").read_text().strip() == '"i","s"'
    assert (tmp_path / f"{ACTION.name}.jsonl").read_text() == ""


def test_a_crash_before_the_rename_shows_nothing_and_the_repeat_cleans_up(tmp_path):
    out = files(tmp_path, format="parquet")
    other = tmp_path / f".{ACTION.name[:-1]}8.parquet.0000.tmp"
    other.touch()
    (fault,) = faultpoint.arm("sink-before-rename@totals:raise")
    with pytest.raises(CrashInjected):
        out.write(ACTION, iter([TABLE]), TABLE.schema)
    assert fault.fired
    assert visible(tmp_path) == []
    assert not out.applied(ACTION)
    assert len(os.listdir(tmp_path)) == 2
    out.write(ACTION, iter([TABLE]), TABLE.schema)
    # The temporary of another write, which may be under way, is left alone.
    assert sorted(os.listdir(tmp_path)) == [other.name, f"{ACTION.name}.parquet"]


@pytest.mark.parametrize("partition_by", [(), "s"], ids=["one file", "partitioned"])
def test_two_attempts_of_a_write_at_the_same_time_do_not_disturb_each_other(tmp_path, partition_by):
    """Spark's speculation makes such; the slower one found its temporary file removed as a leftover, and failed."""
    table = pa.table({"i": [1, 2], "s": ["a", "b"]})
    out = files(tmp_path, format="parquet", partition_by=partition_by)

    def slowly():
        yield table
        out.write(ACTION, iter([table]), table.schema)

    out.write(ACTION, slowly(), table.schema)
    assert out.applied(ACTION)
    found = [path for path in tmp_path.rglob("*.parquet") if not path.name.startswith(".")]
    assert sum(pq.ParquetFile(path).read().num_rows for path in found) == len(table)
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_crash_after_the_rename_is_seen_as_applied(tmp_path):
    out = files(tmp_path, format="csv")
    (fault,) = faultpoint.arm("sink-after-commit@totals:raise")
    with pytest.raises(CrashInjected):
        out.write(ACTION, iter([TABLE]), TABLE.schema)
    assert fault.fired
    assert out.applied(ACTION)


def test_a_failed_write_leaves_no_file(tmp_path):
    def tables():
        yield TABLE
        raise OSError("disk full")

    with pytest.raises(SinkFailed, match=r"000000007\.csv cannot be written \(disk full\); .*run again"):
        files(tmp_path, format="csv").write(ACTION, tables(), TABLE.schema)
    assert os.listdir(tmp_path) == []


def test_json_keeps_decimals_and_times_exact(tmp_path):
    table = pa.table(
        {"d": pa.array([Decimal("1.10")]), "t": [datetime.datetime(2024, 1, 2)], "n": [{"x": [1]}], "u": ["é"]}
    )
    files(tmp_path, format="jsonl").write(ACTION, iter([table]), table.schema)
    assert json.loads((tmp_path / f"{ACTION.name}.jsonl").read_text()) == {
        "d": "1.10", "t": "2024-01-02T00:00:00", "n": {"x": [1]}, "u": "é",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("format", "table"),
    [
        ("csv", pa.table({"l": [[1]]})),
        ("csv", pa.table({"b": [b"\x00"]})),
        ("jsonl", pa.table({"b": [b"\x00"]})),
        ("jsonl", pa.table({"f": [float("nan")]})),
    ],
)
def test_what_a_format_cannot_hold_is_refused(tmp_path, format, table):
    with pytest.raises(SinkFailed):
        files(tmp_path, format=format).write(ACTION, iter([table]), table.schema)
    assert os.listdir(tmp_path) == []


def test_only_a_directory_can_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", f"{tmp_path}/*.parquet", [tmp_path / "a", tmp_path / "b"]):
        with pytest.raises(SinkFailed, match="name a directory"):
            files(place, format="parquet").write(ACTION, iter([]), TABLE.schema)
    with pytest.raises(SinkFailed, match="cannot name a file"):
        files(tmp_path, format="csv").write(WriteAction("../run", "o", "c", 1, 1), iter([]), TABLE.schema)


def test_a_files_sink_is_idempotent_and_checkable_and_travels(tmp_path):
    out = pickle.loads(pickle.dumps(files(tmp_path, format="csv")))
    assert (out.transactional, out.idempotent, out.checkable) == (False, True, True)
