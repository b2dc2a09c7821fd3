"""Algorithm 5: side-effect write actions."""

from clew.ids import Port
from clew.protocol.step import FinishWrites, Step


def write_done(port: Port, first: int, count: int) -> Step:
    """Step 3: the outside system has acknowledged the writes; set them to done.

    The transaction need not be synced by itself: lost, the writes are checked or repeated by Algorithm 8,
    which the sink must bear anyway.
    """
    return Step((FinishWrites(port, first, count),), durable=False)
