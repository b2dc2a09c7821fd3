"""Scenarios about what is read from the outside: it can be read once only, so it is stored before it counts."""

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from clew import Observed, Pipeline, faultpoint, files
from clew.faultpoint import arm
from clew.run import Log, Policy, run, topology
from tests.simulation.process import Process

MESSAGES = 8
TURNS: dict[str, Any] = {"max_turn_events": 2}
STEPS = ("before-action-logged", "after-action-logged", "after-effect-stored", "after-action-complete",
         "after-source-read", "after-source-commit", "before-effect-dropped", "after-effect-dropped")  # fmt: skip


@dataclass(frozen=True)
class Inbox(Observed):
    """A directory of messages that are gone once they are released; what they hold is new each time it is read."""

    place: str

    def describe(self) -> str:
        return "an inbox"

    def observe(self) -> Iterator[pa.Table]:
        reading = uuid.uuid4().hex
        for path in sorted(Path(self.place).iterdir()):
            yield pa.table({"n": [int(path.name)], "reading": [reading]})

    def release(self, snapshot: Any) -> None:
        for path in Path(self.place).iterdir():
            path.unlink()


def _pipeline(tmp_path: Path) -> Pipeline:
    pipeline = Pipeline("inbox")
    source = pipeline.source("messages", Inbox(str(tmp_path / "inbox")), **TURNS)
    pipeline.sink(source, files(tmp_path / "files", format="parquet"), name="sink", **TURNS)
    return pipeline


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "inbox").mkdir()
    for number in range(MESSAGES):
        (tmp_path / "inbox" / str(number)).touch()
    yield tmp_path
    arm()


def _judge(tmp_path: Path) -> None:
    rows = pa.parquet.read_table(tmp_path / "files").to_pylist()
    assert Counter(row["n"] for row in rows) == Counter(range(MESSAGES))
    assert len({row["reading"] for row in rows}) == 1, "messages come from several readings"
    assert not list((tmp_path / "inbox").iterdir()), "what was read was never released"


@pytest.mark.parametrize("point", STEPS[:6])
def test_scenario_13_a_source_that_deletes_what_it_read_keeps_it_until_its_events_are_logged(
    inbox: Path, point: str
) -> None:
    graph = _pipeline(inbox).graph()
    log, bodies = f"sqlite:///{inbox / 'log.db'}", str(inbox / "bodies")
    with closing(Log.at(log, graph.name, bodies).open(graph.name)) as store:
        store.declare(topology(graph))
        (fault,) = arm(f"{point}@messages#1:raise")
        with pytest.raises(faultpoint.CrashInjected):
            Process(graph, store, bodies).run()
    assert fault.fired
    assert len(list((inbox / "inbox").iterdir())) == MESSAGES, "it was deleted before its events were logged"
    run(graph, log=log, bodies=bodies, engine="inline")
    _judge(inbox)


@pytest.mark.parametrize("point", STEPS)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_scenario_17_a_read_action_that_is_not_replayable_dies_at_each_step_of_algorithm_1(
    inbox: Path, point: str, store: str, request: pytest.FixtureRequest
) -> None:
    log = f"sqlite:///{inbox / 'log.db'}" if store == "sqlite" else request.getfixturevalue("postgres_url")
    (fault,) = arm(f"{point}@messages#1:raise")
    run(
        _pipeline(inbox),
        log=log,
        bodies=str(inbox / "bodies"),
        engine="inline",
        policy=Policy(first_delay=0.01, poll=0.1),
    )
    assert fault.fired
    _judge(inbox)
