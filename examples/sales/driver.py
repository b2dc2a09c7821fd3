"""Runs the sales pipeline, as `clew run` does, and reports what happens as lines of JSON.

With `compare` it also asks plain Spark SQL for the totals of the same files, in the same session.
"""

import json
import sys
import threading
import time
from contextlib import contextmanager
from typing import Any

import totals

from clew.pipeline.load import load
from clew.run import Progress, program_of, run
from clew.spark.session import make_session

LOOK = 0.05


def say(kind: str, **facts: Any) -> None:
    print(json.dumps({"kind": kind, **facts}, default=str), flush=True)


def main(log: str, compare: bool) -> None:
    spark = make_session()
    say("session")
    progress = Progress()
    with watched(progress):
        run(load("pipeline.py"), log=log, spark=spark, program=program_of("pipeline.py", None), progress=progress)
    say("finished")
    if compare:
        say("expected", **totals.of_plain_spark(spark))
    spark.stop()


@contextmanager
def watched(progress: Progress):
    """Report the figures of all operators whenever a turn was committed or a group failed."""
    stop = threading.Event()
    last = ""

    def look() -> None:
        nonlocal last
        rows = {name: row._asdict() for name, row in progress.rows().items()}
        seen = json.dumps([(row["turns"], row["writes"], row["restarts"], row["phase"]) for row in rows.values()])
        if rows and seen != last:
            last = seen
            say("figures", at=time.time(), operators=rows)

    def keep_looking() -> None:
        while not stop.wait(LOOK):
            look()

    thread = threading.Thread(target=keep_looking, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        look()


if __name__ == "__main__":
    main(sys.argv[1], "compare" in sys.argv[2:])
