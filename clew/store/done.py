"""Up to which event all entries of a receiving port are done, in a log in SQL."""

from collections.abc import Iterator

from clew.ids import Port
from clew.store.intervals import Intervals
from clew.store.ledger import read_done
from clew.store.rowcodec import events_covered, sets_covered
from clew.store.statements import Transaction


def done_upto(log: Transaction, receiver: Port, collected: int) -> int:
    """Return the number up to which all entries of a receiving port are done."""
    done = read_done(log, receiver.operator)
    upto = collected
    rejoined = log.fetch("SELECT first, input_set FROM rejoined WHERE operator = ? AND port = ?", *receiver)
    held = min((first for first, input_set in rejoined if input_set not in done), default=None)
    for first, count, columns in _acknowledgements(log, receiver):
        undone = _first_undone(done, columns, count)
        if undone is not None:
            upto = first + undone - 1
            break
        upto = max(upto, first + count - 1)
    return upto if held is None else min(upto, held - 1)


def _acknowledgements(log: Transaction, receiver: Port) -> Iterator[tuple[int, int, tuple[int, int, int]]]:
    """Yield the rows of acknowledgements, in order of events; in slices, for most stop at an early one."""
    after, slice_rows = 0, 256
    while True:
        rows = log.fetch(
            "SELECT first, count, input_set, size, skip FROM ack WHERE operator = ? AND port = ? AND first > ? "
            "ORDER BY first, part LIMIT ?",
            *receiver, after, slice_rows,
        )  # fmt: skip
        # A slice may end between the parts of one run, so its last run is left to the next slice.
        whole = rows if len(rows) < slice_rows else [row for row in rows if row[0] != rows[-1][0]]
        for first, count, input_set, size, skip in whole:
            yield first, count, (input_set, size, skip)
        if len(rows) < slice_rows:
            return
        if whole:
            after = whole[-1][0]
        else:
            slice_rows *= 2


def _first_undone(done: Intervals, columns: tuple[int, int, int], count: int) -> int | None:
    """Return the index of the first event of a run that has an undone entry."""
    if columns[:2] == (0, 0):
        return None
    gap = next(iter(done.gaps(*sets_covered(columns, count))), None)
    return None if gap is None else events_covered(columns, count, gap[0])[0]
