"""Algorithm 8: recovery of a Writer operator's pending write actions."""

from collections.abc import Sequence

from clew.ids import Port
from clew.protocol.log.alg5_write import write_done
from clew.protocol.rows import WriteRow
from clew.protocol.step import Step


def settle(port: Port, undone: Sequence[WriteRow], applied: Sequence[bool]) -> tuple[Step, tuple[WriteRow, ...]]:
    """Steps 1 and 2: of the undone writes in order, set those that were applied to done, replay the rest.

    Writes of a connection are performed in order, so those applied come first; `applied[i]` says so of
    `undone[i]`, and is False throughout for a sink that cannot be checked but bears repetition.
    """
    count = applied.index(False) if False in applied else len(applied)
    if True in applied[count:]:
        late = undone[count + applied[count:].index(True)].number
        raise AssertionError(f"W2: write {port}#{late} was applied before {port}#{undone[count].number}")
    step = write_done(port, undone[0].number, count) if count else Step()
    return step, tuple(undone[count:])
