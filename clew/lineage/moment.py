"""Answers of one moment, though collection may take events between the questions that an answer is made of."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from clew.errors import EventExpired
from clew.ids import EventId, Port
from clew.lineage.trace import Trace
from clew.store.base import Lineages

Answer = TypeVar("Answer")

#: How often a question is asked anew before it is said what is gone.
_AGAIN = 3


def of_one_moment(log: Lineages, walk: Callable[[], Trace], follow: Callable[[Trace], Answer]) -> Answer:
    """Return what `follow` makes of a trace of which no event was collected meanwhile; asks again where one was.

    A collected event leads nowhere, and looks as if it never had. Events only ever go: while all that were met are in
    the log, what was found of them is what would be found now, and what went before them is told as the edge.
    """
    for _ in range(_AGAIN):
        trace = walk()
        with suppress(EventExpired):
            return _undisturbed(log, trace, follow)
    return _undisturbed(log, walk(), follow)


def _undisturbed(log: Lineages, trace: Trace, follow: Callable[[Trace], Answer]) -> Answer:
    try:
        return follow(trace)
    finally:
        # Whatever it failed of, too: something may have been taken away beneath it.
        _check_there(log, trace)


def _check_there(log: Lineages, trace: Trace) -> None:
    """Refuse a trace with events that are no longer in the log."""
    first: dict[Port, EventId] = {}
    for event in sorted({trace.start, *(event for step in trace.steps for event in (*step.inputs, *step.outputs))}):
        first.setdefault(event.port, event)
    for event in first.values():
        collected, _ = log.extent(event.port)
        if event.number <= collected:
            raise EventExpired(event.told, collected)


def undisturbed(marks: Callable[[], object], ask: Callable[[], Answer]) -> Answer:
    """Return an answer during which no mark of collection has moved; asks again where one has."""
    for _ in range(_AGAIN):
        before = marks()
        try:
            found = ask()
        except Exception:
            # What is gone may be taken for anything else that is not there.
            if marks() == before:
                raise
            continue
        if marks() == before:
            return found
    return ask()
