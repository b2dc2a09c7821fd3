"""The rows of the log in memory: one per event, as in the paper."""

import json
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clew.ids import InputSetId, Port
from clew.protocol.rows import (
    AsideRow,
    Bodies,
    Header,
    Label,
    OperatorRow,
    ReadActionRow,
    ReadEventRow,
    StateRow,
    Status,
    WriteRow,
)

#: What was set aside, and is not yet tried again or dropped.
UNRESOLVED = ("held", "retry", "drop")


class Entry(NamedTuple):
    """A row of EVENT_LOG for one event, receiver and Input Set; another takes its place when its status changes."""

    number: int
    status: Status
    receiver: Port
    input_set: InputSetId | None = None
    seq: int = 0
    #: Whether the event joined the Input Set after it was taken.
    rejoined: bool = False


@dataclass
class Rows:
    """All rows and counters of the log; copied to undo a refused commit."""

    sent: dict[Port, dict[int, tuple[Header, tuple[Bodies, ...]]]] = field(default_factory=dict)
    entries: dict[Port, dict[int, tuple[Entry, ...]]] = field(default_factory=dict)
    last_sent: dict[Port, int] = field(default_factory=dict)
    last_acknowledged: dict[Port, int] = field(default_factory=dict)
    #: The number up to which write actions were collected, by connection.
    collected_writes: dict[Port, int] = field(default_factory=dict)
    schemas: dict[Port, bytes] = field(default_factory=dict)
    labels: dict[str, dict[InputSetId, Label]] = field(default_factory=dict)
    finished: dict[str, set[InputSetId]] = field(default_factory=dict)
    states: dict[str, StateRow] = field(default_factory=dict)
    keyed: dict[str, dict[tuple[str, str], str]] = field(default_factory=dict)
    decisions: dict[str, dict[int, str]] = field(default_factory=dict)
    asides: dict[str, dict[int, AsideRow]] = field(default_factory=dict)
    state_events: dict[str, dict[int, tuple[InputSetId, str]]] = field(default_factory=dict)
    lineage: dict[Port, list[tuple[int, InputSetId]]] = field(default_factory=dict)
    read_actions: dict[str, dict[tuple[str, int], ReadActionRow]] = field(default_factory=dict)
    read_events: dict[tuple[str, str, int], tuple[ReadEventRow, InputSetId | None]] = field(default_factory=dict)
    last_action: dict[tuple[str, str], int] = field(default_factory=dict)
    writes: dict[Port, dict[int, tuple[WriteRow, Status]]] = field(default_factory=dict)
    #: When events, and write actions, were logged.
    times: dict[Port, dict[int, float]] = field(default_factory=dict)
    last_write: dict[Port, int] = field(default_factory=dict)
    last_done_write: dict[Port, int] = field(default_factory=dict)
    operators: dict[str, OperatorRow] = field(default_factory=dict)
    #: The number up to which events were collected, by port.
    collected: dict[Port, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    #: The last Input Set that has lost events to collection: of those it took on a port, and of those it made there.
    worn_taken: dict[Port, int] = field(default_factory=dict)
    worn_made: dict[Port, int] = field(default_factory=dict)


def copied(rows: Rows, operator: str | None = None) -> Rows:
    """Copy deep enough that writes of `operator` to the original leave the copy as it was; None: of anybody.

    Rows are replaced and never change, so nothing below the tables is copied, and of these only what may be written to.
    """
    kept = copy(rows)
    for name, table in vars(rows).items():
        held = next(iter(table.values()), None)
        if not isinstance(held, (dict, list, set)):
            setattr(kept, name, table.copy())
        elif operator is None or name == "entries":
            # An operator makes entries for others too: the receivers of its events.
            setattr(kept, name, {key: held.copy() for key, held in table.items()})
        else:
            own = {key: held.copy() for key, held in table.items() if _owner(key) == operator}
            setattr(kept, name, {**table, **own})
    return kept


def _owner(key: "str | Port | tuple[str, ...]") -> str:
    """Return the operator whose rows a table has under a key."""
    return key if isinstance(key, str) else key[0]


def as_json(value: Any) -> str:
    """Return what stands for a value in a row: one text for one value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
