"""One small pipeline into a sink, run by the inline engine on a SQLite log, and made to die."""

import datetime
import pickle
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from clew import faultpoint
from clew.model.certificate import Verdict
from clew.model.verify import verify
from clew.pipeline.contracts import Sink, WriteAction
from clew.pipeline.load import load
from clew.run import run
from clew.supervisor.threads import Policy
from tests.app.pipelines import finish, log_url, start

EVENTS = 5

PIPELINE = """
import os

from clew import Pipeline, delta, files, generator
from tests.connectors.crashes import EVENTS, records

HERE = os.path.dirname(os.path.abspath(__file__))
pipeline = Pipeline("days")
events = pipeline.source("events", generator(records, EVENTS), max_turn_events=2)
pipeline.sink(events, SINK, name="out", max_turn_events=1)
"""


def records(index: int) -> pa.Table:
    """Return event `index`: records of two days and of none, two of which are alike."""
    first, second = datetime.date(2024, 1, 1), datetime.date(2024, 1, 2 + index % 2)
    return pa.table({"n": [index, index, 10 + index, 20 + index], "day": [first, first, second, None]})


def expected() -> Counter[Any]:
    return multiset(row for index in range(EVENTS) for row in records(index).to_pylist())


def multiset(rows: Iterable[dict[str, Any]]) -> Counter[Any]:
    return Counter(tuple(sorted(row.items())) for row in rows)


def write_pipeline(directory: Path, sink: str) -> str:
    path = directory / "days.py"
    path.write_text(PIPELINE.replace("SINK", sink))
    return str(path)


def run_here(directory: Path, sink: str, *faults: str) -> None:
    """Run the pipeline in this process to its end; the faults, all of which must fire, are survived."""
    path = write_pipeline(directory, sink)
    armed = faultpoint.arm(*faults)
    policy = Policy(first_delay=0.01, poll=0.05)
    run(load(path), log=log_url(directory), bodies=str(directory / "bodies"), engine="inline", policy=policy)
    assert all(fault.fired for fault in armed), f"a fault did not fire: {armed}"


def run_killed(directory: Path, sink: str, *faults: str) -> None:
    """Run the pipeline in processes of its own: each fault kills one, and the one after them comes to the end."""
    kill(directory, sink, *faults)
    complete(directory, sink)


def kill(directory: Path, sink: str, *faults: str) -> None:
    fired = directory / "fired"
    for fault in faults:
        process = start(*words(directory, sink), CLEW_FAULTS=fault, CLEW_FAULTS_FIRED=str(fired))
        code, _, error = finish(process)
        assert code == -9, f"{fault} did not kill the run: {code} {error}"
        assert fired.read_text().startswith(fault.partition("@")[0]), "another fault fired"
        fired.unlink()


def complete(directory: Path, sink: str) -> None:
    code, _, error = finish(start(*words(directory, sink)))
    assert code == 0, error


def words(directory: Path, sink: str) -> list[str]:
    """Return how the command line is told to run the pipeline."""
    return ["run", write_pipeline(directory, sink), "--engine", "inline", "--log", log_url(directory)]


def judged(directory: Path) -> Verdict:
    """Return what `clew verify` finds."""
    bodies = directory / "bodies"
    graph = load(str(directory / "days.py")).graph()
    return verify(graph, log_url(directory), str(bodies) if bodies.exists() else None)


WRITER = """
import pickle, sys
sink, action, table = pickle.loads(bytes.fromhex(sys.argv[1]))
try:
    sink.write(action, iter([table]), table.schema)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def write_command(sink: Sink, action: WriteAction, table: pa.Table) -> list[str]:
    """Return the command that performs one write in a process of its own."""
    return [sys.executable, "-c", WRITER, pickle.dumps((sink, action, table)).hex()]
