"""Algorithm 4: side-effect read actions of a generative function."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from clew.ids import InputSetId
from clew.protocol.log.context import Context
from clew.protocol.rows import Bodies
from clew.protocol.step import LogReadEvent


@dataclass(frozen=True, slots=True)
class SideRead:
    """A read action that served an Input Set, and where its effect is stored.

    The effect is stored whether the action is replayable or not (Steps 2 and 3): replayed later it could
    give more than what the Output Set was made of.
    """

    input_set: InputSetId
    connection: str
    description: str
    effect: Bodies


def log_reads(context: Context, reads: Iterable[SideRead]) -> Iterator[LogReadEvent]:
    """Step 1: give each read action an id and the Input Set it served.

    The event is logged as done, with a reference to the effect (Algorithm 3, Step 4.5a). A read whose
    Output Set was never logged leaves nothing but an unreferenced file, which recovery removes.
    """
    for read in reads:
        action = context.actions[read.connection] = context.actions.get(read.connection, 0) + 1
        yield LogReadEvent(context.operator, read.connection, action, read.effect, read.input_set, read.description)
