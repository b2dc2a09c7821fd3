"""Garbage collection: done events, their bodies, and files that no row refers to."""

from collections.abc import Mapping
from pathlib import Path

from clew import trace
from clew.faultpoint import fault_point
from clew.ids import Port
from clew.runtime.bodies import attempt_of
from clew.store.base import NO_PORTS, Collected, Store


def collect(store: Store, root: str | None, keep: Mapping[Port, int] = NO_PORTS) -> Collected:
    """Remove what is done; body files go after the rows that named them are gone for good.

    Of a port in `keep`, the events from that number on stay.
    """
    fault_point("before-collect")
    # The counters are read before the references: a file of a turn committed later is then never mistaken.
    finished = _finished_turns(store)
    collected = store.collect(keep=keep)
    trace.record("collected", events=collected.events, files=len(collected.files))
    fault_point("after-collect")
    if root is None:
        return collected
    for name in collected.files:
        (Path(root) / name).unlink(missing_ok=True)
    orphans = _orphans(Path(root), finished, store)
    for path in orphans:
        path.unlink(missing_ok=True)
    return collected


def _finished_turns(store: Store) -> dict[str, tuple[int, int]]:
    """Return per operator (incarnation, last committed turn)."""
    turns = {}
    for row in store.operators():
        state = store.state(row.operator)
        turns[row.operator] = (row.incarnation, int(state.context["turn"]) if state else 0)
    return turns


def _orphans(root: Path, finished: dict[str, tuple[int, int]], store: Store) -> list[Path]:
    """Find files of attempts that never counted: of an older incarnation, or of a turn already committed."""
    candidates = [
        path
        for operator, (incarnation, turn) in finished.items()
        for path in (root / operator).glob("*")
        if attempt_of(path.name) < (incarnation, 0) or _is_past(path.name, incarnation, turn)
    ]
    if not candidates:
        return []
    referenced = store.referenced_files()
    return [path for path in candidates if str(path.relative_to(root)) not in referenced]


def _is_past(name: str, incarnation: int, turn: int) -> bool:
    made_by, made_in = attempt_of(name)
    return made_by == incarnation and made_in <= turn
