"""A directory that keeps growing: every file once, none too early, none lost, whatever dies meanwhile."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew import News, Pipeline, files
from clew.connectors.growing import GrowingFiles
from clew.errors import GraphError, SourceFailed
from clew.run import run, verify
from tests.connectors.reading import all_events, rows

OLD = 1_700_000_000


def put(path: Path, *numbers: int, age: float = 0) -> None:
    """Put a file there as one should: under another name first; `age` in seconds after OLD is its time."""
    table = pa.table({"n": pa.array(numbers, pa.int64())})
    unfinished = path.with_name(f".{path.name}")
    if path.suffix == ".parquet":
        pq.write_table(table, unfinished)
    else:
        unfinished.write_text("n\n" + "".join(f"{number}\n" for number in numbers))
    os.utime(unfinished, (OLD + age, OLD + age))
    unfinished.rename(path)


def found(source: GrowingFiles, seen: Any = None, quiet: float = 0.0) -> tuple[list[int], Any]:
    """Look, and read what is found; return the numbers in it, and what was seen, as the log gives it back."""
    news = source.more(seen, quiet)
    assert isinstance(news, News), news
    snapshot = json.loads(json.dumps(news.snapshot))
    return [row["n"] for row in rows(all_events(source, 3, None, snapshot))], json.loads(json.dumps(news.seen))


def follow(path: Path, **settings: Any) -> GrowingFiles:
    return files(path, follow=True, settle=0, **settings)


def test_each_look_finds_what_is_new_in_the_order_of_time_and_name(tmp_path: Path) -> None:
    put(tmp_path / "b.parquet", 1, 2, age=5)
    put(tmp_path / "c.parquet", 0, age=1)
    put(tmp_path / "a.parquet", 3, age=5.5)
    source = follow(tmp_path)
    numbers, seen = found(source)
    assert numbers == [0, 1, 2, 3]
    assert source.more(seen, 0.0) == "nothing"
    put(tmp_path / "z.parquet", 4, age=9)
    put(tmp_path / "y.parquet", 5, age=9)
    numbers, seen = found(source, seen)
    assert numbers == [5, 4]
    assert source.more(seen, 1e9) == "nothing"


def test_a_file_that_comes_late_with_an_old_time_and_an_early_name_is_read(tmp_path: Path) -> None:
    put(tmp_path / "b.csv", 1, age=100)
    source = follow(tmp_path)
    _, seen = found(source)
    put(tmp_path / "a.csv", 2, age=-100)
    assert found(source, seen)[0] == [2]


def test_files_that_are_being_written_are_left_alone(tmp_path: Path) -> None:
    for name in (".a.csv", "_a.csv", "a.csv.tmp", "a.csv.part", "a.csv.crdownload", "a.csv~"):
        (tmp_path / name).write_text("n\n1\n")
    source = follow(tmp_path, until=5)
    assert source.more(None, 0.0) == "nothing"
    assert source.more(None, 5.0) == "over"


@pytest.mark.parametrize("shift", [0, 3600], ids=["just now", "by a clock that is ahead"])
def test_a_file_is_read_when_it_has_not_changed_for_a_while(tmp_path: Path, shift: int) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    source = files(tmp_path, follow=True, settle=60, until=5)
    # It is there, so the stream is not over either.
    assert source.more(None, 10.0) == "nothing"
    os.utime(tmp_path / "a.csv", (time.time() - 61 + shift,) * 2)
    assert found(source)[0] == [1]


def test_the_marker_ends_the_stream_once_all_is_read(tmp_path: Path) -> None:
    source = follow(tmp_path, until="_DONE")
    assert source.more(None, 1e9) == "nothing"
    put(tmp_path / "a.csv", 1)
    (tmp_path / "_DONE").touch()
    numbers, seen = found(source)
    assert numbers == [1]
    assert source.more(seen, 0.0) == "over"


def test_a_marker_may_look_like_data(tmp_path: Path) -> None:
    (tmp_path / "last.csv").touch()
    assert files(f"{tmp_path}/*.csv", follow=True, until="last.csv").more(None, 0.0) == "over"


def test_types_are_those_of_the_first_file_that_has_records(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n")
    source = follow(tmp_path)
    numbers, seen = found(source)
    assert numbers == []
    put(tmp_path / "b.csv", 7)
    numbers, seen = found(source, seen)
    assert numbers == [7]
    put(tmp_path / "c.csv", 8)
    assert found(source, seen)[0] == [8]


def test_a_file_that_changed_after_it_was_read_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", 1)
    source = follow(tmp_path)
    _, seen = found(source)
    with open(tmp_path / "a.csv", "a") as file:
        file.write("2\n")
    with pytest.raises(
        SourceFailed, match=r"a.csv: it has changed since it was read, expected files that stay.*new to a"
    ):
        source.more(seen, 0.0)


def test_a_file_that_changed_after_it_was_listed_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", 1)
    source = follow(tmp_path)
    news = source.more(None, 0.0)
    assert isinstance(news, News)
    put(tmp_path / "a.parquet", 1, 2)
    with pytest.raises(SourceFailed, match="its size was"):
        all_events(source, 3, None, news.snapshot)


def test_a_file_that_is_gone_is_forgotten_and_may_come_again(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", 1)
    put(tmp_path / "b.csv", 2)
    source = follow(tmp_path)
    _, seen = found(source)
    (tmp_path / "a.csv").unlink()
    put(tmp_path / "c.csv", 3)
    _, fewer = found(source, seen)
    assert len(fewer["files"]) == len(seen["files"])
    put(tmp_path / "a.csv", 4)
    assert found(source, fewer)[0] == [4]


def test_sixteen_characters_remember_a_file(tmp_path: Path) -> None:
    for index in range(300):
        (tmp_path / f"{'long-name-' * 10}{index}.csv").write_text("n\n1\n")
    news = follow(tmp_path).more(None, 0.0)
    assert isinstance(news, News)
    assert len(news.seen["files"]) == 300 * 16


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", 1)
    source = follow(tmp_path)
    _, seen = found(source)
    put(tmp_path / "b.parquet", 1)
    with pytest.raises(
        SourceFailed, match=r"b.parquet: it is a parquet file, expected csv as the files.*; move it away"
    ):
        source.more(seen, 0.0)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("10 minutes", 600.0),
        ("1.5 s", 1.5),
        ("250 ms", 0.25),
        ("1 Hour", 3600.0),
        (2, 2.0),
        (timedelta(minutes=1), 60.0),
    ],
)
def test_durations_are_written_as_those_of_windows(tmp_path: Path, given: Any, seconds: float) -> None:
    assert files(tmp_path, follow=True, settle=given).settle == seconds


def test_a_directory_that_is_not_there_is_missed_before_a_run(tmp_path: Path) -> None:
    follow(tmp_path).validate()
    files(f"{tmp_path}/*.csv", follow=True).validate()
    with pytest.raises(SourceFailed, match="it is no directory, expected one that files come to; make it first"):
        follow(tmp_path / "none").validate()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"until": "a/b"},
            "cannot be followed until 'a/b'; give a duration such as '10 minutes', or the name of a file",
        ),
        ({"until": ""}, "cannot be followed until ''"),
        ({"poll": "soon"}, "cannot have poll='soon'; write it as '1 second'"),
        ({"poll": 0}, "cannot have poll=0"),
        ({"settle": -1}, "cannot have settle=-1"),
    ],
)
def test_what_cannot_be_followed_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        files("in", follow=True, **settings)


# Whole runs.


def arrive(directory: Path, names: Callable[[int], str], count: int, seconds: float) -> threading.Thread:
    """Let files come one after the other, then the marker."""

    def work() -> None:
        for index in range(count):
            put(directory / names(index), *range(10 * index, 10 * index + 10), age=index % 3)
            time.sleep(seconds)
        (directory / "_DONE").touch()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def held(directory: Path) -> list[int]:
    paths = sorted(directory.glob("[!.]*.parquet"))
    return [n for path in paths for n in pq.ParquetFile(path).read()["n"].to_pylist()]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_run_reads_all_that_comes_and_is_judged(tmp_path: Path, ending: str) -> None:
    (tmp_path / "in").mkdir()
    pipeline = Pipeline("growing")
    source = files(tmp_path / "in", follow=True, settle=0, poll="10 milliseconds", until="_DONE", rows_per_event=4)
    pipeline.sink(pipeline.source("numbers", source), files(tmp_path / "out"))
    thread = arrive(tmp_path / "in", lambda index: f"{(7 * index) % 20}.{ending}", 20, 0.02)
    place: dict[str, Any] = {"log": f"sqlite:///{tmp_path / 'log.db'}", "engine": "inline"}
    run(pipeline, **place)
    thread.join()
    assert sorted(held(tmp_path / "out")) == list(range(200))
    assert verify(pipeline, **place).word == "explained"
    # The judge finds what is missing from the files, and what is missing from the log.
    put(tmp_path / "in" / f"later.{ending}", 5)
    late = verify(pipeline, **place)
    assert late.word == "undecided"
    assert f"not those of {tmp_path / 'in' / 'later'}.{ending}: it has come since, or it was lost" in str(
        late.findings[0]
    )
    (tmp_path / "in" / f"7.{ending}").unlink()
    gone = verify(pipeline, **place)
    assert gone.word == "not explained"
    assert "is in no file that is left at this place" in str(gone.findings[0])


PROGRAM = """
from clew import Pipeline, files

pipeline = Pipeline("growing")
source = files("in", follow=True, settle=0, poll="10 milliseconds", until="_DONE", rows_per_event=4)
pipeline.sink(pipeline.source("numbers", source), files("out"))
"""

#: Each on the log that the one before has left; a second visit is in a later read action, or in none.
FAULTS = (
    "before-action-logged@numbers",
    "after-action-logged@numbers",
    "after-effect-stored@numbers",
    "after-action-complete@numbers",
    "after-source-read@numbers#2",
    "after-source-commit@numbers#3",
    "before-effect-dropped@numbers",
    "after-effect-dropped@numbers",
    "before-action-logged@numbers#2",
    "after-effect-stored@numbers#2",
    "after-source-restore@numbers",
    "after-end@numbers",
)


def test_a_process_killed_again_and_again_while_files_come_reads_each_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "pipeline.py").write_text(PROGRAM)
    enough, count = threading.Event(), 0

    def work() -> None:
        nonlocal count
        while not enough.wait(0.1):
            put(tmp_path / "in" / f"{-count}.csv", *range(10 * count, 10 * count + 10), age=count % 3)
            count += 1
        (tmp_path / "in" / "_DONE").touch()

    thread = threading.Thread(target=work)
    thread.start()
    endings = []
    for fault in (*FAULTS, ""):
        if fault.startswith("after-end"):
            enough.set()
        done = subprocess.run(
            [sys.executable, "-m", "clew.app.main", "run", "pipeline.py", "--engine", "inline"],
            cwd=tmp_path, env={**os.environ, "CLEW_FAULTS": fault}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        endings.append((fault, done.returncode))
    thread.join()
    assert endings == [*((fault, -9) for fault in FAULTS), ("", 0)]
    assert count > len(FAULTS)
    assert sorted(held(tmp_path / "out")) == list(range(10 * count))


def test_a_run_that_is_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "pipeline.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "clew.app.main", "run", "pipeline.py", "--engine", "inline"]
    put(tmp_path / "in" / "a.csv", *range(10))
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 60
    while len(held(tmp_path / "out")) < 10 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None, "nothing says that the stream is over"
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    put(tmp_path / "in" / "b.csv", *range(10, 20))
    (tmp_path / "in" / "_DONE").touch()
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert sorted(held(tmp_path / "out")) == list(range(20))


def test_a_directory_is_followed_without_a_log_too(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pipeline = Pipeline("growing")
    source = files(tmp_path / "in", follow=True, settle=0, poll="10 milliseconds", until="_DONE", rows_per_event=4)
    pipeline.sink(pipeline.source("numbers", source), files(tmp_path / "out"))
    thread = arrive(tmp_path / "in", lambda index: f"{index}.csv", 10, 0.02)
    run(pipeline, recovery="none", engine="inline")
    thread.join()
    assert sorted(held(tmp_path / "out")) == list(range(100))
