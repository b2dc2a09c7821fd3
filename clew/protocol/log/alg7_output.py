"""Algorithm 7: recovery of output events."""

from collections.abc import Mapping, Sequence

from clew.ids import Port
from clew.protocol.rows import EventRun
from clew.protocol.step import Step


def recover_output(unacknowledged: Mapping[Port, Sequence[EventRun]]) -> Step:
    """Step 1: resend, in order, what each receiver has not acknowledged.

    The channel is the log: a send only tells a receiver that there is something for it, so to resend is to
    wake it. An event that the receiver acknowledges meanwhile is obsolete there (Algorithm 2, Step 1).
    Step 2, the pending write actions, is Algorithm 8.
    """
    return Step(sends=tuple(run for runs in unacknowledged.values() for run in runs))
