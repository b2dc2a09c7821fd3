"""Algorithm 6: recovery of a Source operator, Steps 2 to 4. Step 1 is Algorithm 7's."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from clew.protocol.log.context import Context
from clew.protocol.rows import Bodies, ReadActionRow, ReadEventRow


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a source goes on.

    start    Algorithm 1, Step 1: there is no read action yet, or the last one is settled and another may follow
    observe  Step 2.a: the action is logged, its effect is not; discard what was stored and do it again
    stored   Step 2.c: go on through the stored effect, from `offset`
    replay   Step 3: replay the action from `offset`
    drop     Step 2.d: all is logged, the stored effect may still have to be discarded
    finished nothing is left to do
    """

    at: Literal["start", "observe", "stored", "replay", "drop", "finished"]
    offset: Any = None
    #: The stored effect, in the runs of bodies that it was stored in.
    effects: tuple[Bodies, ...] = ()


def recover_source(
    context: Context, action: ReadActionRow | None, events: Sequence[ReadEventRow], replayable: bool
) -> Resume:
    """Decide from the last read action, its event (one row per run of bodies) and the restored state."""
    offset = deepcopy(context.state.get("offset"))
    if action is not None and not action.complete:
        # Step 4: incomplete.
        return Resume("replay", offset) if replayable else Resume("observe")
    # Step 3: complete. The rows of an effect are written, done and discarded together.
    effects = tuple(event.effect for event in events if event.effect is not None)
    if any(event.status == "undone" for event in events):
        return Resume("stored", offset, effects)
    if effects:
        return Resume("drop", effects=effects)
    return Resume("finished" if context.finished else "start")
