"""OpenLineage: a real collector hears of a run's jobs and datasets, and a broken one is not heard of by the run."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import Count, Pipeline, Tumbling, generator, lookup
from clew.app.openlineage import observer
from clew.app.openlineage.delivery import Delivery, send_to, shown
from clew.app.openlineage.events import Events, Where
from clew.app.openlineage.names import Name, outside_names, own_name
from clew.app.settings import Settings
from clew.connectors import files, http, postgres, sqlite
from clew.ids import Port
from clew.pipeline.column_lineage import ColumnUse, column_lineage, deciding_columns
from clew.pipeline.contracts import RecordsHeld, Sink
from clew.pipeline.graph import OperatorSpec
from clew.run import masked
from clew.runtime.progress import OperatorProgress, Progress
from tests.app.pipelines import call, finish, kept, log_url, start, write, write_numbers

SIDES = ("inputs", "outputs")
SHOP = """
import os
import pyarrow as pa
import pyarrow.compute as pc
from clew import Count, Pipeline, files

HERE = os.path.dirname(os.path.abspath(__file__))
pipeline = Pipeline("shop")
orders = pipeline.source("orders", files(os.path.join(HERE, "orders", "*.csv"), rows_per_event=2))
paid = orders.filter(pc.field("amount") > 0, name="paid")
totals = paid.window(Count(2)).aggregate("item", name="totals", total=("amount", "sum"), rows="count")
totals.sink(files(os.path.join(HERE, "totals")), name="written")
"""


class Collector:
    """What a collector was sent, and how it answers."""

    def __init__(self, *answers: int | str) -> None:
        self.events: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.asked = 0
        #: One for each request; the last goes on.
        self.answers = list(answers)
        self.over = threading.Event()
        self.url = ""

    def jobs(self, name: str) -> list[str]:
        return [event["eventType"] for event in self.events if event["job"]["name"] == name]

    def last(self, name: str) -> dict[str, Any]:
        return [event for event in self.events if event["job"]["name"] == name][-1]


@contextmanager
def collecting(*answers: int | str) -> Iterator[Collector]:
    collector = Collector(*answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            collector.asked += 1
            answer = collector.answers.pop(0) if len(collector.answers) > 1 else (collector.answers or [201])[0]
            if answer == "hang":
                collector.over.wait(60)
                return
            if answer == 201:
                collector.events.append(body)
                collector.paths.append(self.path)
                collector.keys.append(self.headers["Authorization"])
            with suppress(OSError):
                self.send_response(int(answer))
                self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        collector.over.set()
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_shop(here: Path) -> str:
    (here / "orders").mkdir()
    rows = "".join(f"{'abc'[n % 3]},{n - 1}\n" for n in range(8))
    (here / "orders" / "1.csv").write_text(f"item,amount\n{rows}")
    return write(here, "emporium.py", SHOP)


def run(file: str, place: str, *words: str, **environment: str) -> Any:
    return call("run", file, "--engine", "inline", "--set", f"openlineage={place}", *words, **environment)


def facets(event: dict[str, Any], side: str, name: str) -> dict[str, Any]:
    (found,) = [one["facets"] for one in event[side] if one["name"] == name]
    return dict(found)


def columns(facet: dict[str, Any]) -> dict[str, list[tuple[str, str, str]]]:
    return {
        column: [(use["name"], use["field"], use["transformations"][0]["subtype"]) for use in field["inputFields"]]
        for column, field in facet["fields"].items()
    }


def told(here: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in next(here.rglob("*run.log")).read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def test_a_collector_hears_of_every_operator_from_start_to_end(here: Path) -> None:
    file = write_shop(here)
    with collecting() as collector:
        assert run(file, collector.url).exit_code == 0
    for job in ("shop", "shop.orders", "shop.paid", "shop.totals", "shop.written"):
        assert collector.jobs(job)[0] == "START"
        assert collector.jobs(job)[-1] == "COMPLETE"
    assert collector.events[0]["job"]["name"] == collector.events[-1]["job"]["name"] == "shop"
    assert set(collector.paths) == {"/api/v1/lineage"}
    assert {event["job"]["namespace"] for event in collector.events} == {"shop"}
    parent = collector.last("shop")["run"]["runId"]
    assert collector.last("shop.paid")["run"]["facets"]["parent"]["run"]["runId"] == parent
    assert len({event["run"]["runId"] for event in collector.events}) == 5, "a run for the pipeline and each operator"
    for event in collector.events:
        uuid.UUID(event["run"]["runId"])


def test_datasets_are_places_outside_and_ports_inside(here: Path) -> None:
    file = write_shop(here)
    with collecting() as collector:
        run(file, collector.url)
    names = {
        job: [[(one["namespace"], one["name"]) for one in collector.last(f"shop.{job}")[side]] for side in SIDES]
        for job in ("orders", "paid", "totals", "written")
    }
    inside = "clew://shop"
    assert names["orders"] == [[("file", str(here / "orders"))], [(inside, "orders.out")]]
    assert names["paid"] == [[(inside, "orders.out")], [(inside, "paid.out")]]
    assert names["totals"] == [[(inside, "paid.out")], [(inside, "totals.out")]]
    assert names["written"] == [[(inside, "totals.out")], [("file", str(here / "totals"))]]


def test_schemas_and_columns_are_told_where_they_are_known(here: Path) -> None:
    file = write_shop(here)
    with collecting() as collector:
        run(file, collector.url)
    paid = facets(collector.last("shop.paid"), "outputs", "paid.out")
    assert [(one["name"], one["type"]) for one in paid["schema"]["fields"]] == [("item", "string"), ("amount", "int64")]
    assert columns(paid["columnLineage"]) == {
        "item": [("orders.out", "item", "IDENTITY")],
        "amount": [("orders.out", "amount", "IDENTITY")],
    }
    totals = facets(collector.last("shop.totals"), "outputs", "totals.out")["columnLineage"]
    assert columns(totals) == {
        "item": [("paid.out", "item", "IDENTITY")],
        "total": [("paid.out", "amount", "AGGREGATION")],
    }
    assert [(one["field"], one["transformations"][0]["subtype"]) for one in totals["dataset"]] == [("item", "GROUP_BY")]
    written = facets(collector.last("shop.written"), "outputs", str(here / "totals"))
    assert set(columns(written["columnLineage"])) == {"item", "total", "rows"}


def test_a_facet_leads_from_each_dataset_to_events_that_clew_trace_accepts(here: Path) -> None:
    file = write_shop(here)
    with collecting() as collector:
        run(file, collector.url, "--log", log_url(here))
    seen = set()
    for job in ("orders", "paid", "totals", "written"):
        event = collector.last(f"shop.{job}")
        for one in (*event["inputs"], *event["outputs"]):
            facet = one["facets"]["clew_events"]
            assert (facet["pipeline"], facet["log"]) == ("shop", log_url(here))
            assert 1 == facet["firstEvent"] <= facet["lastEvent"]
            for command in (facet.get("traceBack"), facet.get("traceForward")):
                if command:
                    program, *words = shlex.split(command)
                    answer = call(*words, "--json")
                    assert (program, answer.exit_code) == ("clew", 0), answer.output
                    assert json.loads(answer.stdout)["steps"], command
                    seen.add(words[3])
    assert {"orders.out#1", "orders.out#4", "totals.out#2"} <= seen
    assert any(word.startswith("written.out#") for word in seen)


def test_the_facet_is_read_from_a_log_in_postgresql_too(here: Path, postgres_url: str) -> None:
    with collecting() as collector:
        assert run(write_shop(here), collector.url, "--log", postgres_url).exit_code == 0
    facet = facets(collector.last("shop.paid"), "outputs", "paid.out")["clew_events"]
    assert (facet["log"], facet["firstEvent"], facet["lastEvent"]) == (masked(postgres_url), 1, 3)


def test_what_an_operator_looks_up_and_asks_is_among_its_inputs(here: Path) -> None:
    p = Pipeline("p")
    numbers = p.source("numbers", sqlite("/data/shop.db", query="SELECT n FROM numbers"))

    @p.operator(numbers, lookups={"rates": lookup([{"n": 1}])})
    def rated(table: pa.Table, rates: pa.Table) -> pa.Table:
        return table

    numbers.enrich(sqlite("/data/prices.db"), lambda row: "SELECT 1", name="priced")
    events = Events(Where(p.graph(), "p", "p.py", None), "run")
    told = {name: events.of_operator("START", OperatorProgress(name, name), None) for name in p.graph().operators}
    assert [one.name for one in told["rated"].inputs] == ["numbers.out", "lookup:rated.rates"]
    assert [one.name for one in told["priced"].inputs] == ["numbers.out", "read:priced.asked"]
    assert told["numbers"].job.facets["sql"].query == "SELECT n FROM numbers"


def test_a_resumed_run_has_the_same_id(here: Path) -> None:
    file = write_numbers(here)
    with collecting() as collector:
        assert run(file, collector.url, POISON="13").exit_code == 1
        assert collector.jobs("numbers.doubled") == ["START", "FAIL"]
        assert collector.jobs("numbers.doubled_sink") == ["START", "ABORT"]
        assert collector.jobs("numbers") == ["START", "FAIL"]
        error = collector.last("numbers.doubled")["run"]["facets"]["errorMessage"]["message"]
        assert "a number that nobody likes" in error
        before = collector.last("numbers.doubled")["run"]["runId"]
        assert run(file, collector.url).exit_code == 0
    assert collector.last("numbers.doubled")["run"]["runId"] == before
    assert collector.jobs("numbers.doubled") == ["START", "FAIL", "START", "COMPLETE"]
    assert collector.last("numbers.doubled")["run"]["facets"]["clew_progress"]["incarnation"] == 2


def test_a_restart_starts_an_operator_again(here: Path) -> None:
    file, fault = write_numbers(here), "after-generate@doubled#2:raise"
    with collecting() as collector:
        done = subprocess.run(
            [sys.executable, "-m", "clew.app.main", "run", file, "--engine", "inline"],
            env={**os.environ, "CLEW_OPENLINEAGE": collector.url, "PAUSE": "0.1", "CLEW_FAULTS": fault},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert collector.jobs("numbers.doubled") == ["START", "START", "COMPLETE"]
    progress = collector.last("numbers.doubled")["run"]["facets"]["clew_progress"]
    assert (progress["restarts"], progress["incarnation"]) == (1, 2)


def test_the_namespace_and_the_address_can_be_chosen(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "k")
    with collecting() as collector:
        run(write_numbers(here), f"{collector.url}/own/place?x=1", "--set", "openlineage_namespace=prod")
    assert {event["job"]["namespace"] for event in collector.events} == {"prod"}
    assert (set(collector.paths), set(collector.keys)) == ({"/own/place?x=1"}, {"Bearer k"})


def test_an_interrupted_run_is_aborted(here: Path) -> None:
    with collecting() as collector:
        words = ("run", write_numbers(here), "--engine", "inline", "--set", f"openlineage={collector.url}")
        process = start(*words, PAUSE="0.05", EVENTS="200")
        until = time.monotonic() + 30
        while len(collector.events) < 4 and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert finish(process)[0] == 130
    assert collector.jobs("numbers") == ["START", "ABORT"]
    assert collector.jobs("numbers.doubled")[-1] == "ABORT"


@pytest.mark.parametrize("words", [("--recovery", "none"), ("--log", "memory:")])
def test_a_run_without_a_log_is_told_of_without_events(here: Path, words: tuple[str, ...]) -> None:
    with collecting() as collector:
        assert run(write_numbers(here), collector.url, *words).exit_code == 0
    facet = facets(collector.last("numbers.doubled"), "outputs", "doubled.out")["clew_events"]
    assert "log" not in facet
    assert "traceBack" not in facet
    assert collector.jobs("numbers") == ["START", "COMPLETE"]


def test_a_run_that_had_finished_is_not_told_of_again(here: Path) -> None:
    file = write_numbers(here)
    call("run", file, "--engine", "inline")
    with collecting() as collector:
        assert run(file, collector.url).exit_code == 3
    assert collector.events == []


@pytest.mark.parametrize("answer", ["hang", 500, 400])
def test_a_collector_that_fails_does_not_disturb_the_run_and_is_told_of_once(here: Path, answer: int | str) -> None:
    file = write_numbers(here)
    with collecting(answer) as collector:
        began = time.monotonic()
        result = run(file, collector.url)
        took = time.monotonic() - began
    assert collector.asked > 0
    assert result.exit_code == 0, result.output
    assert kept(here) == [2 * n for n in range(20)]
    assert took < 15
    assert result.stderr.count("OpenLineage events were lost on the way to") == 1
    assert "the run is not affected" in result.stderr
    assert len(told(here, "openlineage fails")) == 1


def test_a_collector_that_is_not_there_does_not_disturb_the_run(here: Path) -> None:
    with collecting() as collector:
        gone = collector.url
    result = run(write_numbers(here), gone.replace("://", "://me:secret@"), "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["outcome"]) == (0, "finished")
    assert kept(here) == [2 * n for n in range(20)]
    (warning,) = answer["warnings"]
    assert "8 of 8 OpenLineage events were lost" in warning
    (failure,) = told(here, "openlineage fails")
    assert "secret" not in warning + json.dumps(failure)


def test_a_collector_that_comes_back_gets_what_waited(here: Path) -> None:
    with collecting(500, 503, 201) as collector:
        assert run(write_numbers(here), collector.url, PAUSE="0.1").exit_code == 0
    assert collector.jobs("numbers") == ["START", "COMPLETE"]


def test_events_go_to_a_file(here: Path) -> None:
    assert run(write_numbers(here), "file:events.jsonl").exit_code == 0
    events = [json.loads(line) for line in (here / "events.jsonl").read_text().splitlines()]
    assert [event["eventType"] for event in events if event["job"]["name"] == "numbers"] == ["START", "COMPLETE"]


def test_a_file_that_cannot_be_written_does_not_disturb_the_run(here: Path) -> None:
    result = run(write_numbers(here), "file:nowhere/events.jsonl")
    assert result.exit_code == 0
    assert "events were lost on the way to file:nowhere/events.jsonl" in result.stderr


def test_events_go_to_the_console_and_leave_the_line_of_json_alone(here: Path) -> None:
    file = write_numbers(here)
    events = [line for line in run(file, "console").stdout.splitlines() if line.startswith("{")]
    assert {json.loads(line)["eventType"] for line in events} == {"START", "COMPLETE"}
    again = run(file, "console", "--fresh", "--json")
    assert json.loads(again.stdout)["outcome"] == "finished"
    assert '"eventType": "COMPLETE"' in again.stderr


@pytest.mark.parametrize("place", ["ftp://somewhere", "file:", "http://", "kafka"])
def test_a_place_of_no_known_kind_is_refused_before_the_run(here: Path, place: str) -> None:
    result = run(write_numbers(here), place)
    assert result.exit_code == 1
    assert "is no place for OpenLineage events; set openlineage to console, file:PATH" in result.stderr
    assert not (here / "out").exists()


def test_a_missing_library_is_told_with_its_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client.serde", None)
    result = run(write_numbers(here), "console")
    assert result.exit_code == 1
    assert "OpenLineage needs the package openlineage-python" in result.stderr
    assert 'pip install "clew[openlineage]"' in result.stderr


def test_nothing_is_imported_when_it_is_off(here: Path) -> None:
    code = (
        "import sys\nfrom clew.app.main import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "assert not [m for m in sys.modules if 'openlineage' in m or m == 'requests']\n"
    )
    words = ["run", write_numbers(here), "--engine", "inline", "--log", log_url(here)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_events_beyond_the_bound_are_dropped_and_counted() -> None:
    held = threading.Event()
    delivery = Delivery(lambda event: held.wait(30), "file:slow", most=3)
    for number in range(10):
        began = time.monotonic()
        delivery.put(number)
        assert time.monotonic() - began < 0.5, "who makes an event does not wait"
    held.set()
    delivery.close(time.monotonic() + 5)
    assert (delivery.sent, delivery.lost) == (3, 7)
    assert "7 of 10 OpenLineage events were lost on the way to file:slow (it did not answer in time)" in delivery.told


def test_an_event_that_the_collector_refuses_is_not_sent_again() -> None:
    with collecting(400, 201) as collector:
        delivery = Delivery(send_to(collector.url, print), collector.url)
        delivery.put({"n": 1})
        delivery.put({"n": 2})
        delivery.close(time.monotonic() + 5)
    assert [event["n"] for event in collector.events] == [2]
    assert (delivery.sent, delivery.lost, collector.asked) == (1, 1, 2)


def test_what_is_shown_of_an_address_holds_no_secrets() -> None:
    assert shown("for url: https://u:p@host/a?token=x now") == "for url: https://***@host/a?*** now"


class Own(Sink):
    """A system of the user's own, which can say where it is."""

    idempotent = True

    def __init__(self, held: RecordsHeld | None = None) -> None:
        self._held = held

    def describe(self) -> str:
        return "something of my own"

    def holds(self) -> RecordsHeld | None:
        return self._held

    def write(self, action: Any, tables: Any, schema: Any) -> None:
        raise NotImplementedError


class InDirectory(RecordsHeld):
    path = "/lake/table"

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        raise NotImplementedError


OWN = own_name("p", "sink", "op.out")


@pytest.mark.parametrize(
    ("system", "namespace", "name"),
    [
        (files("/data/orders/2026-*/**/*.csv"), "file", "/data/orders"),
        (files("/data/orders.csv"), "file", "/data/orders.csv"),
        (sqlite("/data/shop.db", table="orders"), "sqlite:///data/shop.db", "orders"),
        (sqlite("/data/shop.db", query="SELECT 1"), "clew://p", "sink:op.out"),
        (
            postgres("postgresql://me:secret@db:6432/shop", table="sales.orders"),
            "postgres://db:6432",
            "shop.sales.orders",
        ),
        (postgres("postgresql://me@db/shop", table="orders"), "postgres://db:5432", "shop.public.orders"),
        (postgres("postgresql:///shop?host=/run/pg", table="t"), "postgres:///run/pg:5432", "shop.public.t"),
        (
            postgres("postgresql://db/shop", query="SELECT a/b FROM t"),
            "postgres://db:5432",
            "shop.sink:op.out of clew://p",
        ),
        (http("https://me:secret@example.com/v1/orders?key=1", method="POST"), "https://example.com", "/v1/orders"),
        (Own(InDirectory()), "file", "/lake/table"),
        (Own(), "clew://p", "sink:op.out"),
    ],
)  # fmt: skip
def test_outside_systems_are_called_as_openlineage_calls_them(system: Any, namespace: str, name: str) -> None:
    assert outside_names(system, OWN) == [Name(namespace, name)]


LEFT, RIGHT = pa.schema({"k": pa.int64(), "a": pa.int64()}), pa.schema({"k": pa.int64(), "a": pa.int64()})


def spec_of(pipeline: Pipeline, name: str) -> OperatorSpec:
    return pipeline.graph().operators[name]


def declared() -> tuple[Pipeline, Any, Any]:
    p = Pipeline("p")
    left = p.source("left", generator(lambda i: pa.table({"k": [i], "a": [i]}), 1))
    right = p.source("right", generator(lambda i: pa.table({"k": [i], "a": [i]}), 1))
    return p, left, right


def test_the_columns_of_a_join_come_from_both_sides() -> None:
    p, left, right = declared()
    left.join(right, on="k", window=Count(2), name="joined")
    spec = spec_of(p, "joined")
    inputs = {"in1": LEFT, "in2": RIGHT}
    assert column_lineage(spec, "out", inputs) == {
        "k": [ColumnUse("in1", "k", "identity"), ColumnUse("in2", "k", "identity")],
        "a": [ColumnUse("in1", "a", "identity")],
        "a_right": [ColumnUse("in2", "a", "identity")],
    }
    assert deciding_columns(spec, "out", inputs) == [ColumnUse("in1", "k", "join"), ColumnUse("in2", "k", "join")]


def test_the_columns_of_a_union_and_of_late_records_are_those_of_their_inputs() -> None:
    p, left, right = declared()
    left.union(right, name="both")
    assert column_lineage(spec_of(p, "both"), "out", {"in1": LEFT, "in2": RIGHT})["a"] == [
        ColumnUse("in1", "a", "identity"),
        ColumnUse("in2", "a", "identity"),
    ]
    left.join(right, on="k", window=Tumbling(10, on="a", late="late"), name="joined")
    assert column_lineage(spec_of(p, "joined"), "late_in2", {"in1": LEFT, "in2": RIGHT})["a"] == [
        ColumnUse("in2", "a", "identity")
    ]


def test_what_a_function_does_with_columns_is_not_guessed_but_may_be_declared() -> None:
    p, left, _ = declared()

    @p.operator(left)
    def same(table: pa.Table) -> pa.Table:
        return table

    @p.operator(left, depends={"key": "k"})
    def keyed(table: pa.Table) -> pa.Table:
        return table

    left.number("n", name="numbered")
    assert column_lineage(spec_of(p, "same"), "out", {"in": LEFT}) == {}
    assert column_lineage(spec_of(p, "keyed"), "out", {"in": LEFT}) == {"key": [ColumnUse("in", "k", "identity")]}
    assert list(column_lineage(spec_of(p, "numbered"), "out", {"in": LEFT})) == ["k", "a"]


def test_settings_leave_the_scopes_of_lineage_as_they_are() -> None:
    p, left, _ = declared()
    left.number("n", name="one")
    left.number("n", name="two")
    p.lineage("left.out", "one.out")
    graph = p.graph()
    assert Settings().applied_to(graph).captures == graph.captures
    assert "two" not in graph.captures


def test_an_observer_tells_running_operators_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "_EVERY", 0.0)
    p, *_ = declared()
    progress, events = Progress(), list[Any]()
    watching = observer.Observer(Where(p.graph(), "p", "p.py", None), progress, None, events.append)
    watching.observe()
    assert events == [], "nothing has begun"
    progress.add("left", "left")
    for turns in (0, 1, 1, 2):
        progress.set("left", turns=turns, phase="running")
        watching.observe()
    watching.finish("ABORT", "")
    states = [(event.job.name, event.eventType.value) for event in events]
    assert states == [
        ("p", "START"), ("p.left", "START"), ("p.left", "RUNNING"), ("p.left", "RUNNING"), ("p.left", "ABORT"),
        ("p", "ABORT"),
    ]  # fmt: skip


def test_a_source_that_describes_itself_wrongly_is_left_out_and_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Own):
        def describe(self) -> str:
            raise ValueError("I do not know")

    p, *_ = declared()
    graph = p.graph()
    spec = OperatorSpec(
        "end", "", graph.operators["left"].settings, {"in": Port("left", "out")}, sinks={"out": Broken()}
    )
    graph = type(graph)("p", {**graph.operators, "end": spec})
    progress, events = Progress(), list[Any]()
    for name in ("left", "end"):
        progress.add(name, name)
    with caplog.at_level("WARNING", "clew"):
        watching = observer.Observer(Where(graph, "p", "p.py", None), progress, None, events.append)
        watching.observe()
        watching.finish("COMPLETE", "")
    assert {event.job.name for event in events} == {"p", "p.left"}
    assert [record.getMessage() for record in caplog.records] == ["openlineage event left out"]
