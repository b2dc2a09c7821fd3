"""Clew's own Spark session: how it is made, seen to be dead, and made again.

Beside `jvm.py` this is the one module that touches PySpark's private fields: a driver JVM that died leaves PySpark
holding on to it, and no public call lets go.
"""

import contextlib
import gc
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.udf import UserDefinedFunction

from clew.errors import SetupFailed
from clew.spark.java import OLDEST, find_java
from clew.spark.jvm import cause, cure, launched, waited_for
from clew.spark.options import SparkOptions
from clew.spark.stacks import keep_stack

_LOG = logging.getLogger(__name__)
#: Seconds after which it is said what a session waits for.
_PATIENCE = 10.0

#: Defaults of Clew's own sessions; chosen by measurement, see docs/decisions/0004-spark-session.md.
CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "clew.spark.daemon",
    "spark.scheduler.mode": "FAIR",
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    f" -Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    # No limit; 0 would say the same, but Python data sources refuse it.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2147483647",
    # Columns of times of day are grouped and read back only with this.
    "spark.sql.timeType.enabled": "true",
    # A task that was cut off must let go of its Python worker soon.
    "spark.python.task.killTimeout": "1s",
    "spark.cleaner.periodicGC.interval": "10min",
}

_JAVA = "spark.driver.extraJavaOptions"


def open_session(options: SparkOptions) -> SparkSession:
    """Start a session of Clew's own, as the user wants it, with the user's Python files on all workers."""
    options.require_files()
    options.refuse_connect(os.environ)
    session = make_session(options.master, options.configuration)
    for path in options.py_files:
        session.sparkContext.addPyFile(os.path.abspath(path) if "://" not in path else path)
    return session


def submitted_session() -> SparkSession | None:
    """Return the session of an application that `spark-submit` has started; None where there is none."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    return SparkSession.builder.getOrCreate()


def make_session(master: str | None = None, configuration: dict[str, str] | None = None) -> SparkSession:
    """Start a session of Clew's own; raises SetupFailed when this machine cannot."""
    _require_java()
    _require_none()
    # Workers must run in this interpreter, where the user's packages are, whatever `python3` is.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    cores = max(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2)
    master = master or f"local[{cores},4]"
    settings = {**CONFIGURATION, "spark.local.dir": tempfile.gettempdir(), **(configuration or {})}
    if configuration and _JAVA in configuration:
        # The JVM takes the last of two that contradict each other.
        settings[_JAVA] = f"{CONFIGURATION[_JAVA]} {configuration[_JAVA]}"
    session = _start({**settings, "spark.app.name": "clew", "spark.master": master})
    # PySpark logs the Java stack of every query that fails, besides raising it.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    return session


def _start(settings: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    printed: list[str] = []
    try:
        with _impatient(settings["spark.master"]), launched(settings, printed):
            return builder.getOrCreate()
    except Exception as error:
        raise _no_session(settings["spark.master"], "".join(printed), error) from error


@contextlib.contextmanager
def _impatient(master: str) -> Iterator[None]:
    """Say what is waited for where a cluster does not answer; Spark itself waits for minutes without a word."""
    timer = threading.Timer(_PATIENCE, lambda: _LOG.warning(waited_for(master)))
    timer.daemon = True
    if not master.startswith("local"):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _no_session(master: str, printed: str, error: Exception) -> SetupFailed:
    """Say why no session was started, in one line; all that the JVM printed goes to a file."""
    # Where the JVM has ended, PySpark knows no more than that.
    said = printed if "JAVA_GATEWAY_EXITED" in str(error) else f"{printed}\n{error}"
    path = keep_stack(f"session-{int(time.time() * 1000)}", f"{printed}\n{error}\n")
    return SetupFailed(
        f"no Spark session could be started on {master}: {cause(said)[:400]}; what Java printed is in {path}",
        cure(said),
    )


def _require_java() -> None:
    java = find_java()
    if java.path is None:
        raise SetupFailed(f"Spark needs Java, and {java.missing}", "install Java 17 or later, or set JAVA_HOME to it")
    if java.too_old:
        raise SetupFailed(
            f"Spark needs Java {OLDEST} or later, and {java.path} is {java.version}",
            f"install Java {OLDEST} or later, or set JAVA_HOME to it",
        )


def _require_none() -> None:
    """Refuse to take over a session that somebody else runs in this process: Spark would hand it out as a new one."""
    context = SparkContext._active_spark_context
    if context is None:
        return
    if _answers(context):
        raise SetupFailed(
            "a Spark session is already running in this process, and there can be only one",
            "give it to Clew with run(spark=session), or stop it first",
        )
    forget_session()


def require_classic(session: Any) -> SparkSession:
    """Refuse a session that Clew cannot drive."""
    try:
        session.sparkContext  # noqa: B018  a Connect session raises here
    except Exception as error:
        raise SetupFailed(
            "the session given to Clew is a Spark Connect session, which has no RDDs",
            "give it a classic SparkSession, or none: Clew then makes its own",
        ) from error
    return session  # type: ignore[no-any-return]


def is_alive(session: SparkSession) -> bool:
    """Say whether the driver JVM still answers."""
    return _answers(session.sparkContext)


def _answers(context: SparkContext) -> bool:
    process = getattr(context._gateway, "proc", None)
    if process is not None and process.poll() is not None:
        return False
    try:
        return not context._jsc.sc().isStopped()
    except Exception:
        return False


def cancel(session: SparkSession, group: str) -> None:
    """Cancel the jobs of a group, also those that it has yet to submit: a query is more than one job."""
    with contextlib.suppress(Exception):
        # Where the JVM is gone there is nothing left to cancel.
        session.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group)


def settled(session: SparkSession, seconds: float) -> bool:
    """Wait until Spark's own bookkeeping has seen what has happened so far; say whether it came to that."""
    try:
        session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(int(seconds * 1000))
    except Exception:
        return False
    return True


def forget_session() -> None:
    """Make PySpark let go of a JVM that is dead, so that a new session can be started."""
    gateway = SparkContext._gateway
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()
    context = SparkContext._active_spark_context
    if context is not None:
        server = getattr(context, "_accumulatorServer", None)
        if server is not None:
            with contextlib.suppress(Exception):
                server.shutdown()
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    # The user's functions keep a reference into the JVM that they were first used in.
    for thing in gc.get_objects():
        if issubclass(type(thing), UserDefinedFunction):
            thing._judf_placeholder = None


def end_jvm(seconds: float) -> bool:
    """End the JVM of a session that was stopped, and wait for it; say whether it ended well."""
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return False
    forget_session()
    with contextlib.suppress(Exception):
        # It ends when nobody holds the other end of its input.
        process.stdin.close()
        return bool(process.wait(seconds) == 0)
    return False


def is_local(session: SparkSession) -> bool:
    """Say whether tasks run inside the driver's own process, on the driver's own disk."""
    master = session.sparkContext.master or ""
    return master == "local" or master.startswith("local[")
