"""What counts as done is on the disk: contents, and the names that lead to them."""

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from clew import disk
from clew.connectors import files, sqlite
from clew.disk import make_directory
from clew.errors import SinkFailed, StoreFailed
from clew.pipeline.contracts import WriteAction
from clew.runtime.bodies import write_file
from clew.store.sqlite import SqliteStore
from tests.store.logs import READER_OUT, TOPOLOGY, Pen, events

ACTION = WriteAction("run1", "totals", "out", 1, incarnation=1)
TABLE = pa.table({"n": [1, 2]})


@pytest.fixture(autouse=True)
def _forgetful() -> None:
    """What is synced once in a process is synced again in the next test."""
    disk._sync_above.cache_clear()


@contextmanager
def synced() -> Iterator[list[Path]]:
    """Collect what is synced."""
    paths: list[Path] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        paths.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", noting)
        yield paths


def failing(patch: pytest.MonkeyPatch, name: str, when: Callable[[str], bool] = lambda path: True) -> None:
    """Let a call of the system fail."""
    call = getattr(os, name)

    def fail(what: int | str | os.PathLike[str], *more: object) -> object:
        path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
        if when(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(what, *more)

    patch.setattr(os, name, fail)


def test_a_new_directory_is_synced_into_all_that_are_new_above_it(tmp_path: Path) -> None:
    with synced() as paths:
        make_directory(tmp_path / "a" / "b")
    assert paths[:2] == [tmp_path / "a", tmp_path]


def test_a_directory_that_a_dead_process_made_is_synced_too(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with synced() as paths:
        make_directory(tmp_path / "a" / "b")
        make_directory(tmp_path / "a" / "b")
    assert paths[:2] == [tmp_path / "a", tmp_path]
    assert len(paths) == len(set(paths)), "once is enough for a process"


def test_the_name_of_a_new_log_is_synced(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with synced() as paths:
        SqliteStore(tmp_path / "new" / "log.db").close()
    assert {tmp_path / "new", tmp_path} <= set(paths)


def test_b1_the_names_of_new_directories_of_bodies_are_synced(tmp_path: Path) -> None:
    path = tmp_path / "bodies" / "orders" / "1-1-aa"
    with synced() as paths:
        write_file(path, [b"body"], durable=True)
    assert {path, path.parent, tmp_path / "bodies", tmp_path} <= set(paths)


def test_a_log_whose_directory_cannot_be_synced_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "fsync")
    with pytest.raises(StoreFailed, match="cannot be synced: Input/output error"):
        SqliteStore(tmp_path / "log.db")


def test_bodies_that_cannot_be_written_nor_removed_again_are_an_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "fsync")
    failing(monkeypatch, "unlink")
    with pytest.raises(StoreFailed, match="cannot write event bodies"):
        write_file(tmp_path / "orders" / "1-1-aa", [b"body"], durable=True)


def test_a_directory_of_bodies_that_cannot_be_made_is_an_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "mkdir")
    for durable in (True, False):
        with pytest.raises(StoreFailed, match="cannot write event bodies"):
            write_file(tmp_path / "orders" / "1-1-aa", [b"body"], durable)


def test_scenario_12_a_file_whose_name_was_not_synced_is_not_taken_for_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = files(tmp_path / "out", format="jsonl")
    with monkeypatch.context() as patch:
        failing(patch, "fsync", lambda path: path.endswith("/out"))
        with pytest.raises(SinkFailed):
            sink.write(ACTION, iter([TABLE]), TABLE.schema)
        with pytest.raises(SinkFailed, match="cannot be made durable"):
            sink.applied(ACTION)
    with synced() as paths:
        assert sink.applied(ACTION)
    assert tmp_path / "out" in paths


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_scenario_12_a_commit_that_was_not_synced_is_not_taken_for_applied(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sqlite3.connect(tmp_path / "sink.db")
    other.execute(f"PRAGMA journal_mode = {mode}")
    sink = sqlite(tmp_path / "sink.db", table="t")
    sink.write(ACTION, iter([TABLE]), TABLE.schema)
    with monkeypatch.context() as patch:
        failing(patch, "fsync")
        with pytest.raises(SinkFailed, match="cannot be synced"):
            sink.applied(ACTION)
    with synced() as paths:
        assert sink.applied(ACTION)
    assert paths == ([tmp_path / "sink.db-wal"] if mode == "WAL" else []) + [tmp_path]
    other.close()


def test_a_table_is_committed_so_that_no_power_failure_takes_it_back(tmp_path: Path) -> None:
    sink = sqlite(tmp_path / "sink.db", table="t")
    with sink.dialect.transaction() as transaction:
        assert transaction.connection.execute("PRAGMA synchronous").fetchone() == (3,), "EXTRA syncs the journal's name"


def test_scenario_10_no_checkpoint_follows_a_commit_that_was_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite tells nobody when the sync of a checkpoint fails, so all that it would sync is synced before."""
    monkeypatch.setattr("clew.store.sqlite.CHECKPOINT_PAGES", 1)
    monkeypatch.setattr("clew.store.sqlite_writer.CHECKPOINT_PAGES", 1)
    store = SqliteStore(tmp_path / "log.db")
    store.declare(TOPOLOGY)
    pen = Pen(store)
    pen("reader", events(READER_OUT, 1, 1))
    copied = (tmp_path / "log.db").read_bytes()
    pen("reader", events(READER_OUT, 2, 1), durable=False)
    assert (tmp_path / "log.db").read_bytes() == copied
    pen("reader", events(READER_OUT, 3, 1))
    assert (tmp_path / "log.db").read_bytes() != copied
    store.close()


def test_scenario_10_a_log_that_is_opened_again_rests_on_nothing_that_may_not_have_been_synced(tmp_path: Path) -> None:
    """Pages whose sync failed look clean; they are copied into the database before new ones follow them."""
    store = SqliteStore(tmp_path / "log.db")
    store.declare(TOPOLOGY)
    Pen(store)("reader", events(READER_OUT, 1, 1))
    empty = (tmp_path / "log.db").read_bytes()
    again = SqliteStore(tmp_path / "log.db")
    assert (tmp_path / "log.db").read_bytes() != empty
    assert len(again.events(READER_OUT, 1, 9)) == 1
    again.close()
    store.close()
