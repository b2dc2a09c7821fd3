"""Makes payments that customers have asked for: the same ones each time."""

import csv
import random
from pathlib import Path

PAYMENTS = 400
ACCOUNTS = 40


def generate(directory: Path, seed: int = 1) -> int:
    """Write `payments.csv` into `directory`; return the number of payments."""
    numbers = random.Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "payments.csv").open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(("payment", "account", "cents"))
        for payment in range(1, PAYMENTS + 1):
            writer.writerow((payment, numbers.randrange(ACCOUNTS), numbers.randrange(100, 60_000)))
    return PAYMENTS


if __name__ == "__main__":
    print(f"{generate(Path('data')):,} payments in data/payments.csv")
