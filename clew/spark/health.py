"""What a Spark session says of itself and of its workers."""

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from clew.spark.options import SparkOptions
from clew.spark.session import open_session
from clew.spark.versions import unable


@dataclass(frozen=True)
class SparkHealth:
    """A session that was started, asked and stopped."""

    spark: str
    java: str
    master: str
    scheduler: str
    cores: int
    #: What workers run, without repetition: Python, pyarrow, pandas, and on which host.
    workers: tuple[tuple[str, str, str, str], ...]


def ask(options: SparkOptions) -> SparkHealth:
    """Start a session and ask it; raises SetupFailed when there is none to be had."""
    session = open_session(options)
    try:
        context = session.sparkContext
        cores = context.defaultParallelism
        try:
            workers = context.parallelize(range(cores), cores).mapPartitions(_worker).collect()
        except Exception as error:
            raise unable(str(error), context.pythonExec) from error
        # The JVM is there as long as the context is; its type says that it may not be.
        java = str(context._jvm.java.lang.System.getProperty("java.version"))  # type: ignore[union-attr]
        scheduler = context.getConf().get("spark.scheduler.mode", "FIFO") or "FIFO"
        return SparkHealth(session.version, java, context.master or "", scheduler, cores, tuple(sorted(set(workers))))
    finally:
        session.stop()


def _worker(_: Iterable[Any]) -> list[tuple[str, str, str, str]]:
    return [(platform.python_version(), installed("pyarrow"), installed("pandas"), platform.node())]


def installed(package: str) -> str:
    """Return the version of a package, as its own metadata have it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
