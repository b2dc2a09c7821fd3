"""Clew's own log of a run, as JSON lines, and its figures for Prometheus."""

import json
import logging
import re
import socket
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pyarrow as pa
import pytest

from clew import Pipeline, Tumbling, generator
from clew.app.logs import logged_to, own_log
from clew.app.metrics import served
from clew.app.settings import address
from clew.pipeline.load import load
from clew.run import Progress, run
from clew.runtime.progress import COMMIT_BOUNDS, CommitTimes
from tests.app.pipelines import call, finish, log_url, start, write, write_numbers


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_is_logged_beside_its_log(here: Path) -> None:
    file = write_numbers(here)
    assert call("run", file, "--engine", "inline", "--log", f"sqlite:///{here / 'other.db'}").exit_code == 0
    assert (here / "other.db.run.log").exists()
    assert call("run", file, "--engine", "inline").exit_code == 0
    first, *_, last = lines(here / ".clew" / "numbers" / "run.log")
    assert (first["event"], first["pipeline"], first["level"], first["resumed"]) == (
        "run starts",
        "numbers",
        "info",
        False,
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.+Z", first["time"])
    assert (last["event"], last["outcome"]) == ("run ends", "finished")
    figures = {row["operator"]: row for row in last["operators"]}
    assert (figures["doubled"]["records"], figures["doubled_sink"]["pending_writes"]) == (20, 0)


def test_a_restart_is_logged_with_its_traceback_and_nothing_per_event(here: Path) -> None:
    words = ("run", write_numbers(here), "--engine", "inline", "--log", log_url(here), "--gc-every", "0.1")
    faults = "after-generate@doubled#2:raise"
    assert finish(start(*words, "--set", "log_level=debug", CLEW_FAULTS=faults, EVENTS="200"))[0] == 0
    found = lines(here / "run.log")
    (restart,) = [line for line in found if line["event"] == "group restarts"]
    assert (restart["group"], restart["level"], restart["failures"]) == ("doubled", "warning", 1)
    assert "Traceback" in restart["exception"]
    assert {line["event"] for line in found} <= {"run starts", "group restarts", "collected", "run ends"}


def test_a_failure_is_logged_and_the_level_says_what_is(here: Path) -> None:
    words = ("run", write_numbers(here), "--engine", "inline", "--log", log_url(here), "--set", "log_level=error")
    assert call(*words, POISON="13").exit_code == 1
    assert [(line["event"], line["level"]) for line in lines(here / "run.log")] == [
        ("group failed", "error"), ("run ends", "error"),
    ]  # fmt: skip


def test_a_run_that_keeps_no_log_keeps_none_of_this_kind(here: Path) -> None:
    assert call("run", write_numbers(here), "--engine", "inline", "--recovery", "none").exit_code == 0
    assert not list(here.rglob("*run.log"))


def test_a_place_that_cannot_be_written_does_not_stop_the_run(here: Path) -> None:
    (here / "file").write_text("")
    with logged_to(here / "file" / "run.log", "info"):
        own_log().info("unheard")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_disk_that_is_full_does_not_disturb_the_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with logged_to(Path("/dev/full"), "info"):
        own_log().info("lost")
    assert capsys.readouterr().err == ""


def test_what_is_given_with_a_line_stands_in_it(here: Path) -> None:
    root = list(logging.getLogger().handlers)
    with logged_to(here / "run.log", "info", pipeline="p"):
        own_log().info("heard", extra={"n": 1})
        logging.getLogger("clew.x").info("heard %s", "too", extra={"m": Path("there")})
        assert logging.getLogger().handlers == root, "who uses Clew as a library keeps what was configured"
    assert [{**line, "time": line["time"][-1:]} for line in lines(here / "run.log")] == [
        {"pipeline": "p", "n": 1, "event": "heard", "level": "info", "logger": "clew.app", "time": "Z"},
        {"pipeline": "p", "m": "there", "event": "heard too", "level": "info", "logger": "clew.x", "time": "Z"},
    ]


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found = re.findall(r"^(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE)
    figures = {}
    for name, labels, value in found:
        of = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        figures[" ".join([name, of["pipeline"], of["operator"], *([of["le"]] if "le" in of else [])])] = float(value)
    return figures


def test_the_figures_of_a_run_can_be_scraped(here: Path) -> None:
    progress = Progress()
    run(load(write_numbers(here)), engine="inline", log=log_url(here), progress=progress)
    threads = threading.active_count()
    with served("127.0.0.1:0", "numbers", progress) as port:
        assert port is not None
        found = scrape(port)
    assert threading.active_count() == threads, "the server is gone with the run"
    rows = progress.rows()
    assert found["clew_events_out_total numbers source"] == 20
    assert found["clew_records_total numbers doubled"] == 20
    assert found["clew_bytes_total numbers doubled"] == rows["doubled"].bytes > 0
    assert found["clew_turns_total numbers doubled"] == rows["doubled"].turns
    assert found["clew_writes_done_total numbers doubled_sink"] == rows["doubled_sink"].writes
    for name in ("restarts_total", "late_records_total", "backlog_events", "writes_pending"):
        assert found[f"clew_{name} numbers doubled_sink"] == 0
    assert found["clew_finished numbers source"] == 1
    commits = found["clew_commit_seconds_count numbers doubled"]
    assert commits == found["clew_commit_seconds_bucket numbers doubled +Inf"] >= rows["doubled"].turns
    assert found["clew_commit_seconds_sum numbers doubled"] > 0


def test_late_records_are_counted(here: Path) -> None:
    p = Pipeline("late")
    times = p.source("times", generator(lambda i: pa.table({"t": [(0, 25, 3, 4)[i]]}), 4))

    @p.operator(times, window=Tumbling(10, on="t"))
    def tens(table: pa.Table) -> pa.Table:
        return table

    assert run(p, engine="inline").rows()["tens"].late == 2


def test_they_can_be_scraped_while_the_run_goes_on(here: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ("run", write_numbers(here), "--engine", "inline", "--log", log_url(here), "--metrics", f"127.0.0.1:{port}")
    process = start(*words, PAUSE="0.05", EVENTS="60")
    try:
        until, seen = time.monotonic() + 30, 0.0
        while not seen and time.monotonic() < until:
            try:
                seen = scrape(port).get("clew_events_out_total numbers source", 0.0)
            except URLError:
                time.sleep(0.05)
        assert seen > 0
    finally:
        code, _, err = finish(process)
    assert code == 0
    assert f"figures for Prometheus on port {port}" in err


def test_commits_are_counted_by_how_long_they_took() -> None:
    times = CommitTimes()
    for seconds in (0.0005, COMMIT_BOUNDS[0], 0.3, 100.0):
        times = times.with_one(seconds)
    assert sum(times.counts) == 4
    assert (times.counts[0], times.counts[-1]) == (2, 1)


@pytest.mark.parametrize("text", ["9108", ":9108", "localhost", "localhost:http", "localhost:70000"])
def test_an_address_names_a_host_and_a_port(here: Path, text: str) -> None:
    write(here, "clew.toml", f'metrics = "{text}"\n')
    for refused in (call("settings"), call("run", write_numbers(here), "--engine", "inline")):
        assert refused.exit_code == 1
        assert (
            f"clew.toml: metrics is '{text}', and input should be HOST:PORT, as in 127.0.0.1:9108; give it"
            in refused.stderr
        )
    assert address("[::1]:9108") == ("::1", 9108)


def test_a_port_that_is_taken_stops_the_run_with_one_sentence(here: Path) -> None:
    write(here, "clew.toml", 'engine = "inline"\n')
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = call("run", write_numbers(here), "--metrics", address)
    assert result.exit_code == 1
    assert f"error: the figures cannot be served at {address}: " in result.stderr
    assert "; choose another --metrics HOST:PORT" in result.stderr
