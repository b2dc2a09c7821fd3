"""`clew chaos` on real Spark: a Python worker is killed, and the sinks hold what they should."""

import json
from pathlib import Path

from tests.app.pipelines import finish, start
from tests.spark.outside import held, rows

EVENTS = 30

FILE = f"""
import time
from pathlib import Path

import pyarrow as pa

from clew import Pipeline, files, generator, sqlite

HERE = Path(__file__).resolve().parent

pipeline = Pipeline("struck")
source = pipeline.source("source", generator(lambda index: pa.table({{"n": [index]}}), {EVENTS}), max_turn_events=20)


@pipeline.operator(source, max_turn_events=10, deterministic=True)
def doubled(table: pa.Table) -> pa.Table:
    time.sleep(0.01)
    return pa.table({{"n": [2 * number for number in table["n"].to_pylist()]}})


pipeline.sink(doubled, files(HERE / "out"), name="kept")
pipeline.sink(doubled, sqlite(HERE / "out.db", table="numbers"), name="table")
"""


def test_a_worker_is_killed_and_the_run_is_explained(tmp_path: Path) -> None:
    (tmp_path / "struck.py").write_text(FILE)
    words = ("--seed", "1", "--faults", "1", "--only", "worker", "--master", "local[2,4]", "--json")
    code, out, err = finish(start("chaos", str(tmp_path / "struck.py"), *words), timeout=900)
    assert code == 0, err
    told = json.loads(out)
    assert {fault["kind"]: fault["fired"] for fault in told["faults"]} == {"worker": True}
    assert told["verdict"] == "explained"
    assert sorted(row["n"] for row in rows(tmp_path / "out")) == [2 * n for n in range(EVENTS)]
    assert held(tmp_path / "out.db", "SELECT n FROM numbers") == {(2 * n,): 1 for n in range(EVENTS)}
