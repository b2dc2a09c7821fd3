import datetime
import json
import os
import pickle
from decimal import Decimal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from clew.connectors import files
from clew.errors import GraphError, SourceFailed
from tests.connectors.reading import all_events, plan_of, rows, turn


def table(first: int, count: int) -> pa.Table:
    return pa.table({"i": pa.array(range(first, first + count), pa.int64()), "s": [f"v{i}" for i in range(count)]})


def put(path, content: pa.Table | str | bytes) -> None:
    if isinstance(content, str | bytes):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    elif path.suffix == ".parquet":
        pq.write_table(content, path, row_group_size=17)
    elif path.suffix == ".csv":
        pa.csv.write_csv(content, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in content.to_pylist()))


@pytest.mark.parametrize("extension", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("events", [1, 3, 100])
def test_every_row_is_read_once_and_in_order_whatever_the_turn(tmp_path, extension, events):
    for name, first, count in (("a", 0, 45), ("b", 45, 10), ("c", 55, 0), ("d", 55, 31)):
        put(tmp_path / f"{name}.{extension}", table(first, count))
    found = all_events(files(tmp_path, rows_per_event=10), events)
    assert [row["i"] for row in rows(found)] == list(range(86))
    # An event never spans two files.
    assert [len(event) for event in found] == [10, 10, 10, 10, 5, 10, 10, 10, 10, 1]


@pytest.mark.parametrize("content", [b"a,b\rx,1\ry,2\r", b"a\rx\ry", b"a,b\rx,1\r\ny,2\r\n"])
@pytest.mark.parametrize("declared", [False, True])
def test_lines_that_end_with_a_carriage_return_alone_are_refused_and_not_lost(tmp_path, content, declared):
    put(tmp_path / "a.csv", content)
    source = files(tmp_path, schema=pa.schema([("a", pa.string())]) if declared else None)
    with pytest.raises(SourceFailed, match=r"a\.csv: its lines end with a carriage return alone.*; convert it"):
        all_events(source, 10)


def test_a_file_of_carriage_returns_is_empty(tmp_path):
    put(tmp_path / "a.csv", b"\r\r")
    with pytest.raises(SourceFailed, match="it is empty"):
        all_events(files(tmp_path), 10)


@pytest.mark.parametrize("extension", ["parquet", "csv", "jsonl"])
def test_reading_goes_on_at_any_offset(tmp_path, extension):
    put(tmp_path / f"a.{extension}", table(0, 35))
    put(tmp_path / f"b.{extension}", table(35, 20))
    source = files(f"{tmp_path}/*.{extension}", rows_per_event=10)
    snapshot = json.loads(json.dumps(source.snapshot()))
    whole = all_events(source, 100, None, snapshot)
    for events in range(1, len(whole)):
        before, offset, _ = turn(source, snapshot, None, events)
        assert rows(before) + rows(all_events(source, 2, offset, snapshot)) == rows(whole)


def test_parquet_is_cut_into_slices_and_its_end_is_known(tmp_path):
    put(tmp_path / "a.parquet", table(0, 100))
    source = files(tmp_path, rows_per_event=5)
    plan = plan_of(source, source.snapshot(), None, 16)
    assert 1 < len(plan["slices"]) <= 8
    assert plan["last"] is False
    assert plan_of(source, source.snapshot(), [0, 50, 0, 0], 10)["last"] is True


def test_a_large_row_group_is_not_decoded_again_for_every_slice(tmp_path):
    pq.write_table(table(0, 100_000), tmp_path / "a.parquet")
    source = files(tmp_path, rows_per_event=10)
    assert len(plan_of(source, source.snapshot(), [0, 90_000, 0, 0], 16)["slices"]) == 1


def test_quoted_line_breaks_and_quotes_do_not_end_a_csv_record(tmp_path):
    values = ["plain", "two\nlines", 'a "quoted" word', "", 'x,"\ny', "\r\nz"] * 5
    put(tmp_path / "a.csv", pa.table({"i": range(30), "s": values}))
    source = files(tmp_path, rows_per_event=4)
    for events in (1, 100):
        assert [row["s"] for row in rows(all_events(source, events))] == values


def test_csv_tells_null_from_the_empty_string(tmp_path):
    put(tmp_path / "a.csv", 'i,s\n1,\n,""\n')
    assert rows(all_events(files(tmp_path), 5)) == [{"i": 1, "s": None}, {"i": None, "s": ""}]


def test_blank_lines_hold_no_record_unless_there_is_one_column(tmp_path):
    put(tmp_path / "a.csv", "i,s\n1,a\n\n2,b\n\n")
    put(tmp_path / "b.jsonl", '\n{"i": 1}\n\n{"i": 2}\n\n')
    put(tmp_path / "c.csv", "i\n1\n\n2\n")
    assert [row["i"] for row in rows(all_events(files(tmp_path / "a.csv", rows_per_event=1), 1))] == [1, 2]
    assert [row["i"] for row in rows(all_events(files(tmp_path / "b.jsonl", rows_per_event=1), 1))] == [1, 2]
    assert [row["i"] for row in rows(all_events(files(tmp_path / "c.csv", rows_per_event=1), 1))] == [1, None, 2]


def test_a_last_line_without_an_end_and_windows_line_ends_are_read(tmp_path):
    put(tmp_path / "a.csv", b"\xef\xbb\xbfi,s\r\n1,a\r\n2,b")
    put(tmp_path / "b.jsonl", b'\xef\xbb\xbf{"i": 1, "s": "a"}\r\n{"i": 2, "s": "b"}')
    expected = [{"i": 1, "s": "a"}, {"i": 2, "s": "b"}]
    assert rows(all_events(files(tmp_path / "a.csv", rows_per_event=1), 5)) == expected
    assert rows(all_events(files(tmp_path / "b.jsonl", rows_per_event=1), 5)) == expected


def test_types_are_inferred_once_and_settled_for_spark(tmp_path):
    put(
        tmp_path / "a.csv",
        "i,f,b,d,t,z,e,o\n1,1.5,true,2024-01-02,2024-01-02 03:04:05,2024-01-02T03:04:05Z,,10:00:00\n",
    )
    put(
        tmp_path / "b.csv", "i,f,b,d,t,z,e,o\n2,2,false,2024-01-03,2024-01-02 03:04:05.25,2024-01-02T03:04:05Z,word,x\n"
    )
    found = all_events(files(tmp_path), 5)
    assert [str(kind) for kind in found[0].schema.types] == [
        "int64", "double", "bool", "date32[day]", "timestamp[us]", "timestamp[us, tz=UTC]", "string", "string",
    ]  # fmt: skip
    assert found[0].schema == found[1].schema
    assert rows(found)[1]["e"] == "word"


def test_a_json_string_stays_a_string_and_structure_is_kept(tmp_path):
    put(tmp_path / "a.jsonl", '{"d": "2024-01-02", "n": null, "s": {"x": 1, "y": ["2024-01-02"]}}\n{"d": "no date"}\n')
    assert rows(all_events(files(tmp_path), 5)) == [
        {"d": "2024-01-02", "n": None, "s": {"x": 1, "y": ["2024-01-02"]}},
        {"d": "no date", "n": None, "s": None},
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "more,a,d\nx,1.25,2024-01-02\n"),
        ("a.jsonl", '{"more": 1, "a": "1.25", "d": "2024-01-02"}\n'),
        ("a.parquet", pa.table({"more": [1], "a": ["1.25"], "d": ["2024-01-02"]})),
    ],
)
def test_a_declared_schema_chooses_columns_and_types(tmp_path, name, content):
    put(tmp_path / name, content)
    schema = pa.schema([("a", pa.decimal128(10, 2)), ("d", pa.date32())])
    source = files(tmp_path, schema=schema)
    assert source.schema() == schema
    assert rows(all_events(source, 5)) == [{"a": Decimal("1.25"), "d": datetime.date(2024, 1, 2)}]


@pytest.mark.parametrize("extension", ["csv", "jsonl"])
def test_a_text_file_mended_after_what_was_read_of_it_is_read_on(tmp_path, extension):
    path = tmp_path / f"a.{extension}"
    put(path, table(0, 10))
    source = files(tmp_path, rows_per_event=2)
    snapshot = source.snapshot()
    first, offset, _ = turn(source, snapshot, None, 2)
    put(path, pa.concat_tables([table(0, 6), table(20, 25)]))
    rest = all_events(source, 5, offset, snapshot)
    assert rows(first + rest) == rows([table(0, 6), table(20, 25)])


@pytest.mark.parametrize("extension", ["csv", "jsonl"])
def test_a_text_file_changed_where_it_was_read_is_refused(tmp_path, extension):
    path = tmp_path / f"a.{extension}"
    put(path, table(0, 10))
    source = files(tmp_path, rows_per_event=2)
    snapshot = source.snapshot()
    _, offset, _ = turn(source, snapshot, None, 2)
    put(path, table(1, 11))
    with pytest.raises(SourceFailed, match="--fresh"):
        all_events(source, 5, offset, snapshot)


@pytest.mark.parametrize(
    ("extension", "change"),
    [("parquet", "size"), ("parquet", "time"), ("parquet", "gone"), ("csv", "gone"), ("jsonl", "gone")],
)
def test_a_file_that_changed_since_the_listing_is_refused(tmp_path, extension, change):
    path = tmp_path / f"a.{extension}"
    put(path, table(0, 10))
    source = files(tmp_path)
    snapshot = source.snapshot()
    if change == "size":
        put(path, table(0, 11))
        os.utime(path, ns=(0, snapshot["files"][0][2]))
    elif change == "time":
        os.utime(path)
    else:
        path.unlink()
    said = {"size": "its size was", "time": "time of change", "gone": "cannot be found now"}[change]
    with pytest.raises(SourceFailed, match=rf"a\.{extension}: .*{said}.*; .*--fresh"):
        all_events(source, 5, None, snapshot)


def test_a_file_that_came_after_the_listing_is_not_read(tmp_path):
    put(tmp_path / "a.csv", "i,s\n1,a\n")
    source = files(tmp_path)
    snapshot = source.snapshot()
    put(tmp_path / "b.csv", "i,s\n2,b\n")
    assert len(rows(all_events(source, 5, None, snapshot))) == 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "i,s\n1,a\n\n2\n3,c\n", r"line 4 \(record 2\) is broken: .*Expected 2 columns, got 1"),
        ("a.csv", "i,s\n1,a\n2,b\nx,c\n", r"line 4 \(record 3\) is broken: .*invalid value 'x'"),
        ("a.csv", 'i,s\n1,"a\nb"\nx,c\n', r"line 4 \(record 2\) is broken"),
        ("a.csv", 'i,s\n1,5" pipe\n2,6" pipe\n', r"line 2 \(record 1\) is broken: .*a quote inside a value"),
        ("a.csv", 'i,s\n1,a\n2,"b\n', "the quote opened in line 3 is never closed"),
        ("a.csv", b"i,s\n1,a\n2,\xff\n", r"line 3 \(record 2\) is broken: .*UTF8"),
        ("a.csv", "i,i\n1,2\n", "names a column twice"),
        ("a.csv", "", "it is empty, expected a header"),
        ("a.jsonl", '{"i": 1}\n\n{"i":\n', r"line 3 \(record 2\) is broken"),
        ("a.jsonl", '{"i": 1}\n{"i": 1.5}\n', r"line 2 \(record 2\) is broken: .*1\.5"),
        ("a.jsonl", '{"i": 1}\n{"i": 2}{"i": 3}\n', r"line 2 \(record 2\) is broken: .*two records in one line"),
        ("a.jsonl", b'{"i": 1}\n{"i": 2, "s": "\xff"}\n', r"line 2 \(record 2\) is broken"),
        ("a.parquet", b"PAR1 no more", "no whole Parquet file"),
        ("a.parquet", b"", "no whole Parquet file"),
    ],
)
def test_a_broken_record_is_named_with_its_file_and_line_and_never_skipped(tmp_path, name, content, said):
    put(tmp_path / name, content)
    schema = pa.schema([("i", pa.int64()), ("s", pa.string())])
    with pytest.raises(SourceFailed, match=f"{name}: .*{said}"):
        all_events(files(tmp_path, schema=schema), 5)


def test_a_field_that_came_after_the_types_were_inferred_is_refused(tmp_path):
    put(tmp_path / "a.jsonl", '{"i": 1}\n' * 200_000 + '{"k": 2}\n')
    with pytest.raises(SourceFailed, match=r"line 200001 \(record 200001\) is broken: .*unexpected field"):
        all_events(files(tmp_path), 100)


def test_a_broken_record_far_inside_is_named_by_its_line(tmp_path):
    put(tmp_path / "a.csv", "i,s\n" + "1,a\n" * 300_000 + "x,a\n")
    with pytest.raises(SourceFailed, match=r"line 300002 \(record 300001\) is broken"):
        all_events(files(tmp_path), 100)


def test_a_parquet_file_that_is_damaged_inside_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"i": range(10_000)}), path, compression="snappy", use_dictionary=False)
    source, content = files(tmp_path), bytearray(path.read_bytes())
    content[100:2000] = b"\xff" * 1900
    path.write_bytes(content)
    with pytest.raises(SourceFailed, match=r"a\.parquet: row 1 or one soon after it cannot be read"):
        all_events(source, 5)


@pytest.mark.parametrize("extension", ["parquet", "csv"])
def test_files_with_other_columns_are_refused_and_another_order_is_not(tmp_path, extension):
    put(tmp_path / f"a.{extension}", pa.table({"i": [1], "k": [2]}))
    put(tmp_path / f"b.{extension}", pa.table({"k": [4], "i": [3]}))
    assert rows(all_events(files(tmp_path), 5)) == [{"i": 1, "k": 2}, {"i": 3, "k": 4}]
    put(tmp_path / f"c.{extension}", pa.table({"i": [1], "more": [2]}))
    with pytest.raises(SourceFailed, match=rf"c\.{extension}: .*i, more, expected i, k; .*schema="):
        all_events(files(tmp_path), 5)


def test_a_place_without_files_is_refused_before_anything_starts(tmp_path):
    for source in (files(tmp_path / "missing"), files(f"{tmp_path}/*.csv"), files(tmp_path), files([tmp_path])):
        for check in (source.validate, source.snapshot):
            with pytest.raises(SourceFailed, match="no file is there, expected at least one"):
                check()
    with pytest.raises(SourceFailed, match="no file is there"):
        files(tmp_path / "missing", format="csv").snapshot()


def test_formats_that_are_unknown_or_mixed_are_refused(tmp_path):
    put(tmp_path / "a.txt", "i\n1\n")
    with pytest.raises(SourceFailed, match=r"a\.txt: its name does not say its format"):
        files(tmp_path).validate()
    assert rows(all_events(files(tmp_path, format="csv"), 5)) == [{"i": 1}]
    put(tmp_path / "a.csv", "i\n1\n")
    put(tmp_path / "b.jsonl", '{"i": 1}\n')
    with pytest.raises(SourceFailed, match="different formats"):
        files([tmp_path / "a.csv", tmp_path / "b.jsonl"]).validate()
    with pytest.raises(GraphError, match="'xml'"):
        files(tmp_path, format="xml")


def test_hidden_files_are_no_data_and_a_nested_directory_is_refused(tmp_path):
    put(tmp_path / "a.csv", "i\n1\n")
    put(tmp_path / "_SUCCESS", "")
    put(tmp_path / ".b.csv", "i\n2\n")
    assert len(rows(all_events(files(tmp_path), 5))) == 1
    (tmp_path / "day=1").mkdir()
    put(tmp_path / "day=1" / "c.csv", "i\n3\n")
    with pytest.raises(SourceFailed, match=r"holds the directory day=1, expected files only; .*\*\*"):
        files(tmp_path).validate()
    assert len(rows(all_events(files(f"{tmp_path}/**/*.csv"), 5))) == 2


def test_a_list_of_places_is_read_in_its_order_and_each_file_once(tmp_path):
    for name in "abc":
        put(tmp_path / f"{name}.csv", f"s\n{name}\n")
    source = files([tmp_path / "c.csv", f"{tmp_path}/*.csv"])
    assert [row["s"] for row in rows(all_events(source, 5))] == ["c", "a", "b"]


def test_files_travel():
    source = files("orders/*.csv", schema=pa.schema([("i", pa.int64())]))
    assert pickle.loads(pickle.dumps(source)) == source
    assert source.describe() == "files orders/*.csv"
