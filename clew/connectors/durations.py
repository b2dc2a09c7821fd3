"""Durations as people write them."""

import re
from datetime import timedelta

_UNITS = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0}

#: '10 minutes', a number of seconds, or a timedelta.
Duration = str | float | timedelta


def seconds(given: Duration) -> float | None:
    """Return a duration in seconds, or None where it is none."""
    if isinstance(given, timedelta):
        return given.total_seconds()
    if not isinstance(given, str):
        return float(given)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)s?\s*", given)
    return float(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else None
