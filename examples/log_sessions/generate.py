"""Makes the access log of a web server: the same one each time, about in the order of its times."""

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

VISITORS = 25
FIRST = datetime(2024, 5, 1, 18, tzinfo=UTC)
PATHS = ("/", "/shop", "/shop/clews", "/cart", "/help")


def generate(directory: Path, seed: int = 1) -> int:
    """Write `access.jsonl` into `directory`; return the number of lines."""
    numbers = random.Random(seed)
    requests = sorted(request for visitor in range(VISITORS) for request in _visits(visitor, numbers))
    lines = [_line(*request, numbers) for _, *request in requests]
    # What was written by a server that was just being restarted.
    for place in (100, 250):
        lines.insert(place, "--- log rotated ---")
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "access.jsonl").open("w") as out:
        out.writelines(json.dumps({"line": line}) + "\n" for line in lines)
    return len(lines)


def _visits(visitor: int, numbers: random.Random) -> list[tuple[datetime, datetime, int]]:
    """Return the requests of a visitor as (when it was written, when it came, who): bursts with long pauses."""
    now, requests = FIRST + timedelta(minutes=numbers.randrange(60)), []
    for _ in range(numbers.randrange(2, 6)):
        for _ in range(numbers.randrange(1, 8)):
            # A request is written when it was answered, which may be after one that came later.
            requests.append((now + timedelta(seconds=numbers.randrange(20)), now, visitor))
            now += timedelta(seconds=numbers.randrange(1, 600))
        now += timedelta(minutes=numbers.randrange(31, 240))
    return requests


def _line(came: datetime, visitor: int, numbers: random.Random) -> str:
    """Write a request in the common log format."""
    status = numbers.choices((200, 404, 500), (92, 6, 2))[0]
    at = came.strftime("%d/%b/%Y:%H:%M:%S %z")
    return f'10.0.0.{visitor} - - [{at}] "GET {numbers.choice(PATHS)} HTTP/1.1" {status} {numbers.randrange(200, 9000)}'


if __name__ == "__main__":
    print(f"{generate(Path('data')):,} lines in data/access.jsonl")
