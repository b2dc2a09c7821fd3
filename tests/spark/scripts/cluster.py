"""`cluster.py PLACE`: on executors that are processes of their own, run the sales pipeline, then lose an executor."""

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from clew import Pipeline, files, generator
from clew.run import run
from clew.spark import frames
from clew.spark.session import make_session

sys.path.insert(0, str(Path(__file__).parent))
import sales


def claim(flag: Path) -> bool:
    """Say yes to the first who asks, in whatever process."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def executors() -> list[int]:
    """The executors' processes, those of this session only."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes()
        except OSError:
            continue
        if b"CoarseGrainedExecutorBackend" in text and os.environ["CLEW_TEST_MARK"].encode() in text:
            found.append(int(path.parent.name))
    return found


def kill_another_executor() -> None:
    """Kill an executor that this code does not run in; a worker's parent is its daemon, and that one's the executor."""
    daemon = os.getppid()
    own = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    others = [pid for pid in executors() if pid != own]
    os.kill(others[0], signal.SIGKILL)


def losing(place: Path) -> Pipeline:
    p = Pipeline("losing")
    source = p.source("source", generator(lambda i: pa.table({"n": list(range(40))}), 1))

    def draw(n: int) -> float:
        return random.random()

    def lose(n: int) -> int:
        if claim(place / "lost"):
            kill_another_executor()
        return n

    @p.operator(source)
    def drawn(df: DataFrame) -> DataFrame:
        """Two shuffles: the stage before the first has outputs on the executor that the second stage kills."""
        with (place / "calls").open("a") as out:
            out.write("called\n")
        spread = df.repartition(4).withColumn("drawn", F.udf(draw, "double")("n")).repartition(4, "n")
        return spread.withColumn("n", F.udf(lose, "long")("n")).groupBy("n").agg(F.max("drawn").alias("drawn"))

    p.sink(drawn, files(place / "drawn"))
    return p


def main(place: Path) -> None:
    os.chdir(place)
    session = make_session(
        "local-cluster[2,1,1024]", {"spark.executor.extraJavaOptions": f"-Dclew.test={os.environ['CLEW_TEST_MARK']}"}
    )
    run(sales.pipeline(place / "sales"), spark=session)

    repeated: list[bool] = []
    look = frames._repeated

    def watched(spark: Any, before: Any) -> bool:
        repeated.append(look(spark, before))
        return repeated[-1]

    frames._repeated = watched
    run(losing(place), spark=session)
    print(json.dumps({"repeated": repeated, "calls": len((place / "calls").read_text().split())}))
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
