"""The process that Spark forks Python workers from: it imports what every worker needs once, before it forks.

A new worker then costs a fork, not half a second of imports; so does the one that replaces a worker that died.
"""

from pyspark import daemon

import clew.runtime.task
import clew.spark.worker  # noqa: F401  imported for the workers that are forked

if __name__ == "__main__":
    daemon.manager()
