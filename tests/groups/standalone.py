"""A standalone cluster of Spark on loopback, from PySpark's own wheel: a master and two workers of one core each."""

import os
import re
import subprocess
from pathlib import Path

import pyspark

from tests.groups.runs import descendants, wait_for

_HOME = Path(pyspark.__file__).parent


class Standalone:
    """A master and its workers; executors are processes of the workers."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start("master", "org.apache.spark.deploy.master.Master", "--port", "0")
        self.url = wait_for(lambda: self._said("master", r"Starting Spark master at (spark://\S+)"), "no master")
        for number in range(workers):
            words = ("--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"work{number}"), self.url)
            self._start(f"worker{number}", "org.apache.spark.deploy.worker.Worker", *words)
            wait_for(lambda: self._said(f"worker{number}", r"Successfully (registered) with master"), "no worker")  # noqa: B023  asked at once

    def _start(self, name: str, kind: str, *words: str) -> None:
        command = [str(_HOME / "bin" / "spark-class"), kind, "--host", "127.0.0.1", "--webui-port", "0", *words]
        own = {"SPARK_HOME": str(_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
        with open(self._directory / f"{name}.log", "wb") as out:
            started = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **own}
            )
        self._processes.append(started)

    def _said(self, name: str, pattern: str) -> str | None:
        found = re.search(pattern, (self._directory / f"{name}.log").read_text(errors="replace"))
        return found[1] if found else None

    def executors(self) -> list[int]:
        """Return the processes of all executors."""
        below = [pid for process in self._processes[1:] for pid in descendants(process.pid)]
        return [pid for pid in below if _is_executor(pid)]

    def close(self) -> None:
        below = [pid for process in self._processes for pid in descendants(process.pid)]
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        for pid in below:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue


def _is_executor(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return False
    return words[0].endswith("java") and any("CoarseGrainedExecutorBackend" in word for word in words)
