"""docs/operating.md: its metrics are those that are served, its lines of the doctor are those that there are."""

import re

from clew.app.doctor import diagnosis
from clew.app.metrics import RunCollector
from clew.app.settings import Settings
from clew.run import Health, Progress
from clew.spark.java import Java
from clew.store.disk import Disk
from clew.store.postgres_health import PostgresHealth
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "operating.md"


def rows() -> list[str]:
    found = []
    for metric in RunCollector("p", Progress()).collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        found.append(f"| `{name}` | {metric.type} | {metric.documentation} |")
    return found


def test_the_metrics_are_those_that_are_served() -> None:
    found = [line for line in PAGE.read_text().splitlines() if line.startswith("| `clew_")]
    assert found == rows(), "\n" + "\n".join(rows())


def test_the_doctors_lines_are_those_that_there_are() -> None:
    postgres = PostgresHealth(160000, "on", "on", 1.0)
    health = Health(Java("/java", version="17"), Disk("/", "ext4", 1 << 40, 100.0), postgres, None)
    whats = {line.what for line in diagnosis(Settings(), health)}
    table = PAGE.read_text().partition("## The files")[0]
    named = {name for cell in re.findall(r"^\| ([^|`]+?) \|", table, re.MULTILINE) for name in cell.split(", ")}
    assert named - {"line", "---"} == whats
