"""Files partitioned by column: the same files whatever happens, and readable as one dataset."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import Pipeline, disk, faultpoint
from clew.connectors import files, partitions
from clew.errors import GraphError, SinkFailed, SourceFailed
from clew.faultpoint import CrashInjected
from clew.model.outside import files_written, partition_tables
from clew.pipeline.contracts import WriteAction
from tests.connectors.crashes import EVENTS, expected, judged, multiset, records, run_here, run_killed, write_command
from tests.connectors.reading import all_events, rows
from tests.model.runs import explained, finished, first, only

ACTION = WriteAction("run1", "totals", "out", 7, incarnation=3)
TABLE = records(1)
SINK = 'files(os.path.join(HERE, "out"), partition_by=["day"])'


def by_day(directory: Path, schema: pa.Schema = TABLE.schema, columns: tuple[str, ...] = ("day",)) -> list[Any]:
    """Read a dataset as anybody would, with the types of its partition columns."""
    kinds = ds.partitioning(pa.schema([schema.field(name) for name in columns]), flavor="hive")
    return ds.dataset(directory, partitioning=kinds).to_table().select(schema.names).to_pylist()


def tree(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def content(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in tree(directory)}


WRITTEN = [
    "_clew/columns.json",
    f"_clew/{ACTION.name}.done",
    f"day=2024-01-01/{ACTION.name}.parquet",
    f"day=2024-01-03/{ACTION.name}.parquet",
    f"day=__HIVE_DEFAULT_PARTITION__/{ACTION.name}.parquet",
]


# One write.


def test_one_write_action_is_one_file_per_partition_and_a_marker(tmp_path):
    out = files(tmp_path / "out", partition_by="day")
    out.validate_target()
    assert not out.applied(ACTION)
    out.write(ACTION, iter([TABLE, TABLE]), TABLE.schema)
    assert out.applied(ACTION)
    assert tree(tmp_path / "out") == WRITTEN
    assert pq.read_schema(tmp_path / "out" / WRITTEN[2]).names == ["n"]
    assert multiset(by_day(tmp_path / "out")) == multiset(TABLE.to_pylist() * 2)


def test_records_of_a_partition_keep_their_order(tmp_path):
    table = pa.table({"n": list(range(1000)), "k": [number % 3 for number in range(1000)]})
    files(tmp_path, partition_by="k").write(ACTION, iter([table]), table.schema)
    found = pq.read_table(tmp_path / "k=1" / f"{ACTION.name}.parquet", partitioning=None)
    assert found["n"].to_pylist() == list(range(1, 1000, 3))


def test_text_formats_are_partitioned_too(tmp_path):
    for format in ("csv", "jsonl"):
        files(tmp_path / format, format=format, partition_by="day").write(ACTION, iter([TABLE]), TABLE.schema)
    assert (tmp_path / "csv" / WRITTEN[2].replace("parquet", "csv")).read_text() == '"n"\n1\n1\n'
    assert (tmp_path / "jsonl" / WRITTEN[3].replace("parquet", "jsonl")).read_text() == '{"n": 11}\n'


def test_values_are_escaped_as_spark_does_it(tmp_path):
    odd = "a\"#%'*/:=?\\{[]^\x7f\x01 }<>|&+é"
    table = pa.table({"n": [1], "s": [odd]})
    files(tmp_path, partition_by="s").write(ACTION, iter([table]), table.schema)
    (name,) = [path.name for path in tmp_path.iterdir() if not path.name.startswith("_")]
    assert name == "s=a%22%23%25%27%2A%2F%3A%3D%3F%5C%7B%5B%5D%5E%7F%01 }<>|&+é"
    assert by_day(tmp_path, table.schema, ("s",)) == table.to_pylist()


def test_a_repeat_under_a_later_incarnation_leaves_the_same_files(tmp_path):
    out = files(tmp_path, partition_by=["day"])
    out.write(ACTION, iter([TABLE]), TABLE.schema)
    before = content(tmp_path)
    out.write(WriteAction("run1", "totals", "out", 8, 3), iter([TABLE]), TABLE.schema)
    out.write(WriteAction("run1", "totals", "out", 7, 4), iter([TABLE]), TABLE.schema)
    after = content(tmp_path)
    assert {name: after[name] for name in before} == before
    assert multiset(by_day(tmp_path)) == multiset(TABLE.to_pylist() * 2)


def test_an_empty_write_leaves_its_marker_only(tmp_path):
    out = files(tmp_path, partition_by="day")
    out.write(ACTION, iter([]), TABLE.schema)
    assert out.applied(ACTION)
    assert tree(tmp_path) == WRITTEN[:2]


def test_a_write_without_events_needs_no_schema(tmp_path):
    out = files(tmp_path, partition_by="day")
    out.write(ACTION, iter([]), pa.schema([]))
    assert out.applied(ACTION)


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
def test_a_crash_between_two_files_is_not_applied_and_the_repeat_makes_the_same(tmp_path, nth):
    out = files(tmp_path / "out", partition_by="day")
    whole = files(tmp_path / "whole", partition_by="day")
    (fault,) = faultpoint.arm(f"sink-before-rename@totals#{nth}:raise")
    with pytest.raises(CrashInjected):
        out.write(ACTION, iter([TABLE]), TABLE.schema)
    assert fault.fired
    assert not out.applied(ACTION)
    visible = [name for name in tree(tmp_path / "out") if "/." not in name]
    assert len(visible) == nth - 1
    out.write(ACTION, iter([TABLE]), TABLE.schema)
    whole.write(ACTION, iter([TABLE]), TABLE.schema)
    assert out.applied(ACTION)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_crash_after_the_marker_is_seen_as_applied(tmp_path):
    out = files(tmp_path, partition_by="day")
    (fault,) = faultpoint.arm("sink-after-commit@totals:raise")
    with pytest.raises(CrashInjected):
        out.write(ACTION, iter([TABLE]), TABLE.schema)
    assert fault.fired
    assert out.applied(ACTION)


def test_all_files_and_names_are_durable_before_the_marker_is_written(tmp_path, monkeypatch):
    done: list[str] = []
    sync, replace = disk._sync, os.replace

    def synced(path, flags):
        done.append(os.path.relpath(path, tmp_path))
        sync(path, flags)

    def moved(one, other):
        done.append(f"to {os.path.relpath(other, tmp_path)}")
        replace(one, other)

    monkeypatch.setattr(disk, "_sync", synced)
    monkeypatch.setattr(os, "replace", moved)
    table = pa.table({"n": [1], "a": [1], "b": [2]})
    files(tmp_path / "out", partition_by=["a", "b"]).write(ACTION, iter([table]), table.schema)
    file, marker = f"to out/a=1/b=2/{ACTION.name}.parquet", f"to out/{WRITTEN[1]}"
    between = done[done.index(file) + 1 : done.index(marker)]
    assert between == ["out", "out/a=1", "out/a=1/b=2"]
    assert {".", "out"} <= set(done[: done.index(file)]), "the names of new directories"
    assert done[-1] == "out/_clew"


def test_a_marker_that_cannot_be_made_durable_does_not_count(tmp_path, monkeypatch):
    out = files(tmp_path, partition_by="day")
    out.write(ACTION, iter([TABLE]), TABLE.schema)
    disk._sync_above.cache_clear()

    def broken(path, flags):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "_sync", broken)
    with pytest.raises(SinkFailed, match=r"000000007\.done cannot be made durable .*; mend the cause and run again"):
        out.applied(ACTION)


# What is refused.


@pytest.mark.parametrize(
    ("table", "columns", "told"),
    [
        (TABLE, ["month"], "have no column month, which partition_by= names; name columns that are there: n, day"),
        (TABLE.select([]), ["day"], "have no column day, which partition_by= names; name columns that are there"),
        (TABLE, ["day", "n"], "names all columns, expected one that is left for the files; leave one out"),
        (pa.table({"n": [1], "f": [0.5]}), ["f"], "column f has type double, expected text, .*; make it one of these"),
        (pa.table({"n": [1], "l": [[1]]}), ["l"], "column l has type list"),
        (pa.table({"n": [1], "b": [b"1"]}), ["b"], "column b has type binary"),
        (pa.table({"n": [1], "_k": [1]}), ["_k"], "'_k' makes directories that readers pass over .*; rename it"),
        (pa.table({"n": [1], "s": [""]}), ["s"], "holds an empty text, which would be read back as null; give it"),
        (pa.table({"n": [1], "s": [partitions.NULL]}), ["s"], "holds the text __HIVE.*, which stands for null; give"),
        (pa.table({"n": [1], "s": ["a\0b"]}), ["s"], "holds a text with a NUL, which cannot be in a name; give it"),
        (pa.table({"n": [1], "s": ["é" * 127]}), ["s"], "of which the name would have more than 255 bytes; give it"),
    ],
)
def test_what_cannot_be_a_partition_is_refused_before_anything_is_written(tmp_path, table, columns, told):
    with pytest.raises(SinkFailed, match=told):
        files(tmp_path / "out", partition_by=columns).write(ACTION, iter([table]), table.schema)
    assert not (tmp_path / "out").exists()


def test_too_many_partitions_are_refused(tmp_path):
    most = pa.table({"n": [0] * 1001, "k": list(range(1001))})
    with pytest.raises(SinkFailed, match="has 1001 partitions by k, expected at most 1000; partition by columns with"):
        files(tmp_path / "out", partition_by="k").write(ACTION, iter([most]), most.schema)
    assert not (tmp_path / "out").exists()


def test_a_failed_write_says_what_is_repeated(tmp_path):
    (tmp_path / "day=2024-01-03").write_text("in the way")
    out = files(tmp_path, partition_by="day")
    with pytest.raises(SinkFailed, match=r"write run1-totals-out-000000007 cannot be written .*; mend the cause"):
        out.write(ACTION, iter([TABLE]), TABLE.schema)
    assert not out.applied(ACTION)


def test_a_table_that_is_partitioned_otherwise_is_refused(tmp_path):
    table = pa.table({"n": [1], "a": [1], "b": [2]})
    files(tmp_path, partition_by=["a", "b"]).write(ACTION, iter([table]), table.schema)
    with pytest.raises(SinkFailed, match="the table is partitioned by a, b, expected b, a; name the columns that it"):
        files(tmp_path, partition_by=["b", "a"]).write(ACTION, iter([table]), table.schema)


def test_a_column_named_twice_is_refused(tmp_path):
    with pytest.raises(GraphError, match="partition_by= names a column twice; name each once"):
        files(tmp_path, partition_by=["day", "day"])


# Reading.


@pytest.mark.parametrize("format", ["parquet", "csv", "jsonl"])
def test_a_source_gives_the_columns_that_directories_are_named_of(tmp_path, format):
    files(tmp_path, format=format, partition_by="day").write(ACTION, iter([TABLE]), TABLE.schema)
    where = tmp_path / f"**/*.{format}"
    typed = files(where, partition_by="day", schema=TABLE.schema, rows_per_event=1)
    typed.validate()
    assert multiset(rows(all_events(typed, 2))) == multiset(TABLE.to_pylist())
    as_text = rows(all_events(files(where, partition_by="day"), 2))
    days = [row["day"] and str(row["day"]) for row in TABLE.to_pylist()]
    assert sorted(map(repr, as_text)) == sorted(repr({**row, "day": day}) for row, day in zip(TABLE.to_pylist(), days))
    fewer = files(where, partition_by="day", schema=pa.schema([("n", pa.int64())]))
    assert sorted(row["n"] for row in rows(all_events(fewer, 2))) == [1, 1, 11, 21]


def test_a_file_elsewhere_or_a_value_of_another_type_is_refused(tmp_path):
    files(tmp_path, partition_by="day").write(ACTION, iter([TABLE]), TABLE.schema)
    where = tmp_path / "**/*.parquet"
    with pytest.raises(SourceFailed, match=r"not in a directory month=\.\.\.; name the columns as the directories do"):
        all_events(files(where, partition_by="month"), 2)
    number = pa.schema([("n", pa.int64()), ("day", pa.int64())])
    with pytest.raises(SourceFailed, match="says day '2024-01-01', which is no int64; declare what the column holds"):
        all_events(files(where, partition_by="day", schema=number), 2)


def test_a_run_that_reads_a_partitioned_table_is_explained(tmp_path):
    files(tmp_path / "in", partition_by="day").write(ACTION, iter([TABLE, TABLE]), TABLE.schema)
    where = tmp_path / "in" / "**" / "*.parquet"
    pipeline = Pipeline("copied")
    source = pipeline.source("days", files(where, partition_by="day", schema=TABLE.schema, rows_per_event=2))
    pipeline.sink(source, files(tmp_path / "out", partition_by="day"))
    made = finished(pipeline, tmp_path)
    assert multiset(by_day(tmp_path / "out")) == multiset(TABLE.to_pylist() * 2)
    assert explained(made.verify())
    (tmp_path / "in" / "day=2024-01-03").rename(tmp_path / "in" / "day=2024-01-04")
    assert first(made.verify()).operator == "days"


# Any values.

VALUES = {
    "s": st.none() | st.text(st.characters(blacklist_characters="\0", codec="utf-8"), min_size=1, max_size=20),
    "day": st.none() | st.dates(),
    "i": st.none() | st.integers(-(2**63), 2**63 - 1),
    "b": st.none() | st.booleans(),
}
ROWS = st.lists(st.fixed_dictionaries(VALUES), max_size=12)
SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("day", pa.date32()), ("i", pa.int64()), ("b", pa.bool_())])


@settings(max_examples=60, deadline=None)
@given(made=ROWS, format=st.sampled_from(["parquet", "csv", "jsonl"]))
def test_any_values_come_back_to_an_independent_reader_and_to_the_checker(made, format):
    table = pa.Table.from_pylist([{"n": number, **row} for number, row in enumerate(made)], SCHEMA)
    with tempfile.TemporaryDirectory() as place:
        out = files(place, format=format, partition_by=list(VALUES))
        out.write(ACTION, iter([table]), SCHEMA)
        out.write(ACTION, iter([table]), SCHEMA)
        if format == "parquet":
            assert multiset(by_day(Path(place), SCHEMA, tuple(VALUES)) if made else []) == multiset(table.to_pylist())
        found = [one for path in files_written(out.holds()) for one in partition_tables(path, out.holds(), SCHEMA)]
        assert multiset(row for one in found for row in one.to_pylist()) == multiset(table.to_pylist())


# Whole runs.


@pytest.mark.parametrize(
    "fault",
    [
        *(f"sink-before-rename@out#{nth}" for nth in (1, 2, 3, 4, 5, 7, 21)),
        "sink-after-commit@out#1", "sink-after-commit@out#4", "before-write@out#2", "after-write@out#1",
    ],
)  # fmt: skip
def test_a_crash_by_raise_leaves_each_record_once(tmp_path, fault):
    run_here(tmp_path, SINK, f"{fault}:raise")
    assert multiset(by_day(tmp_path / "out")) == expected()
    assert explained(judged(tmp_path))


@pytest.mark.parametrize(
    "faults",
    [
        *([f"sink-before-rename@out#{nth}"] for nth in (1, 3, 5, 8)),
        ["sink-after-commit@out#2"],
        ["sink-before-rename@out#3", "before-write-check@out", "sink-before-rename@out#2"],
    ],
)
def test_a_kill_leaves_each_record_once(tmp_path, faults):
    run_killed(tmp_path, SINK, *faults)
    assert multiset(by_day(tmp_path / "out")) == expected()
    assert len(list((tmp_path / "out" / "_clew").glob("*.done"))) == EVENTS
    assert not list((tmp_path / "out").rglob(".*")), "the repeat cleans up"
    assert explained(judged(tmp_path))


@pytest.mark.parametrize("format", ["parquet", "csv", "jsonl"])
def test_leftovers_of_crashed_attempts_are_no_data(tmp_path, format):
    run_here(tmp_path, SINK.replace("partition_by", f'format="{format}", partition_by'))
    found = next((tmp_path / "out" / "day=2024-01-01").iterdir())
    shutil.copy(found, found.with_name(f".{found.name}.00.tmp"))
    assert explained(judged(tmp_path))


def remove(file: Path) -> None:
    file.unlink()


def double_elsewhere(file: Path) -> None:
    other = file.parent.with_name("day=2031-01-01")
    other.mkdir()
    shutil.copy(file, other)


def double_beside(file: Path) -> None:
    shutil.copy(file, file.with_name(f"{file.stem}-2.parquet"))


def move_elsewhere(file: Path) -> None:
    file.parent.rename(file.parent.with_name("day=2031-01-01"))


def move_up(file: Path) -> None:
    file.rename(file.parent.parent / file.name)


def misname(file: Path) -> None:
    file.parent.rename(file.parent.with_name("day=tomorrow"))


def change(file: Path) -> None:
    pq.write_table(pa.table({"n": [77, 77]}), file)


def damage(file: Path) -> None:
    file.write_bytes(b"PAR1")


@pytest.mark.parametrize(
    ("tamper", "told"),
    [
        (remove, "made files that hold other records"), (double_elsewhere, "made files that hold other records"),
        (double_beside, "1 file in .* is of no write action"), (move_elsewhere, "made files that hold other records"),
        (move_up, "made a file that is not what was written.*is not in a directory of day"),
        (misname, "made a file that is not what was written.*have no values of day|is no date32"),
        (change, "made files that hold other records"), (damage, "made a file that is not what was written"),
    ],
)  # fmt: skip
def test_what_was_changed_by_hand_is_not_explained(tmp_path, tamper, told):
    run_here(tmp_path, SINK)
    assert explained(judged(tmp_path))
    tamper(sorted((tmp_path / "out" / "day=2024-01-01").iterdir())[1])
    found = only(judged(tmp_path))
    assert found.operator == "out"
    assert re.search(told, f"{found.fact} {found.found}")


@pytest.mark.parametrize("tamper", [remove, double_beside, change, damage])
def test_files_that_are_not_partitioned_are_judged_one_by_one(tmp_path, tamper):
    run_here(tmp_path, SINK.replace(', partition_by=["day"]', ""))
    assert explained(judged(tmp_path))
    tamper(sorted((tmp_path / "out").iterdir())[1])
    assert only(judged(tmp_path)).operator == "out"


def test_the_finding_names_the_event_and_the_records(tmp_path):
    run_here(tmp_path, SINK)
    remove(sorted((tmp_path / "out" / "day=2024-01-01").iterdir())[1])
    found = only(judged(tmp_path))
    assert (found.event, found.input_set, found.found) == ("events.out#2", 2, "no record")
    assert found.expected == "n 1, day '2024-01-01'; n 1, day '2024-01-01'"


# System calls.


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is missing: make tools")
@pytest.mark.parametrize(("call", "least", "step"), [("mkdir", 5, 1), ("rename", 5, 1), ("fsync", 9, 3)])
def test_a_kill_at_any_system_call_is_followed_by_the_same_files(tmp_path, call, least, step):
    whole = tmp_path / "whole"
    files(whole, partition_by="day").write(ACTION, iter([TABLE]), TABLE.schema)
    for nth in range(1, 60, step):
        place = tmp_path / f"{nth}"
        out = files(place, partition_by="day")
        traced = ["strace", "-qq", "-o", os.devnull, "-e", f"trace={call}"]
        fault = ["-e", f"inject={call}:signal=SIGKILL:when={nth}"]
        died = subprocess.run([*traced, *fault, *write_command(out, ACTION, TABLE)], check=False, timeout=60)
        if died.returncode == 0:
            break
        assert died.returncode in (-9, 137), died.returncode
        if not out.applied(ACTION):
            out.write(ACTION, iter([TABLE]), TABLE.schema)
        assert content(place) == content(whole)
    assert nth > least, "a fault did not fire"
