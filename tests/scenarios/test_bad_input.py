"""Bad input: one clear message, a non-zero exit, nothing lost, and a run that resumes once it is mended."""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

PIPELINE = """
import os

import pyarrow as pa

from clew import Count, Pipeline, files, postgres, sqlite

pipeline = Pipeline("shop")
orders = pipeline.source("orders", files(os.environ["ORDERS"], rows_per_event=2), max_turn_events=4)


@pipeline.operator(orders, window=Count(2))
def sums(table: pa.Table) -> pa.Table:
    return table.group_by("item").aggregate([("amount", "sum")])


if "SHOP" in os.environ:
    pipeline.sink(sums, postgres(os.environ["SHOP"], table="sums"))
else:
    pipeline.sink(sums, sqlite(os.environ["SUMS"], table="sums"))
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A directory with a pipeline and 40 orders of 10 each, in two files."""
    (tmp_path / "shop.py").write_text(PIPELINE)
    (tmp_path / "orders").mkdir()
    for part in range(2):
        rows = "".join(f"item{n % 3},10\n" for n in range(20))
        (tmp_path / "orders" / f"part-{part}.csv").write_text("item,amount\n" + rows)
    return tmp_path


def clew(shop: Path, log: str = "log.db", engine: str = "inline", **environment: str) -> tuple[int, str]:
    """Run the pipeline as a user would; return the exit code and what was said on stderr."""
    command = [sys.executable, "-m", "clew.app.main", "run", str(shop / "shop.py"), "--engine", engine]
    url = log if "://" in log else f"sqlite:///{shop / log}"
    given = {"ORDERS": str(shop / "orders"), "SUMS": str(shop / "sums.db"), **os.environ, **environment}
    done = subprocess.run([*command, "--log", url], env=given, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


def total(shop: Path) -> int:
    """Return what the sink holds, all items together."""
    with sqlite3.connect(shop / "sums.db") as database:
        return int(database.execute("SELECT sum(amount_sum) FROM sums").fetchone()[0])


def assert_one_message(code: int, said: str, *parts: str) -> None:
    assert code == 1, said
    assert "Traceback" not in said
    for part in parts:
        assert part in said


def test_a_broken_row_is_named_and_the_run_goes_on_once_it_is_mended(shop: Path) -> None:
    broken = shop / "orders" / "part-1.csv"
    text = broken.read_text()
    lines = text.splitlines()
    lines[11] = "item0,ten"
    broken.write_text("\n".join(lines) + "\n")
    code, said = clew(shop)
    assert_one_message(code, said, "part-1.csv", "line 12", "ten", "mend the file and run again")
    broken.write_text(text)
    assert clew(shop)[0] == 0
    assert total(shop) == 400


def test_a_missing_directory_is_named_and_the_run_starts_once_it_is_there(shop: Path) -> None:
    (shop / "orders").rename(shop / "elsewhere")
    code, said = clew(shop)
    assert_one_message(code, said, "orders", "no file is there")
    (shop / "elsewhere").rename(shop / "orders")
    assert clew(shop)[0] == 0
    assert total(shop) == 400


def test_a_database_that_refuses_the_connection_is_named_and_the_run_resumes_once_it_answers(
    shop: Path, postgres_url: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = free.getsockname()[1]
    code, said = clew(shop, SHOP=f"postgresql://somebody:secret@127.0.0.1:{closed}/shop")
    assert_one_message(code, said, "127.0.0.1")
    assert "secret" not in said
    assert clew(shop, SHOP=postgres_url)[0] == 0
    with psycopg.connect(postgres_url) as database:
        found = database.execute("SELECT sum(amount_sum) FROM sums").fetchone()
    assert found == (400,)


def test_a_log_that_refuses_the_connection_is_named_without_its_password(shop: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = free.getsockname()[1]
    code, said = clew(shop, f"postgresql://somebody:secret@127.0.0.1:{closed}/log")
    assert_one_message(code, said, "127.0.0.1")
    assert "secret" not in said


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB; needs a privilege that the machines which test Clew have."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="mounting a small disk needs root; the store's own test fills one without"
)
def test_a_full_disk_stops_the_run_and_it_resumes_when_there_is_room(shop: Path, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    log = f"sqlite:///{small_disk / 'log.db'}"
    # Enough for an empty log, not for the run.
    assert clew(shop, log, ORDERS=str(shop / "nowhere"))[0] == 1
    free = shutil.disk_usage(small_disk).free
    ballast.write_bytes(b"x" * max(0, free - 4096))
    code, said = clew(shop, log)
    assert_one_message(code, said, "disk")
    ballast.unlink()
    code, said = clew(shop, log)
    assert code == 0, said
    assert total(shop) == 400


def test_a_log_directory_that_is_not_writable_is_named_and_another_serves(shop: Path) -> None:
    code, said = clew(shop, "sqlite:////proc/clew/log.db")
    assert_one_message(code, said, "/proc/clew", "--log")
    assert clew(shop)[0] == 0
    assert total(shop) == 400


def test_without_java_one_message_says_so_and_the_run_starts_once_it_is_there(shop: Path) -> None:
    empty = shop / "bin"
    empty.mkdir()
    code, said = clew(shop, engine="spark", PATH=str(empty), JAVA_HOME="")
    assert_one_message(code, said, "Java", "install Java 17")
    assert clew(shop)[0] == 0
    assert total(shop) == 400
