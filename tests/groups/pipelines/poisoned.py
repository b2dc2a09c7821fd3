"""A pipeline with a record that its function fails on until it is mended, which is set aside."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from clew import Pipeline, generator, postgres

EVENTS = int(os.environ["EVENTS"])


def mended(record: dict[str, Any]) -> dict[str, Any]:
    if record["n"] == 3 and not Path(os.environ["GATE"] + ".mended").exists():
        raise ValueError("three")
    return record


pipeline = Pipeline("poisoned")
numbers = pipeline.source("numbers", generator(lambda index: pa.table({"n": [index]}), EVENTS))
good = numbers.map(mended, name="good", on_error="quarantine", attempts=1)
pipeline.sink(good, postgres(os.environ["SINK"], table="good"), name="writer")
