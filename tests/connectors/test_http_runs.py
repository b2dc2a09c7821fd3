"""Whole runs against a real HTTP server: what it holds afterwards is what a run without failures leaves there."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from clew import Context, InputSet, Operator, Pipeline, cached, files, generator, http
from clew.errors import OperatorFailed, SinkFailed, SourceFailed, UserFunctionFailed
from clew.faultpoint import arm
from clew.pipeline.contracts import Connection, Sink
from clew.run import Log, Policy, quarantine_of, run, verify
from clew.runtime import writes
from tests.connectors.http_server import Page, Server, serving

ROOT = Path(__file__).parents[2]
EVENTS = 12
TURNS: dict[str, Any] = {"max_turn_events": 2}
QUICK = Policy(first_delay=0.01, poll=0.1)
IN_ORDER = [{"n": n} for n in range(EVENTS)]


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running
    arm()


@pytest.fixture(params=["unchecked", "checked"])
def sink(request: pytest.FixtureRequest, server: Server) -> Sink:
    """The server as a sink; every claim is tried with and without an address to check at."""
    check = server.url("/writes/{key}") if request.param == "checked" else None
    return http(server.url(), check=check, holds=server.url(), timeout=2)


def numbers(sink: Sink) -> Pipeline:
    pipeline = Pipeline("numbers")
    source = pipeline.source("source", generator(lambda index: pa.table({"n": [index]}), EVENTS), **TURNS)
    pipeline.sink(source, sink, name="sink", **TURNS)
    return pipeline


def go(pipeline: Pipeline, tmp_path: Path) -> None:
    run(pipeline, engine="inline", policy=QUICK, **place(tmp_path))


def place(tmp_path: Path) -> dict[str, str]:
    return {"log": f"sqlite:///{tmp_path / 'log.db'}", "bodies": str(tmp_path / "bodies")}


def judge(server: Server, sink: Sink, tmp_path: Path) -> None:
    """Each record once, in order, under keys in the order of their numbers; and the checker agrees."""
    assert server.records() == IN_ORDER
    ends = [int(key.rpartition("-")[2]) for key in server.written()]
    assert ends == list(range(1, len(ends) + 1))
    assert verify(numbers(sink), engine="inline", **place(tmp_path)).word == "explained"


@pytest.mark.parametrize(
    "acts",
    [
        ["lose"],
        ["fine", "lose", "lose", "fine", "lose"],
        ["drop", "lose", "fine", "drop"],
        ["fine", "hang", "fine"],
        ["fine", *[Page("busy", 503, {"Retry-After": "0"})] * 2, "fine", Page("later", 429)],
        # It is slow, and then still at it when the repeat comes.
        ["fine", "hang", Page("still in work", 409)],
    ],
    ids=lambda acts: "-".join(act if isinstance(act, str) else str(act.status) for act in acts),
)
def test_what_the_server_loses_or_refuses_for_a_while_is_there_once(
    server: Server, sink: Sink, tmp_path: Path, acts: list[str | Page]
) -> None:
    server.writes = list(acts)
    scheduled = Counter(act if isinstance(act, str) else str(act.status) for act in acts)
    go(numbers(sink), tmp_path)
    assert server.writes == []
    assert scheduled - server.happened == Counter(), "a fault did not fire"
    judge(server, sink, tmp_path)


def test_a_checked_write_whose_answer_was_lost_is_not_sent_again(server: Server, tmp_path: Path) -> None:
    server.writes = ["fine", "lose"]
    go(numbers(http(server.url(), check=server.url("/writes/{key}"))), tmp_path)
    assert server.happened["lose"] == 1
    assert server.count("POST") == len(server.written())
    assert server.records() == IN_ORDER


def test_a_server_that_ignores_the_key_gets_records_twice_which_is_found(server: Server, tmp_path: Path) -> None:
    """The promise rests on the server; and a test that could not see a repeat would show nothing."""
    server.honours_keys, server.writes = False, ["fine", "lose"]
    sink = http(server.url(), holds=server.url())
    go(numbers(sink), tmp_path)
    assert len(server.records()) > EVENTS
    verdict = verify(numbers(sink), engine="inline", **place(tmp_path))
    assert verdict.word == "not explained"
    assert "more often than written" in str(verdict.findings)


def test_what_is_refused_stops_the_run_at_once_and_the_next_one_goes_on_with_it(
    server: Server, sink: Sink, tmp_path: Path
) -> None:
    server.writes = ["fine", Page("no such column", 422)]
    with pytest.raises(SinkFailed, match=r"got 422 .*no such column, expected 2xx; .*the run goes on with this write"):
        go(numbers(sink), tmp_path)
    # Tried again at once, it would have been fine.
    assert (server.happened["422"], server.writes) == (1, [])
    go(numbers(sink), tmp_path)
    judge(server, sink, tmp_path)


def test_a_server_that_stays_away_stops_the_run_and_the_next_one_goes_on(
    server: Server, sink: Sink, tmp_path: Path
) -> None:
    server.writes = ["fine", "drop", "drop", Page("down", 500)]
    with pytest.raises(SinkFailed, match=r"got 500 .*: down, expected 2xx; .*the write is repeated under the same key"):
        go(numbers(sink), tmp_path)
    assert server.writes == []
    go(numbers(sink), tmp_path)
    judge(server, sink, tmp_path)


def test_the_runtime_waits_as_long_as_the_server_asks_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(writes, "time", SimpleNamespace(sleep=waits.append))
    server.writes = [Page("", 503, {"Retry-After": "7"}), Page("", 429, {"Retry-After": "86400"}), "fine", "lose"]
    go(numbers(http(server.url())), tmp_path)
    assert waits == [7, 30, 0.1]
    assert server.records() == IN_ORDER


POINTS = ["before-write", "sink-after-commit", "after-write", "after-write-done"]


@pytest.mark.parametrize("faults", [*([point] for point in POINTS), ["sink-after-commit", "before-write-check"]])
def test_a_crash_around_a_write_leaves_it_once(server: Server, sink: Sink, tmp_path: Path, faults: list[str]) -> None:
    nth = {"before-write-check": 1}
    armed = arm(*(f"{point}@sink#{nth.get(point, 2)}:raise" for point in faults))
    go(numbers(sink), tmp_path)
    assert all(fault.fired for fault in armed), armed
    judge(server, sink, tmp_path)


PIPELINE = """
import os

import pyarrow as pa

from clew import Pipeline, generator, http

pipeline = Pipeline("numbers")
turns = {"max_turn_events": 2}
source = pipeline.source("source", generator(lambda index: pa.table({"n": [index]}), 12), **turns)
pipeline.sink(source, http(os.environ["URL"], check=os.environ.get("CHECK")), name="sink", **turns)
"""


@pytest.mark.parametrize("check", [None, "/writes/{key}"])
def test_a_process_that_is_killed_around_its_writes_leaves_them_once(
    server: Server, tmp_path: Path, check: str | None
) -> None:
    (tmp_path / "pushed.py").write_text(PIPELINE)
    fired = tmp_path / "fired"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "URL": server.url(), "CLEW_FAULTS_FIRED": str(fired)}
    env |= {"CHECK": server.url(check)} if check else {}
    command = [sys.executable, "-m", "clew.app.main", "run", "pushed.py", "--engine", "inline"]
    # There is something to check only after a write that was performed and not marked.
    order = ["before-write", "sink-after-commit", "before-write-check", "after-write", "after-write-done"]
    for number, point in enumerate(order, 1):
        fault = f"{point}@sink#1"
        done = subprocess.run(
            command, cwd=tmp_path, env={**env, "CLEW_FAULTS": fault}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == -signal.SIGKILL, f"{fault}: {done.stdout}{done.stderr}"
        assert len(fired.read_text().split()) == number, f"{fault} did not fire"
        assert server.records() == IN_ORDER[: len(server.records())]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert server.records() == IN_ORDER
    posts = [headers["Idempotency-Key"] for method, _, headers in server.asked if method == "POST"]
    assert sorted(set(posts)) == sorted(server.written())
    if not check:
        assert len(posts) > len(set(posts)), "nothing was ever sent again, so no repeat was tried"


class Rates(Operator):
    """Asks for a rate for each two events, and sends it on."""

    def initial(self) -> dict[str, Any]:
        return {"seen": 0}

    def assign(self, event: Any, state: dict[str, Any]) -> Sequence[Any]:
        state["seen"] += 1
        return [(state["seen"] - 1) // 2]

    def ready(self, state: dict[str, Any], opened: Collection[Any]) -> Sequence[Any]:
        return [key for key in opened if 2 * (key + 1) <= state["seen"]]

    def generate(self, input_set: InputSet, context: Context) -> Any:
        answer = context.read("rates", f"/rates?day={input_set.key % 3}")
        return pa.table({"set": [input_set.key], "answer": answer["answer"], "asked": answer["asked"]})


SETS = EVENTS // 2


def enriched(rates: Connection, tmp_path: Path) -> Pipeline:
    pipeline = Pipeline("enriched")
    source = pipeline.source("source", generator(lambda index: pa.table({"n": [index]}), EVENTS), **TURNS)
    rated = pipeline.general("rated", Rates(), source, reads={"rates": rates}, deterministic=False, **TURNS)
    pipeline.sink(rated, files(tmp_path / "out", format="parquet"), name="sink", **TURNS)
    return pipeline


def written(tmp_path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.parquet.read_table(tmp_path / "out").to_pylist()
    return sorted(rows, key=lambda row: row["set"])


def logged(tmp_path: Path) -> int:
    """Return how many reads the log holds."""
    store = Log.at(place(tmp_path)["log"], "enriched", place(tmp_path)["bodies"]).open("enriched")
    try:
        return sum(1 for row in store.table("EVENT_LOG") if row[2:4] == ("rated", "rates"))
    finally:
        store.close()


@pytest.mark.parametrize(("point", "asked_again"), [("after-commit", 0), ("after-wake", 0), ("after-generate", 1)])
def test_a_read_that_was_logged_is_not_asked_again(
    server: Server, tmp_path: Path, point: str, asked_again: int
) -> None:
    (fault,) = arm(f"{point}@rated#2:raise")
    go(enriched(http(server.url("")), tmp_path), tmp_path)
    assert fault.fired
    rows = written(tmp_path)
    assert [row["set"] for row in rows] == list(range(SETS))
    answers = [row["answer"] for row in rows]
    assert len(set(answers)) == SETS, "the server never answers the same"
    assert server.count("GET", "/rates") == SETS + asked_again
    assert logged(tmp_path) == SETS
    assert verify(enriched(http(server.url("")), tmp_path), engine="inline", **place(tmp_path)).word == "explained"
    assert server.count("GET", "/rates") == SETS + asked_again, "the checker asked"


def test_a_remembered_answer_is_logged_with_every_output_set_that_used_it(server: Server, tmp_path: Path) -> None:
    (fault,) = arm("after-commit@rated#3:raise")
    go(enriched(cached(http(server.url("")), seconds=600), tmp_path), tmp_path)
    assert fault.fired
    rows = written(tmp_path)
    assert [row["set"] for row in rows] == list(range(SETS))
    assert [row["asked"] for row in rows] == [f"/rates?day={number % 3}" for number in range(SETS)]
    assert len({row["answer"] for row in rows}) == 3
    assert server.count("GET", "/rates") == 3
    assert logged(tmp_path) == SETS


def test_a_read_that_fails_stops_the_run_with_its_cure_and_the_next_one_goes_on(server: Server, tmp_path: Path) -> None:
    server.pages["/rates"] = Page("no rates yet", 404)
    said = r"GET /rates\?day=0 got 404 Not Found: no rates yet, expected 2xx; check the URL"
    with pytest.raises(UserFunctionFailed, match=rf"operator rated failed on source.out#1\.\.2 .*{said}"):
        go(enriched(http(server.url("")), tmp_path), tmp_path)
    del server.pages["/rates"]
    go(enriched(http(server.url("")), tmp_path), tmp_path)
    assert [row["set"] for row in written(tmp_path)] == list(range(SETS))


def asking(server: Server, tmp_path: Path, on_error: str) -> Pipeline:
    """Records with the numbers 0 to 2, one per event, each of which asks for its rate."""
    pipeline = Pipeline("asking")
    source = pipeline.source("source", generator(lambda index: pa.table({"n": [index]}), 3), **TURNS)
    rates = http(server.url(""), schema=pa.schema([("rate", pa.decimal128(18, 6))]), timeout=2)
    rated = source.enrich(rates, lambda record: f"/rates/{record['n']}", name="rated", on_error=on_error, **TURNS)
    rated.sink(files(tmp_path / "out", format="parquet"), name="sink", **TURNS)
    return pipeline


BAD = {"missing": Page("unknown", 404), "no records": Page('{"rate": "abc"}'), "gone": Page("", 410)}


@pytest.mark.parametrize("page", BAD)
def test_an_answer_that_is_of_no_use_names_operator_event_and_record(server: Server, page: str, tmp_path: Path) -> None:
    server.pages |= {"/rates/0": Page('{"rate": 1.5}'), "/rates/1": BAD[page]}
    said = r"operator rated failed on source.out#2, record 0 \{'n': 1\}: source http .*GET /rates/1 "
    with pytest.raises(OperatorFailed, match=said):
        go(asking(server, tmp_path, "stop"), tmp_path)


@pytest.mark.parametrize("page", BAD)
def test_an_answer_that_is_of_no_use_is_set_aside_with_what_asked(server: Server, page: str, tmp_path: Path) -> None:
    server.pages |= {f"/rates/{n}": Page('{"rate": 1.5}') for n in (0, 2)} | {"/rates/1": BAD[page]}
    go(asking(server, tmp_path, "quarantine"), tmp_path)
    found = pa.parquet.read_table(tmp_path / "out").to_pylist()
    assert [(row["n"], str(row["rate"])) for row in found] == [(0, "1.500000"), (2, "1.500000")]
    (one,) = quarantine_of(asking(server, tmp_path, "quarantine").graph(), **place(tmp_path))
    assert one.events == "source.out#2 record 0"
    assert "GET /rates/1" in one.row.error["message"]


def test_a_server_that_cannot_be_asked_stops_the_run_and_nothing_is_set_aside(server: Server, tmp_path: Path) -> None:
    server.pages |= {"/rates/0": Page('{"rate": 1.5}'), "/rates/1": Page("who are you?", 401)}
    with pytest.raises(SourceFailed, match="check the credentials"):
        go(asking(server, tmp_path, "quarantine"), tmp_path)
    assert quarantine_of(asking(server, tmp_path, "quarantine").graph(), **place(tmp_path)) == []


def test_writes_of_an_operator_to_two_places_keep_their_order_each(server: Server, tmp_path: Path) -> None:
    class Both(Rates):
        def generate(self, input_set: InputSet, context: Context) -> Any:
            for name in ("left", "right"):
                context.write(name, pa.table({"to": [name], "set": [input_set.key]}))

    pipeline = Pipeline("both")
    source = pipeline.source("source", generator(lambda index: pa.table({"n": [index]}), EVENTS), **TURNS)
    places = {name: http(server.url(f"/{name}"), timeout=2) for name in ("left", "right")}
    pipeline.general("both", Both(), source, outputs=(), writes=places, **TURNS)
    server.writes = ["fine", "lose", "drop", "fine", "hang"]
    (fault,) = arm("sink-after-commit@both#3:raise")
    go(pipeline, tmp_path)
    assert fault.fired
    assert server.writes == []
    for name in places:
        assert [row["set"] for row in server.records() if row["to"] == name] == list(range(SETS))
