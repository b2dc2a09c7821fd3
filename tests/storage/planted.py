"""Bugs to plant into a run: what is looked for here must be found, or the tests that look for it are broken."""

import os
import sys
from collections.abc import Callable
from typing import Any

import clew.connectors.files  # noqa: F401
from clew.connectors import filewrites
from clew.connectors.sqlite import Sqlite
from clew.runtime import bodies
from clew.store import sqlite, sqlite_writer
from clew.store.sqlite_writer import GroupWriter


def _nothing(*_: Any) -> None:
    """Do nothing instead of what was to be done."""


def _bodies_without_names() -> None:
    vars(bodies)["sync_directory"] = _nothing


def _directories_without_names() -> None:
    for module in (bodies, filewrites, sqlite):
        vars(module)["make_directory"] = lambda path: os.makedirs(path, exist_ok=True)


def _files_without_names() -> None:
    vars(filewrites)["sync_directory"] = _nothing


def _found_files_count() -> None:
    def is_written(directory: str, format: str, action: Any) -> bool:
        return os.path.exists(filewrites.target(directory, format, action))

    # A function of the same name hides the module.
    vars(sys.modules["clew.connectors.files"])["is_written"] = is_written


def _found_rows_count() -> None:
    Sqlite._sync = _nothing  # type: ignore[assignment,method-assign]


def _tables_with(setting: str) -> Callable[[], None]:
    def plant() -> None:
        connect = Sqlite._connect

        def weaker(self: Sqlite, *, write: bool) -> Any:
            connection = connect(self, write=write)
            connection.execute(f"PRAGMA synchronous = {setting}")
            return connection

        Sqlite._connect = weaker  # type: ignore[method-assign]

    return plant


def _log_with(setting: str) -> Callable[[], None]:
    def plant() -> None:
        begin = GroupWriter._begin

        def weaker(self: GroupWriter, durable: bool) -> None:
            self._connection.execute(f"PRAGMA {setting}")
            self._full_sync = durable
            begin(self, durable)

        GroupWriter._begin = weaker  # type: ignore[method-assign]

    return plant


def _checkpoint_at_any_time() -> None:
    begin = GroupWriter._begin

    def hasty(self: GroupWriter, durable: bool) -> None:
        begin(self, durable)
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {sqlite_writer.CHECKPOINT_PAGES}")

    GroupWriter._begin = hasty  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    "the names of bodies are not synced": _bodies_without_names,
    "the names of new directories are not synced": _directories_without_names,
    "the names of files are not synced": _files_without_names,
    "a file that is found counts, synced or not": _found_files_count,
    "a row that is found counts, synced or not": _found_rows_count,
    "a table is committed without a sync": _tables_with("OFF"),
    "a table is committed without a sync of its journal's name": _tables_with("FULL"),
    "the log is committed without a sync": _log_with("synchronous = OFF"),
    "a checkpoint syncs what no commit has synced": _checkpoint_at_any_time,
}
