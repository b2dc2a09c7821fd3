"""Events that an operator cannot place: what it needs to know of their records cannot be told.

Facts are computed where an event is made, by its sender's task, but it is the receiver who cannot place the event. So
the sender logs the event with the reason in the place of the facts, and the receiver fails on it, or sets it aside.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

#: What stands for a generative function in the label of such an event's Input Set; no function can have this name.
UNPLACED = "not placed"
_MARK = "_clew_not_placed"


@dataclass(frozen=True)
class Unplaced:
    """Why an event cannot be placed."""

    #: The record to blame, by its place in the event and as text, where it is one.
    record: tuple[int, str] | None
    reason: str
    #: The user's own frames, where the user's code tells the facts.
    frames: str = ""

    def facts(self) -> Any:
        """Return what is logged in the place of facts."""
        return {_MARK: asdict(self)}

    def label(self, port: str, number: int) -> tuple[str, Any]:
        """Return the label of the Input Set that the event is alone in."""
        return UNPLACED, (port, number, json.dumps(asdict(self)))


def unplaced(facts: Any) -> Unplaced | None:
    """Return why an event cannot be placed, from what is logged as its facts; None where it can."""
    return _read(facts[_MARK]) if isinstance(facts, dict) and _MARK in facts else None


def of_label(key: Any) -> tuple[str, int, Unplaced]:
    """Return the port and number of an event that cannot be placed, and why, from its Input Set's key."""
    port, number, text = key
    return port, number, _read(json.loads(text))


def _read(told: Any) -> Unplaced:
    record = told["record"]
    return Unplaced(None if record is None else (record[0], record[1]), told["reason"], told["frames"])
