"""Durations as people write them, in seconds; windows read the same words."""

from datetime import timedelta

from clew.errors import GraphError
from clew.pipeline.times import microseconds

#: '10 minutes', a number of seconds, or a timedelta.
Duration = str | float | timedelta


def seconds(given: Duration) -> float | None:
    """Return a duration in seconds, or None where it is none."""
    if not isinstance(given, str | timedelta):
        return float(given)
    try:
        return microseconds(given) / 1_000_000
    except GraphError:
        return None
