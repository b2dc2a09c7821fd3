"""What a store refuses or fails on, in the words that its user reads."""

import re
import sqlite3
from pathlib import Path

import pytest

from clew.errors import StoreFailed, UnexpectedRow
from clew.store.base import Store
from clew.store.ephemeral import EphemeralStore
from clew.store.sqlite import _set_up
from clew.store.sqlite_writer import GroupWriter
from tests.store.conftest import Place
from tests.store.logs import READER_OUT, TOPOLOGY, Pen, events


def test_a_store_that_is_closed_takes_nothing(store: Store, pen: Pen) -> None:
    store.close()
    cures = {"MemoryStore": "run again: what it held is gone"}
    cure = cures.get(type(store).__name__, "open it again")
    with pytest.raises(StoreFailed, match=rf"^the log .* is closed; {cure}$"):
        pen("reader", events(READER_OUT, 1, 1))


def test_a_row_that_somebody_else_has_written_is_refused(place: Place) -> None:
    pen = Pen(place.declared())
    place.execute("INSERT INTO body VALUES ('reader', 'out', 1, 1, 1, '[1]', '[1]', NULL, 0, NULL)")
    where = f"a row of {'reader' if place.kind == 'postgres' else f'the log {re.escape(place.where)}'}"
    end = r"expected new; was this operator restarted elsewhere\?$"
    with pytest.raises(UnexpectedRow, match=rf"(?si)^{where} is in conflict \(.*unique.*\), {end}"):
        pen("reader", events(READER_OUT, 1, 1))


def test_without_a_log_an_operator_is_not_restarted() -> None:
    store = EphemeralStore()
    store.declare(TOPOLOGY)
    assert store.take_over("reader") == 1
    with pytest.raises(StoreFailed) as refused:
        store.take_over("reader")
    assert str(refused.value) == (
        "operator reader failed, and without a log it cannot be restarted; run with --recovery log to survive failures"
    )


def test_a_file_system_without_shared_memory_is_refused(tmp_path: Path) -> None:
    # SQLite's own way to use such a file system; that of this machine has shared memory.
    connection = sqlite3.connect(f"file:{tmp_path / 'log.db'}?vfs=unix-none", uri=True)
    with pytest.raises(StoreFailed) as refused:
        _set_up(connection)
    connection.close()
    assert str(refused.value) == (
        "the file system of the log has no shared memory for SQLite; keep the log on a local disk"
    )


def test_what_fails_beside_sqlite_poisons_the_log_too(tmp_path: Path) -> None:
    def changed_outside() -> None:
        raise MemoryError("no more of it")

    connection = sqlite3.connect(tmp_path / "log.db", isolation_level=None, check_same_thread=False)
    writer = GroupWriter("log.db", connection, changed_outside)
    said = "^the log log.db failed: MemoryError: no more of it; mend the cause and run again: what was acknowledged is"
    for _ in range(2):
        with pytest.raises(StoreFailed, match=said):
            writer.run(lambda log: log.fetch("SELECT 1"))
    writer.close()
