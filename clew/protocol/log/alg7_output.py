"""Algorithm 7: recovery of output events."""

from collections.abc import Iterable

from clew.ids import Port
from clew.protocol.step import Step


def recover_output(ports: Iterable[Port]) -> Step:
    """Step 1: resend, in order, what each receiver of these ports has not acknowledged.

    The channel is the log: receivers take what is undone and unassigned from it, in order, so to resend is to make
    them look. An event that the receiver acknowledges meanwhile is obsolete there (Algorithm 2, Step 1).
    Step 2, the pending write actions, is Algorithm 8.
    """
    return Step(resends=tuple(ports))
