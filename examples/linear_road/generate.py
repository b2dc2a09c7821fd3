"""Makes the position reports of Linear Road: the same ones each time, in the order of their times."""

import csv
import random
from pathlib import Path

CARS = 60
SECONDS = 1800
#: Every car reports twice a minute, so that a window of 120 seconds holds four of its reports.
EVERY = 30


def generate(directory: Path, seed: int = 1) -> int:
    """Write `reports.csv` into `directory`; return the number of reports."""
    numbers = random.Random(seed)
    reports = sorted(report for car in range(CARS) for report in _drive(car, numbers))
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "reports.csv").open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(("time", "car", "speed", "position"))
        writer.writerows(reports)
    return len(reports)


def _drive(car: int, numbers: random.Random) -> list[tuple[int, int, int, int]]:
    """Return the reports of one car, of which every fourth breaks down for some minutes."""
    # Pairs of cars break down at the same place and at about the same time: an accident.
    breaks = car % 8 in (0, 1)
    stops = numbers.randrange(300, 600) if car % 8 == 0 else 450
    goes = stops + numbers.randrange(150, 600)
    position, reports = 100 * numbers.randrange(50), []
    for time in range(numbers.randrange(EVERY), SECONDS, EVERY):
        stands = breaks and stops <= time < goes
        # Others stand for a moment in a jam, which is no breakdown.
        speed = 0 if stands or numbers.random() < 0.1 else numbers.randrange(40, 120)
        place = 10_000 + 1000 * (car // 8) if stands else position
        reports.append((time, car, speed, place))
        position += speed
    return reports


if __name__ == "__main__":
    print(f"{generate(Path('data')):,} reports in data/reports.csv")
