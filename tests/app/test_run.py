"""`clew run` runs, resumes, fails and stops as it says."""

import json
import signal
import time
from pathlib import Path

import pytest

from tests.app.pipelines import call, finish, kept, log_url, start, write, write_numbers

DOUBLED = [2 * number for number in range(20)]


def run_inline(tmp_path: Path, *words: str, **environment: str):
    return call("run", write_numbers(tmp_path), "--engine", "inline", "--log", log_url(tmp_path), *words, **environment)


def test_a_run_ends_with_a_line_per_operator(tmp_path: Path) -> None:
    result = run_inline(tmp_path)
    assert result.exit_code == 0
    assert kept(tmp_path) == DOUBLED
    assert "source: finished; 0 events in, 20 out" in result.stdout
    assert "doubled: finished; 20 events in, 20 out" in result.stdout
    assert "doubled_sink: finished; 20 events in, 0 out" in result.stdout
    assert "pipeline numbers has finished in" in result.stdout
    assert f"new run of pipeline numbers, log {log_url(tmp_path)}" in result.stderr


def test_the_log_is_here_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("run", write_numbers(tmp_path), "--engine", "inline").exit_code == 0
    assert (tmp_path / ".clew" / "numbers" / "log.db").exists()


def test_a_finished_log_is_final(tmp_path: Path) -> None:
    run_inline(tmp_path)
    result = run_inline(tmp_path)
    assert result.exit_code == 3
    assert "has finished" in result.stderr
    assert "use --fresh" in result.stderr
    assert result.stdout == ""


def test_a_finished_log_is_final_as_json(tmp_path: Path) -> None:
    run_inline(tmp_path)
    result = run_inline(tmp_path, "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["outcome"] == "already-finished"


def test_fresh_starts_from_the_beginning(tmp_path: Path) -> None:
    first = json.loads(run_inline(tmp_path, "--json").stdout)
    second = json.loads(run_inline(tmp_path, "--json", "--fresh").stdout)
    assert second["outcome"] == "finished"
    assert second["run"] != first["run"]
    assert not second["resumed"]


def test_json_is_one_line_with_the_figures(tmp_path: Path) -> None:
    result = run_inline(tmp_path, "--json")
    answer = json.loads(result.stdout)
    assert answer["pipeline"] == "numbers"
    assert answer["outcome"] == "finished"
    assert answer["error"] is None
    assert answer["log"] == log_url(tmp_path)
    figures = {row["operator"]: row for row in answer["operators"]}
    assert figures["doubled"]["events_in"] == 20
    assert figures["source"]["phase"] == "finished"
    assert figures["doubled_sink"]["writes"] > 0


def test_what_user_code_prints_does_not_disturb_the_json(tmp_path: Path) -> None:
    file = Path(write_numbers(tmp_path))
    file.write_text(file.read_text().replace("    time.sleep(", '    print("hello")\n    time.sleep('))
    result = call("run", str(file), "--engine", "inline", "--log", log_url(tmp_path), "--json")
    assert json.loads(result.stdout)["outcome"] == "finished"
    assert "hello" in result.stderr


def test_a_users_failure_shows_the_users_frames_and_the_next_run_resumes(tmp_path: Path) -> None:
    failed = run_inline(tmp_path, POISON="13")
    assert failed.exit_code == 1
    assert "error: operator doubled failed on source.out#14" in failed.stderr
    assert "ValueError: a number that nobody likes" in failed.stderr
    assert "numbers_file.py" in failed.stderr
    assert "Traceback" not in failed.output
    assert "clew/runtime" not in failed.stderr
    assert "doubled: failed" in failed.stdout
    resumed = run_inline(tmp_path)
    assert resumed.exit_code == 0
    assert "resuming run " in resumed.stderr
    assert " of pipeline numbers: " in resumed.stderr
    assert " events logged" in resumed.stderr
    assert kept(tmp_path) == DOUBLED


def test_a_failure_as_json(tmp_path: Path) -> None:
    result = run_inline(tmp_path, "--json", POISON="13")
    answer = json.loads(result.stdout)
    assert result.exit_code == 1
    assert answer["outcome"] == "failed"
    assert "a number that nobody likes" in answer["error"]
    assert json.loads(run_inline(tmp_path, "--json").stdout)["resumed"]


def test_fresh_where_nobody_can_answer_does_not_ask(tmp_path: Path) -> None:
    run_inline(tmp_path, POISON="13")
    result = run_inline(tmp_path, "--fresh")
    assert result.exit_code == 0
    assert "new run of pipeline numbers" in result.stderr


def test_a_restart_is_told(tmp_path: Path) -> None:
    process = start(
        "run", write_numbers(tmp_path), "--engine", "inline", "--log", log_url(tmp_path),
        CLEW_FAULTS="after-generate@doubled#2:raise",
    )  # fmt: skip
    code, out, err = finish(process)
    assert code == 0
    assert "doubled: finished; 20 events in, 20 out" in out
    assert "1 restart, the last after CrashInjected: crash point after-generate in doubled" in out
    assert "doubled restarted (restarts=1) after CrashInjected: crash point after-generate in doubled" in err
    assert kept(tmp_path) == DOUBLED


def test_a_killed_run_resumes(tmp_path: Path) -> None:
    words = ("run", write_numbers(tmp_path), "--engine", "inline", "--log", log_url(tmp_path))
    code, _, _ = finish(start(*words, CLEW_FAULTS="inside-commit@doubled#2"))
    assert code == -signal.SIGKILL
    code, out, err = finish(start(*words, "--json"))
    assert code == 0
    assert "resuming run " in err
    assert json.loads(out)["resumed"]
    assert kept(tmp_path) == DOUBLED


def test_ctrl_c_ends_with_130_and_the_next_run_resumes(tmp_path: Path) -> None:
    words = ("run", write_numbers(tmp_path), "--engine", "inline", "--log", log_url(tmp_path))
    process = start(*words, PAUSE="0.05", EVENTS="400")
    _wait_for(lambda: (tmp_path / "out").is_dir())
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130
    assert "stopping after the turns in flight" in err
    assert f"interrupted; `clew run {words[1]} --log {log_url(tmp_path)}` resumes the run where it stopped" in err
    assert "Traceback" not in err
    assert "doubled: " in out
    code, _, err = finish(start(*words, EVENTS="400"))
    assert code == 0
    assert "resuming run " in err
    assert kept(tmp_path) == [2 * number for number in range(400)]


def test_a_second_ctrl_c_does_not_wait_for_the_turn(tmp_path: Path) -> None:
    own = (write_numbers(tmp_path), "--log", log_url(tmp_path))
    process = start("run", *own, "--engine", "inline", PAUSE="120")
    _wait_for(lambda: (tmp_path / "log.db").exists())
    # With an event in the log, a turn that takes it is under way or about to be.
    _wait_for(lambda: json.loads(call("status", *own, "--json").stdout)["events"])
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "stopping after the turns in flight" not in (line := process.stderr.readline()):
        assert line, "it ended without a word"
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process, timeout=30)
    assert code == 130
    assert "resumes the run where it stopped" in err
    assert "Traceback" not in err


def test_a_run_without_a_log_warns_and_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("run", write_numbers(tmp_path), "--engine", "inline", "--recovery", "none")
    assert result.exit_code == 0
    assert "warning: --recovery none keeps no log of pipeline numbers: nothing survives a failure" in result.stderr
    assert kept(tmp_path) == DOUBLED
    assert not (tmp_path / ".clew").exists()


def test_gc_beside_the_run_collects(tmp_path: Path) -> None:
    result = run_inline(tmp_path, "--gc-every", "0.1", PAUSE="0.02", EVENTS="60")
    assert result.exit_code == 0
    left = json.loads(call("gc", write_numbers(tmp_path), "--log", log_url(tmp_path), "--json").stdout)["events"]
    logged = json.loads(call("status", write_numbers(tmp_path), "--log", log_url(tmp_path), "--json").stdout)["events"]
    assert left < logged


def test_a_dataframe_needs_the_spark_engine(tmp_path: Path) -> None:
    text = """
import pyarrow as pa
from clew import Batch, Pipeline
from clew.connectors.generator import generator

pipeline = Pipeline("frames")
source = pipeline.source("source", generator(lambda i: pa.table({"n": [i]}), 3))

@pipeline.operator(source, window=Batch())
def same(df: "pyspark.sql.DataFrame") -> "pyspark.sql.DataFrame":
    return df
"""
    result = call("run", write(tmp_path, "frames.py", text), "--engine", "inline", "--log", log_url(tmp_path))
    assert result.exit_code == 1
    assert "works on DataFrames, which the inline engine has not; run it with the Spark engine" in result.stderr
    assert not (tmp_path / "log.db").exists()


def _wait_for(seen, patience: float = 30) -> None:
    until = time.monotonic() + patience
    while not seen():
        assert time.monotonic() < until, "the run did not get so far"
        time.sleep(0.05)


def test_a_fault_that_is_none_is_refused_before_anything_runs() -> None:
    code, _, said = finish(start("version", CLEW_FAULTS="nowhere"))
    assert code == 1
    assert said == (
        "error: CLEW_FAULTS: 'nowhere' is not a fault; write point[@operator][#nth][:action], see `clew crash-points`\n"
    )
