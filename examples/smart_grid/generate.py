"""Makes the readings of smart meters: the same ones each time, in the order in which they arrive."""

import csv
import random
from datetime import datetime, timedelta
from pathlib import Path

METERS = 30
DAYS = 8
FIRST = datetime(2024, 1, 1)
#: On these days, so many meters measure nothing at all.
DARK = {2: 9, 4: 7, 5: 12}


def generate(directory: Path, seed: int = 1) -> int:
    """Write `readings.csv` into `directory`; return the number of readings."""
    numbers = random.Random(seed)
    hours = [(hour, meter) for hour in range(24 * DAYS) for meter in range(METERS)]
    readings = [(_arrival(hour, numbers), hour, meter, _watt_hours(hour, meter, numbers)) for hour, meter in hours]
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "readings.csv").open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(("time", "meter", "watt_hours"))
        for _, hour, meter, watt_hours in sorted(readings):
            writer.writerow(((FIRST + timedelta(hours=hour)).isoformat(sep=" "), meter, watt_hours))
    return len(readings)


def _arrival(hour: int, numbers: random.Random) -> float:
    """Say when a reading arrives: mostly at once, sometimes some hours later, rarely some days."""
    return hour + numbers.choices((0, numbers.uniform(1, 5), numbers.uniform(40, 60)), (96, 3.5, 0.5))[0]


def _watt_hours(hour: int, meter: int, numbers: random.Random) -> int:
    dark = meter < DARK.get(hour // 24, 0)
    return 0 if dark else numbers.randrange(50, 900)


if __name__ == "__main__":
    print(f"{generate(Path('data')):,} readings in data/readings.csv")
