"""Code travels by content: a file with the modules beside it, or a pipeline declared here, by value."""

import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clew import Batch, Pipeline, files, generator
from clew.errors import SetupFailed, UserFunctionFailed
from clew.pipeline.load import load
from clew.run import program_of, run
from tests.spark.outside import rows

FILE = """
import threading
import pyarrow as pa
from clew import Batch, Pipeline, files, generator
import taxes
from shop import prices

#: Cannot be pickled; a file's own functions may use it all the same.
lock = threading.Lock()
pipeline = Pipeline("shop")
source = pipeline.source("source", generator(lambda i: pa.table({"n": [i]}), 4))


@pipeline.operator(source)
def taxed(table: pa.Table) -> pa.Table:
    with lock:
        return pa.table({"n": table["n"], "taxed": [taxes.taxed(prices.PRICE + n) for n in table["n"].to_pylist()]})


pipeline.sink(taxed, files("out"))
"""


BESIDE = """
from pathlib import Path
import pyarrow as pa
from clew import Pipeline, files, generator
import beside
import places

pipeline = Pipeline("beside")
source = pipeline.source("source", generator(lambda i: pa.table({"n": [i]}), 3))
pipeline.sink(source, files(Path(__file__).resolve().parent / "own"), name="own")
pipeline.sink(source, files(beside.HERE + "/module"), name="module")
pipeline.sink(source, files(places.OUT), name="package")
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A pipeline file with a module and a package beside it."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "prices.py").write_text("PRICE = 100\n")
    (tmp_path / "taxes.py").write_text("def taxed(n):\n    return n * 2\n")
    (tmp_path / "pipeline.py").write_text(FILE)
    yield tmp_path
    forget(tmp_path)


def forget(project: Path) -> None:
    """Forget the modules of a project, as a new driver would not know them."""
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(project)):
            del sys.modules[name]
    while str(project) in sys.path:
        sys.path.remove(str(project))


def taxed(project: Path, spark: SparkSession) -> list[int]:
    """Run the file as a new driver would, on the same executors; return what it wrote."""
    forget(project)
    path = str(project / "pipeline.py")
    run(load(path), spark=spark, program=program_of(path, None), fresh=True)
    found = [row["taxed"] for row in rows(project / "out")]
    shutil.rmtree(project / "out")
    return found


OPTIONAL = """
import os
import pandas as pd
import pyarrow as pa
from clew import Pipeline, files, generator

with open("loads", "a") as loads:
    loads.write(f"{os.getpid()}\\n")
try:
    import taxes
    import not_installed_anywhere
except ImportError:
    taxes.optional = False

pipeline = Pipeline("optional")
source = pipeline.source("source", generator(lambda i: pa.table({"n": [i]}), 4))


@pipeline.operator(source)
def same(frame: pd.DataFrame) -> pd.DataFrame:
    assert not taxes.optional
    return frame


pipeline.sink(same, files("out"))
"""


def test_a_file_that_looks_for_what_is_not_installed_is_loaded_once_per_worker(
    project: Path, spark: SparkSession
) -> None:
    """As pandas does, when it is imported at the top of a file."""
    (project / "pipeline.py").write_text(OPTIONAL)
    path = str(project / "pipeline.py")
    run(load(path), spark=spark, program=program_of(path, None), fresh=True)
    assert sorted(row["n"] for row in rows(project / "out")) == [0, 1, 2, 3]
    loads = (project / "loads").read_text().split()
    assert len(loads) == len(set(loads)) > 1


def test_a_file_with_modules_beside_it_and_a_lock_runs_on_executors(project: Path, spark: SparkSession) -> None:
    assert taxed(project, spark) == [200, 202, 204, 206]


def test_a_changed_module_runs_in_workers_that_have_the_old_one(project: Path, spark: SparkSession) -> None:
    first = program_of(str(project / "pipeline.py"), None)
    assert taxed(project, spark) == [200, 202, 204, 206]
    (project / "taxes.py").write_text("def taxed(n):\n    return n * 3\n")
    assert program_of(str(project / "pipeline.py"), None).ref.digest != first.ref.digest
    assert taxed(project, spark) == [300, 303, 306, 309]
    (project / "shop" / "prices.py").write_text("PRICE = 1000\n")
    assert taxed(project, spark) == [3000, 3003, 3006, 3009]
    # And back: what is named by its content is the old program again.
    (project / "taxes.py").write_text("def taxed(n):\n    return n * 2\n")
    (project / "shop" / "prices.py").write_text("PRICE = 100\n")
    assert program_of(str(project / "pipeline.py"), None).ref.digest == first.ref.digest
    assert taxed(project, spark) == [200, 202, 204, 206]


def test_paths_made_from_a_files_own_place_mean_the_same_on_executors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    """Written beside the copy that executors have, they would be gone with the session."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for directory in (project / "places", elsewhere):
        directory.mkdir(parents=True)
    (project / "places" / "__init__.py").write_text("import os\nOUT = os.path.dirname(__file__) + '/out'\n")
    (project / "beside.py").write_text("import os\nHERE = os.path.dirname(os.path.abspath(__file__))\n")
    (project / "pipeline.py").write_text(BESIDE)
    monkeypatch.chdir(elsewhere)
    path = str(project / "pipeline.py")
    run(load(path), spark=spark, program=program_of(path, None))
    for out in (project / "own", project / "module", project / "places" / "out"):
        assert [row["n"] for row in rows(out)] == [0, 1, 2], out
    forget(project)


def test_a_failure_on_an_executor_shows_the_lines_of_the_users_own_files(project: Path, spark: SparkSession) -> None:
    """Not those of the copies that executors have, in a folder that is gone with the session."""
    (project / "taxes.py").write_text("def taxed(n):\n    raise ValueError(n)  # as it was sent\n")
    path = str(project / "pipeline.py")
    pipeline, program = load(path), program_of(path, None)
    # What is shown is what was run, whatever the file says by now.
    (project / "taxes.py").write_text("\n\n")
    with pytest.raises(UserFunctionFailed) as raised:
        run(pipeline, spark=spark, program=program, fresh=True)
    named = [line.partition(", in ")[0] for line in raised.value.frames.splitlines() if line.startswith("  File ")]
    assert set(named) == {f'  File "{path}", line 17', f'  File "{project / "taxes.py"}", line 2'}
    assert "raise ValueError(n)  # as it was sent" in raised.value.frames


def test_a_pipeline_declared_here_travels_by_value(spark: SparkSession, tmp_path: Path) -> None:
    factor = 5
    p = Pipeline("here")
    source = p.source("source", generator(lambda i: pa.table({"n": [i * factor]}), 3))

    @p.operator(source)
    def squared(table: pa.Table) -> pa.Table:
        return pa.table({"n": [multiplied(n, n) for n in table["n"].to_pylist()]})

    p.sink(squared, files("out"))
    run(p, spark=spark)
    # A relative path starts where the run did, on executors too.
    assert [row["n"] for row in rows(tmp_path / "out")] == [0, 25, 100]


def test_a_dataframe_function_may_hold_what_cannot_travel(spark: SparkSession, tmp_path: Path) -> None:
    """It runs in the driver: a lookup table, a function that was used before, a lock."""
    names = spark.createDataFrame([(0, "none"), (1, "one")], "n long, name string")
    used = F.udf(lambda name: f"<{name}>", "string")
    assert names.select(used("name")).count() == 2
    lock = threading.Lock()
    p = Pipeline("lookup")
    source = p.source("source", generator(lambda i: pa.table({"n": [i]}), 3))

    @p.operator(source, window=Batch())
    def named(df: DataFrame) -> DataFrame:
        with lock:
            return df.join(F.broadcast(names), "n").select("n", used("name").alias("name"))

    p.sink(named, files("out"))
    run(p, spark=spark)
    assert sorted((row["n"], row["name"]) for row in rows(tmp_path / "out")) == [(0, "<none>"), (1, "<one>")]


def multiplied(a: int, b: int) -> int:
    return a * b


def test_what_cannot_be_pickled_is_refused_with_a_cure(spark: SparkSession) -> None:
    lock = threading.Lock()
    p = Pipeline("locked")
    source = p.source("source", generator(lambda i: pa.table({"n": [i]}), 1))

    @p.operator(source)
    def locked(table: pa.Table) -> pa.Table:
        with lock:
            return table

    with pytest.raises(SetupFailed, match=r"pipeline locked cannot be sent to Spark executors.*lock.*clew run FILE"):
        run(p, spark=spark)
