"""Finds a log in a SQLite file without making one."""

import sqlite3
from pathlib import Path
from urllib.parse import quote


def log_exists(path: Path) -> bool:
    """Say whether there is a log, or anything else, in the file; changes nothing, so an empty file stays one."""
    try:
        if not path.exists() or (path.is_file() and not path.stat().st_size):
            return False
        with_tables = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True)
        try:
            return with_tables.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None
        finally:
            with_tables.close()
    except (OSError, sqlite3.Error):
        # What is wrong with it is for whoever opens it to say.
        return True
