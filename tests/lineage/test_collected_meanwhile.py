"""What is asked while collection goes on is answered as of before it, or as of after it, and never in between."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Count, Pipeline
from clew.connectors import files, generator
from clew.errors import EventExpired, NoSuchRecord, SetExpired
from clew.ids import Port
from clew.lineage.trace import Trace, backward
from clew.pipeline.graph import Graph
from clew.retrace import records_of, replay, step_back, step_forward, trace_back, trace_forward, trace_record
from clew.run import Log, run
from clew.store.sqlite import SqliteStore
from tests.soak import every

S, M, FOURS = (Port(name, "out") for name in ("s", "m", "fours"))
#: From which events on collections leave the ports: nothing, and parts of what is met.
KEPT: dict[str, Mapping[Port, int]] = {
    "nothing": {},
    "from the middle on": {S: 7, M: 7, FOURS: 2},
    "what came first": {S: 1, M: 7, FOURS: 3},
}
ASKED: dict[str, Callable[[Graph, str], Any]] = {
    "back": lambda graph, url: trace_back(graph, "fours#2", log=url),
    "back to a port": lambda graph, url: trace_back(graph, "fours#2", "s", log=url),
    "forward": lambda graph, url: trace_forward(graph, "s#7", log=url),
    "forward to a port": lambda graph, url: trace_forward(graph, "s#7", "fours", log=url),
    "of a record": lambda graph, url: trace_record(graph, "fours#2", 0, log=url),
    "of a record, forward": lambda graph, url: trace_record(graph, "s#7", 1, log=url, direction="forward"),
    "a step back": lambda graph, url: step_back(graph, "fours#2", log=url),
    "a step forward": lambda graph, url: step_forward(graph, "s#7", log=url),
    "records": lambda graph, url: records_of(graph, "m#7", log=url),
    "once more": lambda graph, url: replay(graph, "fours", "fours#2", log=url),
}


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Path]:
    directory = tmp_path_factory.mktemp("meanwhile")
    pipeline = Pipeline("meanwhile")
    source = pipeline.source("s", generator(lambda index: pa.table({"n": [index, -index]}), 8), max_turn_events=3)
    mapped = source.map(lambda record: {"x": record["n"]}, name="m", max_turn_events=3)
    fours = mapped.window(Count(4)).aggregate("x", name="fours", c="count")
    pipeline.sink(fours, files(directory / "out"), name="w")
    run(pipeline, log=f"sqlite:///{directory / 'log.db'}", engine="inline")
    return pipeline.graph(), directory / "log.db"


def answer(ask: Callable[[Graph, str], Any], graph: Graph, url: str) -> Any:
    """Return what is answered, or what is said to be gone."""
    try:
        return ask(graph, url)
    except EventExpired as error:
        return error.event
    except SetExpired as error:
        return error.operator, error.input_set


def collect(url: str, keep: Mapping[Port, int]) -> None:
    with closing(Log.at(url, "meanwhile").open("meanwhile")) as store:
        store.collect(keep=keep)


@contextmanager
def after_question(at: int, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Do something after one of the questions that logs are asked; gives how many there were."""
    plain, asked = SqliteStore._snapshot, [0]

    @contextmanager
    def watched(store: SqliteStore) -> Iterator[Any]:
        with plain(store) as log:
            yield log
        asked[0] += 1
        if asked[0] == at:
            act()

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "_snapshot", watched)
        patch.setattr(SqliteStore, "_reading", watched)
        yield asked


# Each question is asked once, with one of the collections; a soak asks it with all of them.
@pytest.mark.parametrize("case", every(3, [*product(KEPT, ASKED)]), ids=" and ".join)
def test_an_answer_is_of_before_a_collection_or_of_after_it(
    logged: tuple[Graph, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[str, str]
) -> None:
    kept, asked = case
    (graph, log), ask, path = logged, ASKED[asked], tmp_path / "log.db"
    url, collection = f"sqlite:///{path}", partial(collect, f"sqlite:///{path}", KEPT[kept])
    shutil.copy(log, path)
    before = answer(ask, graph, url)
    collection()
    right = (before, answer(ask, graph, url))
    for at in count(1):
        shutil.copy(log, path)
        with after_question(at, collection, monkeypatch) as questions:
            found = answer(ask, graph, url)
        assert found in right, f"collected after question {at}"
        if at > questions[0]:
            break
    assert at > 5


def test_what_is_taken_again_and_again_is_said_to_be_gone(
    logged: tuple[Graph, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, log = logged
    url = f"sqlite:///{tmp_path / 'log.db'}"
    shutil.copy(log, tmp_path / "log.db")
    taken = count(6)

    def walk(*given: Any) -> Trace:
        found = backward(*given)
        collect(url, {S: next(taken), M: 1, FOURS: 1})
        return found

    monkeypatch.setattr("clew.retrace.backward", walk)
    with pytest.raises(EventExpired, match=r"s\.out#8 is no longer in the log, which has forgotten the events up to 8"):
        trace_back(graph, "fours#2", log=url)
    monkeypatch.undo()
    # Once nothing more is taken, what is left is told, and that there was more.
    found = trace_back(graph, "fours#2", log=url)
    assert [event.number for event in found.events(S)] == []
    assert [(step.operator, step.input_set) for step in found.edge] == [("m", number) for number in range(5, 9)]


def test_what_fails_for_another_reason_fails_as_it_did(logged: tuple[Graph, Path]) -> None:
    graph, log = logged
    with pytest.raises(NoSuchRecord, match=r"s\.out#7 has no record 2"):
        trace_record(graph, "s#7", 2, log=f"sqlite:///{log}", direction="forward")
