"""Figures that tests add up over all their processes: what `make test` and `make soak` print at the end."""

import json
import os
from collections import Counter
from pathlib import Path

#: The file that every process appends to; set by the session that prints the table.
PLACE = "CLEW_TALLY"


def tally(figure: str, by: int = 1) -> None:
    """Add to a figure of the table."""
    place = os.environ.get(PLACE)
    if place:
        with open(place, "ab", buffering=0) as out:
            out.write(json.dumps([figure, by]).encode() + b"\n")


def total(place: str) -> Counter[str]:
    """Add everything up."""
    figures: Counter[str] = Counter()
    for line in Path(place).read_text().splitlines():
        figure, by = json.loads(line)
        figures[figure] += by
    return figures
