"""What PySpark users take for granted: options of the session, their own Python files, the names of jobs in Spark's
UI, what functions print on workers, workers that run the same versions, and the Java stack in a file."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clew import Batch, Count, Pipeline, generator
from clew.errors import EngineFailed, SetupFailed
from clew.run import SparkOptions, run
from clew.spark.versions import require_same_versions, unable
from tests.docs.pages import ROOT, blocks
from tests.soak import every
from tests.spark.outside import rows

SENT = """
import sys
from collections.abc import Iterator

import pyarrow as pa
from from_egg import EGG
from from_py import PY
from from_zip import ZIP
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clew import Batch, Count, Pipeline, files, generator

pipeline = Pipeline("sent")
source = pipeline.source("source", generator(lambda i: pa.table({"n": [i]}), 4))


@pipeline.operator(source, window=Count(2))
def arrow(table: pa.Table) -> pa.Table:
    import from_egg, from_py, from_zip

    print("arrow says", table["n"].to_pylist())
    sys.stderr.write("arrow complains\\n")
    return table.append_column("sent", pa.array([ZIP + EGG + PY] * table.num_rows))


def told(n: int) -> int:
    from from_py import PY

    print("udf says", n, PY)
    return n


def batches(iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in iterator:
        print("mapInArrow says", batch.num_rows, file=sys.stderr)
        yield batch


@pipeline.operator(arrow, window=Batch(), deterministic=True)
def frame(df: DataFrame) -> DataFrame:
    shuffle = SparkSession.active().conf.get("spark.sql.shuffle.partitions")
    df = df.withColumn("n", F.udf(told, "long")("n")).mapInArrow(batches, df.schema)
    return df.withColumn("shuffle", F.lit(shuffle))


pipeline.sink(frame, files("out"))
"""


def sent(place: Path) -> list[str]:
    """Write a pipeline that needs three files of Python code; return the arguments that give them to it."""
    (place / "pipeline").mkdir()
    (place / "pipeline" / "sent.py").write_text(SENT)
    (place / "code").mkdir()
    (place / "code" / "from_py.py").write_text("PY = 'py'\n")
    for kind in ("zip", "egg"):
        with zipfile.ZipFile(place / "code" / f"archive.{kind}", "w") as archive:
            archive.writestr(f"from_{kind}.py", f"{kind.upper()} = '{kind}-'\n")
    files = ",".join(str(place / "code" / name) for name in ("from_py.py", "archive.zip", "archive.egg"))
    return ["run", "pipeline/sent.py", "--py-files", files, "--conf", "spark.sql.shuffle.partitions=7"]


def clew(place: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "clew.app.main", *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize("master", every(2, ["local[2,4]", "local-cluster[2,1,1024]"]))
def test_python_files_and_settings_reach_the_workers_and_what_they_print_is_kept(tmp_path: Path, master: str) -> None:
    words = sent(tmp_path)
    done = clew(tmp_path, *words, "--master", master)
    assert done.returncode == 0, done.stderr
    held = rows(tmp_path / "out")
    assert sorted(row["n"] for row in held) == [0, 1, 2, 3]
    assert {(row["sent"], row["shuffle"]) for row in held} == {("zip-egg-py", "7")}
    lines = (tmp_path / ".clew" / "sent" / "workers.log").read_text().splitlines()
    said = {re.sub(r"^\S+ ", "", re.sub(r"turn \d+", "turn", line)) for line in lines}
    assert {
        "arrow, turn: arrow says [0, 1]", "arrow, turn: arrow says [2, 3]", "arrow, turn: arrow complains",
        *(f"frame, turn: udf says {n} py" for n in range(4)),
    } <= said  # fmt: skip
    assert any(line.startswith("frame, turn: mapInArrow says ") for line in said)
    assert "says" not in done.stdout + done.stderr
    if master.startswith("local["):
        _, file, *options = words
        done = clew(tmp_path, "verify", file, *options, "--master", master)
        assert done.returncode == 0, done.stdout + done.stderr


def source(p: Pipeline, events: int = 2) -> Any:
    return p.source("source", generator(lambda i: pa.table({"n": [i]}), events))


def test_on_a_session_of_ones_own_what_arrow_functions_print_is_kept_too(spark: SparkSession, tmp_path: Path) -> None:
    p = Pipeline("own")

    @p.operator(source(p), window=Count(2))
    def loud(table: pa.Table) -> pa.Table:
        print("half a line, ", end="")
        print("and the rest")
        return table

    run(p, spark=spark)
    said = (tmp_path / ".clew" / "own" / "workers.log").read_text()
    assert re.fullmatch(r"\S+ loud, turn \d: half a line, and the rest\n", said)
    (shown,) = blocks(ROOT / "docs" / "spark.md", "")
    assert re.sub(r"^\S+ \w+, turn \d", "", shown) == re.sub(r"^\S+ \w+, turn \d", "", said)


def test_jobs_name_operator_and_turn_in_sparks_status(spark: SparkSession) -> None:
    p = Pipeline("named")

    @p.operator(source(p), window=Count(2))
    def arrows(table: pa.Table) -> pa.Table:
        return table

    @p.operator(arrows, window=Batch())
    def frames(df: DataFrame) -> DataFrame:
        return df.withColumn("m", F.lit(1))

    run(p, spark=spark)
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    described = [jobs.apply(i).description() for i in range(jobs.size())]
    texts = {each.get() for each in described if each.isDefined()}
    for expected in (
        r"source, turn 1: source from .+",
        r"arrows, turn \d: source.out#.+",
        r"frames, turn \d: arrows.out#1",
    ):
        assert any(re.fullmatch(expected, text) for text in texts), texts


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (SparkOptions(conf={"spark.a": "b"}), "--conf"),
        (SparkOptions(packages=("a:b:1",), jars=("x.jar",)), "--packages, --jars"),
        (SparkOptions(master="local", py_files=("x.py",)), "--master, --py-files"),
    ],
)
def test_options_are_refused_with_a_session_of_ones_own(spark: SparkSession, options: SparkOptions, named: str) -> None:
    p = Pipeline("refused")
    source(p)
    with pytest.raises(SetupFailed) as raised:
        run(p, spark=spark, options=options)
    cure = "set them where you make that session"
    assert str(raised.value) == f"{named} cannot be used with a session that was given to Clew; {cure}"


def test_workers_of_clews_own_session_run_in_this_interpreter(spark: SparkSession) -> None:
    assert spark.sparkContext.pythonExec == sys.executable
    assert spark.sparkContext.getConf().get("spark.python.unix.domain.socket.enabled") == "true"


def python(place: Path, customize: str) -> str:
    """Write an interpreter that is this one but for what its workers believe of it."""
    (place / "sitecustomize.py").write_text(customize)
    path = place / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{place}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return str(path)


OTHER_PYTHON = """
import sys
from collections import namedtuple
V = namedtuple("V", "major minor micro releaselevel serial")
import pyspark.worker_util as util
class Sys:
    version_info = V(3, 10, 0, "final", 0)
    def __getattr__(self, name):
        return getattr(sys, name)
util.sys = Sys()
"""


@pytest.mark.parametrize(
    ("customize", "said"),
    [
        ("import pyarrow; pyarrow.__version__ = '1.2.3'", f"has pyarrow 1.2.3, and the driver has {pa.__version__}; "),
        (OTHER_PYTHON, "the workers have Python 3.10, and the driver has Python 3."),
        ("", ""),
    ],
    ids=["pyarrow", "python", "same"],
)
def test_workers_of_other_versions_are_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, customize: str, said: str
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", python(tmp_path, customize))
    if not said:
        return require_same_versions(spark)
    p = Pipeline("versions")
    source(p)
    with pytest.raises(SetupFailed) as raised:
        run(p, spark=spark)
    assert said in str(raised.value)
    return None


def test_workers_without_python_or_a_package_are_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python")
    with pytest.raises(SetupFailed, match="the workers have no Python at /nowhere/python; install on all executors"):
        require_same_versions(spark)
    lacks = "import sys; sys.modules['pyarrow'] = None"
    monkeypatch.setattr(spark.sparkContext, "pythonExec", python(tmp_path, lacks))
    with pytest.raises(SetupFailed, match=r"the workers' Python has no package pyarrow|could not be asked"):
        require_same_versions(spark)


def test_the_java_stack_goes_to_a_file_whose_path_is_told(spark: SparkSession, tmp_path: Path) -> None:
    p = Pipeline("dying")

    @p.operator(source(p), attempts=1)
    def deadly(table: pa.Table) -> pa.Table:
        os._exit(7)

    with pytest.raises(EngineFailed) as raised:
        run(p, spark=spark)
    path = Path(raised.value.stack_file)
    assert path.parent == Path(".clew/stacks")
    assert "org.apache.spark" in path.read_text()
    assert str(raised.value).startswith("operator deadly: Spark failed the job: ")
    assert str(raised.value).endswith(f"; the Java stack is in {path}; mend the cause and run again")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "ModuleNotFoundError: No module named 'clew'",
            "the workers' Python has no package clew, which the driver has",
        ),
        ("\n  something odd\nmore", "the workers could not be asked for their versions: something odd"),
    ],
)
def test_what_workers_fail_on_is_said_in_one_line(text: str, said: str) -> None:
    cure = "; install on all executors what the driver has, and say where it is with PYSPARK_PYTHON, or send it with "
    assert str(unable(text, "python3")) == said + cure + "spark.archives"
