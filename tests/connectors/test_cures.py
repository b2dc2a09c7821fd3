"""What an error tells the user to do is done here, and helps."""

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew import Pipeline, Tumbling, files, generator, sqlite
from clew.errors import GraphChanged, SinkFailed, SourceFailed
from clew.pipeline.contracts import Sink, Source
from clew.run import run
from tests.connectors.reading import all_events, rows
from tests.connectors.test_growing_files import follow, found, put


def ran(tmp_path: Path, source: Source, sink: Sink, **settings: Any) -> None:
    pipeline = Pipeline("cured")
    pipeline.source("source", source).sink(sink)
    run(pipeline, log=f"sqlite:///{tmp_path}/log.db", engine="inline", **settings)


@pytest.mark.parametrize(
    ("name", "first", "second", "kinds"),
    [
        ("csv", "x,y\n1,2\n", "x,y\n1.5,foo\n", {"x": pa.float64(), "y": pa.string()}),
        ("jsonl", '{"x": null}\n', '{"x": 1}\n', {"x": pa.int64()}),
    ],
)
def test_types_that_were_guessed_wrong_are_declared_for_a_new_run(
    tmp_path: Path, name: str, first: str, second: str, kinds: dict[str, pa.DataType]
) -> None:
    (tmp_path / f"a.{name}").write_text(first)
    (tmp_path / f"b.{name}").write_text(second)
    glob, out = str(tmp_path / f"*.{name}"), files(tmp_path / "out", format="parquet")
    cure = r"declare what the columns hold with schema=, and start a new run with --fresh"
    with pytest.raises(SourceFailed, match=cure):
        ran(tmp_path, files(glob), out)
    declared = files(glob, schema=pa.schema(kinds))
    with pytest.raises(GraphChanged, match=r"but the run has fixed it to(.|\n)*with --fresh"):
        ran(tmp_path, declared, out)
    # What was written before the run was refused, if it came to that.
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    ran(tmp_path, declared, out, fresh=True)
    assert len(rows(all_events(files(tmp_path / "out"), 5))) == 2


def test_records_that_a_table_refuses_are_mended_for_a_new_run(tmp_path: Path) -> None:
    def make(key: int | None) -> Source:
        def table(index: int) -> pa.Table:
            return pa.table({"k": pa.array([index, key], pa.int64())})

        return generator(table, events=2)

    target = sqlite(tmp_path / "out.db", table="t", key="k")
    cure = "fill it in, or filter such records out in the function before, and start a new run with --fresh"
    for source in (make(None), make(7)):
        # The records are logged, so to mend what makes them is not enough.
        with pytest.raises(SinkFailed, match=f"key column k holds null; {cure}"):
            ran(tmp_path, source, target)
    ran(tmp_path, make(7), target, fresh=True)


def test_a_window_that_ends_after_the_year_9999_has_no_form_in_json_and_one_in_parquet(tmp_path: Path) -> None:
    def make(index: int) -> pa.Table:
        return pa.table({"t": pa.array([253402300799_000_000], pa.timestamp("us"))})

    def declared(format: str) -> Pipeline:
        def same(table: pa.Table) -> pa.Table:
            return table

        pipeline = Pipeline("far")
        source = pipeline.source("source", generator(make, events=1))
        source.window(Tumbling("7 days", on="t")).apply(same, name="same").sink(files(tmp_path / format, format=format))
        return pipeline

    said = "column window_end has a time outside of the years 1 to 9999.*write another format"
    with pytest.raises(SinkFailed, match=said):
        run(declared("jsonl"), log=f"sqlite:///{tmp_path}/log.db", engine="inline")
    run(declared("parquet"), log=f"sqlite:///{tmp_path}/log.db", engine="inline", fresh=True)
    (written,) = (tmp_path / "parquet").iterdir()
    assert pq.read_table(written)["window_end"].cast(pa.int64()).to_pylist()[0] > 253402300799_000_000


def test_a_followed_file_that_changed_is_moved_away(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", 1)
    source = follow(tmp_path)
    _, seen = found(source)
    with open(tmp_path / "a.csv", "a") as file:
        file.write("2\n")
    with pytest.raises(
        SourceFailed, match="move it away: what was read of it is logged; write what is new to a file of"
    ):
        source.more(seen, 0.0)
    (tmp_path / "a.csv").rename(tmp_path.parent / "moved-away.csv")
    put(tmp_path / "b.csv", 2)
    assert found(source, seen)[0] == [2]


def test_a_file_that_changed_is_put_back_with_its_time(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1]}), path)
    source = files(path)
    snapshot = source.snapshot()
    content, times = path.read_bytes(), os.stat(path)
    os.utime(path, ns=(0, 0))
    with pytest.raises(SourceFailed, match=r"put the file back as it was, with its time of change \(cp -p keeps it\)"):
        all_events(source, 5, snapshot=snapshot)
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert rows(all_events(source, 5, snapshot=snapshot)) == [{"n": 1}]
