"""Reads a source as the runtime does: turn by turn, each from the offset of the one before."""

import json
from typing import Any

import pyarrow as pa

from clew.pipeline.contracts import Json, Replayable


def turn(source: Replayable, snapshot: Json, offset: Json, events: int) -> tuple[list[pa.Table], Json, bool]:
    """Read one turn; return its tables, the offset after it, and whether it was the last."""
    plan = json.loads(json.dumps(plan_of(source, snapshot, offset, events)))
    tables = []
    for piece in plan["slices"]:
        for event in source.read(snapshot, piece):
            tables.append(event.table)
            offset = json.loads(json.dumps(event.offset))
    assert len(tables) <= events
    last = plan["last"] if plan["last"] is not None else len(tables) < events
    return tables, offset, last


def plan_of(source: Replayable, snapshot: Json, offset: Json, events: int) -> dict[str, Any]:
    plan = source.plan(snapshot, offset, events)
    return {"slices": list(plan.slices), "last": plan.last}


def all_events(source: Replayable, events: int, offset: Json = None, snapshot: Json = None) -> list[pa.Table]:
    """Read to the end in turns of `events`."""
    snapshot = snapshot or json.loads(json.dumps(source.snapshot()))
    found, last = [], False
    while not last:
        tables, offset, last = turn(source, snapshot, offset, events)
        found += tables
        assert tables or last, "a turn without events must be the last"
    return found


def rows(tables: list[pa.Table]) -> list[dict[str, Any]]:
    return [row for table in tables for row in table.to_pylist()]
