"""The process that Spark forks Python workers from: it imports what every worker needs once, before it forks.

A new worker then costs a fork, not half a second of imports; so does the one that replaces a worker that died. Workers
inherit what `prepare` does: functions that Spark itself unpickles find the pipeline's modules, and what they print is
heard.
"""

import os
from collections.abc import Callable
from socket import socket

from pyspark import daemon

import clew.runtime.execute  # noqa: F401  imported for the workers that are forked
from clew.spark.worker import prepare


def ending_quietly(worker: Callable[[socket, bool], int]) -> Callable[[socket, bool], int]:
    """Return a worker that ends without a word when Spark hears it no more.

    Spark closes the connection when the task's other stage has failed or its job was cancelled, and tells why itself.
    PySpark's own worker would print a traceback to the terminal of whoever started the run.
    """

    def work(sock: socket, authenticated: bool) -> int:
        try:
            return worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)

    return work


if __name__ == "__main__":
    prepare()
    # PySpark has no other way to say what a worker does when it ends.
    daemon.worker = ending_quietly(daemon.worker)  # type: ignore[assignment]
    daemon.manager()
