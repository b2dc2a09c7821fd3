"""Java stacks: each goes to a file of its own, whose path is told in its place."""

import os
from pathlib import Path

from pyspark.errors.exceptions.captured import CapturedException


def keep_stack(name: str, error: Exception | str) -> str:
    """Write the stack behind a failure of Spark's to a file called `name`; return its path."""
    folder = Path(os.environ.get("CLEW_STACKS", ".clew/stacks"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.txt"
    path.write_text(error if isinstance(error, str) else _stack(error))
    return str(path)


def _stack(error: Exception) -> str:
    # PySpark keeps the stack of what it has made an exception of its own from, and does not print it.
    stack = error._stackTrace if isinstance(error, CapturedException) else None
    return f"{error}\n{stack}" if stack else str(error)
