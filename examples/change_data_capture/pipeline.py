"""Change data capture: a copy of a table, kept by the changes that a capture tool writes.

    changes ── rows ──┬── table customers, replaced by id
                      └── deleted ── table deletions, appended

Each change has the row before and after, as Debezium has it, and its position in the database's log. Files of changes
come into a directory one by one, and the pipeline follows it until a file `_DONE` is there.
"""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clew import Pipeline, files, sqlite

CUSTOMER = pa.struct([("id", pa.int64()), ("name", pa.string()), ("city", pa.string()), ("cents", pa.int64())])
CHANGE = pa.schema([("op", pa.string()), ("position", pa.int64()), ("before", CUSTOMER), ("after", CUSTOMER)])


@dataclass
class Customer:
    """A row of the copy; one that was deleted stays, and says so."""

    id: int
    name: str
    city: str
    cents: int
    deleted: bool
    position: int


pipeline = Pipeline("change_data_capture")

changes = pipeline.source(
    "changes",
    files("data/changes", schema=CHANGE, rows_per_event=25, follow=True, poll="200 milliseconds", until="_DONE"),
)


def rows(change: dict[str, Any]) -> Customer:
    """Return what a change leaves of its row."""
    row = change["after"] or change["before"]
    return Customer(**row, deleted=change["op"] == "d", position=change["position"])


customers = changes.map(rows, deterministic=True)
customers.sink(sqlite("data/copy.db", table="customers", key="id"))

deleted = customers.filter(pc.field("deleted"), name="deleted")
deleted.sink(sqlite("data/copy.db", table="deletions"))
