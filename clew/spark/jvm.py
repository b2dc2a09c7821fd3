"""The start of the JVM behind a session: what it prints meanwhile is kept, to say in one line why there is none.

A JVM that starts well is silent but for warnings of its own, so what it printed until then is let go; what it prints
later goes to stderr, as if it had inherited that.
"""

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

#: PySpark says nothing of its types.
_launch: Callable[[SparkConf, dict[str, Any]], Any] = launch_gateway
_STDERR = 2
#: Seconds that the last lines of a JVM may take to arrive.
_DRAIN = 2.0
#: Lines that say nothing of the cause.
_IDLE = re.compile(
    r"^(\s*at |\s*\.\.\. \d+ more|Error: (Could not create the Java Virtual Machine|A fatal exception has occurred)|"
    r":: |WARNING: |Picked up |\S+/spark-class: |An error occurred while calling |\s*$)"
)
_EXCEPTION = re.compile(
    r'^(: |Exception in thread "[^"]*" |Caused by: )*(?P<kind>[\w.$]+(Exception|Error)): (?P<said>.+)'
)


class JvmOutput:
    """Reads what a JVM prints: keeps it while a session is started, and passes it on at all other times."""

    def __init__(self) -> None:
        out, self.into = os.pipe()
        self._kept: list[str] | None = None
        self._thread = threading.Thread(target=self._read, args=(out,), name="jvm-output", daemon=True)
        self._thread.start()

    @contextmanager
    def keeping(self, lines: list[str]) -> Iterator[None]:
        """Keep what is printed while the block lasts."""
        self._kept = lines
        try:
            yield
        except BaseException:
            # Where the JVM has ended its last lines come soon; where it has not, they have come.
            self._thread.join(_DRAIN)
            raise
        finally:
            self._kept = None

    def _read(self, out: int) -> None:
        with os.fdopen(out, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if self._kept is not None:
                    self._kept.append(line)
                else:
                    os.write(_STDERR, line.encode(errors="replace"))


_output: JvmOutput | None = None


@contextmanager
def launched(settings: dict[str, str], printed: list[str]) -> Iterator[None]:
    """Launch a JVM with these settings, unless there is one; what it prints while the block lasts is `printed`."""
    global _output
    gateway: Any = SparkContext._gateway
    if gateway is not None and _output is None:
        # Somebody else has launched it, and has its output.
        yield
        return
    output = JvmOutput() if gateway is None or _output is None else _output
    with output.keeping(printed):
        if gateway is None:
            configuration = SparkConf()
            configuration.setAll(list(settings.items()))
            try:
                gateway = _launch(configuration, {"stdout": output.into, "stderr": output.into})
            finally:
                os.close(output.into)
            SparkContext._ensure_initialized(gateway=gateway, conf=configuration)
            _output = output
        yield


def cause(text: str) -> str:
    """Return the line that says why a JVM, or a session in it, did not start: the last exception, or the first line."""
    lines = _telling(text)
    found = [match for line in lines if (match := _EXCEPTION.match(line))]
    if found:
        return found[-1]["said"].strip()
    return lines[0].lstrip(": ") if lines else "it gave no reason"


def _telling(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if not _IDLE.match(line)]


#: What is in the text of a failure, and what cures it.
_CURES = (
    ("Maven Coordinates", "give --packages as GROUP:NAME:VERSION, with commas between several"),
    ("unresolved dependency", "check the names given by --packages, and that this machine reaches their repository"),
    ("Invalid maximum heap size", "give spark.driver.memory a size such as 2g"),
    ("Could not reserve enough space", "give spark.driver.memory less than this machine has"),
    ("Unrecognized VM option", "mend spark.driver.extraJavaOptions"),
    ("Master must", "give --master as local[4], spark://HOST:7077, yarn or k8s://HOST"),
    ("parse Master URL", "give --master as local[4], spark://HOST:7077, yarn or k8s://HOST"),
    ("Invalid master URL", "give --master as local[4], spark://HOST:7077, yarn or k8s://HOST"),
    ("masters are unresponsive", "start the master, or name another one with --master"),
    ("must be specified as bytes", "mend that size: as in 512m or 2g"),
    ("UnsupportedClassVersionError", "set JAVA_HOME to Java 17 or later"),
)


def cure(text: str) -> str:
    """Return what helps against a cause that is known, or where to look."""
    if not _telling(text):
        return "check that `java -version` says 17 or later"
    known = (cured for sign, cured in _CURES if sign in text)
    return next(known, "mend what it says: the settings given by --conf, --master, --packages and --jars are Spark's")


def waited_for(master: str) -> str:
    """Say what a session that does not start is waiting for."""
    if not master.startswith("spark://"):
        return f"Spark on {master} has not answered yet, and is waited for"
    refused = [why for place in master.removeprefix("spark://").split(",") if (why := _refused(place))]
    if not refused:
        return f"Spark's master {master} has not answered yet, and is waited for"
    return f"Spark's master {master} cannot be reached ({refused[0]}); Spark tries again for a minute or two"


def _refused(place: str) -> str:
    """Return why nothing listens at HOST:PORT; "" where something does."""
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1.0).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""
