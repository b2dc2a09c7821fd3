"""What the outside systems hold, read from them and not from the engine's word."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCRIPTS = Path(__file__).parent / "scripts"


def written(directory: str | Path) -> list[pa.Table]:
    """Return what each write action put into a directory, in the order of their numbers."""
    return [pq.ParquetFile(path).read() for path in sorted(Path(directory).glob("[!.]*.parquet"))]


def rows(directory: str | Path) -> list[dict[str, Any]]:
    """Return all records that a files sink holds, in the order in which they were written."""
    return [row for table in written(directory) for row in table.to_pylist()]


def multiset(records: list[dict[str, Any]]) -> Counter[str]:
    """Return records as a multiset that can be compared."""
    return Counter(json.dumps(record, sort_keys=True, default=str) for record in records)


def held(database: str | Path, query: str) -> Counter[tuple[Any, ...]]:
    """Return the rows of a query as a multiset."""
    with closing(sqlite3.connect(database)) as connection:
        return Counter(connection.execute(query).fetchall())


def script(name: str, *arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one of `scripts/` in a process of its own; its last line is JSON."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / name), *arguments],
        # Sessions that are not Clew's own ask the environment for the Python of their workers.
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )
    if check and done.returncode:
        raise AssertionError(f"{name} {arguments} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done


def said(done: subprocess.CompletedProcess[str]) -> Any:
    """Return what a script printed last."""
    return json.loads(done.stdout.strip().splitlines()[-1])


KILLED = -signal.SIGKILL
