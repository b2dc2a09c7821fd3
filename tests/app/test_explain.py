"""`clew check --explain` says in words what operators do, what is promised and what a crash costs; without a JVM."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew import (
    Batch,
    Count,
    Operator,
    Pipeline,
    Sink,
    Tumbling,
    cached,
    files,
    generator,
    http,
    lookup,
    postgres,
    sqlite,
)
from clew.app.explain import Explained, explain
from clew.pipeline.contracts import Observed
from clew.pipeline.windows import Window
from tests.app.pipelines import call, write


class Asked(Sink):
    checkable = True

    def describe(self) -> str:
        return "asked"

    def write(self, action: Any, tables: Any, schema: Any) -> None:
        pass


class Once(Observed):
    def describe(self) -> str:
        return "a queue"

    def observe(self) -> Any:
        return iter(())


class Mine(Operator):
    pass


class Own(Window):
    """Whatever you like. Really."""

    def assign(self, event: Any, state: Any) -> Any:
        return ()

    def ready(self, state: Any, opened: Any) -> Any:
        return ()


def told(p: Pipeline) -> dict[str, Explained]:
    return {each.operator: each for each in explain(p.graph())}


def source(p: Pipeline) -> Any:
    return p.source("source", generator(lambda i: pa.table({"n": [i]}), 1))


def test_sources() -> None:
    p = Pipeline("p")
    source(p)
    p.source("listed", files("data/*.csv"))
    p.source("queue", Once())
    found = told(p)
    assert found["source"].promises == ("replayable from any offset",)
    assert found["listed"].promises == ("replayable from any offset, once what there is to read has been stored",)
    assert found["queue"].promises == ("not replayable: what it reads is stored before any event is made of it",)
    assert (found["listed"].reads, found["listed"].windows) == ("files data/*.csv", ())
    assert found["listed"].crash == "one turn, which is about 0.25 s of work, is read again; all others keep working"
    assert "is made again of what was stored; what was not stored yet is read again" in found["queue"].crash


def test_functions_and_their_windows() -> None:
    p = Pipeline("p")
    orders = source(p)

    @p.operator(orders, deterministic=True, turn_seconds=2, max_turn_events=7)
    def each(table: pa.Table) -> pa.Table:
        return table

    @p.operator(each, window=Count(5), group="shared")
    def five(df: "pyspark.sql.DataFrame") -> "pyspark.sql.DataFrame":  # noqa: F821
        return df

    @p.operator(each, window=Tumbling("1 hour", on="time"), group="shared")
    def hourly(table: pa.Table) -> pa.Table:
        return table

    @p.operator(each, window=Tumbling("1 hour", on="time", lateness="5 minutes", late="rest"))
    def late(table: pa.Table) -> pa.Table:
        return table

    @p.operator(each, window=Batch(), row_local=True)
    def rows(df: "pyspark.sql.DataFrame") -> "pyspark.sql.DataFrame":  # noqa: F821
        return df

    @p.operator(each, hourly, window=Own())
    def both(left: pa.Table, right: pa.Table) -> pa.Table:
        return left

    @p.also(both, window=Count(2), outputs=["more"])
    def more(left: pa.Table, right: pa.Table) -> pa.Table:
        return left

    p.port("each.out").union("hourly", name="whole")
    found = told(p)
    assert found["each"].windows == ("Each(): every event is an Input Set of its own; it fires at once",)
    assert found["each"].runs == ("Python per Input Set: one call each, many in one Spark job per turn",)
    assert found["each"].promises[0].startswith("deterministic, as declared: `clew verify` computes it again")
    assert found["whole"].promises[0].startswith("deterministic, as built in: `clew verify` computes it again")
    assert found["each"].crash == (
        "one turn, which is about 2 s of work and at most 7 events, is computed again; all others keep working"
    )
    assert found["five"].windows[0].endswith("it fires when that many have come, and at the end of all inputs")
    assert found["five"].runs == ("DataFrame job per Input Set: a Spark job for each, a few at once",)
    assert "; hourly of its group start again with it; all others keep working" in found["five"].crash
    assert found["hourly"].windows[0].startswith("Tumbling(size='1 hour', on='time'): records of one interval")
    assert "it fires when every input has gone past its end, and at the end" in found["hourly"].windows[0]
    assert found["hourly"].windows[0].endswith("; later records are dropped and counted")
    assert "has gone past its end plus 5 minutes, and at the end" in found["late"].windows[0]
    assert found["late"].windows[0].endswith("; later records are sent on port rest")
    assert found["late"].windows[1].startswith("late-late: the late records of an event are an Input Set of their own")
    assert found["hourly"].promises[0].startswith("not declared deterministic: of several results")
    assert found["rows"].runs == ("DataFrame, row by row: one Spark job per turn for all its Input Sets",)
    assert found["both"].reads == "each.out as left, hourly.out as right"
    assert (
        found["both"]
        .windows[0]
        .endswith("whatever you like; it fires when its window is complete, and at the end of all inputs")
    )
    assert [text.partition(":")[0] for text in found["both"].runs] == ["both", "more"]


def test_general_operators_and_sinks() -> None:
    p = Pipeline("p")
    orders = source(p)
    rates = {"rates": cached(sqlite("rates.db"), seconds=60)}
    mine = p.general("mine", Mine(), orders, reads=rates, writes={"side": Asked()}, after_write=True)
    p.sink(mine, sqlite("out.db", table="t"), name="exact")
    p.sink(mine, files("out"), name="named")
    p.sink(mine, http("http://127.0.0.1:1/x"), name="keyed")
    found = told(p)
    assert found["mine"].reads.startswith("source.out; while it works also ")
    assert found["mine"].windows == ("Mine.assign forms Input Sets, and Mine.ready says when one is complete",)
    assert found["mine"].runs[0].startswith("assign and ready in control, on headers; generate in Python per Input Set")
    assert (
        "asked: after a crash it is asked whether it has a write, and only what it has not" in found["mine"].promises[1]
    )
    assert found["mine"].promises[2] == "receivers see its events only after its writes are done"
    assert "exactly once, and a writer that was replaced is refused" in found["exact"].promises[0]
    assert "exactly once by name" in found["named"].promises[0]
    assert "a repeat under the same name is harmless, as declared" in found["keyed"].promises[0]
    assert found["exact"].windows == ("all events of one turn are one write action",)
    assert found["exact"].crash.startswith(
        "the writes in flight are looked for, and written again where they are missing"
    )


def test_lookups_setup_hooks_and_errors() -> None:
    def connect() -> None:
        pass

    p = Pipeline("p")
    rates = {"rates": lookup("rates.csv", key="currency")}
    source(p).map(
        lambda record, rates: record, name="looked", lookups=rates, setup=connect, on_error="quarantine", attempts=1
    )
    p.general("mine", Mine(), "looked.out", lookups=rates, setup=connect)
    found = told(p)
    given = (
        "lookup rates, by currency: files rates.csv, read once when a run begins and kept with it",
        "what connect makes, once in each process before the first record",
    )
    assert (found["looked"].besides, found["mine"].besides, found["source"].besides) == (given, given, ())
    assert found["looked"].error == "quarantine: after one attempt what it fails on is set aside, and the rest goes on"
    assert found["mine"].error == "stop: after 3 attempts the run stops, and resumes there"
    assert ("given", given[0]) in list(found["looked"].lines())


def test_a_fingerprint_is_of_declaration_and_code_and_shows_no_secret() -> None:
    def declared(size: int, more: int) -> dict[str, Explained]:
        p = Pipeline("p")

        @p.operator(source(p), window=Count(size))
        def counted(table: pa.Table) -> pa.Table:
            return table.slice(more)

        p.sink(counted, postgres("postgresql://me:secret@127.0.0.1/db", table="t"))
        return told(p)

    first = declared(5, 1)
    assert first["counted"].fingerprint == declared(5, 1)["counted"].fingerprint
    assert first["counted"].fingerprint != declared(5, 2)["counted"].fingerprint
    assert first["counted"].fingerprint != declared(6, 1)["counted"].fingerprint
    assert first["source"].fingerprint == declared(6, 1)["source"].fingerprint
    assert "secret" not in str(first)


FRAMES = """
import pyarrow as pa
from clew import Batch, Pipeline, generator

pipeline = Pipeline("frames")
source = pipeline.source("source", generator(lambda i: pa.table({"n": [i]}), 3))

@pipeline.operator(source, window=Batch())
def same(df: "pyspark.sql.DataFrame") -> "pyspark.sql.DataFrame":
    return df
"""


def test_the_command_imports_no_pyspark_and_uses_the_settings(tmp_path: Path) -> None:
    file = write(tmp_path, "frames.py", FRAMES)
    write(tmp_path, "clew.toml", "turn_seconds = 3\n")
    code = f"import sys\nfrom clew.app.main import app\ntry:\n    app(['check', {file!r}, '--explain'])\n"
    code += "except SystemExit as end:\n    assert not end.code\nassert 'pyspark' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "\nsame\n  reads: source.out\n  window: Batch(): all events of one turn are one Input Set" in done.stdout
    assert "about 3 s of work" in done.stdout
    assert "pipeline frames: 2 operators, 1 connection, 2 groups; no errors" in done.stdout


def test_as_json(tmp_path: Path) -> None:
    answer = json.loads(call("check", write(tmp_path, "frames.py", FRAMES), "--explain", "--json").stdout)
    assert answer["ok"]
    assert [each["operator"] for each in answer["operators"]] == ["source", "same"]
    assert answer["operators"][1]["runs"] == ["DataFrame job per Input Set: a Spark job for each, a few at once"]
    assert answer["fingerprint"]


def test_a_pipeline_that_is_wrong_is_not_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = call("check", write(tmp_path, "empty.py", "from clew import Pipeline\np = Pipeline('p')\n"), "--explain")
    assert result.exit_code == 1
    assert "fingerprint" not in result.stdout
