"""The process that Spark forks Python workers from: it imports what every worker needs once, before it forks.

A new worker then costs a fork, not half a second of imports; so does the one that replaces a worker that died. Workers
inherit what `prepare` does: functions that Spark itself unpickles find the pipeline's modules, and what they print is
heard.
"""

from pyspark import daemon

import clew.runtime.task  # noqa: F401  imported for the workers that are forked
from clew.spark.worker import prepare

if __name__ == "__main__":
    prepare()
    daemon.manager()
