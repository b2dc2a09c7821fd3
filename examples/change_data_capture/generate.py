"""Makes the changes of a customers' table as a capture tool writes them: the same ones each time, in commit order."""

import json
import random
from pathlib import Path
from typing import Any

CHANGES = 900
PER_FILE = 150
CITIES = ("Athens", "Bergen", "Cork", "Dresden", "Evora")

Row = dict[str, Any]


def generate(directory: Path, seed: int = 1) -> int:
    """Write files of changes into `directory`/changes, and `_DONE` when there will be no more; return how many."""
    numbers = random.Random(seed)
    table: dict[int, Row] = {}
    changes = [_change(position, table, numbers) for position in range(CHANGES)]
    place = directory / "changes"
    place.mkdir(parents=True, exist_ok=True)
    for first in range(0, CHANGES, PER_FILE):
        lines = [json.dumps(change) + "\n" for change in changes[first : first + PER_FILE]]
        # Renamed into place, so that nobody ever reads half a file.
        unfinished = place / f".changes-{first:05d}.jsonl"
        unfinished.write_text("".join(lines))
        unfinished.rename(place / f"changes-{first:05d}.jsonl")
    (place / "_DONE").touch()
    return CHANGES


def _change(position: int, table: dict[int, Row], numbers: random.Random) -> Row:
    """Change the table in memory; return the change with the row as it was before and is after."""
    op = numbers.choices("cud", (30, 60, 10))[0] if table else "c"
    id = max(table, default=0) + 1 if op == "c" else numbers.choice(sorted(table))
    before, after = table.get(id), None
    if op == "d":
        del table[id]
    else:
        after = {**(before or {"id": id, "name": f"customer {id}"}), "city": numbers.choice(CITIES)}
        after["cents"] = numbers.randrange(100_000)
        table[id] = after
    return {"op": op, "position": position, "before": before, "after": after}


if __name__ == "__main__":
    print(f"{generate(Path('data')):,} changes in data/changes")
