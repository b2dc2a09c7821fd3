"""What every benchmark here shares: interleaved pairs, medians with their 95 % interval, JSON and a plot."""

import json
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def interleave(variants: dict[str, Callable[[], float]], pairs: int) -> dict[str, list[float]]:
    """Run all variants `pairs` times, in turn and in changing order, so that drift hits them alike."""
    names = list(variants)
    figures: dict[str, list[float]] = {name: [] for name in names}
    for pair in range(pairs):
        order = names if pair % 2 == 0 else names[::-1]
        for name in order:
            figures[name].append(variants[name]())
        latest = ", ".join(f"{name} {figures[name][-1]:,.1f}" for name in names)
        print(f"pair {pair + 1} of {pairs}: {latest}", flush=True)
    return figures


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval, by bootstrap with a fixed seed."""
    draw = random.Random(7)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[1949]


def report(name: str, figures: dict[str, object]) -> None:
    """Write the figures to a file and print them as the last line."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures))


def plot(name: str, title: str, series: dict[str, list[float]], unit: str) -> None:
    """Draw the repetitions of each variant side by side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    RESULTS.mkdir(exist_ok=True)
    figure, axes = plt.subplots(figsize=(6, 4))
    axes.boxplot(list(series.values()), tick_labels=list(series))
    for index, values in enumerate(series.values(), start=1):
        axes.plot([index] * len(values), values, "k.", alpha=0.5)
    axes.set_ylabel(unit)
    axes.set_title(title)
    axes.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.png", dpi=120)
    plt.close(figure)
