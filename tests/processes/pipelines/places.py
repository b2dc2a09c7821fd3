"""Where the pipelines beside this file write: given by the environment, so that every test has its own."""

import os
from typing import Any

from clew.connectors import files, postgres, sqlite


def table(name: str, **options: Any) -> Any:
    """Return a table of the database under test."""
    database = os.environ["SINK"]
    return (postgres if database.startswith("postgres") else sqlite)(database, table=name, **options)


def directory(name: str) -> Any:
    return files(os.path.join(os.environ["FILES"], name), format="jsonl")


#: Small turns, so that there are many of them and a crash falls into the middle of a run.
TURNS = {"max_turn_events": 2, "deterministic": True}
